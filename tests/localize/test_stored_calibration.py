"""A map's own calibration is fitted when photos are written, and opening the map does not search it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.localize.street import position, street_model, view, write_view

from sareloc.localize import Calibration, Localizer, Search
from sareloc.localize.calibration import calibrate_by_map
from sareloc.maps import (
    MapConfig,
    PlaceMap,
    add_local_features,
    add_photos,
    build_map,
    copy_map,
    open_map_file,
    open_store,
    remove_photos,
    sync_map,
)
from sareloc.maps.notes import OWN_CALIBRATION, own_calibration

QUICK = MapConfig(keypoints=0, progress=False)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a map of 40 photos of 20 places, and the photos."""
    folder = tmp_path_factory.mktemp("town")
    for number in range(40):
        at = position(number // 2, 2.0 * (number % 2))
        write_view(folder / "photos" / f"{number:02d}.jpg", view(number // 2, number % 2), at)
    build_map(folder / "photos", folder / "town.gpkg", street_model(), config=QUICK)
    return folder


@pytest.fixture
def town(built: Path, tmp_path: Path) -> Path:
    """The map in a copy that a test may change."""
    shutil.copytree(built, tmp_path, dirs_exist_ok=True)
    return tmp_path / "town.gpkg"


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of queries of each search."""
    found: list[int] = []
    search = PlaceMap.search

    def counted(self: PlaceMap, descriptors: object, *rest: object, **options: object) -> object:
        found.append(len(np.asarray(descriptors)))
        return search(self, descriptors, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(PlaceMap, "search", counted)
    return found  # type: ignore[return-value]


def fitted_at(path: Path) -> int | None:
    """The number of photos in the note."""
    with open_store(path) as store:
        note = store.notes().get(OWN_CALIBRATION)
    return None if note is None else int(json.loads(note)["map_photos"])


def erase(path: Path) -> None:
    with open_map_file(path, write=True) as file, file._transaction() as sql:
        sql.execute("DELETE FROM manifest WHERE key = ?", (f"note {OWN_CALIBRATION}",))


def opened(path: Path) -> Calibration:
    return Localizer(street_model(), PlaceMap(path)).calibration


def test_opening_a_map_does_not_search_it_and_gives_what_fitting_gives(town: Path, searches: list[int]) -> None:
    found = opened(town)
    assert searches == []
    assert (found.origin, found.photos) == ("map", 40)
    assert found == calibrate_by_map(PlaceMap(town), 20)
    assert searches == [40, 40]
    other = Localizer(street_model(), PlaceMap(town), Search(candidates=5)).calibration
    assert other == calibrate_by_map(PlaceMap(town), 5) != found


def test_a_map_of_an_earlier_version_is_fitted_when_it_is_opened_and_stored_by_the_next_write(
    town: Path, searches: list[int]
) -> None:
    found = opened(town)
    erase(town)
    assert opened(town) == found
    assert searches == [40, 40]
    assert fitted_at(town) is None  # opening does not write
    assert build_map(town.parent / "photos", town, street_model(), config=QUICK).already == 40
    assert fitted_at(town) == 40
    erase(town)
    add_local_features(town, keypoints=8, device="cpu", progress=False)
    assert fitted_at(town) == 40


def more(town: Path, numbers: range) -> Path:
    folder = town.parent / "more"
    for number in numbers:
        write_view(folder / f"{number}.jpg", view(number, 7), position(number))
    return folder


WRITES: dict[str, Callable[[Path], object]] = {
    "build": lambda town: build_map(more(town, range(25, 28)), town, street_model(), config=QUICK),
    "add": lambda town: add_photos(more(town, range(25, 26)), town, street_model(), config=QUICK),
    "sync": lambda town: (
        (town.parent / "photos" / "03.jpg").unlink(),
        sync_map(town.parent / "photos", town, street_model(), config=QUICK),
    ),
    "remove": lambda town: remove_photos(town, files=["1*.jpg"]),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_every_write_leaves_the_calibration_of_the_present_photos(write: Callable[[Path], object], town: Path) -> None:
    write(town)
    with PlaceMap(town) as now:
        assert fitted_at(town) == len(now) != 40
        assert opened(town) == calibrate_by_map(now, 20)


def test_a_calibration_is_used_up_to_a_tenth_of_changed_photos(town: Path, searches: list[int]) -> None:
    before = opened(town)
    assert len(remove_photos(town, files=[f"{number:02d}.jpg" for number in (0, 5, 9, 30)])) == 4
    assert fitted_at(town) == 40
    assert opened(town) == before
    assert searches == []
    with open_map_file(town, write=True) as file:  # another program, which does not fit it
        file.remove(file.photos()[0][:1])
    assert opened(town) == calibrate_by_map(PlaceMap(town), 20) != before
    assert fitted_at(town) == 40
    assert len(remove_photos(town, files=["nothing.jpg"])) == 0
    assert fitted_at(town) == 35


def test_a_write_that_changes_nothing_searches_and_writes_nothing(town: Path, searches: list[int]) -> None:
    before = town.read_bytes()
    build_map(town.parent / "photos", town, street_model(), config=QUICK)
    sync_map(town.parent / "photos", town, street_model(), config=QUICK)
    assert searches == []
    assert PlaceMap(town).notes.keys() == {OWN_CALIBRATION}
    assert len(town.read_bytes()) == len(before)


def test_a_calibration_by_photos_has_precedence_and_stays(town: Path) -> None:
    known = Calibration(weights=(1.0, 2.0, 3.0, 4.0), photos=12, origin="photos")
    with open_store(town, write=True) as store:
        store.write_note(Search().note, known.to_json())
    assert opened(town) == known
    add_photos(more(town, range(25, 35)), town, street_model(), config=QUICK)
    assert opened(town) == known
    assert fitted_at(town) == 50


def test_a_copy_has_its_calibration(town: Path, searches: list[int]) -> None:
    copy_map(town, town.parent / "copy.gpkg", progress=False)
    searches.clear()
    assert opened(town.parent / "copy.gpkg") == opened(town)
    assert searches == []


@pytest.mark.parametrize(
    "note",
    [
        "",
        "[",
        "[]",
        "7",
        "{}",
        '{"map_photos": 40}',
        '{"map_photos": "40", "calibration": "{}"}',
        '{"map_photos": true, "calibration": "{}"}',
        '{"map_photos": -40, "calibration": "{}"}',
        f'{{"map_photos": 1{"0" * 400}, "calibration": "{{}}"}}',
        '{"map_photos": 40, "calibration": 7}',
        '{"map_photos": 40, "calibration": "{}"}',
        '{"map_photos": 40, "calibration": "nothing"}',
        f"{'[' * 100_000}",
    ],
    ids=lambda note: note[:30],
)
def test_a_note_that_is_malformed_is_fitted_again(note: str, town: Path) -> None:
    found = opened(town)
    with open_store(town, write=True) as store:
        store.write_note(OWN_CALIBRATION, note)
    assert opened(town) == found


def test_how_many_photos_may_have_changed() -> None:
    notes = {OWN_CALIBRATION: json.dumps({"map_photos": 100, "calibration": "text"})}
    used = [photos for photos in range(0, 300) if own_calibration(notes, photos) == "text"]
    assert used == list(range(90, 111))
    assert own_calibration({}, 100) is None


def test_an_empty_map_has_none(town: Path) -> None:
    assert len(remove_photos(town, files=["*"])) == 40
    assert fitted_at(town) == 40
    shutil.rmtree(town.parent / "photos")
    add_photos(more(town, range(3)), town, street_model(), config=QUICK)
    assert fitted_at(town) == 3
