"""Looking after a map: what it says of itself, every kind of damage found, space given back."""

from __future__ import annotations

import re
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.index.contract_suite import unit_vectors
from tests.maps.small_town import geotag_of, gis
from tests.maps.test_map_file import DIM, TINY, make_format_1, make_map, photo

from sareloc.errors import MapError
from sareloc.index import ShardedIndex
from sareloc.index import sharded as approximate
from sareloc.maps import Box, PlaceMap, compact_map, map_info, open_map_file, remove_photos, verify_map
from sareloc.maps.rows import descriptor_checksum


@pytest.fixture
def city(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A map with an index."""
    monkeypatch.setattr(approximate, "EXACT_NUMBERS", 500 * DIM)
    path = make_map(tmp_path / "city.gpkg", 1000)
    PlaceMap(path)
    return path


def test_info(tmp_path: Path) -> None:
    path = make_map(tmp_path / "town.gpkg", 10)
    info = map_info(path)
    assert (info.photos, info.index, info.file_bytes) == (10, "none needed", path.stat().st_size)
    assert info.extent == Box(*geotag_of(0).latlon, *geotag_of(9).latlon)
    assert (info.first, info.last) == ("2023-11-14T22:13:20.000Z", "2023-11-14T22:13:29.000Z")
    assert (info.manifest.model, info.manifest.fingerprint, info.manifest.dim) == (
        TINY.model,
        TINY.fingerprint,
        TINY.dim,
    )
    empty = map_info(make_map(tmp_path / "empty.gpkg"))
    assert (empty.photos, empty.extent, empty.first) == (0, None, None)


def test_info_says_how_old_the_index_is(city: Path) -> None:
    assert map_info(city).index == "fresh"
    with open_map_file(city, write=True) as file:
        file.add([photo(5000), photo(5001)], unit_vectors(2, seed=8))
        file.remove(np.array([1]))
    assert map_info(city).index == "2 photos added and 1 removed since it was built"
    with open_map_file(city) as file:
        shutil.rmtree(file.index_cache().folder)
    assert map_info(city).index == "absent: built when the map is opened"
    city.with_name("city.gpkg.index").mkdir()  # as earlier versions made it
    assert re.fullmatch("absent: .*; .*city.gpkg.index is no longer used: .*", map_info(city).index)


def test_a_whole_map_has_nothing_wrong(city: Path, tmp_path: Path) -> None:
    assert verify_map(city) == []
    assert verify_map(make_map(tmp_path / "empty.gpkg")) == []
    for storage in ("float32", "int8"):
        whole = make_map(tmp_path / f"{storage}.gpkg", 5, TINY.__class__("tiny", "0" * 16, 32, storage))  # type: ignore[arg-type]
        assert verify_map(whole) == []


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("DELETE FROM descriptors WHERE fid = 7", "photo 7 has no descriptor"),
        (
            "INSERT INTO descriptors SELECT 5000, descriptor FROM descriptors WHERE fid = 7",
            "descriptor 5000 has no photo",
        ),
        (
            "UPDATE descriptors SET descriptor = x'0000' WHERE fid = 7",
            r"photo 7 \(0006.jpg\) is 2 bytes, expected 64 bytes",
        ),
        (
            "UPDATE descriptors SET descriptor = 'text' WHERE fid = 7",
            r"photo 7 \(0006.jpg\) is a str, expected 64 bytes",
        ),
        ("UPDATE descriptors SET descriptor = zeroblob(64) WHERE fid = 7", r"photo 7 \(0006.jpg\) .* checksum"),
        ("UPDATE photos SET descriptor_checksum = 5 WHERE fid = 7", r"photo 7 \(0006.jpg\) .* checksum"),
        (
            "UPDATE photos SET geom = x'47500001e61000000101000000000000000000f03f0000000000c05840' WHERE fid = 7",
            r"photo 7: latitude 99, longitude 1 are invalid coordinates \(file 0006.jpg\)",
        ),
        (
            "UPDATE descriptors SET descriptor = (SELECT descriptor FROM descriptors WHERE fid = 8) WHERE fid = 7",
            r"photo 7 \(0006.jpg\) does not match its checksum",
        ),
    ],
)
def test_every_kind_of_damage_is_found(city: Path, sql: str, said: str) -> None:
    with closing(gis(city)) as connection:
        connection.execute(sql)
        connection.commit()
    problems = verify_map(city)
    assert len(problems) >= 1
    assert any(re.search(said, problem) for problem in problems), problems


@pytest.mark.parametrize(("numbers", "length"), [("0000", "0.000"), ("007e", "nan"), ("003c", "5.657")])
def test_descriptors_that_no_model_makes_are_found(city: Path, numbers: str, length: str) -> None:
    blob = bytes.fromhex(numbers * DIM)
    with closing(gis(city)) as connection:
        connection.execute("UPDATE descriptors SET descriptor = ? WHERE fid = 7", (blob,))
        connection.execute("UPDATE photos SET descriptor_checksum = ? WHERE fid = 7", (descriptor_checksum(blob),))
        connection.commit()
    assert verify_map(city) == [f"the descriptor of photo 7 (0006.jpg) has length {length}, not 1"]


def test_one_flipped_bit_in_a_descriptor_is_found_and_named(tmp_path: Path) -> None:
    path = make_map(tmp_path / "town.gpkg", 60)
    with open_map_file(path) as file:
        blobs = {fid: blob for fid, blob, _ in file.blobs(file.photos()[0].tolist())}
    content = bytearray(path.read_bytes())
    for fid, bit in ((5, 0), (31, 200), (60, 511)):
        content[content.index(blobs[fid]) + bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    assert verify_map(path) == [
        f"the descriptor of photo {fid} ({fid - 1:04d}.jpg) does not match its checksum" for fid in (5, 31, 60)
    ]
    with pytest.raises(MapError, match=r"photo 5 \(0004.jpg\) does not match its checksum.* remove"):
        PlaceMap(path)
    assert len(remove_photos(path, files=["0004.jpg", "0030.jpg", "0059.jpg"])) == 3
    assert verify_map(path) == []
    assert len(PlaceMap(path)) == 57


def test_an_index_that_disagrees_with_the_map_is_found(city: Path, tmp_path: Path) -> None:
    """As a fault of ours could make it: the checksums are right, the vectors are not."""
    with open_map_file(city) as file:
        cache, (ids, _, _), checksums = file.index_cache(), file.photos(), file.checksums(file.photos()[0])
    index = ShardedIndex(DIM)
    index.upsert(ids, unit_vectors(1000, seed=9))
    index.build_index()
    index.save(cache, ids, checksums, "")
    (problem,) = verify_map(city)
    assert "the index has another descriptor of photo 1 than the map: delete" in problem


def test_maps_of_format_1_are_indexed_verified_and_refreshed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approximate, "EXACT_NUMBERS", 500 * DIM)
    path = make_format_1(tmp_path / "old.gpkg", 1000)
    opened = PlaceMap(path)
    assert (map_info(path).index, verify_map(path)) == ("fresh", [])
    with open_map_file(path, write=True) as file:
        file.add([photo(5000)], unit_vectors(1, seed=8))
    opened.refresh()
    for city in (opened, PlaceMap(path)):
        assert city.search(unit_vectors(1, seed=8), 1).files == (("5000.jpg",),)
    assert map_info(path).index == "1 photo added and 0 removed since it was built"


def test_bytes_that_were_flipped_are_found(tmp_path: Path) -> None:
    path = make_map(tmp_path / "town.gpkg", 500)
    content = bytearray(path.read_bytes())
    for start in range(3 * len(content) // 4, len(content), 16_384):
        content[start : start + 8] = b"\xff" * 8
    path.write_bytes(content)
    assert re.match("SQLite: |map .* is damaged", verify_map(path)[0])


def test_compacting_gives_space_back_and_keeps_the_rest(tmp_path: Path) -> None:
    path = make_map(tmp_path / "town.gpkg", 2000)
    with open_map_file(path, write=True) as file:
        file.remove(np.arange(1, 1900))
    full = path.stat().st_size
    before, after = compact_map(path)
    assert before == full
    assert after == path.stat().st_size < full / 2
    assert verify_map(path) == []
    assert PlaceMap(path).files == tuple(f"{number:04d}.jpg" for number in range(1899, 2000))
    with open_map_file(path, write=True) as file:
        file.add([photo(1)], unit_vectors(1))
        assert file.photos()[0][-1] > 2000  # ids still never come back
    with pytest.raises(MapError, match="does not exist"):
        compact_map(tmp_path / "absent.gpkg")
