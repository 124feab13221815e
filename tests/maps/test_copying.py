"""Copying a map: file to Milvus and back, gone on with after a stop, and compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.index.contract_suite import unit_vectors
from tests.maps.test_map_file import TINY, make_map, photo

from sareloc.arrays import Vectors
from sareloc.errors import ArgumentError, MapError
from sareloc.maps import MapFile, MapPhoto, PlaceMap, copy_map, open_map_file, open_store
from sareloc.maps.copy import checksum
from sareloc.maps.records import Storage, entry_of
from sareloc.milvus import MilvusStore
from sareloc.milvus.store import ALL


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("milvus_lite")
    return f"milvus-lite:{tmp_path_factory.mktemp('milvus')}/lite.db"


def held(where: str | Path) -> dict[bytes, tuple[MapPhoto, bytes]]:
    """All that is known of each photo, with its path, and its descriptor at half precision."""
    with open_store(where) as store:
        return {
            one.sha256: (replace(one, file=str(store.photo_path(one.file))), vector.astype(np.float16).tobytes())
            for photos, vectors in store.records()
            for one, vector in zip(photos, vectors, strict=True)
        }


@pytest.mark.parametrize("storage", ["float16", "float32", "int8"])
def test_there_and_back(lite: str, tmp_path: Path, storage: Storage) -> None:
    path = make_map(tmp_path / "town.gpkg", 20, replace(TINY, storage=storage))
    with open_map_file(path, write=True) as file:
        file.write_note("calibration plain", '{"photos": 5}')
    there, back = f"{lite}/{storage}", tmp_path / "deeper" / "back.gpkg"
    to, fro = copy_map(path, there, progress=False), copy_map(there, back, progress=False)
    assert (to.photos, to.copied, fro.copied) == (20, 20, 20)
    assert len(to.checksum) == 16
    assert to.checksum == fro.checksum
    assert held(path).keys() == held(there).keys() == held(back).keys()
    for digest, (one, vector) in held(path).items():
        assert held(there)[digest] == (one, vector)
        assert held(back)[digest][0] == one
    made = PlaceMap(back)
    assert made.notes["calibration plain"] == '{"photos": 5}'
    assert (made.manifest.storage, made.manifest.fingerprint) == (storage, TINY.fingerprint)
    assert made.manifest.map_id != PlaceMap(path).manifest.map_id
    assert PlaceMap(path).search(unit_vectors(20)[3], 1).files[0][0] == "0003.jpg"
    assert made.search(unit_vectors(20)[3], 1).files[0][0] == str(tmp_path / "0003.jpg")


def test_the_same_copy_again_copies_nothing_and_follows_changes(lite: str, tmp_path: Path) -> None:
    path, there = make_map(tmp_path / "town.gpkg", 5), f"{lite}/again"
    first = copy_map(path, there, progress=False)
    again = copy_map(path, there, progress=False)
    assert (again.photos, again.copied, again.checksum) == (5, 0, first.checksum)
    with open_map_file(path, write=True) as file:
        file.update([entry_of(replace(photo(1), file="renamed.jpg", modified_ns=77, geotag=photo(70).geotag), 2)])
        file.add([photo(5)], unit_vectors(1, seed=5))
    third = copy_map(path, there, progress=False)
    assert (third.photos, third.copied) == (6, 1)
    assert third.checksum != first.checksum
    assert held(there) == held(path)


@pytest.mark.parametrize("to_file", [True, False])
def test_a_copy_that_was_stopped_goes_on(
    lite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to_file: bool
) -> None:
    monkeypatch.setattr("sareloc.maps.file_reader.PART", 7)
    path = make_map(tmp_path / "town.gpkg", 30)
    target: str | Path = tmp_path / "copy.gpkg" if to_file else f"{lite}/stopped"
    keeper = MapFile if to_file else MilvusStore
    add, calls = keeper.add, [0]

    def add_twice(self: MapFile, photos: list[MapPhoto], vectors: Vectors) -> int:
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt
        return add(self, photos, vectors)

    with monkeypatch.context() as patched:
        patched.setattr(keeper, "add", add_twice)
        with pytest.raises(KeyboardInterrupt):
            copy_map(path, target, progress=False)
    assert len(held(target)) == 14
    assert copy_map(path, target, progress=False).copied == 16
    assert held(target) == held(path)


def test_a_target_with_photos_of_its_own_is_reported(lite: str, tmp_path: Path) -> None:
    path, there = make_map(tmp_path / "town.gpkg", 3), f"{lite}/other"
    copy_map(path, there, progress=False)
    with open_store(there, write=True) as store:
        store.add([photo(50)], unit_vectors(1, seed=5))
    with pytest.raises(MapError, match=r"town\.gpkg has 3 photos and map .*/other 4"):
        copy_map(path, there, progress=False)


def test_a_copy_that_differs_is_reported(lite: str, tmp_path: Path) -> None:
    path, there = make_map(tmp_path / "town.gpkg", 3), f"{lite}/differs"
    copy_map(path, there, progress=False)
    with open_store(there, write=True) as store:
        assert isinstance(store, MilvusStore)
        photo_id = store.known([photo(1).sha256])[photo(1).sha256].photo_id
        rows = store.collection.rows(np.array([photo_id]), ALL)
        store.collection.upsert(np.array([photo_id]), unit_vectors(1, seed=7), [rows[photo_id]])
    with pytest.raises(MapError, match=r"differs from .*checksum \w{16}, not \w{16}"):
        copy_map(path, there, progress=False)


def test_the_checksum_sees_everything_but_the_order() -> None:
    photos, vectors = [photo(1), photo(2)], unit_vectors(2)
    whole = checksum(photos, vectors, "float16")
    assert checksum(photos[::-1], vectors[::-1], "float16") == whole
    tag = photos[0].geotag
    other_tags = [
        replace(tag, latlon=(tag.latlon[0] + 1e-9, tag.latlon[1])),
        replace(tag, heading_deg=None),
        replace(tag, time=tag.time + 1),
    ]
    others = [replace(photos[0], geotag=other) for other in other_tags]
    others += [
        replace(photos[0], **change) for change in ({"file": "x"}, {"width": 1}, {"height": 1}, {"size_bytes": 1})
    ]
    others += [replace(photos[0], modified_ns=5), replace(photos[0], sha256=photo(7).sha256)]
    sums = {checksum([other, photos[1]], vectors, "float16") for other in others}
    assert len(sums | {whole, checksum(photos, vectors[::-1], "float16")}) == len(others) + 2


def test_another_models_map_is_refused_and_both_are_named(lite: str, tmp_path: Path) -> None:
    path, there = make_map(tmp_path / "town.gpkg", 2), f"{lite}/model"
    copy_map(path, there, progress=False)
    other = make_map(tmp_path / "other.gpkg", 2, replace(TINY, fingerprint="f" * 16))
    with pytest.raises(MapError, match=rf"of model {TINY.fingerprint} .*; map .*other\.gpkg is of model {'f' * 16}"):
        copy_map(other, there, progress=False)
    longer = make_map(tmp_path / "longer.gpkg", 2, replace(TINY, dim=64))
    with pytest.raises(MapError, match=r"32 dimensions as float16; .* 64 dimensions as float16"):
        copy_map(longer, there, progress=False)


def test_what_cannot_be_copied_is_reported(lite: str, tmp_path: Path) -> None:
    path = make_map(tmp_path / "town.gpkg", 1)
    with pytest.raises(ArgumentError, match="cannot be copied to itself"):
        copy_map(path, path)
    with pytest.raises(MapError, match=r"map .*/nothing does not exist"):
        copy_map(f"{lite}/nothing", tmp_path / "x.gpkg")
    assert not (tmp_path / "x.gpkg").exists()


def test_urls_stay_urls(lite: str, tmp_path: Path) -> None:
    path, name = make_map(tmp_path / "town.gpkg", 2), "s3://bucket/photos/0.jpg"
    with open_map_file(path, write=True) as file:
        file.add([replace(photo(5), file=name)], unit_vectors(1, seed=5))
    for target in (f"{lite}/urls", tmp_path / "deeper" / "copy.gpkg"):
        copy_map(path, target, progress=False)
        with open_store(target) as store:
            assert name in store.entries([name])
        back = tmp_path / f"back{Path(target).stem}.gpkg"
        assert copy_map(target, back, progress=False).copied == 3
        assert name in PlaceMap(back).files
