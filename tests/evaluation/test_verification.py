"""Rankings of a dataset verified by local features."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.geometry.scenes import texture

from sareloc.cli import main
from sareloc.datasets import PhotoSet, Places
from sareloc.evaluation import verify_rankings
from sareloc.geo import Positions
from sareloc.models import make_model, save_checkpoint

PLACES = 5


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """Five walls 100 m apart; each query shows one of them, 16 px aside."""
    folder = tmp_path_factory.mktemp("walls")
    files = tuple(f"{place}.png" for place in range(PLACES))
    for place, file in enumerate(files):
        wall = texture(128, 224, seed=place)
        for role, left in (("database", 0), ("queries", 16)):
            (folder / role).mkdir(exist_ok=True)
            Image.fromarray(wall[:, left : left + 192]).save(folder / role / file)
    positions = Positions.from_local(np.stack([100.0 * np.arange(PLACES), np.zeros(PLACES)], axis=1))
    return Places("walls", "all", *(PhotoSet(folder / role, files, positions) for role in ("database", "queries")))


def backwards() -> tuple[np.ndarray, np.ndarray]:
    """Rankings in which the right photo is the last, all distances nearly equal."""
    rankings = np.array([[*(other for other in range(PLACES) if other != place), place] for place in range(PLACES)])
    return rankings, np.tile(1.0 + 0.001 * np.arange(PLACES), (PLACES, 1))


def test_the_photo_of_the_same_wall_becomes_the_first(places: Places) -> None:
    rankings, distances = backwards()
    found, moved = verify_rankings(places, rankings, distances, PLACES, progress=False)
    assert found[:, 0].tolist() == list(range(PLACES))
    assert moved[:, 0] == pytest.approx(distances[:, -1])
    np.testing.assert_array_equal(np.sort(found, axis=1), np.sort(rankings, axis=1))


def test_only_the_first_results_change(places: Places) -> None:
    rankings, distances = backwards()
    found, _ = verify_rankings(places, rankings, distances, PLACES - 1, progress=False)
    np.testing.assert_array_equal(found[:, -1], rankings[:, -1])


def test_results_that_are_missing_stay_last(places: Places) -> None:
    rankings, distances = backwards()
    rankings[:, 0], distances[:, 0] = rankings[:, -1], 1.0
    rankings[:, -1], distances[:, -1] = -1, np.inf
    found, _ = verify_rankings(places, rankings, distances, PLACES, progress=False)
    assert (found[:, -1] == -1).all()
    assert found[:, 0].tolist() == list(range(PLACES))


def test_a_query_that_cannot_be_read_keeps_its_order(places: Places, tmp_path: Path) -> None:
    rankings, distances = backwards()
    for file in places.queries.files[1:]:
        (tmp_path / file).write_bytes(places.queries.path(int(file[0])).read_bytes())
    broken = Places("walls", "all", places.database, PhotoSet(tmp_path, places.queries.files, places.queries.positions))
    found, _ = verify_rankings(broken, rankings, distances, PLACES, progress=False)
    assert found[0].tolist() == rankings[0].tolist()
    assert found[1:, 0].tolist() == list(range(1, PLACES))


def test_the_command_line_verifies(places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_checkpoint(make_model("alexnet", "avg", size=(64, 96)), tmp_path / "model.safetensors")
    table = places.database.folder.parent / "meta.csv"
    roles = {"database": "database", "queries": "query"}
    rows = [f"{folder}/{i}.png,{100 * i},0,{role}" for folder, role in roles.items() for i in range(PLACES)]
    table.write_text("\n".join(["file,x_east_m,y_north_m,role", *rows, ""]))
    words = ["evaluate", str(table), "--model", str(tmp_path / "model.safetensors"), "--workers", "0"]
    with pytest.raises(SystemExit):
        main([*words, "--device", "cpu", "--verify", "5", "--json"])
    assert json.loads(capsys.readouterr().out)["recall"]["1"] == 100.0
