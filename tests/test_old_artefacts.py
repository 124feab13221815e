"""Files that older versions wrote still open, to the same content: see tests/artefacts/make.py."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.geometry.scenes import texture

from sareloc import Localizer, PlaceMap, load_model
from sareloc.cli import main
from sareloc.geometry import search_vector
from sareloc.localize import Search

ARTEFACTS = Path(__file__).resolve().parent / "artefacts"
RECORDED: dict[str, Any] = json.loads((ARTEFACTS / "recorded.json").read_text())
QUERIES = sorted((ARTEFACTS / "queries").glob("*.png"))
NAMES = [f"format{number}.gpkg" for number in range(1, 6)]
QUICK = ("--workers", "0", "--device", "cpu")
ROUNDING = 0.02
"""What was recorded was computed in bfloat16; a processor that does not multiply it computes in float32."""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the old files."""
    folder = tmp_path_factory.mktemp("artefacts")
    for part in ("photos", "queries"):
        shutil.copytree(ARTEFACTS / part, folder / part)
    for packed in ARTEFACTS.rglob("*.gz"):
        path = folder / packed.relative_to(ARTEFACTS).with_suffix("")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.decompress(packed.read_bytes()))
    return folder


@pytest.fixture
def old(unpacked: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the old files, to be read; it is the current one."""
    monkeypatch.chdir(unpacked)
    return unpacked


@pytest.fixture
def own(unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it that a test may change."""
    folder = Path(shutil.copytree(unpacked, tmp_path / "own"))
    monkeypatch.chdir(folder)
    return folder


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--json"])
    assert ended.value.code in (0, None)
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("name", ["model.safetensors", "model", "int8.safetensors"])
def test_a_checkpoint_gives_the_same_descriptors(name: str, old: Path) -> None:
    """A single file, a folder with weights of half precision, and a single file of bytes."""
    model = load_model(old / name)
    assert (model.name, model.dim) == ("old", 8)
    found = model.encode([np.asarray(Image.open(query)) for query in QUERIES[:3]])
    np.testing.assert_allclose(np.asarray(found), RECORDED[name], atol=ROUNDING)


@pytest.mark.parametrize("name", ["model.safetensors", "model"])
def test_a_checkpoint_has_the_same_fingerprint(name: str, old: Path) -> None:
    """By which a map knows its model: computed from the spec and the weights, not read from the file."""
    assert load_model(old / name).fingerprint() == RECORDED["fingerprint"]


def test_the_record_of_a_training_is_kept_as_it_was_written(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = run_json(capsys, "model", "info", "model")
    assert told["training"] == {"loss": "none", "knobs": {"epochs": 0}}
    assert (told["fingerprint"], told["storage"]) == (RECORDED["fingerprint"], "float16")
    assert told["spec"]["knobs"]["clusters"] == 4


@pytest.mark.parametrize("name", NAMES)
def test_a_map_finds_the_same_photos(name: str, old: Path) -> None:
    recorded = RECORDED[name]
    place_map = PlaceMap(old / name)
    assert len(place_map) == recorded["photos"]
    model = load_model(old / "model.safetensors")
    localizer = Localizer(model, place_map, Search(verify=0), min_confidence=0.0)
    for query, before in zip(QUERIES, recorded["fixes"], strict=True):
        fix, (match,) = localizer.localize(query, top=1), before["matches"]
        (found,) = fix.matches
        assert (found.id, found.photo) == (match["id"], match["photo"])
        assert found.latlon == pytest.approx(match["latlon"], abs=1e-9)
        assert found.distance == pytest.approx(match["distance"], abs=ROUNDING)
        if name == "format2.gpkg":  # it holds a calibration
            assert fix.latlon == pytest.approx(before["latlon"], abs=1e-5)
            assert fix.radius_m == pytest.approx(before["radius_m"], rel=0.1)
            assert fix.confidence == pytest.approx(before["confidence"], abs=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_a_map_is_found_by_its_own_descriptors(name: str, old: Path) -> None:
    place_map = PlaceMap(old / name)
    ids = np.arange(1, len(place_map) + 1)
    found = place_map.search(place_map.descriptors(ids), k=2)
    np.testing.assert_array_equal(found.ids[:, 0], ids)
    np.testing.assert_allclose(found.distances[:, 0], 0, atol=1e-3)


@pytest.mark.parametrize(("name", "calibrations"), [(name, int(name == "format2.gpkg")) for name in NAMES])
def test_map_info_is_the_same(name: str, calibrations: int, old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = run_json(capsys, "map", "info", name)
    assert told["manifest"] == {"aggregate": "", "aggregate_dim": 0} | RECORDED[name]["manifest"]
    assert told["manifest"]["fingerprint"] == RECORDED["fingerprint"]
    assert len(told["calibrations"]) == calibrations
    assert (told["first"][:19], told["last"][:19]) == ("2026-05-31T12:00:00", "2026-05-31T12:00:11")


@pytest.mark.parametrize("name", NAMES)
def test_a_map_can_be_added_to(name: str, own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which brings an older format to the present one."""
    before = PlaceMap(own / name)
    wanted = before.search(before.descriptors([1]), k=12)
    report = run_json(capsys, "map", "add", name, "queries", "--model", "model.safetensors", *QUICK)
    assert (report["added"], report["already"]) == (12, 0)
    with pytest.raises(SystemExit) as ended:
        main(["map", "verify", name])
    assert ended.value.code in (0, None)
    after = PlaceMap(own / name)
    assert len(after) == 24
    found = after.search(before.descriptors([1]), k=24)
    earlier = found.ids[0] <= 12
    np.testing.assert_array_equal(found.ids[0][earlier], wanted.ids[0])
    np.testing.assert_allclose(found.distances[0][earlier], wanted.distances[0], atol=1e-4)


@pytest.mark.parametrize("name", ["format1.gpkg", "format2.gpkg"])
def test_a_map_gets_local_features_by_an_upgrade(name: str, own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the photos were copied since: their times differ, their content does not."""
    before = PlaceMap(own / name)
    assert before.local_features(before.ids) == {}
    report = run_json(capsys, "map", "upgrade", name, "--keypoints", "64", *QUICK)
    assert (report["added"], report["already"], report["unreadable"]) == (12, 0, [])
    told = run_json(capsys, "map", "info", name)
    assert (told["manifest"]["format"], told["local_features"]["photos"]) == (6, 12)
    after = PlaceMap(own / name)
    assert sorted(after.local_features(after.ids)) == list(range(1, 13))
    vectors, features = after.descriptors(after.ids), after.local_features(after.ids)
    for vector, descriptor, photo_id in zip(vectors, before.descriptors(before.ids), after.ids.tolist(), strict=True):
        np.testing.assert_allclose(vector, search_vector(descriptor, features[photo_id], 8), atol=1e-3)
    assert len(report["notes"]) == len([name for name in before.notes if name.startswith("calibration ")])
    with pytest.raises(SystemExit) as ended:
        main(["map", "verify", name])
    assert ended.value.code in (0, None)


@pytest.mark.parametrize("name", ["format3.gpkg", "format4.gpkg"])
def test_a_map_gets_aggregated_local_features_by_an_upgrade(
    name: str, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the features that it holds: the photos are not those that it was made of."""
    before = PlaceMap(own / name)
    report = run_json(capsys, "map", "upgrade", name, *QUICK)
    assert (report["added"], report["already"], report["aggregated"]) == (0, 12, 12)
    after = PlaceMap(own / name)
    assert (after.manifest.dim, after.manifest.aggregate_dim, after.manifest.format) == (8, 8, 6)
    vectors, features = after.descriptors(after.ids), after.local_features(after.ids)
    for vector, descriptor, photo_id in zip(vectors, before.descriptors(before.ids), after.ids.tolist(), strict=True):
        np.testing.assert_allclose(vector, search_vector(descriptor, features[photo_id], 8), atol=1e-3)
    found = after.search(vectors, k=2)
    np.testing.assert_array_equal(found.ids[:, 0], after.ids)
    with pytest.raises(SystemExit) as ended:
        main(["map", "verify", name])
    assert ended.value.code in (0, None)


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("format3.gpkg", "local features"),
        ("format4.gpkg", "local features of format 4"),
        ("format5.gpkg", "local features of format 5"),
    ],
)
def test_a_map_holds_the_same_local_features(name: str, record: str, old: Path) -> None:
    place_map, recorded = PlaceMap(old / name), RECORDED[record]
    found = place_map.local_features(place_map.ids)
    assert sorted(found) == list(range(1, 13))
    assert (list(found[1].size), len(found[1])) == (recorded["size"], recorded["keypoints"])
    np.testing.assert_array_equal(found[1].xy[:5], np.array(recorded["xy"], dtype=np.float32))


def test_a_position_that_was_edited_stays(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By another program, before the map had the positions of files; the photos have other times since."""
    for place, photo in enumerate(sorted((own / "photos").glob("*.png"))):
        Image.fromarray(texture(120, 160, seed=place)).save(photo)
    before = PlaceMap(own / "format5.gpkg").latlon.tolist()
    assert before[2] == pytest.approx((48.86, 2.31))
    for added in range(2):
        sync = ("map", "sync", "format5.gpkg", "photos", "--model", "model.safetensors", *QUICK)
        report = run_json(capsys, *sync)
        assert (report["added"], report["already"], report["kept_edits"]) == (0, 12, ["photos/02.png"]), added
        assert PlaceMap(own / "format5.gpkg").latlon.tolist() == before
    report = run_json(capsys, *sync, "--restore")
    assert (report["updated"], report["restored"]) == (1, ["photos/02.png"])
    assert PlaceMap(own / "format5.gpkg").latlon[2] == pytest.approx((48.85 + 160 / 111_320, 2.29), abs=1e-6)


def test_a_descriptor_store_is_resumed(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The photos can no longer be read, but have the same size and time: all descriptors come from the store."""
    for number, photo in enumerate(sorted(own.glob("*/*.png"))):
        photo.write_bytes(bytes(photo.stat().st_size))
        os.utime(photo, (1_780_000_000 + number,) * 2)
    told = run_json(capsys, "evaluate", "meta.csv", "--store", "store", "--model", "model.safetensors", *QUICK)
    assert told["recall"] == RECORDED["store"]["recall"]
    assert told["failures"] == {"database": [], "queries": []}
