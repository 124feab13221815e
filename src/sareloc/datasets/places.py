"""Places: photos with positions, split into a database and queries, and how a hit is judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal, overload

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Bools, Ints
from sareloc.errors import DatasetError
from sareloc.geo import Positions, within_radius

Protocol = Literal["radius", "panorama", "time", "place-id", "average-precision"]


@dataclass(frozen=True, eq=False)
class IdLists(Sequence[tuple[int, ...]]):
    """N short lists of numbers in two arrays, read like a tuple of tuples: a million rows take 16 MB, not 100.

    Row i is `ids[starts[i]:starts[i + 1]]`; `starts` (N + 1,) begins with 0 and ends with `len(ids)`.
    """

    ids: Ints
    starts: Ints

    @staticmethod
    def of(rows: Iterable[Iterable[int]]) -> IdLists:
        """From any rows of numbers."""
        lists = [list(row) for row in rows]
        starts = np.zeros(len(lists) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in lists], out=starts[1:])
        return IdLists(np.array([number for row in lists for number in row], dtype=np.int64), starts)

    @staticmethod
    def one_each(ids: npt.ArrayLike) -> IdLists:
        """From (N,) numbers, one in each row."""
        numbers = np.asarray(ids, dtype=np.int64)
        return IdLists(numbers, np.arange(len(numbers) + 1, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, row: int) -> tuple[int, ...]: ...
    @overload
    def __getitem__(self, row: slice) -> tuple[tuple[int, ...], ...]: ...
    def __getitem__(self, row: int | slice) -> tuple[int, ...] | tuple[tuple[int, ...], ...]:
        if isinstance(row, slice):
            return tuple(self[i] for i in range(*row.indices(len(self))))
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        first = row % len(self)
        return tuple(self.ids[self.starts[first] : self.starts[first + 1]].tolist())

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        ids = self.ids.tolist()
        return (tuple(ids[start:end]) for start, end in pairwise(self.starts.tolist()))


@dataclass(frozen=True, eq=False)
class PhotoSet:
    """N photos of one role, in a fixed order. Absent columns are None; present ones have N rows."""

    folder: Path
    """The folder that `files` are relative to."""
    files: tuple[str, ...]
    """File names relative to `folder`, with forward slashes."""
    positions: Positions | None = None
    times: npt.NDArray[np.float64] | None = None
    """Time stamps: seconds since 1970 where the dataset gives moments, else numbers of which only equality counts;
    NaN where unknown."""
    headings_deg: npt.NDArray[np.float64] | None = None
    """Compass direction of the optical axis, clockwise from north; NaN where unknown."""
    place_ids: Sequence[tuple[int, ...]] | None = None
    """For each photo the ids of the places (buildings, landmarks) that it shows; may be empty. A tuple of tuples or
    the compact `IdLists`: rely on `len`, `[row]` and iteration only."""

    def __len__(self) -> int:
        return len(self.files)

    def path(self, row: int) -> Path:
        """The file of photo `row`."""
        return self.folder / self.files[row]

    def take(self, rows: npt.ArrayLike) -> PhotoSet:
        """The photos of these rows, in this order."""
        index = np.asarray(rows, dtype=np.int64).reshape(-1)
        return PhotoSet(
            self.folder,
            tuple(self.files[i] for i in index),
            None if self.positions is None else self.positions[index],
            None if self.times is None else self.times[index],
            None if self.headings_deg is None else self.headings_deg[index],
            None if self.place_ids is None else tuple(self.place_ids[i] for i in index.tolist()),
        )


@dataclass(frozen=True, eq=False)
class Places:
    """A dataset's split: a database to search, queries to ask, and the rule that says which answers are right.

    `protocol` names the rule:
    - "radius": a database photo within `hit_radius_m` of the query;
    - "panorama": the same, each panorama (`panoramas`) counted once in the ranking (Tokyo 24/7);
    - "time": the same, results with the query's own time stamp dropped (TokyoTM);
    - "place-id": a database photo that shares a place id with the query (San Francisco, TMBuD);
    - "average-precision": `relevant` and `junk` lists (Oxford, Paris, Holidays, Landmarks).
    """

    name: str
    split: str
    """The split asked for; "all" where the dataset has no splits."""
    database: PhotoSet
    queries: PhotoSet
    protocol: Protocol = "radius"
    hit_radius_m: float = 25.0
    panoramas: Ints | None = None
    """(database,) panorama number of each database photo, for protocol "panorama"."""
    relevant: tuple[Ints, ...] = field(default=())
    """For each query the database rows that count as right, for protocol "average-precision"."""
    junk: tuple[Ints, ...] = field(default=())
    """For each query the database rows to take out of the ranking before judging it."""
    boxes: npt.NDArray[np.float64] | None = None
    """(queries, 4) x0, y0, x1, y1 in pixels: the part of each query photo to ask with, where the dataset gives one."""
    precision_at: int | None = None
    """Average precision over the first so many results (Landmarks: 100); None: over the whole ranking."""
    left_out: tuple[str, ...] = field(default=())
    """Photos that were found and not used because nothing says where they were taken."""
    notes: tuple[str, ...] = field(default=())
    """What is wrong or odd about the tables of positions: bad rows, rows that name no photo, positions far off."""


def find_positives(places: Places) -> list[Ints]:
    """For each query the sorted database rows that count as right under the dataset's own rule; may be empty.

    Under "time", a photo with the query's own time stamp is not right: it is dropped before judging. (Mining asks
    for narrower positives, see `sareloc.mining`.)
    """
    if places.protocol == "average-precision":
        return [np.sort(rows) for rows in places.relevant]
    if places.protocol == "place-id":
        return _sharing_a_place(places)
    database, queries = places.database, places.queries
    if not len(queries):
        return []
    if database.positions is None or queries.positions is None:
        raise DatasetError(f"{places.name} is judged by distance and its photos have no positions")
    if database.positions.frame != queries.positions.frame or database.positions.epsg != queries.positions.epsg:
        raise DatasetError(f"{places.name}: the positions of database and queries are in different frames")
    near = within_radius(database.positions.metres, queries.positions.metres, places.hit_radius_m)
    if places.protocol != "time" or database.times is None or queries.times is None:
        return near
    return [rows[database.times[rows] != time] for rows, time in zip(near, queries.times, strict=True)]


def _sharing_a_place(places: Places) -> list[Ints]:
    if places.database.place_ids is None or places.queries.place_ids is None:
        raise DatasetError(f"{places.name} is judged by place id and its photos have none")
    showing: dict[int, list[int]] = {place: [] for ids in places.queries.place_ids for place in ids}
    for row, ids in enumerate(places.database.place_ids):
        for place in ids:
            if place in showing:
                showing[place].append(row)
    return [
        np.array(sorted({row for place in ids for row in showing[place]}), dtype=np.int64)
        for ids in places.queries.place_ids
    ]


APART_M = {50.0: 1 / 2, 25.0: 1 / 3}
"""Distances between the train and the val part that `split_places` tries, twice the usual hit radius and once, and the
share of all photos that must be left to train."""
VALIDATION_QUERIES = 5
"""Queries with a right answer that such a val part has at least."""


def split_places(places: Places) -> tuple[Places, Places]:
    """A train and a val part of a dataset that comes without parts; the same ones every time.

    By position: the queries are halved at their median along the axis on which they spread most, and each half again.
    One of the four areas is val, with all its photos; the others are train, without the photos within 50 m of one of
    val, which are in neither part. Of the four, the one is taken that leaves the most photos to train. Where that is
    less than half of all photos, 25 m are tried. Under the protocol "place-id": every fourth place that queries show is
    val, and photos that show places of both parts are in neither.
    Raises DatasetError if train has less than a third of the photos, or no query with a right answer, or val fewer than
    VALIDATION_QUERIES of them.
    """
    if places.protocol in ("panorama", "average-precision"):
        raise DatasetError(f"{places.name} is judged by {places.protocol}, and such a dataset cannot be split")
    by_place = places.protocol == "place-id"
    for train, val in _split_by_place(places) if by_place else _splits_by_position(places):
        parts = _part(places, "train", train), _part(places, "val", val)
        answered = [sum(map(bool, map(len, find_positives(part)))) for part in parts]
        if answered[0] and answered[1] >= VALIDATION_QUERIES:
            return parts
    apart = "that show places of their own" if by_place else f"{min(APART_M):.0f} m away from the train part"
    raise DatasetError(
        f"{places.name} has no train and val parts, and its {len(places.database)} database photos and "
        f"{len(places.queries)} queries are too few or too close together to make them: the val part takes at least "
        f"{VALIDATION_QUERIES} queries with right answers, {apart}, and train a third of all photos. Add photos, or "
        "make the parts yourself: folders train/ and val/, each with database/ and queries/, or a column split in a "
        "CSV file"
    )


def _splits_by_position(places: Places) -> Iterator[tuple[Bools, Bools]]:
    """Train and val as masks over the rows of the database, then of the queries: the largest train of each distance
    first."""
    found = places.database.positions, places.queries.positions
    if found[0] is None or found[1] is None:
        raise DatasetError(f"{places.name} has no train and val parts and no positions to split it by")
    metres = np.concatenate([found[0].metres, found[1].metres])
    asked = np.arange(len(metres)) >= len(places.database)
    halves = _halved(metres, asked, np.ones(len(metres), dtype=np.bool_))
    quarters = [quarter for half in halves for quarter in _halved(metres, asked, half)]
    for apart_m, share in APART_M.items():
        splits = [(_far_from(metres, val, apart_m), val) for val in quarters]
        splits = [(train, val) for train, val in splits if train.mean() >= share]
        yield from sorted(splits, key=lambda split: -int(split[0].sum()))


def _far_from(metres: npt.NDArray[np.float64], area: Bools, apart_m: float) -> Bools:
    """The points that lie farther than `apart_m` from every point of an area."""
    far = ~area
    far[~area] = [not len(rows) for rows in within_radius(metres[area], metres[~area], apart_m)]
    return far


def _halved(metres: npt.NDArray[np.float64], asked: Bools, area: Bools) -> tuple[Bools, Bools]:
    """An area (N,) cut at the median of its queries (`asked`) along the axis on which they spread most."""
    queries = metres[area & asked]
    if not len(queries):
        return area, np.zeros_like(area)
    axis = int(np.argmax(np.ptp(queries, axis=0)))
    low = metres[:, axis] < np.median(queries[:, axis])
    return area & low, area & ~low


def _split_by_place(places: Places) -> list[tuple[Bools, Bools]]:
    """The same, by the places that photos show; there is one such split."""
    if places.database.place_ids is None or places.queries.place_ids is None:
        raise DatasetError(f"{places.name} is judged by place id and its photos have none")
    chosen = set(sorted({place for ids in places.queries.place_ids for place in ids})[::4])
    shown = [set(ids) for photos in (places.database, places.queries) for ids in photos.place_ids or ()]
    val = np.array([bool(ids) and ids <= chosen for ids in shown])
    return [(np.array([not ids & chosen for ids in shown]), val)]


def _part(places: Places, split: str, rows: Bools) -> Places:
    count = len(places.database)
    database, queries = np.flatnonzero(rows[:count]), np.flatnonzero(rows[count:])
    return replace(places, split=split, database=places.database.take(database), queries=places.queries.take(queries))


def photo_paths(places: Places) -> list[Path]:
    """Every file of the dataset once, the database's first."""
    paths = (photos.path(row) for photos in (places.database, places.queries) for row in range(len(photos)))
    return list(dict.fromkeys(paths))


def missing_photos(places: Places) -> list[Path]:
    """The files that the dataset names and that are not there."""
    return [path for path in photo_paths(places) if not path.is_file()]
