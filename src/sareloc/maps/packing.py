"""How descriptors are stored as bytes, and the checksums that a map stores of them."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sareloc.arrays import Vectors


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
