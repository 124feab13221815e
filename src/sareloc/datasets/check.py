"""Checking a dataset before a long run: counts, extent, sources of positions, queries with a positive, missing and
unreadable files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sareloc.arrays import Floats
from sareloc.datasets.places import Places, find_positives, photo_paths
from sareloc.errors import PhotoError
from sareloc.geo import distance_m, unwrap_longitudes
from sareloc.photos import decode as decode_photo
from sareloc.photos import read_geotags
from sareloc.photos.decoding import TRUNCATED, is_truncated
from sareloc.photos.photo_file import read_metadata
from sareloc.wording import counted

THREADS = 8  # reading waits for the disk, and decoding releases the GIL
ABSENT = "no such file"
DISAGREE_M = 50.0


@dataclass(frozen=True)
class Extent:
    """The extent of the positions: in metres from west to east and from south to north, and as a box in degrees.

    `west` > `east` if the dataset crosses the antimeridian; the degrees are None in a local frame.
    """

    east_west_m: float
    south_north_m: float
    south: float | None = None
    west: float | None = None
    north: float | None = None
    east: float | None = None


@dataclass(frozen=True)
class Check:
    """The result of `check_places`. `photos` counts distinct files: a query that is in the database too counts once."""

    name: str
    split: str
    protocol: str
    hit_radius_m: float
    database: int
    queries: int
    photos: int
    extent: Extent | None
    queries_with_positive: int
    missing: tuple[str, ...]
    unreadable: tuple[tuple[str, str], ...]
    """(file, reason) of each existing file that cannot be read, also of those without a position."""
    left_out: tuple[str, ...]
    """Files without a position that can be read."""
    notes: tuple[str, ...] = ()
    """Problems of the geotag tables, truncated photos, and photos whose sources of positions disagree."""
    position_sources: Mapping[str, int] = field(default_factory=dict)
    """As `Places.position_sources`."""

    def to_json(self) -> dict[str, Any]:
        """The fields as a dict of JSON values."""
        return asdict(self)


def check_places(places: Places, *, decode: bool = False, progress: bool = False) -> Check:
    """Check a dataset; geotags of photos that differ from their positions in it are noted.

    Args:
        places: the dataset.
        decode: decode every photo instead of reading its header.
        progress: show progress bars.
    """
    paths = photo_paths(places)
    read = decode_photo if decode else read_metadata
    missing, unreadable = _faults(paths, read, progress)
    _, without_position = _faults([Path(file) for file in places.left_out], read, progress)  # the geotag was not read
    unreadable += without_position
    bad = {file for file, _ in unreadable}
    cut = [str(path) for path in paths if decode and str(path) not in bad and is_truncated(path)]
    return Check(
        places.name,
        places.split,
        places.protocol,
        places.hit_radius_m,
        len(places.database),
        len(places.queries),
        len(paths) + len(without_position),
        find_extent(places),
        sum(len(rows) > 0 for rows in find_positives(places)),
        missing,
        unreadable,
        tuple(file for file in places.left_out if file not in bad),
        (*places.notes, *(f"{file}: {TRUNCATED}" for file in cut), *_disagreements(places, progress)),
        dict(places.position_sources),
    )


def find_extent(places: Places) -> Extent | None:
    """The extent of database and queries together; None if no photo has a position."""
    known = [p for p in (places.database.positions, places.queries.positions) if p is not None and len(p)]
    if not known:
        return None
    if known[0].frame == "local":
        low, high = _box(np.concatenate([positions.metres for positions in known]))
        return Extent(*(high - low).tolist())
    latlon = unwrap_longitudes(np.concatenate([positions.latlon() for positions in known]))
    (south, west), (north, east) = _box(latlon)
    middle = (south + north) / 2
    corners = [[middle, west], [middle, east], [south, west], [north, west]]
    corners_on_earth = [[latitude, _wrapped(longitude)] for latitude, longitude in corners]
    east_west, south_north = distance_m(corners_on_earth[::2], corners_on_earth[1::2]).tolist()
    return Extent(east_west, south_north, float(south), _wrapped(west), float(north), _wrapped(east))


def _disagreements(places: Places, progress: bool) -> list[str]:
    """A note on the photos of which another source than that of their position is more than `DISAGREE_M` away."""
    from tqdm import tqdm

    odd: dict[str, None] = {}
    for photos in (places.database, places.queries):
        if not places.position_sources or photos.positions is None or photos.positions.frame == "local":
            continue
        with ThreadPoolExecutor(THREADS) as threads:
            found = threads.map(read_geotags, map(photos.path, range(len(photos))))
            shown = tqdm(found, total=len(photos), desc="sources", unit="photo", disable=None if progress else True)
            others = [(row, source, tag.latlon) for row, tags in enumerate(shown) for source, tag in tags.items()]
        if others:
            used = photos.positions.latlon()[[row for row, _, _ in others]]
            metres = distance_m(used, np.array([latlon for _, _, latlon in others]))
            for (row, source, _), far_m in zip(others, metres.tolist(), strict=True):
                if far_m > DISAGREE_M:
                    odd[f"{photos.path(row)}: {source} {far_m:,.0f} m away"] = None
    if not odd:
        return []
    return [
        f"positions of other sources more than {DISAGREE_M:g} m from the one used: {counted(list(odd), 'position')}"
    ]


def _wrapped(longitude: float) -> float:
    return float((longitude + 180) % 360 - 180)


def _box(rows: Floats) -> tuple[Floats, Floats]:
    return rows.min(axis=0), rows.max(axis=0)


def _faults(
    paths: list[Path], read: Callable[[Path], object], progress: bool
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    from tqdm import tqdm

    missing, unreadable = [], []
    with ThreadPoolExecutor(THREADS) as threads:
        faults = threads.map(lambda path: _fault(path, read), paths)
        shown = tqdm(faults, total=len(paths), unit="photo", disable=None if progress else True)
        for path, fault in zip(paths, shown, strict=True):
            if fault == ABSENT:
                missing.append(str(path))
            elif fault:
                unreadable.append((str(path), fault))
    return tuple(missing), tuple(unreadable)


def _fault(path: Path, read: Callable[[Path], object]) -> str:
    """Why a file cannot be read; empty if it can."""
    if not path.is_file():
        return ABSENT
    try:
        read(path)
    except PhotoError as error:
        return error.reason
    return ""
