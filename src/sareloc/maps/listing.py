"""The photos of a map as a page lists them, and watching a map for changes by other processes."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sareloc.arrays import Floats, Ints
from sareloc.errors import MapError
from sareloc.geo import Area, Box
from sareloc.maps.file import MapFile, open_map_file

DETAILS = "SELECT fid, heading_deg, time FROM photos WHERE fid IN (SELECT value FROM json_each(?))"


@dataclass(frozen=True)
class ListedPhoto:
    """A photo of a map, without its descriptor."""

    photo_id: int
    latlon: tuple[float, float]
    """Degrees, WGS84."""
    file: str
    """Its name in the map."""
    heading_deg: float | None
    time: str | None
    """As 2024-05-31T12:00:00.000Z; None if it is unknown."""


@dataclass(frozen=True)
class ListedPhotos:
    """Photos in an area of a map, or a sample of them."""

    photos: list[ListedPhoto]
    inside: int
    """Photos in the area."""
    total: int
    """Photos in the map."""
    extent: Box | None
    """The smallest box that holds all photos of the map; None if it has none."""


class MapListing(Protocol):
    """The photos of a map at the time of each call. Safe from several threads."""

    def count(self) -> int:
        """The number of photos."""

    def files(self) -> Sequence[str]:
        """The names of all photos in the map; of a map on a server, of a sample of them."""

    def file_of(self, photo_id: int) -> str | None:
        """The name of a photo in the map; None if the map has no photo of this id."""

    def photos(self, area: Area | None, limit: int) -> ListedPhotos:
        """The photos in an area, default: in the map; if they are more than `limit`, a sample of that size."""

    def close(self) -> None:
        """Close the map."""


class MapWatch(Protocol):
    """Detects changes of a map, by any process. Safe from several threads."""

    def version(self) -> tuple[int, ...]:
        """A value that differs from an earlier one if the map may have changed in between."""

    def close(self) -> None:
        """Close the map; `version` opens it again."""


class FileWatch:
    """The `MapWatch` of a map file.

    SQLite counts exactly what other connections commit (`data_version`), whereas the file's time stamp can miss changes
    within its resolution; that needs a connection that stays open.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._file: MapFile | None = None
        self._inode: tuple[int, int] | None = None

    def version(self) -> tuple[int, ...]:
        """See `MapWatch`. Raises MapError if the file cannot be read."""
        with self._lock:
            try:
                status = os.stat(self._path)
            except OSError as gone:
                raise MapError(f"map {self._path} cannot be read: {gone.strerror}") from gone
            inode = (status.st_dev, status.st_ino)
            if self._file is None or inode != self._inode:  # another file under this name
                self._close()
                self._file, self._inode = open_map_file(self._path), inode
            return (*inode, *self._file.query("PRAGMA data_version")[0])

    def close(self) -> None:
        """See `MapWatch`."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


@dataclass(frozen=True, eq=False)
class PhotoTable:
    """All photos of a map at one time."""

    ids: Ints
    """(N,) ascending."""
    latlon: Floats
    """(N, 2) degrees, WGS84."""
    files: tuple[str, ...]

    def file_of(self, photo_id: int) -> str | None:
        """See `MapListing`."""
        row = int(np.searchsorted(self.ids, photo_id))
        return self.files[row] if row < len(self.ids) and self.ids[row] == photo_id else None

    @cached_property
    def extent(self) -> Box | None:
        """The smallest box that holds all photos, across the antimeridian if that is shorter; None without photos."""
        if not len(self.ids):
            return None
        (south, _), (north, _) = self.latlon.min(axis=0), self.latlon.max(axis=0)
        longitudes = np.unique(self.latlon[:, 1])
        widest = int(np.argmax(np.diff(longitudes, append=longitudes[0] + 360)))  # the gap outside the box
        west, east = longitudes[(widest + 1) % len(longitudes)], longitudes[widest]
        return Box(float(south), float(west), float(north), float(east))


class FileListing:
    """The `MapListing` of a map file: ids, positions and names are in memory, and are read again if the map changes."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._watch = FileWatch(path)
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._table = PhotoTable(np.zeros(0, dtype=np.int64), np.zeros((0, 2)), ())

    def current(self) -> PhotoTable:
        """The photos that are in the map now."""
        with self._lock:
            version = self._watch.version()
            if version != self._seen:
                with open_map_file(self.path) as file:
                    self._table = PhotoTable(*file.photos())
                self._seen = version
            return self._table

    def count(self) -> int:
        """See `MapListing`."""
        return len(self.current().ids)

    def files(self) -> Sequence[str]:
        """See `MapListing`."""
        return self.current().files

    def file_of(self, photo_id: int) -> str | None:
        """See `MapListing`."""
        return self.current().file_of(photo_id)

    def photos(self, area: Area | None, limit: int) -> ListedPhotos:
        """See `MapListing`; the sample is every n-th photo in the order of ids."""
        table = self.current()
        inside = np.arange(len(table.ids)) if area is None else area.rows(table.latlon)
        chosen = inside if len(inside) <= limit else inside[np.arange(limit) * len(inside) // limit]
        with open_map_file(self.path) as file:
            rows = file.query(DETAILS, (json.dumps(table.ids[chosen].tolist()),))
        details = {photo_id: _checked(self.path, heading_deg, time) for photo_id, heading_deg, time in rows}
        photos = [
            ListedPhoto(photo_id, (lat, lon), table.files[row], *details[photo_id])
            for row, photo_id, (lat, lon) in zip(
                chosen.tolist(), table.ids[chosen].tolist(), table.latlon[chosen].tolist(), strict=True
            )
            if photo_id in details  # else it was removed after the table was read
        ]
        return ListedPhotos(photos, inside=len(inside), total=len(table.ids), extent=table.extent)

    def close(self) -> None:
        """See `MapListing`."""
        self._watch.close()


def _checked(path: Path, heading_deg: Any, time: Any) -> tuple[float | None, str | None]:
    """Heading and time as read from a file of unknown origin. Raises MapError if a type is wrong."""
    numbers = heading_deg is None or (isinstance(heading_deg, int | float) and math.isfinite(heading_deg))
    if not numbers or not (time is None or isinstance(time, str)):
        raise MapError(f"map {path} is damaged: a photo has heading {heading_deg!r:.80} and time {time!r:.80}")
    return heading_deg, time
