"""Searching a map: matches with positions and files, areas, the index beside it, and a file that changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.engines.contract_suite import unit_vectors
from tests.place_map.small_town import HERE, geotag_of, tiny_model
from tests.place_map.test_map_file import DIM, TINY, make_map, photo

from sareloc.engines import approximate
from sareloc.errors import ArgumentError, MapError
from sareloc.geo import distance_m
from sareloc.place_map import Box, Circle, PlaceMap, open_map_file
from sareloc.place_map.file_photos import index_path


@pytest.fixture
def town(tmp_path: Path) -> PlaceMap:
    return PlaceMap(make_map(tmp_path / "town.gpkg", 40))


@pytest.fixture
def indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps of some thousand photos get an index, as those of a city do."""
    monkeypatch.setattr(approximate, "EXACT_NUMBERS", 500 * DIM)


def test_matches_say_where_and_which_file(town: PlaceMap) -> None:
    matches = town.search(unit_vectors(40)[[3, 17]], k=2)
    assert matches.ids.shape == matches.distances.shape == (2, 2)
    assert [files[0] for files in matches.files] == ["0003.jpg", "0017.jpg"]
    np.testing.assert_array_equal(matches.latlon[:, 0], [geotag_of(3).latlon, geotag_of(17).latlon])
    np.testing.assert_allclose(matches.distances[:, 0], 0, atol=1e-3)
    assert town.photo_path(matches.files[0][0]) == town.path.parent / "0003.jpg"


def test_what_a_map_holds(town: PlaceMap) -> None:
    assert len(town) == 40
    assert town.files[39] == "0039.jpg"
    assert town.latlon.tolist() == [list(geotag_of(number).latlon) for number in range(40)]
    np.testing.assert_allclose(town.positions.latlon(), town.latlon, atol=1e-9)
    np.testing.assert_allclose(town.descriptors(town.ids[[5, 2]]), unit_vectors(40)[[5, 2]], atol=1e-3)
    assert town.engine_info().kind == "exact"


def test_near_keeps_to_the_area(town: PlaceMap) -> None:
    circle = Circle(geotag_of(20).latlon, 50)
    matches = town.search(unit_vectors(40)[:1], k=100, near=circle)
    assert sorted(matches.files[0]) == [f"{number:04d}.jpg" for number in range(16, 25)]
    assert (distance_m(matches.latlon[0], circle.latlon) <= 50).all()
    box = Box(geotag_of(2).latlon[0], 2, geotag_of(4).latlon[0], 3)
    assert sorted(town.search(unit_vectors(1), 9, near=box).files[0]) == ["0002.jpg", "0003.jpg", "0004.jpg"]
    assert town.search(unit_vectors(1), 9, near=Circle((0, 0), 10)).files == ((),)


def test_k_beyond_the_map_gives_all_of_it(town: PlaceMap) -> None:
    matches = town.search(unit_vectors(2), k=1000)
    assert matches.latlon.shape == (2, 40, 2)
    assert all(sorted(files) == list(town.files) for files in matches.files)


def test_one_photo_and_none_at_all(tmp_path: Path) -> None:
    one = PlaceMap(make_map(tmp_path / "one.gpkg", 1))
    assert one.search(unit_vectors(1), 5).files == (("0000.jpg",),)
    none = PlaceMap(make_map(tmp_path / "none.gpkg"))
    assert len(none) == 0
    matches = none.search(unit_vectors(2), 5)
    assert matches.files == ((), ())
    assert matches.latlon.shape == (2, 0, 2)
    assert none.search(unit_vectors(2), 5, near=Circle(HERE, 5)).files == ((), ())


def test_a_model_that_did_not_build_the_map_is_refused(tmp_path: Path) -> None:
    model, other = tiny_model(), tiny_model(seed=2)
    made = replace(TINY, model=model.name, fingerprint=model.fingerprint(), dim=model.dim)
    town = PlaceMap(make_map(tmp_path / "paris.gpkg", 1, made))
    town.check_model(model)
    said = (
        rf"map paris\.gpkg was built by model {model.fingerprint()} \(tiny\), this is model {other.fingerprint()} "
        r'\(tiny\): rebuild it with "sareloc map build"'
    )
    with pytest.raises(MapError, match=said):
        town.check_model(other)


def test_descriptors_of_another_length_are_refused(town: PlaceMap) -> None:
    with pytest.raises(ArgumentError, match="rows of 32 numbers"):
        town.search(unit_vectors(1, dim=64), 1)


def test_the_file_is_let_go_and_refresh_takes_in_what_came(town: PlaceMap) -> None:
    with open_map_file(town.path, write=True) as file:
        file.add([photo(99)], unit_vectors(1, seed=9))
        file.remove(town.ids[:2])
        file.write_note("calibration", "{}")
    assert len(town) == 40
    assert town.search(unit_vectors(40)[:1], 1).files == (("0000.jpg",),)
    town.refresh()
    assert len(town) == 39
    assert town.notes == {"calibration": "{}"}
    assert town.search(unit_vectors(1, seed=9), 1).files == (("0099.jpg",),)
    assert "0000.jpg" not in town.search(unit_vectors(40)[:1], 39).files[0]


def test_refresh_of_another_map_is_refused(town: PlaceMap) -> None:
    town.path.unlink()
    make_map(town.path, 3)
    with pytest.raises(MapError, match="has become another map"):
        town.refresh()


def index_files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in index_path(path).iterdir()}


@pytest.mark.usefixtures("indexed")
def test_the_index_is_kept_beside_the_map_and_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_map(tmp_path / "city.gpkg", 3000)
    first = PlaceMap(path)
    assert first.engine_info().kind == "approximate"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["city.gpkg", "city.gpkg.index"]
    monkeypatch.setattr(approximate, "make_index", None)  # none may be made from here on
    again = PlaceMap(path)
    queries = unit_vectors(30, seed=3)
    np.testing.assert_array_equal(again.search(queries, 10).ids, first.search(queries, 10).ids)
    exact = PlaceMap(path, exact=True)
    assert exact.engine_info().kind == "exact"
    truth, found = exact.search(queries, 10).ids, first.search(queries, 10).ids
    assert np.mean([np.isin(a, b).mean() for a, b in zip(truth, found, strict=True)]) >= 0.98


@pytest.mark.usefixtures("indexed")
def test_a_map_that_changed_is_searched_as_it_is_now(tmp_path: Path) -> None:
    path = make_map(tmp_path / "city.gpkg", 3000)
    PlaceMap(path)
    before = index_files(path)
    with open_map_file(path, write=True) as file:
        file.add([photo(9001), photo(9002)], unit_vectors(2, seed=9))
        file.remove(np.array([1]))
    city = PlaceMap(path)
    assert len(city) == city.engine_info().vectors == 3001
    assert city.search(unit_vectors(2, seed=9), 1).files == (("9001.jpg",), ("9002.jpg",))
    assert city.search(unit_vectors(3000)[:1], 1).files != (("0000.jpg",),)
    assert index_files(path) == before  # too little to make it anew
    with open_map_file(path, write=True) as file:
        file.remove(np.arange(2, 1000))
    assert len(PlaceMap(path).search(unit_vectors(1), 5000).files[0]) == 2003
    assert index_files(path).keys().isdisjoint(before)


@pytest.mark.usefixtures("indexed")
def test_an_index_of_another_map_or_damaged_is_made_anew(tmp_path: Path) -> None:
    city, village = make_map(tmp_path / "city.gpkg", 2000), make_map(tmp_path / "village.gpkg", 700)
    PlaceMap(city), PlaceMap(village)
    (of_city,), (of_village,) = index_path(city).iterdir(), index_path(village).iterdir()
    of_village.replace(of_city)
    assert PlaceMap(city).search(unit_vectors(2000)[1500:1501], 1).files == (("1500.jpg",),)
    (of_city,) = index_path(city).iterdir()
    of_city.write_bytes(of_city.read_bytes()[:5000])
    assert PlaceMap(city).search(unit_vectors(2000)[1500:1501], 1).files == (("1500.jpg",),)


@pytest.mark.usefixtures("indexed")
def test_where_the_index_cannot_be_kept_the_map_is_searched_all_the_same(tmp_path: Path) -> None:
    path = make_map(tmp_path / "city.gpkg", 2000)
    index_path(path).write_text("in the way")
    assert PlaceMap(path).search(unit_vectors(2000)[1500:1501], 1).files == (("1500.jpg",),)
    assert index_path(path).read_text() == "in the way"


@pytest.mark.usefixtures("indexed")
def test_an_area_is_kept_to_under_an_index_too(tmp_path: Path) -> None:
    city = PlaceMap(make_map(tmp_path / "city.gpkg", 3000))
    matches = city.search(unit_vectors(3, seed=4), k=8, near=Circle(geotag_of(1000).latlon, 40))
    assert all(sorted(files) == [f"{number:04d}.jpg" for number in range(997, 1004)] for files in matches.files)
    assert city.manifest.dim == DIM
