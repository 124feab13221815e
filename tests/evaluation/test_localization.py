"""The localization report of a dataset: a map of its database, the fixes of its queries and of out-of-map photos."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.geometry.scenes import texture
from tests.localize.street import position, street_model, view, write_view

import sareloc.maps.writer
from sareloc.cli import app
from sareloc.datasets import PhotoSet, Places, load_dataset
from sareloc.errors import ArgumentError, DatasetError, PhotoError
from sareloc.evaluation import FixReport, evaluate_fixes, judge_fixes
from sareloc.geo import Positions
from sareloc.localize import Calibration, Localizer, Search
from sareloc.maps import MapConfig, PlaceMap, build_map, map_info, open_store
from sareloc.models import PlaceModel, save_checkpoint
from sareloc.photos import Geotag, exif_bytes

PLACES = 8
WALLS = 5


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    return street_model()


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory, model: PlaceModel) -> Path:
    """A folder: town/database, town/queries, and strangers/ without geotags; the model."""
    folder = tmp_path_factory.mktemp("fixes")
    for place in range(PLACES):
        for shift in range(2):
            photo = folder / "town" / "database" / f"p{place}-{shift}.jpg"
            write_view(photo, view(place, shift), position(place, 2.0 * shift))
        write_view(folder / "town" / "queries" / f"q{place}.jpg", view(place, 7), position(place, 3.0))
        write_view(folder / "strangers" / "deep" / f"s{place}.jpg", view(place, 7, town=1), None)
    save_checkpoint(model, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def walls(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """Five walls 100 m apart in local metres; each query shows one, 16 px aside, from 20 m north of it.

    The heading of three is known to the dataset, of one by its EXIF, of one not at all.
    """
    folder = tmp_path_factory.mktemp("walls")
    files = tuple(f"{place}.jpg" for place in range(WALLS))
    for place, file in enumerate(files):
        wall = texture(128, 224, seed=place)
        for role, left in (("database", 0), ("queries", 16)):
            (folder / role).mkdir(exist_ok=True)
            tag = {"exif": exif_bytes(Geotag((1.0, 1.0), 90.0))} if place == 3 else {}
            Image.fromarray(wall[:, left : left + 192]).save(folder / role / file, quality=95, **tag)
    metres = np.stack([500_000 + 100.0 * np.arange(WALLS), np.full(WALLS, 4_477_000.0)], axis=1)
    headings = np.array([90.0, 90.0, 90.0, np.nan, np.nan])
    sets = [
        PhotoSet(folder / role, files, Positions.from_local(metres + np.array([0, north_m])), headings_deg=headings)
        for role, north_m in (("database", 0.0), ("queries", 20.0))
    ]
    return Places("walls", "all", *sets)


def run(*words: object) -> None:
    app(["evaluate", *map(str, words), "--workers", "0", "--device", "cpu"], result_action="return_value")


def strangers_of(town: Path) -> list[Path]:
    return sorted((town / "strangers" / "deep").iterdir())


def evaluated(model: PlaceModel, places: Places, **options: object) -> FixReport:
    return evaluate_fixes(model, places, progress=False, **options)  # type: ignore[arg-type]


def never(*_: object, **__: object) -> None:
    raise AssertionError("photos were described")


def paths(photos: PhotoSet) -> Sequence[Path]:
    return [photos.path(row) for row in range(len(photos))]


def test_the_report_is_that_of_fixes_in_a_map_of_the_database(model: PlaceModel, town: Path, tmp_path: Path) -> None:
    places, strangers = load_dataset(town / "town"), strangers_of(town)
    build_map(town / "town" / "database", tmp_path / "town.gpkg", model, config=MapConfig(keypoints=0, progress=False))
    localizer = Localizer(model, PlaceMap(tmp_path / "town.gpkg"), Search(verify=0), min_confidence=0)
    fixes, others = localizer.localize_many(paths(places.queries)), localizer.localize_many(strangers)
    truth = [position(place, 3.0) for place in range(PLACES)]
    confidences = [one.confidence for one in (*fixes, *others) if not isinstance(one, PhotoError)]
    least = float(np.median(confidences))  # some are answered, some are not
    expected = judge_fixes(fixes, truth, out_of_map=others, min_confidence=least).to_json()
    report = evaluated(model, places, out_of_map=strangers, min_confidence=least, verify=0)
    about = {"dataset": "town", "split": "all", "model": "street", "fingerprint": model.fingerprint()}
    about |= {"database": 2 * PLACES, "verify": 0}
    failures = {"database": [], "queries": [], "strangers": []}
    told = report.to_json()
    assert told.pop("failures") == failures
    assert told.pop("ladder") == {"descriptor": 100.0}
    nested = {"failures", "ladder", "correct_interval", "correct_and_answered_interval"}
    for interval in nested - {"failures", "ladder"}:
        assert told.pop(interval) == expected[interval]
    assert told == pytest.approx({key: value for key, value in (expected | about).items() if key not in nested})
    assert (report.queries, report.strangers) == (PLACES, PLACES)
    assert report.correct == 100


def test_a_map_that_is_given_is_searched(model: PlaceModel, town: Path, tmp_path: Path) -> None:
    """One that shows two places only: the others cannot be correct."""
    shown = [town / "town" / "database" / f"p{place}-0.jpg" for place in (2, 5)]
    build_map(shown, tmp_path / "two.gpkg", model, config=MapConfig(keypoints=0, progress=False))
    report = evaluated(model, load_dataset(town / "town"), place_map=PlaceMap(tmp_path / "two.gpkg"))
    assert (report.database, report.correct, report.verify) == (2, 100 * 2 / PLACES, 0)


def test_local_metres_need_no_anchor_and_matches_are_verified_by_default(model: PlaceModel, walls: Places) -> None:
    report = evaluated(model, walls, min_confidence=0)
    assert (report.verify, report.correct, report.answered) == (10, 100, 100)
    assert list(report.ladder) == ["descriptor", "search vector", "pre-filter", "verified"]
    assert report.ladder["verified"] == 100
    assert report.median_error_m == pytest.approx(20, abs=0.1)
    assert report.headings == 4
    assert report.median_heading_error_deg is not None
    assert report.median_heading_error_deg < 15


def test_the_store_keeps_the_map_for_the_next_run(
    model: PlaceModel, town: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, store = load_dataset(town / "town"), tmp_path / "new" / "store"
    first = evaluated(model, places, verify=0, store=store)
    (kept,) = store.glob("*.gpkg")
    assert map_info(kept).local_features is None
    half = replace(places, database=places.database.take(range(PLACES)))
    assert evaluated(model, half, verify=0, store=store).database == PLACES  # a map of its own, not the one kept

    monkeypatch.setattr(sareloc.maps.writer.MapWriter, "encode", never)
    assert evaluated(model, places, verify=0, store=store) == first


def test_fixes_of_any_confidence_have_a_heading(model: PlaceModel, walls: Places, tmp_path: Path) -> None:
    """By a calibration that trusts nothing, stored in the map."""
    evaluated(model, walls, store=tmp_path)
    (kept,) = tmp_path.glob("*.gpkg")
    with open_store(kept, write=True) as map_store:
        weights = (-50.0, *Calibration().verified_weights[1:])
        map_store.write_note(Search(100, 10).note, Calibration(verified_weights=weights).to_json())
    assert evaluated(model, walls, store=tmp_path).answered == 0
    report = evaluated(model, walls, store=tmp_path, min_confidence=0)
    assert (report.answered, report.headings) == (100, 4)


def test_a_wrong_threshold_is_reported_before_photos_are_described(
    model: PlaceModel, town: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sareloc.maps.writer.MapWriter, "encode", never)
    with pytest.raises(ArgumentError, match="found 2"):
        evaluated(model, load_dataset(town / "town"), min_confidence=2)


def test_photos_that_cannot_be_used_are_listed(model: PlaceModel, town: Path, tmp_path: Path) -> None:
    places = load_dataset(town / "town")
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no photo")
    files = (*places.database.files[:-2], "gone.jpg", str(broken))
    queries = (str(broken), *places.queries.files[1:])
    damaged = replace(
        places, database=replace(places.database, files=files), queries=replace(places.queries, files=queries)
    )
    report = evaluated(model, damaged, out_of_map=[broken, *strangers_of(town)], verify=0)
    assert [Path(photo).name for photo, _ in report.failures["database"]] == ["gone.jpg", "broken.jpg"]
    assert [Path(photo).name for photo, _ in report.failures["queries"]] == ["broken.jpg"]
    assert report.failures["strangers"][0][0] == str(broken)
    assert (report.queries, report.strangers) == (PLACES, PLACES)
    assert report.correct == 100 * (PLACES - 2) / PLACES  # the first is broken, the place of the last is not mapped


def test_a_database_that_cannot_be_decoded_is_an_error(model: PlaceModel, town: Path, tmp_path: Path) -> None:
    places = load_dataset(town / "town")
    (tmp_path / "broken.jpg").write_bytes(b"no photo")
    photos = replace(places.database.take([0]), folder=tmp_path, files=("broken.jpg",))
    with pytest.raises(DatasetError, match=r"broken\.jpg"):
        evaluated(model, replace(places, database=photos), verify=0)


@pytest.mark.parametrize("role", ["database", "queries"])
def test_photos_without_positions_are_an_error(model: PlaceModel, town: Path, role: str) -> None:
    places = load_dataset(town / "town")
    without = replace(places, protocol="place-id", **{role: replace(getattr(places, role), positions=None)})
    with pytest.raises(DatasetError, match=rf"no positions of its {role} \(protocol place-id\).*lat and lon"):
        evaluated(model, without)


def test_frames_that_cannot_be_compared_are_an_error(
    model: PlaceModel, town: Path, walls: Places, tmp_path: Path
) -> None:
    build_map(town / "town" / "database", tmp_path / "town.gpkg", model, config=MapConfig(keypoints=0, progress=False))
    with pytest.raises(DatasetError, match="local metres"):
        evaluated(model, walls, place_map=PlaceMap(tmp_path / "town.gpkg"))
    places = load_dataset(town / "town")
    local = Positions.from_local(np.zeros((PLACES, 2)))
    with pytest.raises(DatasetError, match="different frames"):
        evaluated(model, replace(places, queries=replace(places.queries, positions=local)))


def test_the_command_prints_the_report(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [town / "town", "--model", town / "model.safetensors", "--fixes", "--verify", "0", "--min-confidence", "0"]
    run(*words, "--out-of-map", town / "strangers", "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["queries"], told["strangers"], told["verify"]) == (PLACES, PLACES, 0)
    assert (told["correct"], told["answered"], told["strangers_rejected"]) == (100, 100, 0)
    run(*words, "--strangers", town / "strangers")
    lines = {line[:22].strip(): line[22:] for line in capsys.readouterr().out.splitlines()}
    assert f"{2 * PLACES} photos in the map, {PLACES} queries, {PLACES} out-of-map photos" in lines["dataset"]
    assert lines["correct"].split()[:2] == ["100.00", "%"]
    assert lines["out-of-map rejected"].split()[:2] == ["0.00", "%"]
    assert "heading error" not in lines
    run(*words)
    alone = capsys.readouterr().out
    assert "out-of-map" not in alone
    assert "strangers" not in alone


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out-of-map", "."], "--fixes"),
        (["--fixes", "--protocol", "radius"], "--protocol"),
        (["--fixes", "--map", "town.gpkg", "--dim", "8"], "leave dim and store out"),
    ],
)
def test_options_that_contradict_each_other_are_reported(
    words: list[str], said: str, model: PlaceModel, town: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    build_map(
        town / "town" / "database" / "p0-0.jpg", "town.gpkg", model, config=MapConfig(keypoints=0, progress=False)
    )
    with pytest.raises(ArgumentError, match=said):
        run(town / "town", "--model", town / "model.safetensors", *words)


def test_a_folder_of_out_of_map_photos_without_photos_is_an_error(town: Path, tmp_path: Path) -> None:
    with pytest.raises(PhotoError, match="holds no photos"):
        run(town / "town", "--model", town / "model.safetensors", "--fixes", "--out-of-map", tmp_path)
