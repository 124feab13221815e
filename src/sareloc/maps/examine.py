"""What a map wants to know of a photo before it is decoded: content hash, position, size, and the name it goes by."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from sareloc.errors import PhotoError
from sareloc.maps.records import MapPhoto
from sareloc.photos import Geotag, find_photos, read_geotag, read_geotag_table
from sareloc.photos.decoding import open_photo
from sareloc.photos.finding import TABLES, TableTags, fitting_ns, match_table
from sareloc.photos.xmp import find_sidecar

Given = str | Path | Sequence[str | Path]
"""A folder of photos or a photo, or several of them."""


def list_photos(given: Given) -> list[Path]:
    """The photos in folders and their subfolders, and those given by name; none at all is a PhotoError."""
    items = _items(given)
    photos = [photo for item in items for photo in ([item] if item.is_file() else find_photos(item))]
    if not photos:
        raise PhotoError(", ".join(map(str, items)), "holds no photos")
    return photos


def read_tables(given: Given, table: str | Path | None, photos: Sequence[Path]) -> TableTags:
    """Geotags of `photos`: from this table, or from the geotags.csv or geotags.geojson in each folder given."""
    if table is not None:
        return match_table(read_geotag_table(table), photos)
    beside = [item / name for item in _items(given) for name in TABLES if (item / name).is_file()]
    found = [
        match_table(read_geotag_table(source), [photo for photo in photos if photo.is_relative_to(source.parent)])
        for source in beside
    ]
    return TableTags(
        {path: tag for one in found for path, tag in one.tags.items()},
        tuple(file for one in found for file in one.missing),
        tuple(note for one in found for note in one.notes),
    )


def stamp(photo: Path) -> tuple[int, int] | None:
    """Size in bytes and time stamp in ns of a file; None where there is none."""
    try:
        status = photo.stat()
    except OSError:
        return None
    return status.st_size, fitting_ns(status.st_mtime_ns)


def read_beside(photo: Path) -> Geotag | None:
    """The geotag of a photo that has an XMP sidecar, which may change while the photo does not; None if it has none."""
    return None if find_sidecar(photo) is None else read_geotag(photo)


def examine(photo: Path, name: str, table: Mapping[str, Geotag]) -> MapPhoto | None:
    """The photo as a map keeps it; None where its position is not known. Raises PhotoError where it cannot be read."""
    with open_photo(photo) as image:
        width, height = image.size
    geotag = table.get(os.path.abspath(photo)) or read_geotag(photo)
    if geotag is None:
        return None
    try:
        status = photo.stat()  # before the content: what changes in between is noticed by the next run
        with photo.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").digest()
    except OSError as lost:
        raise PhotoError(photo, f"cannot be read: {lost.strerror}") from lost
    return MapPhoto(name, geotag, width, height, digest, status.st_size, fitting_ns(status.st_mtime_ns))


def _items(given: Given) -> list[Path]:
    return [Path(given)] if isinstance(given, str | Path) else [Path(item) for item in given]
