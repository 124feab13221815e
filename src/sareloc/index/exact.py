"""The protocol of a vector index, and the exact one, which compares each query with every vector.

tests/index/contract_suite.py tests what the protocol promises.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Bools, Ints, Vectors
from sareloc.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class Hits:
    """The nearest vectors of Q queries, nearest first; ties in order of id."""

    ids: Ints
    """(Q, K). K is the requested k, or the number of vectors that may be found if that is smaller."""
    distances: Vectors
    """(Q, K) Euclidean; between unit vectors 0 to 2."""


@dataclass(frozen=True)
class IndexInfo:
    """The kind and size of an index."""

    kind: str
    vectors: int
    dim: int
    index_bytes: int
    """Bytes of the index, in memory or mapped from a file."""


class Index(Protocol):
    """Vectors of one dimension under int64 ids that the caller chooses, stored at half precision or better."""

    def upsert(self, ids: Ints, vectors: Vectors) -> None:
        """Store `vectors` (n, dim) under `ids` (n,), each id at most once; a vector under the same id is replaced."""

    def delete(self, ids: Ints) -> None:
        """Delete the vectors of these ids; unknown ids are ignored."""

    def search(self, queries: Vectors, k: int, among: Ints | None = None) -> Hits:
        """The k nearest vectors of each query; k hits if there are k vectors.

        Args:
            queries: (Q, dim).
            k: how many hits per query. An approximate index may miss a near vector.
            among: only vectors of these ids; unknown ones are ignored.
        """

    def fetch(self, ids: Ints) -> Vectors:
        """The vectors (n, dim) of these ids, in this order. Raises ArgumentError if an id is unknown."""

    def info(self) -> IndexInfo:
        """The kind and size of this index."""


class ExactIndex:
    """Vectors in memory at half precision (2 bytes a number); a search compares the query with all of them."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.ids: Ints = np.zeros(0, dtype=np.int64)
        self.vectors = half_precision(dim)

    def upsert(self, ids: Ints, vectors: Vectors) -> None:
        """See `Index`."""
        rows = checked_vectors(vectors, self.dim)
        new = checked_ids(ids, len(rows))
        self.delete(new)
        self.vectors.add(rows)
        self.ids = np.concatenate([self.ids, new])

    def delete(self, ids: Ints) -> None:
        """See `Index`."""
        gone = np.isin(self.ids, ids)
        if gone.any():
            self.vectors.remove_ids(np.flatnonzero(gone))  # faiss keeps the order of the others, as here
            self.ids = self.ids[~gone]

    def search(self, queries: Vectors, k: int, among: Ints | None = None) -> Hits:
        """See `Index`."""
        rows = None if among is None else np.flatnonzero(np.isin(self.ids, among))
        return scan(self.vectors, self.ids, checked_vectors(queries, self.dim), checked_k(k), rows)

    def fetch(self, ids: Ints) -> Vectors:
        """See `Index`."""
        order = np.argsort(self.ids, kind="stable")  # fast if they are in order, as they mostly are
        rows, found = find_rows(self.ids[order], ids)
        if not found.all():
            raise ArgumentError(f"there is no vector under id {np.asarray(ids)[~found][0]}")
        return take(self.vectors, order[rows])

    def info(self) -> IndexInfo:
        """See `Index`."""
        return IndexInfo("exact", len(self.ids), self.dim, 2 * self.dim * len(self.ids))


def load_faiss() -> Any:
    """The faiss module, untyped: its type stubs lack the methods that its Python layer adds."""
    import faiss

    return faiss


def half_precision(dim: int) -> Any:
    """An empty faiss index that stores vectors at half precision and compares the query with each."""
    faiss = load_faiss()
    return faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_L2)


def scan(vectors: Any, ids: Ints, queries: Vectors, k: int, rows: Ints | None = None) -> Hits:
    """The k nearest vectors by comparing with all, or with those of `rows`; `ids` (n,) are the ids of the vectors."""
    faiss = load_faiss()
    k = min(k, len(ids) if rows is None else len(rows))
    if k == 0:
        return no_hits(len(queries))
    parameters = None
    if rows is not None:
        chosen = np.zeros(len(ids), dtype=bool)
        chosen[rows] = True
        bits = np.packbits(chosen, bitorder="little")
        parameters = faiss.SearchParameters(sel=faiss.IDSelectorBitmap(bits))
    squared, found = search_index(vectors, queries, k, parameters)
    return nearest_of(k, Hits(ids[found], np.sqrt(squared)))


def search_index(index: Any, queries: Vectors, k: int, parameters: Any) -> tuple[Vectors, Ints]:
    """Squared distances and rows (Q, k) from faiss; a single query is searched by one thread."""
    with one_thread() if len(queries) == 1 else nullcontext():
        squared, rows = index.search(queries, k, params=parameters)
    return squared, rows


@contextmanager
def one_thread() -> Iterator[None]:
    """faiss uses only the calling thread inside.

    For small work, waking all threads and waiting for the last takes far longer on a busy machine.
    """
    faiss = load_faiss()
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)


def take(vectors: Any, rows: Ints) -> Vectors:
    """The vectors (n, dim) of these rows of a faiss index."""
    if not len(rows):
        return np.zeros((0, vectors.d), dtype=np.float32)
    found: Vectors = vectors.reconstruct_batch(np.ascontiguousarray(rows, dtype=np.int64))
    return found


def find_rows(sorted_ids: Ints, wanted: Ints) -> tuple[Ints, Bools]:
    """The row of each wanted id in sorted ids, and whether it was found (else its row is meaningless)."""
    if not len(sorted_ids):
        return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=bool)
    rows = np.minimum(np.searchsorted(sorted_ids, wanted), len(sorted_ids) - 1)
    return rows, sorted_ids[rows] == wanted


def checked_vectors(vectors: npt.ArrayLike, dim: int) -> Vectors:
    """Vectors (n, dim) as contiguous float32; one vector may be (dim,). Raises ArgumentError if malformed."""
    rows = np.ascontiguousarray(vectors, dtype=np.float32)
    rows = rows[None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or rows.shape[1] != dim:
        raise ArgumentError(f"vectors here are rows of {dim} numbers: found an array of {rows.shape}")
    if not np.isfinite(rows).all():
        raise ArgumentError("a vector holds NaN or infinity: was it made by a model that diverged?")
    return rows


def checked_ids(ids: npt.ArrayLike, count: int) -> Ints:
    """Ids as int64 (count,). Raises ArgumentError if one is negative or repeated, or if they are not `count`."""
    found = np.asarray(ids, dtype=np.int64).reshape(-1)
    if len(found) != count:
        raise ArgumentError(f"{count} vectors need as many ids, found {len(found)}")
    if len(np.unique(found)) != count or (count and found.min() < 0):
        raise ArgumentError("ids must be whole numbers from 0 up, each given once")
    return found


def checked_k(k: int) -> int:
    """k. Raises ArgumentError if it is less than 1."""
    if k < 1:
        raise ArgumentError(f"k must be 1 or more, found {k}")
    return k


def no_hits(queries: int) -> Hits:
    """Of so many queries, none."""
    return Hits(np.zeros((queries, 0), dtype=np.int64), np.zeros((queries, 0), dtype=np.float32))


def nearest_of(k: int, *parts: Hits) -> Hits:
    """The k nearest hits of several searches for the same queries, in order."""
    ids = np.concatenate([part.ids for part in parts], axis=1)
    distances = np.concatenate([part.distances for part in parts], axis=1)
    order = np.lexsort((ids, distances), axis=1)[:, :k]
    return Hits(np.take_along_axis(ids, order, axis=1), np.take_along_axis(distances, order, axis=1))
