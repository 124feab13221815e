"""The records of a dataset, and what counts as right under each protocol."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sareloc.datasets import IdLists, PhotoSet, Places, find_positives, photo_paths, split_places
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
    with pytest.raises(DatasetError, match="no positions"):
        find_positives(bare)
    with pytest.raises(DatasetError, match="place id"):
        find_positives(replace(bare, protocol="place-id"))
    elsewhere = photo_set(1, positions=Positions.from_utm([[5e5, 5e6]], 32617))
    with pytest.raises(DatasetError, match="different frames"):
        find_positives(replace(places, queries=elsewhere))


def test_each_file_counts_once(tmp_path):
    photos = photo_set(2, str(tmp_path))
    places = Places("own", "all", photos, photos.take([0]))
    assert photo_paths(places) == [tmp_path / "0.jpg", tmp_path / "1.jpg"]


def town(x_m: np.ndarray, frame: str = "local") -> Places:
    """Database photos at these (N, 2) points, and a query 5 m east of every second one."""

    def positions(points: np.ndarray) -> Positions:
        if frame == "local":
            return Positions.from_local(points)
        degrees = np.array([52.2, 0.12]) + points[:, ::-1] / [111_200, 68_200]
        return Positions.from_wgs84(degrees)

    queries = x_m[::2] + np.array([5.0, 0.0])
    return Places(
        "a town",
        "all",
        photo_set(len(x_m), "database", positions=positions(x_m)),
        photo_set(len(queries), "queries", positions=positions(queries)),
    )


def all_metres(places: Places) -> np.ndarray:
    return np.concatenate([places.database.positions.metres, places.queries.positions.metres])


@pytest.mark.parametrize("frame", ["local", "wgs84"])
@pytest.mark.parametrize("size_m", [300, 2000])
def test_a_town_is_split_into_areas_that_lie_apart(size_m: int, frame: str) -> None:
    places = town(np.random.default_rng(3).uniform(0, size_m, (400, 2)), frame)
    train, val = split_places(places)
    assert (train.split, val.split, train.name) == ("train", "val", "a town")
    assert not set(train.database.files) & set(val.database.files)
    assert len(val.queries) == pytest.approx(0.25 * len(places.queries), abs=3)
    assert len(train.queries) > 0.5 * len(places.queries)
    gaps = np.linalg.norm(all_metres(train)[:, None] - all_metres(val)[None], axis=2)
    assert gaps.min() > 50
    again = split_places(places)
    assert [part.database.files for part in again] == [train.database.files, val.database.files]


def test_a_walk_gives_an_end_of_it() -> None:
    walk = np.stack([10.0 * np.arange(60), np.zeros(60)], axis=1)
    train, val = split_places(town(walk))
    assert len(train.database) == 60 - 15 - 5  # 15 are val, 5 lie within 50 m of them
    ends = val.database.positions.metres[:, 0]
    assert ends.min() == 0 or ends.max() == 590


def test_a_dense_town_is_split_at_the_hit_radius() -> None:
    side = np.arange(0, 101, 10.0)
    train, val = split_places(town(np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)))
    gaps = np.linalg.norm(all_metres(train)[:, None] - all_metres(val)[None], axis=2)
    assert 25 < gaps.min() < 50


def test_panoramas_are_not_torn() -> None:
    corners = np.repeat(np.random.default_rng(0).uniform(0, 400, (50, 2)), 4, axis=0)
    train, val = split_places(town(corners))
    assert not {*map(tuple, train.database.positions.metres)} & {*map(tuple, val.database.positions.metres)}


@pytest.mark.parametrize("size_m", [0, 40])
def test_a_town_that_is_too_small_to_split_says_what_to_do(size_m: int) -> None:
    with pytest.raises(DatasetError, match="25 m") as refused:
        split_places(town(np.random.default_rng(0).uniform(0, size_m or 1e-9, (80, 2))))
    assert "train/" in str(refused.value)


def test_places_without_positions_are_split_by_place() -> None:
    ids = [(i % 20,) for i in range(60)]
    database = photo_set(62, place_ids=(*ids, (0, 1), ()))
    places = Places("by place", "all", database, photo_set(40, place_ids=tuple(ids[:40])), "place-id")
    train, val = split_places(places)
    shown = [{i for ids in part.database.place_ids for i in ids} for part in (train, val)]
    assert not shown[0] & shown[1]
    assert (len(shown[0]), len(shown[1]), len(val.queries)) == (15, 5, 10)
    assert len(train.database) + len(val.database) == 61  # one photo shows places of both parts
