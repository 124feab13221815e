"""The stored form of a map's records: packed descriptors, checksums, rows of the tables, values of the manifest.

Values are checked: a map may come from anywhere.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sareloc.arrays import Floats, Ints, Vectors
from sareloc.errors import MapError, PositionError
from sareloc.maps import gpkg
from sareloc.maps.records import (
    FORMAT,
    LARGEST_AGGREGATE_DIM,
    LARGEST_DIM,
    Entry,
    MapManifest,
    MapPhoto,
    same_geotag,
    shown,
)
from sareloc.photos import Geotag

LONGEST_TEXT = 1000
NUMBERS = ("dim", "aggregate_dim")  # values of a manifest
AGGREGATES = 5  # the first format with aggregated local features
ENTRY = "fid, photos.geom, file, photos.time, photos.heading_deg, size_bytes, modified_ns"
ROW = "fid, photos.geom, file, photos.time, photos.heading_deg, width, height, photos.sha256, size_bytes, modified_ns"
INSERTED = ROW.removeprefix("fid, ").replace("photos.", "") + ", descriptor_checksum, photo_checksum"
SOURCE = "source.geom, source.heading_deg, source.time"
"""The geotag by the file, which is read with a photo or an entry; NULL if the map has none of it."""
EDITABLE = ("latlon", "heading_deg", "time")
"""Fields of a geotag, each of which another program may change in the map."""
MISMATCH = "its position or file name does not match its checksum"
BAD_NAME = "its file name is empty, has a NUL, or is not a text"
HALF_MAX = 65_504.0  # the largest number of half precision
BAD_VALUE = (ValueError, TypeError, OverflowError, PositionError)
"""What reading an invalid value raises."""


@dataclass(frozen=True)
class Packing:
    """Conversion of (N, dim) unit vectors to N strings of bytes, little-endian, and back."""

    pack: Callable[[Vectors], list[bytes]]
    unpack: Callable[[Sequence[bytes], int], Vectors]
    size: Callable[[int], int]
    """Dimension -> bytes of one vector."""


def descriptor_checksum(blob: bytes) -> int:
    """The first 8 bytes of the SHA-256 of a packed descriptor, as a signed integer, never 0, which means unknown.

    Packed local features have the same checksum.
    """
    return int.from_bytes(hashlib.sha256(blob).digest()[:8], "little", signed=True) or 1


def features_checksum(photo_id: int, sha256: bytes, checksum: int) -> int:
    """Binds local features, by the checksum of their bytes, to a photo, by its id and content; never 0 (none).

    The row of the photo stores it: local features under another id, or of another map, do not match it.
    """
    return descriptor_checksum(struct.pack("<qq", photo_id, checksum) + sha256)


def photo_checksum(geom: bytes, file: str) -> int:
    """The CRC-32 of a photo's position (as stored) and file name in a map file, never 0, which means unknown.

    A trigger of the map sets it to 0 if another program, such as QGIS, changes these values.
    """
    return zlib.crc32(file.encode("utf-8", "surrogatepass"), zlib.crc32(geom)) or 1


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
    with np.errstate(invalid="ignore", over="ignore"):  # a scale that is not finite gives such numbers
        vectors = rows["scale"][:, None] * rows["steps"].astype(np.float32)
        # rounding changed the length of unit vectors
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit: Vectors = (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return unit


PACKINGS: dict[str, Packing] = {
    "float16": _plain("<f2"),
    "float32": _plain("<f4"),
    "int8": Packing(_pack_int8, _unpack_int8, lambda dim: dim + 4),
}


def read_manifest(values: Mapping[str, Any], name: str) -> MapManifest:
    """The manifest of the map `name`, from stored keys and values. Raises MapError if it is malformed or too new."""
    texts = {key: value for key, value in values.items() if isinstance(value, str) and len(value) <= LONGEST_TEXT}
    if not _is_number(texts.get("format", ""), FORMAT):
        made_by = texts.get("made_by", "an unknown program")
        raise MapError(
            f"map {name} has format {shown(values.get('format'))} (made by {made_by}), this sareloc reads formats up "
            f"to {FORMAT}: install a newer sareloc, or build the map again"
        )
    number = int(texts["format"])
    expectations = _EXPECTED | (_EXPECTED_AGGREGATE if number >= AGGREGATES else {})
    for key, (expected, is_valid) in expectations.items():
        if not is_valid(texts.get(key, "")) or (key in values and key not in texts):
            found = shown(values[key]) if key in values else "nothing"
            raise MapError(
                f"map {name} is damaged: its manifest has {found} as {key}, expected {expected}. Restore a backup, or "
                "build it again"
            )
    known: dict[str, Any] = {key: texts.get(key, "") for key in expectations}
    read = MapManifest(**known | {key: int(texts[key]) for key in NUMBERS if key in known} | {"format": number})
    if (read.aggregate == "") != (read.aggregate_dim == 0):
        raise MapError(
            f"map {name} is damaged: its manifest has {read.aggregate_dim} as aggregate_dim and {read.aggregate!r} as "
            "aggregate. Restore a backup, or build it again"
        )
    return read


def _is_number(text: str, largest: int, smallest: int = 1) -> bool:
    return re.fullmatch("[0-9]{1,9}", text) is not None and smallest <= int(text) <= largest


_EXPECTED: dict[str, tuple[str, Callable[[str], object]]] = {
    **dict.fromkeys(("model", "fingerprint", "made_by"), ("a short text", bool)),
    "dim": (f"a number from 1 to {LARGEST_DIM}", lambda text: _is_number(text, LARGEST_DIM)),
    "storage": (f"one of {', '.join(PACKINGS)}", PACKINGS.__contains__),
    "map_id": ("32 hexadecimal digits", re.compile("[0-9a-f]{32}").fullmatch),  # it becomes the name of a folder
}
_EXPECTED_AGGREGATE: dict[str, tuple[str, Callable[[str], object]]] = {
    "aggregate": ("16 hexadecimal digits, or an empty text", re.compile("([0-9a-f]{16})?").fullmatch),
    "aggregate_dim": (
        f"a number from 0 to {LARGEST_AGGREGATE_DIM}",
        lambda text: _is_number(text, LARGEST_AGGREGATE_DIM, smallest=0),
    ),
}


def row_of(photo: MapPhoto) -> tuple[Any, ...]:
    """The values of `INSERTED`, without the point and the checksums."""
    tag = photo.geotag
    return (
        *(photo.file, gpkg.time_text(tag.time), tag.heading_deg, photo.width, photo.height),
        *(photo.sha256, photo.size_bytes, photo.modified_ns),
    )


def geotag_of(latlon: Sequence[float], heading_deg: float | None, time: str | None) -> Geotag:
    """The geotag of stored values. Raises one of `BAD_VALUE` if one is invalid."""
    if not (time is None or isinstance(time, str)):
        raise TypeError(f"its time is a {type(time).__name__}, expected a text")
    if not (heading_deg is None or isinstance(heading_deg, int | float)):
        raise TypeError(f"its heading is a {type(heading_deg).__name__}, expected a number")
    return Geotag((latlon[0], latlon[1]), heading_deg, None if time is None else gpkg.seconds_of(time))


def photo_of(row: Sequence[Any]) -> MapPhoto:
    """The photo of a row: `ROW`, its checksum and `SOURCE`. Raises one of `BAD_VALUE` if a value is invalid."""
    _, geom, file, time, heading, width, height, sha256, size, modified, checksum, *by_file = row
    (latlon,) = gpkg.latlon_of_blobs([geom]).tolist()
    _check_name(file)
    if not isinstance(sha256, bytes) or len(sha256) != 32:
        raise ValueError(f"its SHA-256 is {shown(sha256)}, expected 32 bytes")
    if not all(type(number) is int for number in (width, height, size, modified)):
        raise TypeError(f"its width, height, size and time stamp are {shown((width, height, size, modified))}")
    if checksum and photo_checksum(geom, file) != checksum:
        raise ValueError(MISMATCH)
    geotag, source = geotag_of(latlon, heading, time), source_of(by_file)
    edited = source is not None and not same_geotag(geotag, source)
    return MapPhoto(file, geotag, width, height, sha256, size, modified, source=source if edited else None)


def source_of(by_file: Sequence[Any]) -> Geotag | None:
    """The geotag of the values of `SOURCE`; None if it is unknown or invalid."""
    geom, heading_deg, time = by_file
    try:
        return None if geom is None else geotag_of(gpkg.latlon_of_blobs([geom])[0].tolist(), heading_deg, time)
    except BAD_VALUE:
        return None


def places_of(rows: Sequence[Sequence[Any]]) -> tuple[Ints, Floats, tuple[str, ...]]:
    """Ids (n,), latitudes and longitudes (n, 2) and file names of rows: fid, geom, file, checksum.

    Raises one of `BAD_VALUE` if a value is invalid.
    """
    files = tuple([file for _, _, file, _ in rows])
    if not all(files) or "\0" in "".join(files):
        raise ValueError(BAD_NAME)
    latlon = gpkg.latlon_of_blobs([geom for _, geom, _, _ in rows])
    if any(checksum and photo_checksum(geom, file) != checksum for _, geom, file, checksum in rows):
        raise ValueError(MISMATCH)
    return ids_of([fid for fid, _, _, _ in rows]), latlon, files


def _check_name(file: object) -> None:
    if not isinstance(file, str) or not file or "\0" in file:
        raise ValueError(BAD_NAME)


def ids_of(ids: Sequence[int]) -> Ints:
    """Stored ids (n,). Raises ValueError if one is invalid."""
    if not all(type(photo_id) is int and photo_id >= 0 for photo_id in ids):
        raise ValueError("its id is not a whole number from 0 up")
    return np.array(ids, dtype=np.int64)


def entries_of(rows: Sequence[Sequence[Any]]) -> Iterator[tuple[bytes, Entry]]:
    """The entries, each with its SHA-256, of rows: `ENTRY`, sha256, checksum, `SOURCE`.

    A row that another program has changed to something that cannot be read gives the geotag by the file, and the
    problem. Damaged rows are left out, so that their photos are added again.
    """
    points = _points([row[1] for row in rows])
    for point, row in zip(points, rows, strict=True):
        photo_id, geom, file, time, heading, size_bytes, modified_ns, sha256, checksum, *by_file = row
        if is_damaged(geom, file, checksum):
            continue
        stamp, same = (size_bytes, modified_ns), by_file == [geom, heading, time]
        source = None if same else source_of(by_file)
        try:
            geotag = geotag_of(gpkg.latlon_of_blobs([geom])[0].tolist() if point is None else point, heading, time)
        except BAD_VALUE as wrong:
            if source is not None:
                yield sha256, Entry(photo_id, file, stamp, source, source=source, problem=str(wrong))
            continue
        edited = () if same else _edited_fields(geotag, source, checksum)
        yield sha256, Entry(photo_id, file, stamp, geotag, None, source if edited else None, edited)


def _edited_fields(geotag: Geotag, source: Geotag | None, checksum: int) -> tuple[str, ...]:
    """The fields of a geotag that another program has changed in the map.

    Args:
        geotag: in the map.
        source: by the file; None if it is unknown.
        checksum: of position and file name in the map; 0: another program has changed one of them.
    """
    if source is None:
        return () if checksum else EDITABLE[:1]
    return tuple(one for one in EDITABLE if not same_geotag(replace(geotag, **{one: getattr(source, one)}), geotag))


def is_damaged(geom: Any, file: Any, checksum: int) -> bool:
    """Whether position and file name do not match their checksum, or the latter cannot be read."""
    try:
        _check_name(file)
        return bool(checksum and photo_checksum(geom, file) != checksum)
    except BAD_VALUE:
        return True


def _points(blobs: Sequence[bytes]) -> Sequence[Sequence[float] | None]:
    """Latitude and longitude of each binary point; None of all if one is invalid."""
    try:
        points: list[list[float]] = gpkg.latlon_of_blobs(blobs).tolist()
        return points
    except ValueError:
        return [None] * len(blobs)


def whitening_rows(mean: Vectors, projection: Vectors) -> list[tuple[int, bytes, int]]:
    """The rows (fid, numbers, checksum) of a whitening: its mean (D,) as float32, those of its projection as float16.

    Raises ValueError if a number is too large for these types.
    """
    halves = np.clip(projection, -HALF_MAX, HALF_MAX).astype("<f2")
    if not (np.isfinite(mean).all() and (np.abs(projection) <= HALF_MAX).all()):
        raise ValueError("its numbers are not finite, or too large")
    blobs = [mean.astype("<f4").tobytes(), *(row.tobytes() for row in halves)]
    return [(fid, blob, descriptor_checksum(blob)) for fid, blob in enumerate(blobs, start=1)]


def whitening_of(rows: Sequence[Sequence[Any]], dim: int) -> tuple[Vectors, Vectors]:
    """Mean (D,) and projection (dim, D) of all rows of a whitening. Raises ValueError if one is invalid."""
    if [fid for fid, _, _ in rows] != list(range(1, dim + 2)):
        raise ValueError(f"it has {len(rows):,} rows, expected {dim + 1:,}: the mean, and one for each dimension")
    for fid, blob, checksum in rows:
        if not isinstance(blob, bytes) or descriptor_checksum(blob) != checksum:
            raise ValueError(f"row {fid} is too long, not bytes, or does not match its checksum")
    blobs = [blob for _, blob, _ in rows]
    length = len(blobs[0]) // 4
    if not dim <= length <= LARGEST_DIM or len(blobs[0]) % 4 or {len(blob) for blob in blobs[1:]} != {2 * length}:
        raise ValueError(f"its rows are not of one number of dimensions from {dim:,} to {LARGEST_DIM:,}")
    mean = np.frombuffer(blobs[0], dtype="<f4").astype(np.float32)
    projection = np.frombuffer(b"".join(blobs[1:]), dtype="<f2").reshape(dim, length).astype(np.float32)
    if not (np.isfinite(mean).all() and np.isfinite(projection).all()) or not projection.any():
        raise ValueError("its numbers are not finite, or all 0")
    return mean, projection
