"""What a map keeps, whatever keeps it: what it is, and what it knows of a photo."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from sareloc import __version__
from sareloc.arrays import Vectors
from sareloc.errors import MapError
from sareloc.photos import Geotag

# Descriptors as bytes: half or full precision, or 8-bit whole numbers with a scale of their own.

Storage = Literal["float16", "float32", "int8"]


@dataclass(frozen=True)
class Packing:
    """How (N, dim) unit vectors become N strings of bytes, little-endian, and back."""

    pack: Callable[[Vectors], list[bytes]]
    unpack: Callable[[Sequence[bytes], int], Vectors]
    size: Callable[[int], int]
    """Bytes of one vector of so many dimensions."""


def descriptor_checksum(blob: bytes) -> int:
    """The first 8 bytes of the SHA-256 of a packed descriptor, as a signed integer, never 0 (which means unknown)."""
    return int.from_bytes(hashlib.sha256(blob).digest()[:8], "little", signed=True) or 1


def _plain(dtype: str) -> Packing:
    return Packing(
        lambda vectors: [row.tobytes() for row in vectors.astype(dtype)],
        lambda blobs, dim: np.frombuffer(b"".join(blobs), dtype=dtype).reshape(-1, dim).astype(np.float32),
        lambda dim: np.dtype(dtype).itemsize * dim,
    )


def _int8_rows(dim: int) -> np.dtype[np.void]:
    return np.dtype([("scale", "<f4"), ("steps", "i1", (dim,))])


def _pack_int8(vectors: Vectors) -> list[bytes]:
    rows = np.zeros(len(vectors), dtype=_int8_rows(vectors.shape[1]))
    rows["scale"] = np.abs(vectors).max(axis=1) / 127
    rows["steps"] = np.rint(vectors / np.maximum(rows["scale"], 1e-30)[:, None])
    return [row.tobytes() for row in rows]


def _unpack_int8(blobs: Sequence[bytes], dim: int) -> Vectors:
    rows = np.frombuffer(b"".join(blobs), dtype=_int8_rows(dim))
    with np.errstate(invalid="ignore", over="ignore"):  # a scale that is not finite gives numbers that are not
        vectors = rows["scale"][:, None] * rows["steps"].astype(np.float32)
        # rounding moved them off the unit sphere, where they are known to lie
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit: Vectors = (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return unit


PACKINGS: dict[str, Packing] = {
    "float16": _plain("<f2"),
    "float32": _plain("<f4"),
    "int8": Packing(_pack_int8, _unpack_int8, lambda dim: dim + 4),
}


FORMAT = 2
"""Of map files. Format 1 had no checksums and no change id; it is read, and upgraded when opened for writing."""
TIME_S = 1e-3  # a map file keeps milliseconds


LARGEST_DIM = 2**18
LONGEST_TEXT = 1000


@dataclass(frozen=True)
class MapManifest:
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
class MapPhoto:
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


def entry_of(photo: MapPhoto, photo_id: int) -> Entry:
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


def read_manifest(values: Mapping[str, Any], name: str) -> MapManifest:
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
    known: dict[str, Any] = {field.name: texts[field.name] for field in fields(MapManifest)}
    return MapManifest(**known | {"dim": int(texts["dim"]), "format": int(texts["format"])})


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
