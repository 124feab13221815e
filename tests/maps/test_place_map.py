"""Searching a map: matches with positions and files, areas, the cached index, and a file that changes."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.index.contract_suite import unit_vectors
from tests.maps.small_town import HERE, geotag_of, gis, tiny_model
from tests.maps.test_map_file import DIM, TINY, make_map, photo

from sareloc.errors import ArgumentError, MapError
from sareloc.geo import distance_m
from sareloc.index import sharded as approximate
from sareloc.maps import Box, Circle, PlaceMap, open_map_file
from sareloc.maps import file as map_file


@pytest.fixture
def town(tmp_path: Path) -> PlaceMap:
    return PlaceMap(make_map(tmp_path / "town.gpkg", 40))


@pytest.fixture
def indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps of some thousand photos get an index, as those of a city do."""
    monkeypatch.setattr(approximate, "EXACT_NUMBERS", 250 * DIM)


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
    assert town.index_info().kind == "exact"


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
    with pytest.raises(MapError, match="was replaced"):
        town.refresh()


def index_folder(path: Path) -> Path:
    with open_map_file(path) as file:
        return file.index_cache().folder


def index_files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in index_folder(path).glob("*.part")}


def add(path: Path, numbers: range, seed: int) -> None:
    with open_map_file(path, write=True) as file:
        file.add([photo(number) for number in numbers], unit_vectors(len(numbers), seed=seed))


def found_by_own_descriptor(city: PlaceMap, numbers: range, seed: int) -> int:
    matches = city.search(unit_vectors(len(numbers), seed=seed), 1)
    return sum(files == (f"{number:04d}.jpg",) for number, files in zip(numbers, matches.files, strict=True))


@pytest.mark.usefixtures("indexed")
def test_the_index_is_kept_in_the_cache_and_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_map(tmp_path / "city.gpkg", 1500)
    first = PlaceMap(path)
    assert first.index_info().kind == "approximate"
    assert [file.name for file in tmp_path.iterdir()] == ["city.gpkg"]
    monkeypatch.setattr(approximate, "make_index", None)  # none may be made from here on
    again = PlaceMap(path)
    queries = unit_vectors(30, seed=3)
    np.testing.assert_array_equal(again.search(queries, 10).ids, first.search(queries, 10).ids)
    exact = PlaceMap(path, exact=True)
    assert exact.index_info().kind == "exact"
    truth, found = exact.search(queries, 10).ids, first.search(queries, 10).ids
    assert np.mean([np.isin(a, b).mean() for a, b in zip(truth, found, strict=True)]) >= 0.98
    told = json.loads((index_folder(path) / "manifest.json").read_text())
    with open_map_file(path) as file:
        assert (told["map"], told["change_id"]) == (file.manifest.map_id, file.change_id())


@pytest.mark.usefixtures("indexed")
def test_a_map_that_changed_is_searched_as_it_is_now(tmp_path: Path) -> None:
    path = make_map(tmp_path / "city.gpkg", 1500)
    PlaceMap(path)
    before = index_files(path)
    with open_map_file(path, write=True) as file:
        file.add([photo(9001), photo(9002)], unit_vectors(2, seed=9))
        file.remove(np.array([1]))
    city = PlaceMap(path)
    assert len(city) == city.index_info().vectors == 1501
    assert city.search(unit_vectors(2, seed=9), 1).files == (("9001.jpg",), ("9002.jpg",))
    assert city.search(unit_vectors(1500)[:1], 1).files != (("0000.jpg",),)
    assert index_files(path) == before  # too little to make it anew
    with open_map_file(path, write=True) as file:
        file.remove(np.arange(2, 500))
    assert len(PlaceMap(path).search(unit_vectors(1), 5000).files[0]) == 1003
    assert index_files(path).keys().isdisjoint(before)


@pytest.mark.usefixtures("indexed")
@pytest.mark.parametrize("gap", [1, 2**32], ids=["the same ids", "other ids"])
def test_after_a_backup_is_restored_every_photo_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gap: int
) -> None:
    monkeypatch.setattr(map_file, "ID_GAP", gap)
    path = make_map(tmp_path / "city.gpkg", 1000)
    backup = Path(shutil.copy(path, tmp_path / "backup.gpkg"))
    add(path, range(5000, 5200), seed=1)
    lost = PlaceMap(path)
    shutil.copy(backup, path)
    add(path, range(6000, 6200), seed=2)
    city = PlaceMap(path)
    assert bool(np.intersect1d(lost.ids[1000:], city.ids[1000:]).size) == (gap == 1)
    for opened in (city, PlaceMap(path)):
        assert opened.index_info().vectors == 1200
        assert found_by_own_descriptor(opened, range(6000, 6200), seed=2) == 200
        assert found_by_own_descriptor(opened, range(5000, 5200), seed=1) == 0
    lost.refresh()  # as a service does that was open meanwhile
    assert found_by_own_descriptor(lost, range(6000, 6200), seed=2) == 200
    assert found_by_own_descriptor(lost, range(5000, 5200), seed=1) == 0


@pytest.mark.usefixtures("indexed")
def test_nothing_beside_the_map_is_read_written_or_deleted(tmp_path: Path) -> None:
    path = make_map(tmp_path / "city.gpkg", 1000)
    private = tmp_path / "private"
    private.mkdir()
    (private / "keys.pem").write_text("secret")
    (private / f"{'a' * 32}.part").write_bytes(b"what faiss would fail at")
    (tmp_path / "city.gpkg.index").symlink_to(private)
    assert PlaceMap(path).search(unit_vectors(1000)[700:701], 1).files == (("0700.jpg",),)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["city.gpkg", "city.gpkg.index", "private"]
    assert sorted(file.name for file in private.iterdir()) == [f"{'a' * 32}.part", "keys.pem"]


@pytest.mark.usefixtures("indexed")
def test_an_index_of_another_map_or_damaged_is_made_anew(tmp_path: Path) -> None:
    city, village = make_map(tmp_path / "city.gpkg", 2000), make_map(tmp_path / "village.gpkg", 700)
    PlaceMap(city), PlaceMap(village)
    for folder in (index_folder(city), index_folder(village)):
        folder.rename(folder.with_suffix(".moved"))
    index_folder(village).with_suffix(".moved").rename(index_folder(city))
    assert PlaceMap(city).search(unit_vectors(2000)[1500:1501], 1).files == (("1500.jpg",),)
    files = index_files(city)
    part = index_folder(city) / max(files, key=lambda name: len(files[name]))
    part.write_bytes(part.read_bytes()[:5000])
    assert PlaceMap(city).search(unit_vectors(2000)[1500:1501], 1).files == (("1500.jpg",),)


@pytest.mark.usefixtures("indexed")
def test_where_the_index_cannot_be_kept_the_map_is_searched_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_map(tmp_path / "city.gpkg", 2000)
    in_the_way = tmp_path / "a file"
    in_the_way.write_text("in the way")
    for odd in (in_the_way, in_the_way / "deeper", Path("/proc/nowhere")):
        monkeypatch.setenv("SARELOC_CACHE", str(odd))
        assert PlaceMap(path).search(unit_vectors(2000)[1500:1501], 1).files == (("1500.jpg",),)
    assert in_the_way.read_text() == "in the way"


@pytest.mark.usefixtures("indexed")
def test_a_map_that_claims_to_be_another_cannot_spoil_its_index(tmp_path: Path) -> None:
    """A copy with the same map id, ids and checksums, but other descriptors."""
    path = make_map(tmp_path / "city.gpkg", 1000)
    twin = Path(shutil.copy(path, tmp_path / "twin.gpkg"))
    with closing(gis(twin)) as connection:
        connection.execute("UPDATE descriptors SET descriptor = (SELECT descriptor FROM descriptors WHERE fid = 1)")
        connection.commit()
    with pytest.raises(MapError, match="checksum"):
        PlaceMap(twin)
    PlaceMap(path)
    assert PlaceMap(path).search(unit_vectors(1000)[700:701], 1).files == (("0700.jpg",),)


def test_a_refresh_that_meets_damage_leaves_what_was_there(tmp_path: Path) -> None:
    town = PlaceMap(make_map(tmp_path / "town.gpkg", 40))
    add(town.path, range(50, 60), seed=5)
    with closing(gis(town.path)) as connection:
        connection.execute("UPDATE descriptors SET descriptor = zeroblob(64) WHERE fid = (SELECT max(fid) FROM photos)")
        connection.commit()
    with pytest.raises(MapError, match=r"photo \d+ \(0059.jpg\) does not match its checksum"):
        town.refresh()
    assert len(town) == town.index_info().vectors == 40
    assert town.search(unit_vectors(40)[7:8], 1).files == (("0007.jpg",),)
    with open_map_file(town.path, write=True) as file:
        file.remove(file.photos()[0][-1:])
    town.refresh()
    assert len(town) == town.index_info().vectors == 49


@pytest.mark.usefixtures("indexed")
def test_an_area_is_kept_to_under_an_index_too(tmp_path: Path) -> None:
    city = PlaceMap(make_map(tmp_path / "city.gpkg", 1500))
    matches = city.search(unit_vectors(3, seed=4), k=8, near=Circle(geotag_of(1000).latlon, 40))
    assert all(sorted(files) == [f"{number:04d}.jpg" for number in range(997, 1004)] for files in matches.files)
    assert city.manifest.dim == DIM
