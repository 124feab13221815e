"""Thumbnails of a map's photos, and which of them may be shown.

A map names files, and a map may come from a stranger: only files whose real path lies under the folders that the
operator allows are shown.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sareloc.arrays import Floats, Ints
from sareloc.errors import ArgumentError, MapError
from sareloc.maps import Area, open_map_file
from sareloc.milvus.connection import is_milvus_address
from sareloc.photos import decode, longest_side
from sareloc.serve.live_map import MapWatch

# The photos of a map as a page shows them: where they stand, as GeoJSON, and which file each is.

DETAILS = "SELECT fid, heading_deg, time FROM photos WHERE fid IN (SELECT value FROM json_each(?))"


@dataclass(frozen=True, eq=False)
class Listing:
    """The photos of a map at one moment."""

    ids: Ints
    """(N,) rising."""
    latlon: Floats
    """(N, 2) degrees, WGS84."""
    files: tuple[str, ...]

    def file_of(self, photo_id: int) -> str | None:
        """What the map calls the file of a photo; None for an id that is not in the map."""
        row = int(np.searchsorted(self.ids, photo_id))
        return self.files[row] if row < len(self.ids) and self.ids[row] == photo_id else None

    @cached_property
    def bbox(self) -> list[float] | None:
        """West, south, east, north in degrees; west is greater than east where the shorter way leads over 180 degrees.

        None where there are no photos.
        """
        if not len(self.ids):
            return None
        (south, _), (north, _) = self.latlon.min(axis=0), self.latlon.max(axis=0)
        longitudes = np.unique(self.latlon[:, 1])
        widest = int(np.argmax(np.diff(longitudes, append=longitudes[0] + 360)))  # the gap that the box leaves out
        west, east = longitudes[(widest + 1) % len(longitudes)], longitudes[widest]
        return [float(west), float(south), float(east), float(north)]


class Catalogue:
    """The listing of a map, kept as the file is. Safe from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._watch = MapWatch(path)
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._listing = Listing(np.zeros(0, dtype=np.int64), np.zeros((0, 2)), ())

    def current(self) -> Listing:
        """The photos that are in the map now."""
        with self._lock:
            version = self._watch.version()
            if version != self._seen:
                with open_map_file(self.path) as file:
                    self._listing = Listing(*file.photos())
                self._seen = version
            return self._listing

    def count(self) -> int:
        """How many photos there are now."""
        return len(self.current().ids)

    def files(self) -> Sequence[str]:
        """What the map calls the files of its photos."""
        return self.current().files

    def file_of(self, photo_id: int) -> str | None:
        """What the map calls the file of a photo; None for an id that is not in the map now."""
        return self.current().file_of(photo_id)

    def geojson(self, area: Area | None, limit: int) -> dict[str, Any]:
        """A FeatureCollection of the photos in an area; of more than `limit`, every n-th in the order of ids."""
        listing = self.current()
        inside = np.arange(len(listing.ids)) if area is None else area.rows(listing.latlon)
        shown = inside if len(inside) <= limit else inside[np.arange(limit) * len(inside) // limit]
        with open_map_file(self.path) as file:
            rows = file.query(DETAILS, (json.dumps(listing.ids[shown].tolist()),))
        details = {fid: _checked(self.path, heading_deg, time) for fid, heading_deg, time in rows}
        # a photo without details was removed a moment ago
        features = [
            feature(fid, listing.latlon[row].tolist(), listing.files[row], *details[fid])
            for row in shown.tolist()
            if (fid := int(listing.ids[row])) in details
        ]
        return collection(features, listing.bbox, total=len(listing.ids), inside=len(inside))

    def close(self) -> None:
        """Let go of the map's file."""
        self._watch.close()


def _checked(path: Path, heading_deg: Any, time: Any) -> tuple[float | None, str | None]:
    """A photo's details as a file of unknown origin has them. Raises MapError if they are not of their types."""
    numbers = heading_deg is None or (isinstance(heading_deg, int | float) and math.isfinite(heading_deg))
    if not numbers or not (time is None or isinstance(time, str)):
        raise MapError(f"map {path} is damaged: a photo has heading {heading_deg!r:.80} and time {time!r:.80}")
    return heading_deg, time


def collection(features: list[dict[str, Any]], bbox: list[float] | None, *, total: int, inside: int) -> dict[str, Any]:
    """A FeatureCollection of photos, with how many the map and the area asked for hold."""
    box = {} if bbox is None else {"bbox": bbox}
    return {"type": "FeatureCollection", **box, "total": total, "inside": inside, "features": features}


def feature(
    photo_id: int, latlon: Sequence[float], file: str, heading_deg: float | None, time: str | None
) -> dict[str, Any]:
    """A photo as GeoJSON."""
    latitude, longitude = latlon
    return {
        "type": "Feature",
        "id": photo_id,
        "geometry": {"type": "Point", "coordinates": [longitude, latitude]},
        "properties": {"photo": file, "heading_deg": heading_deg, "time": time},
    }


SUGGESTED = 3


def photo_folders(map_path: Path, added: Iterable[Path]) -> tuple[Path, ...]:
    """The folders, as real paths, whose photos may be shown: the map file's own, and those that were added."""
    for folder in added:
        if not folder.is_dir():
            raise ArgumentError(f"--photos {folder} is not a folder: give one that holds photos of the map")
    own = () if is_milvus_address(map_path) else (map_path.parent,)
    return tuple(Path(os.path.realpath(folder)) for folder in (*own, *added))


def allowed_path(path: str | Path, folders: Iterable[Path]) -> Path | None:
    """The real path of a file under one of these folders (real paths); None for one that lies elsewhere."""
    try:
        real = Path(os.path.realpath(path))
    except (OSError, ValueError):  # too long, or with a NUL
        return None
    return real if any(real.is_relative_to(folder) for folder in folders) else None


def etag_of(path: Path, size: int) -> str:
    """What changes when the thumbnail of this size does. Raises OSError if there is no such file."""
    status = path.stat()
    stamp = f"{path} {status.st_size} {status.st_mtime_ns} {size}"
    return f'"{hashlib.sha256(os.fsencode(stamp)).hexdigest()[:24]}"'


def draw_thumbnail(path: Path, size: int) -> bytes:
    """A JPEG whose longer side has `size` px at most. Raises PhotoError if the file cannot be decoded."""
    content = io.BytesIO()
    Image.fromarray(decode(path, size=longest_side(size))).save(content, "JPEG", quality=85)
    return content.getvalue()


@dataclass(frozen=True)
class HiddenPhotos:
    """Photos of a map that may not be shown."""

    count: int
    folders: tuple[str, ...]
    """Those that would have to be allowed: the one that holds all, else those that hold most."""


def hidden_photos(files: Sequence[str], map_folder: Path, folders: Sequence[Path]) -> HiddenPhotos:
    """Which of a map's files may not be shown, by the folders that they lie in."""
    hidden = Counter[str]()
    for parent, count in Counter(os.path.dirname(os.path.join(map_folder, file)) for file in files).items():
        if allowed_path(parent, folders) is None:
            hidden[os.path.abspath(parent)] += count
    common = os.path.commonpath(hidden) if hidden else ""
    if common and common != os.path.dirname(common):
        return HiddenPhotos(hidden.total(), (common,))
    return HiddenPhotos(hidden.total(), tuple(parent for parent, _ in hidden.most_common(SUGGESTED)))
