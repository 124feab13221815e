"""Descriptors as bytes: half or full precision, or 8-bit whole numbers with a scale of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
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
