"""Search vectors in maps: descriptor and aggregated local features, stored, searched and checked as one vector."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.index.contract_suite import unit_vectors
from tests.maps.small_town import gis, tiny_model, write_photo, write_town
from tests.maps.test_map_file import TINY, photo

from sareloc.encode import Encoder
from sareloc.errors import ArgumentError, MapError
from sareloc.geometry import pack_features, search_vector
from sareloc.geometry.local_features import constants_fingerprint
from sareloc.localize import Localizer, Search
from sareloc.maps import (
    MapConfig,
    PlaceMap,
    add_photos,
    build_map,
    create_map_file,
    map_info,
    open_map_file,
    sync_map,
    verify_map,
)
from sareloc.maps.records import Storage, with_aggregate
from sareloc.models import PlaceModel
from sareloc.photos import read_image

KEYPOINTS = 40
QUIET = MapConfig(progress=False)


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    return tiny_model()


@pytest.fixture(scope="module")
def built(model: PlaceModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with six photos and their map, with local features."""
    folder = tmp_path_factory.mktemp("vectors")
    write_town(folder / "photos", 6)
    config = MapConfig(keypoints=KEYPOINTS, storage="float32", progress=False)
    build_map(folder / "photos", folder / "town.gpkg", model, config=config)
    return folder


@pytest.fixture
def town(built: Path, tmp_path: Path) -> Path:
    """A copy of the map, beside a copy of its photos, that a test may change."""
    return Path(shutil.copytree(built, tmp_path / "own")) / "town.gpkg"


def change(path: Path, sql: str, *values: object) -> None:
    with closing(gis(path)) as connection:
        connection.execute(sql, values)
        connection.commit()


def stored(path: Path) -> dict[str, np.ndarray]:
    """The search vectors of a map by the last part of the file name."""
    with open_map_file(path) as file:
        ids, _, names = file.photos()
        vectors = [vector for _, part in file.descriptors(ids) for vector in part]
    return {Path(name).name: vector for name, vector in zip(names, vectors, strict=True)}


def test_a_new_map_with_local_features_has_them_in_its_search_vectors(model: PlaceModel, built: Path) -> None:
    path = built / "town.gpkg"
    made = map_info(path).manifest
    assert (made.format, made.aggregate, made.aggregate_dim) == (6, constants_fingerprint(), model.dim)
    encoder = Encoder(model, keypoints=KEYPOINTS, aggregate_dim=model.dim)
    for name, vector in stored(path).items():
        (one,) = encoder.encode([read_image(built / "photos" / name, encoder.sizes)])
        np.testing.assert_array_equal(vector, one.vector)
        np.testing.assert_array_equal(one.vector, search_vector(one.descriptor, one.features, model.dim))
    assert verify_map(path) == []


def test_without_local_features_the_search_vector_is_the_descriptor(model: PlaceModel, tmp_path: Path) -> None:
    write_town(tmp_path / "photos", 3)
    path = tmp_path / "town.gpkg"
    build_map(tmp_path / "photos", path, model, config=MapConfig(keypoints=0, storage="float32", progress=False))
    made = map_info(path).manifest
    assert (made.aggregate, made.aggregate_dim, made.vector_dim) == ("", 0, model.dim)
    encoder = Encoder(model, keypoints=0)
    (one,) = encoder.encode([read_image(tmp_path / "photos" / "0001.jpg", encoder.sizes)])
    np.testing.assert_array_equal(stored(path)["0001.jpg"], one.descriptor)
    assert one.vector is one.descriptor


def test_the_aggregated_part_has_at_most_512_dimensions() -> None:
    assert with_aggregate(replace(TINY, dim=4096)).vector_dim == 4096 + 512
    assert with_aggregate(replace(TINY, dim=128)).vector_dim == 256


@pytest.mark.parametrize("verify", [0, 3])
def test_a_query_is_searched_by_its_search_vector(model: PlaceModel, town: Path, verify: int) -> None:
    place_map = PlaceMap(town)
    assert place_map.descriptors([1, 2]).shape == (2, 2 * model.dim)
    localizer = Localizer(model, place_map, Search(verify=verify))
    assert (localizer.verifier is None) == (verify == 0)
    assert localizer.encoder.aggregate_dim == model.dim
    for number, file in enumerate(sorted((town.parent / "photos").iterdir())):
        fix = localizer.localize(file, top=6)
        ((encoded,),) = localizer.encode([read_image(file, localizer.encoder.sizes)])
        assert encoded.vector[model.dim :].any()
        nearest = min(fix.matches, key=lambda match: match.distance)
        assert nearest.id == number + 1
    with pytest.raises(ArgumentError, match=f"rows of {2 * model.dim} numbers"):
        place_map.search(unit_vectors(1, dim=model.dim))


@pytest.mark.parametrize("given", [None, 0])
def test_adding_and_syncing_use_the_manifest_of_the_map(model: PlaceModel, town: Path, given: int | None) -> None:
    """Also if local features are not asked for: the second part is then 0."""
    photos = town.parent / "photos"
    write_photo(photos / "new.jpg", 50)
    if given is None:
        add_photos(photos / "new.jpg", town, model, config=QUIET)
        write_photo(photos / "newer.jpg", 51)
        sync_map(photos, town, model, config=QUIET)
        assert stored(town)["newer.jpg"][model.dim :].any()
    else:
        build_map(photos, town, model, config=MapConfig(keypoints=given, storage="float32", progress=False))
    assert stored(town)["new.jpg"][model.dim :].any() == (given is None)
    assert map_info(town).manifest.aggregate_dim == model.dim
    assert verify_map(town) == []


def test_a_map_without_aggregated_features_is_continued_without(model: PlaceModel, tmp_path: Path) -> None:
    write_town(tmp_path / "photos", 2)
    path = tmp_path / "town.gpkg"
    build_map(tmp_path / "photos", path, model, config=MapConfig(keypoints=0, progress=False))
    write_photo(tmp_path / "photos" / "new.jpg", 50)
    report = build_map(tmp_path / "photos", path, model, config=MapConfig(keypoints=KEYPOINTS, progress=False))
    assert (report.added, report.features) == (1, 3)
    assert map_info(path).manifest.aggregate_dim == 0
    assert stored(path)["new.jpg"].shape == (model.dim,)


@pytest.mark.parametrize("storage", ["float16", "float32", "int8"])
def test_a_photo_that_had_no_local_features_gets_the_aggregated_ones_with_them(
    model: PlaceModel, built: Path, tmp_path: Path, storage: Storage
) -> None:
    photos = built / "photos"
    late, whole = tmp_path / "late.gpkg", tmp_path / "whole.gpkg"
    build_map(photos, whole, model, config=MapConfig(keypoints=KEYPOINTS, storage=storage, progress=False))
    build_map(photos / "0000.jpg", late, model, config=MapConfig(keypoints=KEYPOINTS, storage=storage, progress=False))
    build_map(photos, late, model, config=MapConfig(keypoints=0, storage=storage, progress=False))
    first = stored(late)["0000.jpg"]
    report = build_map(photos, late, model, config=MapConfig(keypoints=KEYPOINTS, storage=storage, progress=False))
    assert (report.added, report.features) == (0, 5)
    np.testing.assert_array_equal(stored(late)["0000.jpg"], first)
    for name, vector in stored(whole).items():
        np.testing.assert_allclose(stored(late)[name], vector, atol={"int8": 5e-3}.get(storage, 1e-3))
    assert verify_map(late) == []


def test_search_vectors_of_other_constants_are_refused(model: PlaceModel, town: Path) -> None:
    change(town, "UPDATE manifest SET value = '0123456789abcdef' WHERE key = 'aggregate'")
    said = r"aggregated by the constants 0123456789abcdef.*sareloc map upgrade.*use the sareloc that made them"
    for use in (
        lambda: PlaceMap(town),
        lambda: build_map(town.parent / "photos", town, model, config=MapConfig(storage="float32", progress=False)),
        lambda: add_photos(town.parent / "photos", town, model, config=QUIET),
        lambda: sync_map(town.parent / "photos", town, model, config=QUIET),
    ):
        with pytest.raises(MapError, match=said):
            use()
    assert map_info(town).manifest.aggregate == "0123456789abcdef"


def test_a_writer_notices_that_another_process_changed_the_search_vectors(town: Path, model: PlaceModel) -> None:
    with open_map_file(town, write=True) as file:
        change(town, "UPDATE manifest SET value = '0123456789abcdef' WHERE key = 'aggregate'")
        with pytest.raises(MapError, match="changed by another process meanwhile: repeat"):
            file.add([photo(50)], unit_vectors(1, dim=2 * model.dim))
    with pytest.raises(MapError, match="by the constants"):
        PlaceMap(town)


def test_an_open_map_notices_that_its_search_vectors_were_changed(town: Path) -> None:
    place_map = PlaceMap(town)
    change(town, "UPDATE manifest SET value = '' WHERE key = 'aggregate'")
    change(town, "UPDATE manifest SET value = '0' WHERE key = 'aggregate_dim'")
    with pytest.raises(MapError, match="open it again"):
        place_map.refresh()


def test_search_vectors_of_the_wrong_length_are_found(town: Path) -> None:
    change(town, "UPDATE descriptors SET descriptor = substr(descriptor, 1, length(descriptor) / 2) WHERE fid = 2")
    (problem,) = verify_map(town)
    assert "photo 2 (photos/0001.jpg) is 1024 bytes, expected 2048" in problem


BEST = 7


def test_the_best_local_features_are_read_alone(town: Path) -> None:
    place_map = PlaceMap(town)
    whole, headings = place_map.features_and_headings(place_map.ids)
    best, same_headings = place_map.features_and_headings(place_map.ids, BEST)
    np.testing.assert_array_equal(headings, same_headings)
    assert list(best) == list(whole)
    for photo_id, features in whole.items():
        assert len(features) == KEYPOINTS
        assert pack_features(best[photo_id]) == pack_features(features.best(BEST))
    with open_map_file(town) as file:
        (row,) = file.feature_rows(np.array([1]), BEST)
        assert len(row.blob) == 8 + 3 * KEYPOINTS + 32 * BEST
    for enough in (KEYPOINTS, 4096):
        everything = place_map.features_and_headings([1], enough)[0][1]
        assert pack_features(everything) == pack_features(whole[1])
    assert len(place_map.features_and_headings([1], 0)[0][1]) == 0


def test_damage_behind_the_best_local_features_is_not_read(town: Path) -> None:
    with open_map_file(town) as file:
        blob = bytearray(file.features(np.array([1]))[1])
    blob[-1] ^= 1
    change(town, "UPDATE local_features SET features = ? WHERE fid = 1", bytes(blob))
    place_map = PlaceMap(town)
    assert len(place_map.features_and_headings([1], BEST)[0][1]) == BEST
    for best in (None, KEYPOINTS):
        with pytest.raises(MapError, match=r"photo 1 .*do not match their checksum"):
            place_map.features_and_headings([1], best)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("UPDATE local_features SET checksum = checksum + 1 WHERE fid = 1", "those of another photo"),
        ("UPDATE photos SET features_checksum = 7 WHERE fid = 1", "those of another photo"),
        ("UPDATE local_features SET features = x'00' WHERE fid = 1", "cannot be unpacked|checksum"),
        ("UPDATE local_features SET features = zeroblob(8) WHERE fid = 1", "cannot be unpacked|checksum"),
        ("UPDATE local_features SET features = zeroblob(8 + 35 * 4097) WHERE fid = 1", "cannot be unpacked"),
        ("UPDATE local_features SET features = zeroblob(1000000) WHERE fid = 1", "cannot be unpacked"),
        ("UPDATE local_features SET features = zeroblob(1048577) WHERE fid = 1", "are not bytes, or more than"),
        ("UPDATE local_features SET features = zeroblob(16777217) WHERE fid = 1", "are not bytes, or more than"),
        ("UPDATE local_features SET features = 'text' WHERE fid = 1", "are not bytes"),
        ("UPDATE local_features SET features = 7 WHERE fid = 1", "are not bytes"),
    ],
)
def test_hostile_first_bytes_are_an_error_that_names_the_photo(town: Path, sql: str, said: str) -> None:
    change(town, sql)
    place_map = PlaceMap(town)
    with pytest.raises(MapError, match=rf"photo 1 \(photos/0000.jpg\).*({said})"):
        place_map.features_and_headings([1, 2], BEST)
    assert sorted(place_map.features_and_headings([2, 3], BEST)[0]) == [2, 3]


def test_a_hundred_photos_are_read_by_one_statement(tmp_path: Path) -> None:
    path = tmp_path / "town.gpkg"
    create_map_file(path, TINY)
    with open_map_file(path, write=True) as file:
        file.add([photo(number) for number in range(120)], unit_vectors(120))
    with open_map_file(path) as file:
        statements: list[str] = []
        file._connection.set_trace_callback(statements.append)
        assert len(file.feature_rows(np.arange(1, 101), 256)) == 100
    assert len([one for one in statements if one.startswith("SELECT")]) == 1
