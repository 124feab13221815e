"""A map on Milvus (milvus-lite), held against the same map in a file: built, changed, searched, localized in."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.index.contract_suite import unit_vectors
from tests.localize.street import position, street_model, write_queries, write_street
from tests.maps.small_town import geotag_of, tiny_model, write_photo, write_town
from tests.maps.test_map_file import TINY, make_map, photo

from sareloc.errors import ArgumentError, MapError
from sareloc.geo import distance_m, ecef_from_wgs84
from sareloc.localize import Calibration, Condition, Localizer, Search, calibrate
from sareloc.localize.condition import search_centred
from sareloc.maps import (
    Area,
    Box,
    Circle,
    MapConfig,
    PlaceMap,
    add_photos,
    build_map,
    compact_map,
    copy_map,
    map_info,
    open_store,
    remove_photos,
    verify_map,
)

pytest.importorskip("milvus_lite")


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The beginning of addresses."""
    return f"milvus-lite:{tmp_path_factory.mktemp('milvus')}/lite.db"


COUNT = 300


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory, lite: str) -> tuple[PlaceMap, PlaceMap]:
    """The same photos, 11 m apart, in a file and on Milvus."""
    path = make_map(tmp_path_factory.mktemp("twins") / "town.gpkg", COUNT)
    copy_map(path, f"{lite}/twin", progress=False)
    return PlaceMap(path), PlaceMap(f"{lite}/twin")


MIDDLE = geotag_of(150).latlon
AREAS = {
    "everywhere": None,
    "box": Box(geotag_of(100).latlon[0], 2, geotag_of(140).latlon[0], 3),
    "circle": Circle(MIDDLE, 500),
    "small circle": Circle(MIDDLE, 30),
    "point": Circle(MIDDLE, 0),
    "elsewhere": Circle((0, 0), 100),
}


@pytest.mark.parametrize("near", AREAS.values(), ids=AREAS)
@pytest.mark.parametrize("k", [1, 7, 1000])
def test_searches_agree(twins: tuple[PlaceMap, PlaceMap], near: Area | None, k: int) -> None:
    queries = np.concatenate([unit_vectors(20, seed=4), unit_vectors(COUNT)[[3, 150]]])
    file, milvus = (one.search(queries, k, near) for one in twins)
    assert file.distances.shape == milvus.distances.shape
    np.testing.assert_allclose(milvus.distances, file.distances, atol=2e-3)
    if k == 1 and near is None:  # the rest of a long list may be in another order where distances are all but equal
        assert [line[0] for line in milvus.files] == [str(twins[0].photo_path(line[0])) for line in file.files]
    by_name = {
        str(twins[0].photo_path(name)): tuple(place)
        for name, place in zip(twins[0].files, twins[0].latlon, strict=True)
    }
    assert milvus.latlon.shape == (22, milvus.ids.shape[1], 2)
    for names, places in zip(milvus.files, milvus.latlon.tolist(), strict=True):
        assert [by_name[name] for name in names] == [tuple(place) for place in places]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("near", AREAS.values(), ids=AREAS)
def test_searches_with_a_condition_agree(twins: tuple[PlaceMap, PlaceMap], near: Area | None) -> None:
    queries = unit_vectors(20, seed=4)
    condition = Condition(queries.mean(axis=0), 40, 40, "")
    np.testing.assert_allclose(twins[1].mean_vector(), twins[0].mean_vector(), atol=1e-3)
    file, milvus = (search_centred(one, queries, 7, near, condition) for one in twins)
    assert file.distances.shape == milvus.distances.shape
    np.testing.assert_allclose(milvus.distances, file.distances, atol=2e-3)


def test_the_mean_of_a_map_on_milvus_follows_its_photos(lite: str) -> None:
    vectors, store = unit_vectors(40), open_empty(f"{lite}/mean")
    store.add([photo(n) for n in range(30)], vectors[:30])
    place_map = PlaceMap(f"{lite}/mean")
    np.testing.assert_allclose(place_map.mean_vector(), vectors[:30].mean(axis=0), atol=1e-3)
    store.add([photo(n) for n in range(30, 40)], vectors[30:])
    place_map.refresh()
    np.testing.assert_allclose(place_map.mean_vector(), vectors.mean(axis=0), atol=1e-3)


def test_a_circle_whose_box_is_crowded_at_the_corners(lite: str) -> None:
    """Most hits of the box lie outside the circle: it is searched by what lies inside."""
    centre, edge = (0.0, 0.0), 0.0086
    corners = [(a * edge, b * edge) for a in (-1, 1) for b in (-1, 1)]
    places = [corners[n % 4] for n in range(40)] + [centre, (0.001, 0.0), (0.0, 0.001)]
    photos = [replace(photo(n), geotag=replace(geotag_of(0), latlon=place)) for n, place in enumerate(places)]
    vectors = unit_vectors(len(places))
    vectors[:40] = vectors[0]
    store = open_empty(f"{lite}/corners")
    store.add(photos, vectors)
    found = PlaceMap(f"{lite}/corners").search(vectors[:1], 3, Circle(centre, 1000))
    assert set(found.files[0]) == {"0040.jpg", "0041.jpg", "0042.jpg"}


def open_empty(address: str):  # type: ignore[no-untyped-def]
    from sareloc.maps import open_or_create_store

    return open_or_create_store(address, TINY)


def test_what_a_map_says_of_its_photos_agrees(twins: tuple[PlaceMap, PlaceMap]) -> None:
    file, milvus = twins
    assert len(milvus) == len(file) == COUNT
    assert milvus.manifest.fingerprint == file.manifest.fingerprint
    assert milvus.index_info().vectors == COUNT
    assert milvus.index_info().kind == "Milvus FLAT"
    points = ecef_from_wgs84([geotag_of(n).latlon for n in (0, 150, 299)])
    for radius_m in (0.0, 50.0, 1000.0):
        np.testing.assert_array_equal(milvus.count_around(points, radius_m), file.count_around(points, radius_m))
    ids, latlon = milvus.sample(40, np.random.default_rng(0))
    assert len(set(ids.tolist())) == 40
    assert len(np.unique(latlon, axis=0)) == 40
    assert np.ptp(latlon[:, 0]) > 200e-4  # from all over the map
    np.testing.assert_allclose(np.linalg.norm(milvus.descriptors(ids), axis=1), 1, atol=1e-3)
    assert len(milvus.sample(1000, np.random.default_rng(0))[0]) == COUNT
    for wanted in ("ids", "latlon", "files", "positions"):
        with pytest.raises(MapError, match="photos of map twin are on a server, not in memory"):
            getattr(milvus, wanted)


def names(address: str) -> dict[str, bytes]:
    with open_store(address) as store:
        return {p.file: p.sha256 for photos, _ in store.records() for p in photos}


def test_build_again_add_move_change_remove(lite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, address = tiny_model(), f"{lite}/town"
    paths = write_town(tmp_path / "old", 6)
    assert (
        build_map(tmp_path / "old", address, model, config=MapConfig(batch=4, keypoints=0, progress=False)).added == 6
    )
    before = names(address)
    assert before.keys() == {str(path) for path in paths}
    with monkeypatch.context() as patched:
        patched.setattr("sareloc.maps.writer.examine", None)  # unchanged files are not even read
        assert build_map(tmp_path / "old", address, model, config=MapConfig(keypoints=0, progress=False)).already == 6
    shutil.copy(paths[0], tmp_path / "old" / "twin.jpg")
    extra = write_photo(tmp_path / "more" / "x.jpg", 30)
    report = add_photos([extra, tmp_path / "old"], address, model, config=MapConfig(progress=False))
    assert (report.added, report.already, report.duplicates) == (1, 6, 1)
    (tmp_path / "old" / "twin.jpg").unlink()
    (tmp_path / "old").rename(tmp_path / "new")
    write_photo(tmp_path / "new" / "0005.jpg", 1234)
    report = build_map(tmp_path / "new", address, model, config=MapConfig(keypoints=0, progress=False))
    assert (report.added, report.updated, report.already) == (1, 5, 0)
    after = names(address)
    assert {Path(name).name for name in after} == {f"000{n}.jpg" for n in range(6)} | {"x.jpg"}
    moved = {name.replace("/old/", "/new/"): digest for name, digest in before.items()}
    assert {name: digest for name, digest in after.items() if name in moved} == {
        name: digest for name, digest in moved.items() if not name.endswith("0005.jpg")
    } | {str(tmp_path / "new" / "0005.jpg"): after[str(tmp_path / "new" / "0005.jpg")]}
    assert len(remove_photos(address, files=["x.jpg", "nothing*"])) == 1
    assert len(remove_photos(address, files=[f"{tmp_path}/old/*"])) == 1  # what 0005.jpg was before
    assert len(remove_photos(address, area=Circle(geotag_of(0).latlon, 12))) == 2
    assert len(PlaceMap(address)) == 4


def test_renumbered_photos_keep_their_descriptors(lite: str, tmp_path: Path) -> None:
    model, address = tiny_model(), f"{lite}/renumbered"
    paths = write_town(tmp_path, 4)
    build_map(tmp_path, address, model, config=MapConfig(keypoints=0, progress=False))
    before = names(address)
    paths[3].unlink()
    for number in (2, 1, 0):  # every photo gets the next number
        paths[number].rename(paths[number + 1])
    build_map(tmp_path, address, model, config=MapConfig(keypoints=0, progress=False))
    assert names(address) == {str(paths[n + 1]): before[str(paths[n])] for n in range(3)}


def test_info_and_verify(lite: str, twins: tuple[PlaceMap, PlaceMap]) -> None:
    info, twin = map_info(f"{lite}/twin"), map_info(twins[0].path)
    assert (info.photos, info.extent, info.first, info.last) == (twin.photos, twin.extent, twin.first, twin.last)
    assert (info.file_bytes, info.index) == (None, "FLAT, kept by Milvus")
    assert verify_map(f"{lite}/twin") == []
    with pytest.raises(ArgumentError, match="automatically"):
        compact_map(f"{lite}/twin")


def test_info_of_an_empty_map(lite: str) -> None:
    with open_empty(f"{lite}/empty"):
        pass
    info = map_info(f"{lite}/empty")
    assert (info.photos, info.extent, info.first) == (0, None, None)
    assert verify_map(f"{lite}/empty") == []
    none = PlaceMap(f"{lite}/empty")
    for near in (None, Circle((1, 1), 5)):
        matches = none.search(unit_vectors(2), 5, near)
        assert (matches.files, matches.latlon.shape) == (((), ()), (2, 0, 2))


def test_verify_names_what_is_wrong(lite: str) -> None:
    with open_empty(f"{lite}/damaged") as store:
        store.add([photo(1), photo(2), photo(3)], unit_vectors(3))
        rows = store.collection.rows(
            np.array([entry.photo_id for entry in store.known([photo(1).sha256]).values()]), ["vector"]
        )
        ((photo_id, row),) = rows.items()
        known = {"lat": 99.0, "file": "0001.jpg", "sha256": photo(9).sha256.hex()}
        store.collection.upsert(np.array([photo_id]), np.array([row["vector"]]) * 1.005, [known])
        problems = "\n".join(verify_map(f"{lite}/damaged"))
        store.collection.connection.ask(
            "upsert",
            collection_name="damaged",
            data=[{**_whole(store, photo_id), "vector": np.zeros(32, dtype=np.float32), "length": 0.0}],
        )
    assert f"photo {photo_id} (0001.jpg) has invalid coordinates: 99.0" in problems
    assert "has the content hash of another photo" in problems
    assert any("has length 0.000, not 1" in problem for problem in verify_map(f"{lite}/damaged"))


def _whole(store, photo_id):  # type: ignore[no-untyped-def]
    return store._whole_rows(np.array([photo_id]))[photo_id]


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory, lite: str) -> tuple[PlaceMap, PlaceMap, list[Path]]:
    folder = tmp_path_factory.mktemp("street")
    write_street(folder / "photos")
    build_map(folder / "photos", f"{lite}/street", street_model(), config=MapConfig(keypoints=0, progress=False))
    copy_map(f"{lite}/street", folder / "street.gpkg", progress=False)
    return PlaceMap(folder / "street.gpkg"), PlaceMap(f"{lite}/street"), write_queries(folder / "queries")


@pytest.mark.parametrize("search", [Search(), Search(verify=5)], ids=lambda search: search.name)
def test_fixes_agree(street: tuple[PlaceMap, PlaceMap, list[Path]], search: Search) -> None:
    *maps, queries = street
    known = Calibration()
    file, milvus = (
        Localizer(street_model(), one, search, calibration=known, min_confidence=0).localize_many(queries[:8])
        for one in maps
    )
    for a, b in zip(file, milvus, strict=True):
        assert distance_m(a.latlon, b.latlon) < 0.5
        assert b.confidence == pytest.approx(a.confidence, abs=0.01)
        assert Path(b.matches[0].photo).name == Path(a.matches[0].photo).name


def test_a_map_on_milvus_calibrates_itself_walks_and_is_calibrated(
    street: tuple[PlaceMap, PlaceMap, list[Path]],
) -> None:
    _, milvus, queries = street
    localizer = Localizer(street_model(), milvus)
    assert localizer.calibration.origin == "map"
    truth = [position(place, 3.0) for place in range(len(queries))]
    fixes = localizer.localize_walk(queries[:10], 100.0)
    assert sum(distance_m(fix.latlon, at) < 25 for fix, at in zip(fixes, truth, strict=False) if fix.found) >= 9
    poor = Localizer(street_model(), milvus, calibration=Calibration(weights=(3.0, 0.0, 0.0, 0.0)))
    report = calibrate(poor, queries, truth)
    assert report.calibration.origin == "photos"
    milvus.refresh()
    assert milvus.notes.keys() == {"calibration plain", "own calibration"}
    assert Localizer(street_model(), milvus).calibration == report.calibration
    with pytest.raises(MapError, match="needs all of them"):
        _ = milvus.ids


def test_refresh_sees_what_others_wrote(lite: str) -> None:
    with open_empty(f"{lite}/growing") as store:
        store.add([photo(1)], unit_vectors(1))
        seen = PlaceMap(f"{lite}/growing")
        store.add([photo(2)], unit_vectors(1, seed=2))
    assert len(seen) == 1
    seen.refresh()
    assert len(seen) == 2


def test_a_whitening_of_the_map_is_refused_before_anything_is_created(lite: str, tmp_path: Path) -> None:
    write_town(tmp_path / "photos", 8)
    model, path = tiny_model(), tmp_path / "town.gpkg"
    with pytest.raises(MapError, match=r"no whitening.*server stores none"):
        build_map(tmp_path / "photos", f"{lite}/reduced", model, config=MapConfig(dim=5, keypoints=0, progress=False))
    build_map(tmp_path / "photos", path, model, config=MapConfig(dim=5, keypoints=0, progress=False))
    with pytest.raises(MapError, match=r"own whitening.*server stores none"):
        copy_map(path, f"{lite}/reduced", progress=False)
    with pytest.raises(MapError, match="reduced"):
        open_store(f"{lite}/reduced")
