"""The records of a dataset, and what counts as right under each protocol."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sareloc.datasets import IdLists, PhotoSet, Places, find_positives, missing_photos, photo_paths
from sareloc.errors import DatasetError
from sareloc.geo import Positions


def photo_set(count: int, folder: str = "somewhere", **columns) -> PhotoSet:
    return PhotoSet(Path(folder), tuple(f"{row}.jpg" for row in range(count)), **columns)


def random_places(rng: np.random.Generator, **more) -> Places:
    database, queries = (
        photo_set(
            count,
            folder,
            positions=Positions.from_local(rng.uniform(0, 100, (count, 2))),
            times=rng.integers(0, 3, count).astype(float),
            place_ids=IdLists.of(rng.integers(0, 9, rng.integers(0, 3)) for _ in range(count)),
        )
        for count, folder in ((40, "database"), (15, "queries"))
    )
    return Places("random", "test", database, queries, **more)


@given(st.lists(st.lists(st.integers(-(2**62), 2**62), max_size=4), max_size=8))
def test_id_lists_read_like_a_tuple_of_tuples(rows):
    plain = tuple(tuple(row) for row in rows)
    compact = IdLists.of(rows)
    assert tuple(compact) == plain
    assert len(compact) == len(plain)
    assert [compact[i] for i in range(-len(plain), len(plain))] == [plain[i] for i in range(-len(plain), len(plain))]
    assert compact[1:3] == plain[1:3]
    assert all(type(number) is int for row in compact for number in row)


@pytest.mark.parametrize("row", [3, -4])
def test_id_lists_end(row):
    with pytest.raises(IndexError, match=f"row {row} of 3"):
        IdLists.one_each([5, 6, 7])[row]


def test_take_keeps_every_column_together():
    photos = photo_set(
        5,
        positions=Positions.from_local(np.arange(10).reshape(5, 2)),
        times=np.arange(5.0),
        headings_deg=10 * np.arange(5.0),
        place_ids=IdLists.one_each(range(100, 105)),
    )
    taken = photos.take([3, 0])
    assert taken.files == ("3.jpg", "0.jpg")
    assert taken.positions is not None
    assert taken.positions.metres.tolist() == [[6, 7], [0, 1]]
    assert taken.times is not None
    assert taken.times.tolist() == [3, 0]
    assert taken.headings_deg is not None
    assert taken.headings_deg.tolist() == [30, 0]
    assert taken.place_ids is not None
    assert list(taken.place_ids) == [(103,), (100,)]


@pytest.mark.parametrize("protocol", ["radius", "panorama", "time", "place-id"])
def test_positives_agree_with_plain_loops(protocol):
    places = random_places(np.random.default_rng(3), protocol=protocol, hit_radius_m=20.0)
    database, queries = places.database, places.queries
    twin = []
    for q in range(len(queries)):
        rows = []
        for d in range(len(database)):
            near = np.linalg.norm(database.positions.metres[d] - queries.positions.metres[q]) <= 20.0
            if protocol == "time":
                right = near and database.times[d] != queries.times[q]
            elif protocol == "place-id":
                right = bool(set(database.place_ids[d]) & set(queries.place_ids[q]))
            else:
                right = near
            if right:
                rows.append(d)
        twin.append(rows)
    assert [rows.tolist() for rows in find_positives(places)] == twin
    assert any(twin)
    assert not all(len(rows) == len(database) for rows in twin)


def test_positives_by_list_are_the_list():
    places = random_places(np.random.default_rng(0), protocol="average-precision", relevant=(np.array([7, 2]),))
    assert [rows.tolist() for rows in find_positives(places)] == [[2, 7]]


def test_positives_need_what_their_rule_reads():
    places = random_places(np.random.default_rng(0))
    bare = replace(places, queries=photo_set(2))
    with pytest.raises(DatasetError, match="judged by distance and its photos have no positions"):
        find_positives(bare)
    with pytest.raises(DatasetError, match="judged by place id and its photos have none"):
        find_positives(replace(bare, protocol="place-id"))
    elsewhere = photo_set(1, positions=Positions.from_utm([[5e5, 5e6]], 32617))
    with pytest.raises(DatasetError, match="different frames"):
        find_positives(replace(places, queries=elsewhere))


def test_each_file_counts_once_and_absent_ones_are_missing(tmp_path, make_photo):
    make_photo(tmp_path / "0.jpg")
    photos = photo_set(2, str(tmp_path))
    places = Places("own", "all", photos, photos.take([0]))
    assert photo_paths(places) == [tmp_path / "0.jpg", tmp_path / "1.jpg"]
    assert missing_photos(places) == [tmp_path / "1.jpg"]
