"""Local features and search vectors of maps on Milvus (milvus-lite): as those of a file, and never trusted."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from tests.index.contract_suite import unit_vectors
from tests.maps.small_town import tiny_model, write_photo, write_town
from tests.maps.test_map_file import TINY, photo
from tests.milvus.milvus_places import check_that_fixes_agree

from sareloc.errors import ArgumentError, MapError
from sareloc.geometry import search_vector, unpack_features
from sareloc.geometry.local_features import MOST_KEYPOINTS, packed_prefix
from sareloc.localize import Localizer
from sareloc.maps import (
    MapConfig,
    PlaceMap,
    add_local_features,
    add_photos,
    build_map,
    copy_map,
    map_info,
    open_or_create_store,
    open_store,
    verify_map,
)
from sareloc.maps.file_reader import HEADER_BYTES, PLACE_BYTES, STEPS_BYTES
from sareloc.maps.records import with_aggregate
from sareloc.milvus import MilvusStore
from sareloc.milvus.collection import DEFAULT, create_collection
from sareloc.milvus.connection import Connection, read_milvus_address
from sareloc.milvus.store import COLUMNS, FEATURES

pytest.importorskip("milvus_lite")

KEYPOINTS = 40
CONFIG = MapConfig(keypoints=KEYPOINTS, storage="float32", progress=False)


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The beginning of addresses."""
    return f"milvus-lite:{tmp_path_factory.mktemp('milvus')}/lite.db"


def vectors_of(where: str | Path) -> dict[str, np.ndarray]:
    with open_store(where) as store:
        return {
            Path(one.file).name: vector
            for photos, vectors in store.records()
            for one, vector in zip(photos, vectors, strict=True)
        }


def features_of(where: str | Path) -> dict[str, bytes]:
    with open_store(where) as store:
        ids = np.concatenate([ids for ids, _, _ in store.pages()])
        found, photos = store.features(ids), store.photos_of(ids)
    return {Path(photos[photo_id].file).name: blob for photo_id, blob in found.items()}


def make_earlier(address: str, dim: int) -> str:
    """An empty collection as versions before format 5 made them: without local features."""
    made = asdict(replace(TINY, dim=dim, map_id="0" * 32, format=1))
    model = tiny_model()
    made |= {"model": model.name, "fingerprint": model.fingerprint()}
    properties = {f"sareloc.{key}": str(made[key]) for key in made if not key.startswith("aggregate")}
    connection = Connection(read_milvus_address(address))
    create_collection(connection, dim, COLUMNS, DEFAULT, properties)
    connection.close()
    return address


def test_file_and_milvus_give_the_same_fixes(lite: str, tmp_path: Path) -> None:
    check_that_fixes_agree(tmp_path, f"{lite}/street")


def test_a_map_on_milvus_holds_what_a_file_holds(lite: str, tmp_path: Path) -> None:
    model, there, file = tiny_model(), f"{lite}/same", tmp_path / "town.gpkg"
    write_town(tmp_path / "photos", 5)
    for out in (file, there):
        assert build_map(tmp_path / "photos", out, model, config=CONFIG).features == 5
        write_photo(tmp_path / "photos" / "new.jpg", 50)
        assert add_photos(tmp_path / "photos" / "new.jpg", out, model, config=MapConfig(progress=False)).features == 1
        (tmp_path / "photos" / "new.jpg").unlink()
    assert features_of(there) == features_of(file)
    found, wanted = vectors_of(there), vectors_of(file)
    assert found.keys() == wanted.keys()
    for name, vector in wanted.items():
        np.testing.assert_array_equal(found[name], vector)
    with open_store(there) as store:
        assert store.ids_without_features().tolist() == []
    assert verify_map(there) == []


def test_a_photo_that_is_renamed_keeps_its_local_features(lite: str, tmp_path: Path) -> None:
    model, there = tiny_model(), f"{lite}/renamed"
    write_town(tmp_path / "photos", 3)
    build_map(tmp_path / "photos", there, model, config=CONFIG)
    before = features_of(there)
    (tmp_path / "photos" / "0001.jpg").rename(tmp_path / "photos" / "moved.jpg")
    assert build_map(tmp_path / "photos", there, model, config=replace(CONFIG, keypoints=0)).updated == 1
    assert features_of(there) == {("moved.jpg" if name == "0001.jpg" else name): before[name] for name in before}


def test_local_features_that_are_added_later_come_into_the_search_vectors(lite: str, tmp_path: Path) -> None:
    model, there = tiny_model(), f"{lite}/later"
    write_town(tmp_path / "photos", 3)
    build_map(tmp_path / "photos" / "0000.jpg", there, model, config=CONFIG)
    build_map(tmp_path / "photos", there, model, config=replace(CONFIG, keypoints=0))
    assert not vectors_of(there)["0002.jpg"][model.dim :].any()
    report = add_local_features(there, device="cpu", progress=False)
    assert (report.added, report.already, report.aggregated, report.notes) == (2, 1, 0, ())
    build_map(tmp_path / "photos", tmp_path / "town.gpkg", model, config=CONFIG)
    for name, vector in vectors_of(tmp_path / "town.gpkg").items():
        np.testing.assert_allclose(vectors_of(there)[name], vector, atol=1e-6)


def test_a_collection_without_aggregated_features_cannot_get_them(lite: str, tmp_path: Path) -> None:
    model, there = tiny_model(), f"{lite}/plain"
    write_town(tmp_path / "photos", 2)
    build_map(tmp_path / "photos", there, model, config=replace(CONFIG, keypoints=0))
    report = add_local_features(there, keypoints=KEYPOINTS, device="cpu", progress=False)
    assert report.added == 2
    assert "copy the map to a file, upgrade that" in report.notes[0]
    file, new = tmp_path / "town.gpkg", f"{lite}/new"
    copy_map(there, file, progress=False)  # as told
    assert add_local_features(file, device="cpu", progress=False).aggregated == 2
    copy_map(file, new, progress=False)
    assert map_info(new).manifest.aggregate_dim == model.dim
    assert features_of(new) == features_of(there)


def test_a_collection_of_an_earlier_version_works_as_before(lite: str, tmp_path: Path) -> None:
    model = tiny_model()
    there = make_earlier(f"{lite}/earlier", model.dim)
    paths = write_town(tmp_path / "photos", 4)
    report = build_map(tmp_path / "photos", there, model, config=replace(CONFIG, storage="float16"))
    assert (report.added, report.features) == (4, 0)
    assert any("keeps no local features" in note for note in report.notes)
    place_map = PlaceMap(there)
    assert (place_map.manifest.aggregate_dim, place_map.manifest.format) == (0, 1)
    assert place_map.descriptors(place_map.sample(4, np.random.default_rng(0))[0]).shape == (4, model.dim)
    assert Path(Localizer(model, place_map).localize(paths[2]).matches[0].photo).name == "0002.jpg"
    ids = place_map.sample(4, np.random.default_rng(0))[0]
    assert place_map.features_and_headings(ids, 7)[0] == {}
    paths[1].rename(tmp_path / "photos" / "moved.jpg")
    assert build_map(tmp_path / "photos", there, model, config=replace(CONFIG, storage="float16")).updated == 1
    assert (map_info(there).local_features, verify_map(there)) == (None, [])
    with pytest.raises(MapError, match="keeps no local features"):
        add_local_features(there, device="cpu", progress=False)
    back = copy_map(there, tmp_path / "back.gpkg", progress=False)
    assert any("sareloc map upgrade" in note for note in back.notes)


def test_more_keypoints_than_fit_are_refused_before_anything_is_created(lite: str, tmp_path: Path) -> None:
    model, most = tiny_model(), MilvusStore.most_keypoints
    assert most == 1404
    for keypoints in (0, 1, 7, most):
        prefix = HEADER_BYTES + PLACE_BYTES * keypoints + STEPS_BYTES * min(5, keypoints)
        assert prefix == packed_prefix(keypoints, 5)
    assert len(base64.b64encode(bytes(packed_prefix(most, most)))) <= FEATURES.longest
    assert len(base64.b64encode(bytes(packed_prefix(most + 1, most + 1)))) > FEATURES.longest
    write_town(tmp_path / "photos", 1)
    for keypoints in (most + 1, MOST_KEYPOINTS):
        with pytest.raises(ArgumentError, match=f"at most 1,404 keypoints of a photo, found {keypoints:,}"):
            build_map(tmp_path / "photos", f"{lite}/large", model, config=replace(CONFIG, keypoints=keypoints))
    build_map(tmp_path / "photos", tmp_path / "town.gpkg", model, config=replace(CONFIG, keypoints=2000))
    with pytest.raises(ArgumentError, match="at most 1,404"):
        copy_map(tmp_path / "town.gpkg", f"{lite}/large", progress=False)
    with pytest.raises(MapError, match="does not exist"):
        open_store(f"{lite}/large")
    with open_or_create_store(f"{lite}/largest", TINY) as store:
        blobs = [np.random.default_rng(row).bytes(packed_prefix(most, most)) for row in range(2)]
        assert store.add([photo(row) for row in range(2)], unit_vectors(2), blobs) == 2
        ids = np.concatenate([ids for ids, _, _ in store.pages()])
        assert sorted(store.features(ids).values()) == sorted(blobs)


@pytest.mark.parametrize(("text", "said"), [("é" * 8, "base64"), ("AAA", "base64"), ("AAAA", "malformed")])
def test_hostile_local_features_are_an_error_that_names_the_photo(lite: str, text: str, said: str) -> None:
    address = f"{lite}/hostile_{len(text)}_{len(said)}"
    with open_or_create_store(address, with_aggregate(TINY)) as store:
        assert isinstance(store, MilvusStore)
        store.add([photo(1)], unit_vectors(1, dim=2 * TINY.dim))
        ((photo_id, row),) = store._whole_rows(
            np.array([e.photo_id for e in store.entries(["0001.jpg"]).values()])
        ).items()
        store.collection.upsert(np.array([photo_id]), np.array([row["vector"]]), [row | {"features": text}])
    for best in (None, 7):
        with pytest.raises(MapError, match=rf"photo {photo_id} .*{said}"):
            PlaceMap(address).features_and_headings([photo_id], best)
    (problem,) = verify_map(address)
    assert str(photo_id) in problem
    assert said in problem


def test_other_constants_and_extractors_are_refused(lite: str) -> None:
    manifest = with_aggregate(TINY)
    with open_or_create_store(f"{lite}/constants", replace(manifest, aggregate="0123456789abcdef")):
        pass
    with pytest.raises(MapError, match=r"constants 0123456789abcdef.*sareloc map upgrade"):
        PlaceMap(f"{lite}/constants")
    with open_or_create_store(f"{lite}/extractor", manifest) as store:
        store.write_note("local features", json.dumps({"extractor": "superpoint", "keypoints": 7}))
    with pytest.raises(MapError, match="superpoint"):
        PlaceMap(f"{lite}/extractor").local_features([])
    assert "superpoint" in verify_map(f"{lite}/extractor")[0]


def test_vectors_of_another_length_than_the_manifest_says_are_refused(lite: str) -> None:
    address = read_milvus_address(f"{lite}/length")
    with open_or_create_store(f"{lite}/other", TINY) as store:
        made = asdict(store.manifest)
    connection = Connection(address)
    create_collection(connection, 7, COLUMNS, DEFAULT, {f"sareloc.{key}": str(value) for key, value in made.items()})
    connection.close()
    with pytest.raises(MapError, match="7 dimensions, its manifest says 32"):
        open_store(f"{lite}/length")


def test_search_vectors_are_those_of_the_stored_features(lite: str, tmp_path: Path) -> None:
    """A slow twin: each vector from the descriptor and the local features that a map without photos holds."""
    model, there = tiny_model(), f"{lite}/twin"
    write_town(tmp_path / "photos", 3)
    build_map(tmp_path / "photos", there, model, config=CONFIG)
    build_map(tmp_path / "photos", tmp_path / "plain.gpkg", model, config=replace(CONFIG, keypoints=0))
    found, features = vectors_of(there), features_of(there)
    for name, descriptor in vectors_of(tmp_path / "plain.gpkg").items():
        wanted = search_vector(descriptor, unpack_features(features[name]), model.dim)
        np.testing.assert_array_equal(found[name], wanted)
