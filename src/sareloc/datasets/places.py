"""A dataset in memory: `Places` with its database and queries, their positives, and a train/val split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal, overload

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Bools, Floats, Ints
from sareloc.errors import DatasetError
from sareloc.geo import Positions, within_radius

Protocol = Literal["radius", "panorama", "time", "place-id", "average-precision"]


@dataclass(frozen=True, eq=False)
class IdLists(Sequence[tuple[int, ...]]):
    """N short lists of numbers in two arrays, used like a tuple of tuples: a million rows take 16 MB instead of 100.

    Row i is `ids[starts[i]:starts[i + 1]]`; `starts` (N + 1,) begins with 0 and ends with `len(ids)`.
    """

    ids: Ints
    starts: Ints

    @staticmethod
    def of(rows: Iterable[Iterable[int]]) -> IdLists:
        """From rows of numbers."""
        lists = [list(row) for row in rows]
        starts = np.zeros(len(lists) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in lists], out=starts[1:])
        return IdLists(np.array([number for row in lists for number in row], dtype=np.int64), starts)

    @staticmethod
    def one_each(ids: npt.ArrayLike) -> IdLists:
        """From (N,) numbers, one per row."""
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
    times: Floats | None = None
    """Time stamps: seconds since 1970, or other numbers, which are only compared for equality; NaN: unknown."""
    headings_deg: Floats | None = None
    """Compass direction of the optical axis, clockwise from north; NaN: unknown."""
    place_ids: Sequence[tuple[int, ...]] | None = None
    """The ids of the places (buildings, landmarks) in each photo; may be empty. A tuple of tuples or the compact
    `IdLists`: use only `len`, `[row]` and iteration."""
    sources: tuple[str, ...] | None = None
    """Where the position of each photo is from, see `Places.position_sources`."""

    def __len__(self) -> int:
        return len(self.files)

    def path(self, row: int) -> Path:
        """The file of photo `row`."""
        return self.folder / self.files[row]

    def paths(self) -> list[Path]:
        """The files of all photos."""
        return [self.folder / file for file in self.files]

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
            None if self.sources is None else tuple(self.sources[i] for i in index.tolist()),
        )


@dataclass(frozen=True, eq=False)
class Places:
    """A dataset, or one split of it: a database, queries, and the protocol that defines which results are correct.

    `protocol` defines the positives of a query:
    - "radius": database photos within `hit_radius_m` of the query;
    - "panorama": as "radius"; each panorama (`panoramas`) counts once in the ranking (Tokyo 24/7);
    - "time": as "radius"; results with the query's time stamp are dropped (TokyoTM);
    - "place-id": database photos that share a place id with the query (San Francisco, TMBuD);
    - "average-precision": the lists `relevant` and `junk` (Oxford, Paris, Holidays, Landmarks).
    """

    name: str
    split: str
    """The name of the split; "all" if the dataset has no splits."""
    database: PhotoSet
    queries: PhotoSet
    protocol: Protocol = "radius"
    hit_radius_m: float = 25.0
    panoramas: Ints | None = None
    """(database,) panorama number of each database photo, for protocol "panorama"."""
    relevant: tuple[Ints, ...] = field(default=())
    """The positives of each query as database rows, for protocol "average-precision"."""
    junk: tuple[Ints, ...] = field(default=())
    """Database rows of each query that are removed from the ranking before it is judged."""
    boxes: Floats | None = None
    """(queries, 4) x0, y0, x1, y1 in pixels: the query region in each query photo, if the dataset has them."""
    precision_at: int | None = None
    """Average precision over the top N results (Landmarks: 100); None: over all results."""
    left_out: tuple[str, ...] = field(default=())
    """Photos that are not used because they have no position."""
    notes: tuple[str, ...] = field(default=())
    """Problems of the geotag tables: bad rows, rows without a photo, positions far from the others."""
    position_sources: Mapping[str, int] = field(default_factory=dict)
    """Number of photos by where their positions are from: "table", or a name of `sareloc.photos.SOURCES`. Empty for
    datasets that have their own files of positions."""


def find_positives(places: Places) -> list[Ints]:
    """The positives of each query under the dataset's protocol, as sorted database rows; may be empty.

    Under "time", photos with the query's time stamp are not positives. (Training uses a smaller radius, see
    `sareloc.training.mining`.) Raises DatasetError if the photos lack the positions or place ids of the protocol.
    """
    if places.protocol == "average-precision":
        return [np.sort(rows) for rows in places.relevant]
    if places.protocol == "place-id":
        return _positives_by_place(places)
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


def _positives_by_place(places: Places) -> list[Ints]:
    if places.database.place_ids is None or places.queries.place_ids is None:
        raise DatasetError(f"{places.name} is judged by place id and its photos have none")
    rows_of: dict[int, list[int]] = {place: [] for ids in places.queries.place_ids for place in ids}
    for row, ids in enumerate(places.database.place_ids):
        for place in ids:
            if place in rows_of:
                rows_of[place].append(row)
    return [
        np.array(sorted({row for place in ids for row in rows_of[place]}), dtype=np.int64)
        for ids in places.queries.place_ids
    ]


SPLIT_GAP_M = {50.0: 1 / 2, 25.0: 1 / 3}
"""Distances between train and val that `split_places` tries (twice and once the usual hit radius), and the smallest
fraction of all photos in train."""
VALIDATION_QUERIES = 5
"""The smallest number of queries with a positive in val."""


def split_places(places: Places) -> tuple[Places, Places]:
    """Split a dataset without splits into train and val; deterministic.

    By position: the queries are halved at the median of the axis with the largest spread, and each half again. One of
    the four areas is val, with all its photos; the others are train, without the photos within 50 m of a val photo,
    which are in neither. The area that leaves the most photos to train is chosen. If that is less than half of all
    photos, 25 m is tried. Under the protocol "place-id", every fourth place of the queries is val, and photos that show
    places of both are in neither.
    Raises DatasetError if train has less than a third of the photos or no query with a positive, or if val has fewer
    than VALIDATION_QUERIES queries with a positive.
    """
    if places.protocol in ("panorama", "average-precision"):
        raise DatasetError(f"{places.name} has the protocol {places.protocol}, which cannot be split")
    by_place = places.protocol == "place-id"
    for train, val in _split_by_place(places) if by_place else _splits_by_position(places):
        parts = _part(places, "train", train), _part(places, "val", val)
        with_positive = [sum(map(bool, map(len, find_positives(part)))) for part in parts]
        if with_positive[0] and with_positive[1] >= VALIDATION_QUERIES:
            return parts
    apart = "of places that train does not show" if by_place else f"at least {min(SPLIT_GAP_M):.0f} m from train"
    raise DatasetError(
        f"{places.name} has no train and val splits, and its {len(places.database)} database photos and "
        f"{len(places.queries)} queries are too few or too close together to make them: val needs at least "
        f"{VALIDATION_QUERIES} queries with a positive, {apart}, and train a third of all photos. Add photos, or "
        "make the splits: folders train/ and val/, each with database/ and queries/, or a column split in a CSV file"
    )


def _splits_by_position(places: Places) -> Iterator[tuple[Bools, Bools]]:
    """Train and val as masks over the rows of the database, then of the queries; of each distance the largest train
    first."""
    database, queries = places.database.positions, places.queries.positions
    if database is None or queries is None:
        raise DatasetError(f"{places.name} has no train and val splits and no positions to split it by")
    metres = np.concatenate([database.metres, queries.metres])
    is_query = np.arange(len(metres)) >= len(places.database)
    halves = _halved(metres, is_query, np.ones(len(metres), dtype=np.bool_))
    quarters = [quarter for half in halves for quarter in _halved(metres, is_query, half)]
    for gap_m, fraction in SPLIT_GAP_M.items():
        splits = [(_far_from(metres, val, gap_m), val) for val in quarters]
        splits = [(train, val) for train, val in splits if train.mean() >= fraction]
        yield from sorted(splits, key=lambda split: -int(split[0].sum()))


def _far_from(metres: Floats, area: Bools, gap_m: float) -> Bools:
    """The points farther than `gap_m` from every point of an area."""
    far = ~area
    far[~area] = [not len(rows) for rows in within_radius(metres[area], metres[~area], gap_m)]
    return far


def _halved(metres: Floats, is_query: Bools, area: Bools) -> tuple[Bools, Bools]:
    """An area (N,) cut at the median of its queries on the axis of their largest spread."""
    queries = metres[area & is_query]
    if not len(queries):
        return area, np.zeros_like(area)
    axis = int(np.argmax(np.ptp(queries, axis=0)))
    low = metres[:, axis] < np.median(queries[:, axis])
    return area & low, area & ~low


def _split_by_place(places: Places) -> list[tuple[Bools, Bools]]:
    """As `_splits_by_position`, by place id; there is one such split."""
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
    """The distinct files of the dataset, the database's first; they need not exist."""
    return list(dict.fromkeys(places.database.paths() + places.queries.paths()))
