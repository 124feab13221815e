"""What a map keeps, whatever keeps it: what it is, and what it knows of a photo."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from sareloc import __version__
from sareloc.errors import MapError
from sareloc.photos import Geotag
from sareloc.place_map.storage import PACKINGS, Storage

FORMAT = 2
"""Of map files. Format 1 had no checksums and no change id; it is read, and upgraded when opened for writing."""
TIME_S = 1e-3  # a map file keeps milliseconds


LARGEST_DIM = 2**18
LONGEST_TEXT = 1000


@dataclass(frozen=True)
class Manifest:
    """What a map is, and which model its descriptors come from."""

    model: str
    fingerprint: str
    dim: int
    storage: Storage = "float16"
    map_id: str = ""
    """Drawn when the map is made: by it the cache of search indexes knows its map."""
    made_by: str = f"sareloc {__version__}"
    format: int = FORMAT


@dataclass(frozen=True)
class Photo:
    """A photo as the map keeps it."""

    file: str
    """Its path: relative to the map's folder where it lies inside, else absolute; forward slashes."""
    geotag: Geotag
    width: int
    """Pixels, as stored in the file."""
    height: int
    sha256: bytes
    """Of the file's content: the same photo under another name is the same photo."""
    size_bytes: int
    modified_ns: int
    """The file's time stamp when it was read: one that has not changed since need not be read again."""
    replaces: int | None = None
    """The id of the photo that had this file name before."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a map holds of a photo that may change while its content, and so its descriptor, stays."""

    photo_id: int
    file: str
    stamp: tuple[int, int]
    """Size in bytes and time stamp in ns of the file when it was read."""
    geotag: Geotag
    replaces: int | None = None
    """Where an entry is written: the id of the photo that had this file name before."""


def entry_of(photo: Photo, photo_id: int) -> Entry:
    """What changes in a map that holds this photo's content under `photo_id`."""
    stamp = (photo.size_bytes, photo.modified_ns)
    return Entry(photo_id, photo.file, stamp, photo.geotag, photo.replaces)


def same_geotag(one: Geotag, other: Geotag) -> bool:
    """Whether two geotags are the same as far as a map keeps them: time to the millisecond."""
    if (one.latlon, one.heading_deg) != (other.latlon, other.heading_deg):
        return False
    if one.time is None or other.time is None:
        return one.time is other.time
    return abs(one.time - other.time) <= TIME_S


def same_entry(one: Entry, other: Entry) -> bool:
    """Whether the map need not be changed from one to the other."""
    return (one.file, one.stamp) == (other.file, other.stamp) and same_geotag(one.geotag, other.geotag)


def read_manifest(values: Mapping[str, Any], name: str) -> Manifest:
    """The manifest of the map of this name, from keys and texts; raises MapError if this sareloc cannot read it."""
    texts = {key: value for key, value in values.items() if isinstance(value, str) and len(value) <= LONGEST_TEXT}
    if not _is_number(texts.get("format", ""), FORMAT):
        made_by = texts.get("made_by", "an unknown program")
        raise MapError(
            f"map {name} has format {shown(values.get('format'))} (made by {made_by}), this sareloc reads formats up "
            f"to {FORMAT}: install a newer sareloc, or build the map again"
        )
    for key, (expected, is_valid) in _EXPECTED.items():
        if not is_valid(texts.get(key, "")):
            found = shown(values[key]) if key in values else "nothing"
            raise MapError(
                f"map {name} is damaged: its manifest has {found} as {key}, expected {expected}. Restore a backup, or "
                "build it again"
            )
    known: dict[str, Any] = {field.name: texts[field.name] for field in fields(Manifest)}
    return Manifest(**known | {"dim": int(texts["dim"]), "format": int(texts["format"])})


def _is_number(text: str, largest: int) -> bool:
    return re.fullmatch("[0-9]{1,9}", text) is not None and 1 <= int(text) <= largest


_EXPECTED: dict[str, tuple[str, Callable[[str], object]]] = {
    **dict.fromkeys(("model", "fingerprint", "made_by"), ("a short text", bool)),
    "dim": (f"a number from 1 to {LARGEST_DIM}", lambda text: _is_number(text, LARGEST_DIM)),
    "storage": (f"one of {', '.join(PACKINGS)}", PACKINGS.__contains__),
    "map_id": ("32 hexadecimal digits", re.compile("[0-9a-f]{32}").fullmatch),  # it becomes the name of a folder
}


def shown(value: object) -> str:
    """A value of a map in an error: what cannot be printed is quoted, what is long is cut."""
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= 100 else f"{text[:90]}... ({len(text)} characters)"
