"""The models that come with the package: in the wheel, small, whole, described, and able to find a place."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sareloc.cli import app
from sareloc.errors import WeightsError
from sareloc.geo import distance_m
from sareloc.models import PACKAGED, find_packaged, load_model, open_checkpoint, read_checkpoint_manifest
from sareloc.photos import exif_bytes, read_geotag

ROOT = Path(__file__).resolve().parents[2]
AT_MOST_BYTES = {"default": 32_000_000, "fast": 10_000_000}
EVERY = pytest.mark.parametrize("name", PACKAGED)
CARD = {"about", "start", "towns", "recipe", "commit", "knobs", "limits", "licences", "numbers"}


def run(*words: str | Path) -> object:
    return app([*map(str, words)], result_action="return_value")


@EVERY
def test_its_file_is_small_and_whole(name: str) -> None:
    assert PACKAGED[name].stat().st_size <= AT_MOST_BYTES[name]
    model = load_model(name)
    assert model.fingerprint() == read_checkpoint_manifest(PACKAGED[name]).fingerprint
    assert model.name == name
    assert find_packaged(model.fingerprint()) == name
    described = model.encode([np.full((120, 160, 3), 90, np.uint8)])
    assert described.shape == (1, model.dim)
    assert torch.linalg.vector_norm(described).item() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "backbone", "clusters"), [("default", "vgg16", 64), ("fast", "efficientnet-lite0", 32)]
)
def test_it_is_what_the_docs_say(name: str, backbone: str, clusters: int) -> None:
    manifest = read_checkpoint_manifest(PACKAGED[name])
    spec = manifest.spec
    assert (spec.backbone, spec.aggregation, spec.whitening) == (backbone, "netvlad", 512)
    assert (spec.options["clusters"], spec.preprocess.resize, manifest.storage) == (clusters, (288, 384), "int8")


@EVERY
def test_its_card_says_what_it_was_made_from(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("model", "info", name, "--json")
    card = json.loads(capsys.readouterr().out)["training"]
    assert card.keys() >= CARD
    assert card["towns"]
    assert set(card["licences"]) == {
        "this file",
        "what it starts from",
        *(f"photos of {town}" for town in card["towns"]),
    }
    assert len(card["commit"]) >= 7
    assert int(card["commit"], 16)
    for town in ("cambridge-test", "gardens-day", "gardens-light", "gardens-both", "landmarks-test", "city-test"):
        assert {"1", "5", "10"} <= card["numbers"][town]["128"].keys(), town
    assert "/" not in json.dumps(card["knobs"]), "paths of the machine that it was trained on"


def test_fast_was_trained_on_drawn_and_freely_licensed_photos_alone(capsys: pytest.CaptureFixture[str]) -> None:
    run("model", "info", "fast", "--json")
    card = json.loads(capsys.readouterr().out)["training"]
    assert set(card["towns"]) == set(card["photos"]) == {"landmarks", "city"}
    assert {name.rpartition("-")[0].rstrip("0123456789") for name in card["knobs"]["towns"].split()} == set(
        card["towns"]
    )
    assert "Wikimedia Commons" in card["licences"]["photos of landmarks"]
    assert not {"cambridge", "tmbud", "google"} & set(card["recipe"].lower().split())


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a drawn town: query.jpg, near.jpg (the same view at another time), and three of other streets."""
    folder = tmp_path_factory.mktemp("town")
    from sareloc.city import city_places, draw_pixels, geotags

    city = city_places(0, "small", "test")
    tags, database = geotags(city), len(city.places.database)
    latlon, headings = np.array([tag.latlon for tag in tags]), np.array([tag.heading_deg for tag in tags])
    apart_m = np.stack([distance_m(latlon[:database], latlon[row][None]) for row in range(database, len(tags))])
    turned = np.abs((headings[database:, None] - headings[:database] + 180) % 360 - 180)
    query, near = np.unravel_index(np.argmin(apart_m + turned), apart_m.shape)
    others = np.argsort(apart_m[query])[-60::20]
    rows = {"query": database + query, "near": near} | {f"other{i}": row for i, row in enumerate(others)}
    drawn = draw_pixels(city, 288, 384, rows=list(rows.values())).permute(0, 2, 3, 1).numpy()
    for (name, row), image in zip(rows.items(), drawn, strict=True):
        Image.fromarray(image).save(folder / f"{name}.jpg", quality=90, exif=exif_bytes(tags[row]))
    return folder


@pytest.mark.city
def test_the_first_commands_on_a_fresh_machine(town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    city, photos = tmp_path / "city.gpkg", sorted(town.glob("other*.jpg"))
    assert run("map", "build", *photos, "--out", city, "--workers", "0") == 0
    # from here on the map knows its model
    assert run("map", "add", city, town / "near.jpg", "--workers", "0") == 0
    capsys.readouterr()
    assert run("localize", city, town / "query.jpg", "--json", "--min-confidence", "0", "--workers", "0") == 0
    fix = json.loads(capsys.readouterr().out)
    assert Path(fix["matches"][0]["photo"]).name == "near.jpg"
    truth = read_geotag(town / "query.jpg")
    assert truth is not None
    assert distance_m([fix["latlon"]], [truth.latlon])[0] < 25


def test_torch_hub_gives_both() -> None:
    for entry, name in (("sareloc", "default"), ("sareloc_fast", "fast")):
        assert (
            torch.hub.load(str(ROOT), entry, source="local").fingerprint()
            == read_checkpoint_manifest(PACKAGED[name]).fingerprint
        )


def test_damage_to_a_packaged_file_is_noticed(tmp_path: Path) -> None:
    whole = PACKAGED["fast"].read_bytes()
    (tmp_path / "fast.safetensors").write_bytes(whole[:-100] + bytes(100))
    with pytest.raises(WeightsError, match="damaged"):
        open_checkpoint(tmp_path / "fast.safetensors")
