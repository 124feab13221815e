"""The exact engine: every vector is compared with the query. The measure of the others, and fast enough for a town."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from sareloc.arrays import Ints, Vectors
from sareloc.errors import ArgumentError
from sareloc.index.protocol import EngineInfo, Hits, checked_ids, checked_k, checked_vectors, in_batches, nearest_of


class ExactEngine:
    """Vectors in memory at half precision (2 bytes a number), all of them read for each query."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.ids: Ints = np.zeros(0, dtype=np.int64)
        self.vectors = half_precision(dim)

    def upsert(self, ids: Ints, vectors: Vectors) -> None:
        """See `Engine`."""
        rows = checked_vectors(vectors, self.dim)
        new = checked_ids(ids, len(rows))
        self.delete(new)
        self.vectors.add(rows)
        self.ids = np.concatenate([self.ids, new])

    def delete(self, ids: Ints) -> None:
        """See `Engine`."""
        gone = np.isin(self.ids, ids)
        if gone.any():
            self.vectors.remove_ids(np.flatnonzero(gone))  # faiss closes the gaps and keeps the order, as here
            self.ids = self.ids[~gone]

    def search(self, queries: Vectors, k: int, among: Ints | None = None) -> Hits:
        """See `Engine`."""
        rows = None if among is None else np.flatnonzero(np.isin(self.ids, among))
        return scan(self.vectors, self.ids, checked_vectors(queries, self.dim), checked_k(k), rows)

    def fetch(self, ids: Ints) -> Vectors:
        """See `Engine`."""
        order = np.argsort(self.ids, kind="stable")  # no time where they are in order, as they mostly are
        rows, found = find_rows(self.ids[order], ids)
        if not found.all():
            raise ArgumentError(f"there is no vector under id {np.asarray(ids)[~found][0]}")
        return take(self.vectors, order[rows])

    def iterate(self, batch: int = 4096) -> Iterator[tuple[Ints, Vectors]]:
        """See `Engine`."""
        return in_batches(self.ids, self.fetch, batch)

    def info(self) -> EngineInfo:
        """See `Engine`."""
        return EngineInfo("exact", len(self.ids), self.dim, 2 * self.dim * len(self.ids))


def load_faiss() -> Any:
    """The faiss module; its type stubs do not know the calls that its Python side adds."""
    import faiss

    return faiss


def half_precision(dim: int) -> Any:
    """An empty faiss index of vectors at half precision that compares the query with each; no training is needed."""
    faiss = load_faiss()
    return faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_L2)


def scan(vectors: Any, ids: Ints, queries: Vectors, k: int, rows: Ints | None = None) -> Hits:
    """The k nearest by comparing with every vector, or with those of `rows`; `ids` (n,) names the vectors."""
    faiss = load_faiss()
    k = min(k, len(ids) if rows is None else len(rows))
    if k == 0:
        return Hits(np.zeros((len(queries), 0), dtype=np.int64), np.zeros((len(queries), 0), dtype=np.float32))
    parameters = None
    if rows is not None:
        chosen = np.zeros(len(ids), dtype=bool)
        chosen[rows] = True
        bits = np.packbits(chosen, bitorder="little")
        parameters = faiss.SearchParameters(sel=faiss.IDSelectorBitmap(bits))
    squared, found = search_index(vectors, queries, k, parameters)
    return nearest_of(k, Hits(ids[found], np.sqrt(squared)))


def search_index(index: Any, queries: Vectors, k: int, parameters: Any) -> tuple[Vectors, Ints]:
    """Squared distances and rows, from faiss; one query alone by one thread."""
    with one_thread() if len(queries) == 1 else nullcontext():
        squared, rows = index.search(queries, k, params=parameters)
    return squared, rows


@contextmanager
def one_thread() -> Iterator[None]:
    """What faiss is called for from this thread, it does in this thread.

    For small work it would wake all threads and wait for the last, which on a busy machine takes far longer.
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


def find_rows(sorted_ids: Ints, wanted: Ints) -> tuple[Ints, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Where each wanted id stands among sorted ids, and whether it is there at all (else its row means nothing)."""
    if not len(sorted_ids):
        return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=bool)
    rows = np.minimum(np.searchsorted(sorted_ids, wanted), len(sorted_ids) - 1)
    return rows, sorted_ids[rows] == wanted
