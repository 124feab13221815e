"""The contract of an engine: where descriptors live and are searched. tests/index/contract_suite.py is its twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Ints, Vectors
from sareloc.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class Hits:
    """The nearest vectors of Q queries, nearest first; equal distances in order of id."""

    ids: Ints
    """(Q, K). K is the k that was asked for, or the number of vectors that may be found where that is smaller."""
    distances: Vectors
    """(Q, K) Euclidean; between unit vectors 0 to 2."""


@dataclass(frozen=True)
class EngineInfo:
    """What an engine says of itself."""

    kind: str
    vectors: int
    dim: int
    index_bytes: int
    """Bytes that the index takes, in memory or mapped from a file."""


class Engine(Protocol):
    """Vectors of one length under int64 ids of the caller's choice, kept at half precision or better."""

    def upsert(self, ids: Ints, vectors: Vectors) -> None:
        """Put `vectors` (n, dim) under `ids` (n,), each at most once; an id that is there gets the new vector."""

    def delete(self, ids: Ints) -> None:
        """Forget these ids; one that is not there is no error."""

    def search(self, queries: Vectors, k: int, among: Ints | None = None) -> Hits:
        """The k nearest vectors of each query (Q, dim), from `among` alone where it is given.

        Whatever the engine, the hits are in `among` and as many as there can be. Ids in `among` that are not there
        are passed over.
        """

    def fetch(self, ids: Ints) -> Vectors:
        """The vectors (n, dim) of these ids, in this order; raises ArgumentError for one that is not there."""

    def iterate(self, batch: int = 4096) -> Iterator[tuple[Ints, Vectors]]:
        """All ids in rising order with their vectors, `batch` at a time."""

    def info(self) -> EngineInfo:
        """What this engine is and holds."""


def checked_vectors(vectors: npt.ArrayLike, dim: int) -> Vectors:
    """Rows of finite float32 of this length, as faiss wants them; one row may come flat."""
    rows = np.ascontiguousarray(vectors, dtype=np.float32)
    rows = rows[None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or rows.shape[1] != dim:
        raise ArgumentError(f"vectors here are rows of {dim} numbers: found an array of {rows.shape}")
    if not np.isfinite(rows).all():
        raise ArgumentError("a vector holds NaN or infinity: was it made by a model that diverged?")
    return rows


def checked_ids(ids: npt.ArrayLike, count: int) -> Ints:
    """So many ids, each once and none negative, as int64."""
    found = np.asarray(ids, dtype=np.int64).reshape(-1)
    if len(found) != count:
        raise ArgumentError(f"{count} vectors need as many ids, found {len(found)}")
    if len(np.unique(found)) != count or (count and found.min() < 0):
        raise ArgumentError("ids must be whole numbers from 0 up, each given once")
    return found


def checked_k(k: int) -> int:
    """A number of hits to look for."""
    if k < 1:
        raise ArgumentError(f"k must be 1 or more, found {k}")
    return k


def nearest_of(k: int, *parts: Hits) -> Hits:
    """The k nearest of several searches' hits for the same queries, put in order."""
    ids = np.concatenate([part.ids for part in parts], axis=1)
    distances = np.concatenate([part.distances for part in parts], axis=1)
    order = np.lexsort((ids, distances), axis=1)[:, :k]
    return Hits(np.take_along_axis(ids, order, axis=1), np.take_along_axis(distances, order, axis=1))


def in_batches(ids: Ints, fetch: Callable[[Ints], Vectors], batch: int) -> Iterator[tuple[Ints, Vectors]]:
    """The ids in rising order with what `fetch` gives for them, `batch` at a time."""
    ordered = np.sort(ids)
    for start in range(0, len(ordered), batch):
        part = ordered[start : start + batch]
        yield part, fetch(part)
