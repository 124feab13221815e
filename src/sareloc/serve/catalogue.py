"""Thumbnails of a map's photos, and which of them may be shown.

A map names files, and a map may come from a stranger: only files whose real path lies under the folders that the
operator allows are shown.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from sareloc.errors import ArgumentError
from sareloc.maps import map_backend
from sareloc.maps.listing import ListedPhoto, ListedPhotos
from sareloc.photos import decode, longest_side


def map_geojson(listed: ListedPhotos) -> dict[str, Any]:
    """A FeatureCollection of photos, with the extent of the map and the counts of its photos, in all and inside."""
    box = listed.extent
    bbox = {} if box is None else {"bbox": [box.west, box.south, box.east, box.north]}
    features = [_feature(photo) for photo in listed.photos]
    return {"type": "FeatureCollection", **bbox, "total": listed.total, "inside": listed.inside, "features": features}


def _feature(photo: ListedPhoto) -> dict[str, Any]:
    latitude, longitude = photo.latlon
    return {
        "type": "Feature",
        "id": photo.photo_id,
        "geometry": {"type": "Point", "coordinates": [longitude, latitude]},
        "properties": {"photo": photo.file, "heading_deg": photo.heading_deg, "time": photo.time},
    }


SUGGESTED = 3


def photo_folders(map_path: Path, added: Iterable[Path]) -> tuple[Path, ...]:
    """The folders, as real paths, whose photos may be shown: the map file's own, and those that were added."""
    for folder in added:
        if not folder.is_dir():
            raise ArgumentError(f"--photos {folder} is not a folder: give one that holds photos of the map")
    own = (map_path.parent,) if map_backend(map_path).is_file else ()
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
