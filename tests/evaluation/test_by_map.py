"""A dataset judged through a map finds what an exact search finds, whatever keeps the map."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.localize.street import PLACES, position, street_model, view, write_view

from sareloc.cli import app
from sareloc.datasets import load_dataset
from sareloc.errors import ArgumentError, DatasetError, MapError
from sareloc.evaluation import rank, rank_by_map
from sareloc.maps import MapConfig, PlaceMap, build_map, copy_map
from sareloc.models import PACKAGED, PlaceModel, save_checkpoint


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    return street_model()


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory, model: PlaceModel) -> Path:
    """A folder: database/ and queries/ of the street, town.gpkg of the database."""
    folder = tmp_path_factory.mktemp("by_map")
    for place in range(0, PLACES, 2):
        for shift in range(2):
            photo = folder / "database" / f"p{place:02d}-{shift}.jpg"
            write_view(photo, view(place, shift), position(place, 2.0 * shift))
        write_view(folder / "queries" / f"q{place:02d}.jpg", view(place, 7), position(place, 3.0))
    build_map(
        folder / "database",
        folder / "town.gpkg",
        model,
        config=MapConfig(storage="float32", keypoints=0, progress=False),
    )
    return folder


@pytest.mark.parametrize("where", ["file", "milvus"])
def test_the_same_photos_are_found(model: PlaceModel, town: Path, tmp_path: Path, where: str) -> None:
    city = str(town / "town.gpkg")
    if where == "milvus":
        pytest.importorskip("milvus_lite")
        copy_map(city, city := f"milvus-lite:{tmp_path}/lite.db/town", progress=False)
    places = load_dataset(town)
    exact, by_map = rank(model, places, progress=False), rank_by_map(model, places, PlaceMap(city), progress=False)
    assert np.mean(exact.rankings[:, 0] == by_map.rankings[:, 0]) >= 0.95
    np.testing.assert_allclose(by_map.distances, exact.distances[:, : by_map.distances.shape[1]], atol=2e-3)
    assert by_map.report().recall[1] == pytest.approx(exact.report().recall[1], abs=5)
    assert by_map.report().recall[1] > 50


def test_a_map_with_its_own_whitening_finds_the_same_photos(model: PlaceModel, town: Path, tmp_path: Path) -> None:
    out, places = tmp_path / "town.gpkg", load_dataset(town)
    build_map(town / "database", out, model, config=MapConfig(dim=16, keypoints=0, progress=False))
    exact = rank(model, places, progress=False)
    by_map = rank_by_map(model, places, PlaceMap(out), progress=False)
    assert by_map.dim == 16 < exact.dim
    assert by_map.report().recall[1] == pytest.approx(exact.report().recall[1], abs=10)
    assert by_map.report().recall[1] > 50


def test_a_map_of_other_photos_is_refused(model: PlaceModel, town: Path, tmp_path: Path) -> None:
    write_view(tmp_path / "photos" / "elsewhere.jpg", view(1, 1), position(1, 0.0))
    build_map(tmp_path / "photos", tmp_path / "other.gpkg", model, config=MapConfig(keypoints=0, progress=False))
    places = load_dataset(town)
    with pytest.raises(DatasetError, match=r"elsewhere\.jpg"):
        rank_by_map(model, places, PlaceMap(tmp_path / "other.gpkg"), progress=False)


def test_another_models_map_is_refused(town: Path) -> None:
    with pytest.raises(MapError, match="was built by model"):
        rank_by_map(street_model(seed=5), load_dataset(town), PlaceMap(town / "town.gpkg"), progress=False)


def test_the_command_takes_a_map(
    model: PlaceModel,
    town: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save_checkpoint(model, tmp_path / "model.safetensors")
    words = ["evaluate", str(town), "--model", str(tmp_path / "model.safetensors"), "--map", str(town / "town.gpkg")]
    app([*words, "--json", "--workers", "0"], result_action="return_value")
    told = json.loads(capsys.readouterr().out)
    ranked = rank_by_map(model, load_dataset(town), PlaceMap(town / "town.gpkg"), progress=False)
    assert told["recall"]["1"] == ranked.report().recall[1]
    monkeypatch.setitem(PACKAGED, "fast", tmp_path / "model.safetensors")
    by_map = ["evaluate", str(town), "--map", str(town / "town.gpkg"), "--json", "--workers", "0"]
    app(by_map, result_action="return_value")
    assert json.loads(capsys.readouterr().out) == told
    with pytest.raises(ArgumentError, match="leave dim and store out"):
        app([*words, "--dim", "8"], result_action="return_value")
