"""What a map on Milvus holds: info, integrity check, listing for a page, and watching it for changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from itertools import chain, islice

import numpy as np
from tqdm import tqdm

from sareloc.errors import ArgumentError
from sareloc.geo import Area, Box
from sareloc.maps import MapInfo, gpkg
from sareloc.maps.listing import ListedPhoto, ListedPhotos
from sareloc.maps.maintain import UNIT, read_calibrations
from sareloc.maps.store import Address
from sareloc.milvus.collection import MilvusCollection, Row
from sareloc.milvus.store import ALL, inside, open_milvus_store, photo_id, photo_of
from sareloc.photos.record import FIRST_S, LAST_S

DEGREES, SECONDS = 1e-9, 1e-3  # how exactly extremes are found
EXTENT_S = 60.0
"""An extent is used for this long: it takes about 50 queries to the server."""
CHANGED_S = 5.0


def milvus_info(address: Address) -> MapInfo:
    """See `map_info`; found by queries, without reading all photos."""
    with open_milvus_store(address, consistency="Bounded") as store:
        photos = store.count()
        latitudes = _extremes(store.collection, "lat", -90.0, 90.0, DEGREES)
        longitudes = _extremes(store.collection, "lon", -180.0, 180.0, DEGREES)
        times = _extremes(store.collection, "time", FIRST_S, LAST_S, SECONDS)
        extent = None
        if latitudes is not None and longitudes is not None:
            extent = Box(latitudes[0], longitudes[0], latitudes[1], longitudes[1])
        first, last = (None, None) if times is None else map(gpkg.time_text, times)
        index, calibrations = f"{store.collection.index}, kept by Milvus", read_calibrations(store.notes())
        return MapInfo(store.manifest, photos, extent, first, last, None, index, calibrations)


def _extremes(
    collection: MilvusCollection, column: str, low: float, high: float, tolerance: float
) -> tuple[float, float] | None:
    """The smallest and the largest value of a column in this range; None if there is none."""
    one = collection.any_value(column, f"{column} >= {low!r} and {column} <= {high!r}")
    return (
        None
        if one is None
        else (_nearest(collection, column, low, one, tolerance), _nearest(collection, column, high, one, tolerance))
    )


def _nearest(collection: MilvusCollection, column: str, limit: float, best: float, tolerance: float) -> float:
    """The value nearest to a limit of all values, by bisection."""
    while abs(best - limit) > tolerance:
        middle = (best + limit) / 2
        low, high = sorted((middle, limit))
        found = collection.any_value(column, f"{column} >= {low!r} and {column} <= {high!r}")
        if found is None:
            limit = middle
        else:
            best = found
    return best


def verify_milvus(address: Address) -> list[str]:
    """See `verify_map`."""
    problems: list[str] = []
    with open_milvus_store(address) as store, tqdm(total=store.count(), unit="photo", disable=None, leave=False) as bar:
        found = 0
        for page in store.collection.select(fields=["lat", "lon", "file", "sha256", "vector"]):
            problems += _problems(page)
            found += len(page)
            bar.update(len(page))
        if found != store.count():
            problems.append(
                f"Milvus counts {store.count():,} photos and returns {found:,}: is another process writing?"
            )
    return problems


def _problems(page: list[Row]) -> Iterator[str]:
    lengths = np.linalg.norm(np.array([row["vector"] for row in page], dtype=np.float64), axis=1)
    for row, length in zip(page, lengths, strict=True):
        named = f"photo {row['id']} ({row['file']})"
        if not (abs(row["lat"]) <= 90 and abs(row["lon"]) <= 180):
            yield f"{named} has invalid coordinates: {row['lat']}, {row['lon']}"
        if not abs(length - 1) <= UNIT:
            yield f"the descriptor of {named} has length {length:.3f}, not 1"
        if photo_id(bytes.fromhex(row["sha256"])) != row["id"]:
            yield f"{named} has the content hash of another photo"


def compact_milvus(address: Address) -> tuple[int, int]:
    """See `compact_map`: refused."""
    raise ArgumentError(f"map {address} is on Milvus, which reclaims the space of removed photos automatically")


class MilvusListing:
    """The `MapListing` of a map on Milvus: each call asks the server."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._store = open_milvus_store(address, consistency="Bounded")
        self._lock = threading.Lock()
        self._extent: Box | None = None
        self._extent_until = 0.0

    def count(self) -> int:
        """See `MapListing`."""
        return self._store.count()

    def files(self) -> Sequence[str]:
        """See `MapListing`: of some thousand photos."""
        return [str(row["file"]) for row in next(self._store.collection.select(fields=["file"]), [])]

    def file_of(self, photo_id: int) -> str | None:
        """See `MapListing`."""
        row = self._store.collection.rows(np.array([photo_id]), ["file"]).get(photo_id)
        return None if row is None else str(row["file"])

    def photos(self, area: Area | None, limit: int) -> ListedPhotos:
        """See `MapListing`; the sample has the smallest ids, which are hashes and so a random choice."""
        where = "" if area is None else inside(area.bounds())
        rows = islice(chain.from_iterable(self._store.collection.select(where, ALL)), limit)
        photos = [_listed(row) for row in rows]
        counted = len(photos) if len(photos) < limit else self._store.collection.count(where)
        return ListedPhotos(photos, inside=counted, total=self.count(), extent=self._current_extent())

    def close(self) -> None:
        """See `MapListing`."""
        self._store.__exit__()

    def _current_extent(self) -> Box | None:
        with self._lock:
            if time.monotonic() >= self._extent_until:
                self._extent = milvus_info(self._address).extent
                self._extent_until = time.monotonic() + EXTENT_S
            return self._extent


def _listed(row: Row) -> ListedPhoto:
    tag = photo_of(row).geotag
    time_taken = None if tag.time is None else gpkg.time_text(tag.time)
    return ListedPhoto(int(row["id"]), tag.latlon, str(row["file"]), tag.heading_deg, time_taken)


class TimedWatch:
    """The `MapWatch` of a map on a server, which does not report changes: it may have changed every few seconds."""

    def __init__(self, address: Address) -> None:
        del address  # the server is not asked

    def version(self) -> tuple[int, ...]:
        """See `MapWatch`: equal for `CHANGED_S` seconds."""
        return (int(time.monotonic() / CHANGED_S),)

    def close(self) -> None:
        """See `MapWatch`: nothing is open."""
