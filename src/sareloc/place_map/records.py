"""What a map keeps, whatever keeps it: what it is, and what it knows of a photo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sareloc import __version__
from sareloc.errors import MapError, look_up
from sareloc.photos import Geotag
from sareloc.place_map.storage import PACKINGS, Storage

FORMAT = 2
"""Of map files. Format 1 had no checksums and no change id; it is read, and upgraded when opened for writing."""
TIME_S = 1e-3  # a map file keeps milliseconds


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
    """The manifest of the map of this name, from keys and texts; MapError where this sareloc cannot read it."""
    made_by = values.get("made_by", "an unknown program")
    if not values.get("format", "").isdigit() or int(values["format"]) > FORMAT:
        raise MapError(
            f"map {name} has format {values.get('format')} (made by {made_by}), this sareloc reads formats up to "
            f"{FORMAT}: install a newer sareloc, or build the map again"
        )
    try:
        known = {field.name: values[field.name] for field in fields(Manifest)}
        known |= {"dim": int(known["dim"]), "format": int(known["format"])}
    except (KeyError, ValueError) as missing:
        raise MapError(f"map {name} is damaged: its manifest lacks or garbles {missing}. Build it again") from missing
    look_up(PACKINGS, known["storage"], "storage")
    return Manifest(**known)
