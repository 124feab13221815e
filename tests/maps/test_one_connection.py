"""An open map reads its file by one connection, which follows changes, threads and forks."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.index.contract_suite import unit_vectors
from tests.maps.small_town import gis
from tests.maps.test_map_file import make_map, photo

from sareloc.errors import MapError
from sareloc.geometry import LocalFeatures, pack_features
from sareloc.maps import PlaceMap, open_map_file
from sareloc.maps.notes import choose_keypoints

COUNT = 20
_COUNTING: list[list[str]] = []
_HOOKED: list[bool] = []


def _count(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "sqlite3.connect" and _COUNTING:
        _COUNTING[-1].append(str(arguments[0]))


@contextmanager
def connections() -> Iterator[list[str]]:
    """The databases that are connected to inside."""
    if not _HOOKED:
        sys.addaudithook(_count)  # cannot be removed
        _HOOKED.append(True)
    _COUNTING.append([])
    try:
        yield _COUNTING[-1]
    finally:
        _COUNTING.pop()


def features_of(seed: int, count: int = 5) -> LocalFeatures:
    rng = np.random.default_rng(seed)
    xy = rng.integers(0, 100, (count, 2)).astype(np.float32)
    return LocalFeatures(xy, rng.integers(-7, 8, (count, 64)).astype(np.int8), (640, 480), None)


@pytest.fixture
def town(tmp_path: Path) -> Path:
    """Photos 1 to 20; the n-th has n keypoints."""
    path = make_map(tmp_path / "town.gpkg", COUNT)
    with open_map_file(path, write=True) as file:
        choose_keypoints(file, 64)
        file.write_features(np.arange(COUNT) + 1, [pack_features(features_of(n, n + 1)) for n in range(COUNT)])
    return path


def keypoints(place_map: PlaceMap, ids: list[int]) -> list[int]:
    return [len(one) for one in place_map.features_and_headings(ids)[0].values()]


def test_queries_share_one_connection_whatever_their_threads(town: Path) -> None:
    with connections() as opened:
        place_map = PlaceMap(town)
        for _ in range(3):
            features, headings = place_map.features_and_headings([3, 1, 12345, 3])
            assert {photo_id: len(one) for photo_id, one in features.items()} == {1: 1, 3: 3}
            known = [photo(0).geotag.heading_deg, photo(2).geotag.heading_deg]
            np.testing.assert_array_equal(headings, np.array([known[1], known[0], np.nan, known[1]], dtype=float))
            assert list(place_map.local_features([2])) == [2]
            assert len(place_map.headings_deg([2, 4])) == 2
            assert place_map.current_count() == COUNT
            place_map.list_photos(None, 5)
        with ThreadPoolExecutor(8) as threads:
            asked = [[n % COUNT + 1] for n in range(100)]
            assert list(threads.map(lambda ids: keypoints(place_map, ids), asked)) == asked
    assert len(opened) == 1


def test_features_and_headings_are_one_statement(town: Path) -> None:
    place_map = PlaceMap(town)
    place_map.features_and_headings([1])
    said: list[str] = []
    with place_map._file.use() as file:
        file._connection.set_trace_callback(said.append)
    place_map.features_and_headings([1, 2, 3])
    assert sum("SELECT" in statement for statement in said) == 1


def test_a_change_is_seen_by_the_next_query(town: Path) -> None:
    place_map = PlaceMap(town)
    for count in (7, 9, 11):  # faster than a time stamp's grain
        with open_map_file(town, write=True) as file:
            file.write_features(np.array([1]), [pack_features(features_of(0, count))])
            assert keypoints(place_map, [1]) == [count]
        assert keypoints(place_map, [1]) == [count]
    with closing(gis(town)) as connection, connection:
        connection.execute("DELETE FROM local_features WHERE fid = 1")
    assert keypoints(place_map, [1, 2]) == [2]
    place_map.close()
    assert [file.name for file in town.parent.iterdir()] == ["town.gpkg"]
    assert keypoints(place_map, [1, 2]) == [2]  # opened again


def test_a_change_is_seen_although_the_time_stamp_stays(town: Path) -> None:
    place_map, before = PlaceMap(town), os.stat(town)
    first = place_map.version()
    with closing(gis(town)) as connection, connection:
        connection.execute("UPDATE photos SET heading_deg = 77 WHERE fid = 1")
    os.utime(town, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(town).st_size == before.st_size
    assert place_map.version() != first
    assert place_map.headings_deg([1]).tolist() == [77]


def test_tables_are_checked_again_after_a_change(town: Path) -> None:
    place_map = PlaceMap(town)
    with closing(gis(town)) as connection, connection:
        connection.execute("ALTER TABLE local_features RENAME TO hidden")
        connection.execute("CREATE VIEW local_features AS SELECT * FROM hidden")
    with pytest.raises(MapError, match="view"):
        place_map.features_and_headings([1])


def test_a_replaced_file_is_noticed(town: Path) -> None:
    place_map, copy = PlaceMap(town), town.with_name("copy.gpkg")
    shutil.copy(town, copy)
    with open_map_file(copy, write=True) as file:
        file.write_features(np.array([1]), [pack_features(features_of(0, 33))])
    copy.replace(town)
    assert keypoints(place_map, [1]) == [33]
    shutil.copy(town, copy)  # overwritten in place, as a backup is restored
    with open_map_file(town, write=True) as file:
        file.remove(np.array([1]))
    assert keypoints(place_map, [1, 2]) == [2]
    shutil.copy(copy, town)
    assert keypoints(place_map, [1, 2]) == [33, 2]
    make_map(town.with_name("other.gpkg"), 3).replace(town)
    for use in (lambda: place_map.features_and_headings([1]), place_map.version, place_map.current_count):
        with pytest.raises(MapError, match="was replaced"):
            use()
    town.unlink()
    with pytest.raises(MapError, match="cannot be read"):
        place_map.features_and_headings([1])
    assert len(place_map.search(unit_vectors(1), 3).files[0]) == 3  # from memory


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_opens_its_own_connection(town: Path) -> None:
    place_map = PlaceMap(town)
    with open_map_file(town, write=True) as writer:
        writer.write_note("a", "b")
        assert keypoints(place_map, [5]) == [5]
        with place_map._file.use() as held, connections() as opened:  # a thread of the parent holds the lock
            child = os.fork()
            if child == 0:
                try:
                    right = keypoints(place_map, [5]) == [5] and place_map._file._file is not held
                    place_map.close()
                    os._exit(0 if right and len(opened) == 1 else 1)
                finally:
                    os._exit(2)
            assert os.waitpid(child, 0)[1] == 0
        writer.write_note("a", "c")
        assert keypoints(place_map, [5]) == [5]
    place_map.refresh()
    assert place_map.notes["a"] == "c"
