"""Places: photos with positions, split into a database and queries, and how a hit is judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from sareloc.geo import Positions

Ints = npt.NDArray[np.int64]
Protocol = Literal["radius", "panorama", "time", "place-id", "average-precision"]


@dataclass(frozen=True, eq=False)
class PhotoSet:
    """N photos of one role, in a fixed order. Absent columns are None; present ones have N rows."""

    folder: Path
    """The folder that `files` are relative to."""
    files: tuple[str, ...]
    """File names relative to `folder`, with forward slashes."""
    positions: Positions | None = None
    times: npt.NDArray[np.float64] | None = None
    """Time stamps: seconds since 1970 where the dataset gives moments, else numbers of which only equality counts."""
    headings_deg: npt.NDArray[np.float64] | None = None
    """Compass direction of the optical axis, clockwise from north; NaN where unknown."""
    place_ids: tuple[tuple[int, ...], ...] | None = None
    """For each photo the ids of the places (buildings, landmarks) that it shows; may be empty."""

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
            None if self.place_ids is None else tuple(self.place_ids[i] for i in index),
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
