"""A part of an index: short codes of up to a quarter of a million vectors, and the vectors at half precision.

The codes have 4 bits for every two dimensions (product quantisation after a random rotation), an eighth of the bytes of
the vectors, and are compared 32 at a time in registers. All of them are read for each query and the best candidates are
put in order by their vectors. Graphs and clusters would read fewer, but find neighbours only as far as descriptors
cluster, and whitened ones hardly do: of 64 clusters of real ones half must be visited to find 99 %.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sareloc.engines.contract import Hits, Ints, Vectors, nearest_of
from sareloc.engines.exact import find_rows, load_faiss, scan, search_index, take

TRAINING_VECTORS = 50_000
CANDIDATES, CANDIDATES_PER_HIT = 500, 10
SPARE_HITS = 100  # asked for beyond k, in place of hits that were deleted after the part was made
BLOCK = 16_384  # vectors expanded to full precision at a time


def make_index(vectors: Any, *, seed: int = 0) -> Any:
    """A faiss index that finds candidates by their codes and puts them in order by `vectors`, which it keeps.

    `vectors`: a filled index of `half_precision`. The rotation spreads the variance evenly over the codes.
    """
    faiss = load_faiss()
    count, dim = vectors.ntotal, vectors.d
    even = dim + dim % 2
    codes = faiss.index_factory(dim, f"RR{even},PQ{even // 2}x4fs", faiss.METRIC_L2)
    rows = np.arange(count)
    if count > TRAINING_VECTORS:
        rows = np.sort(np.random.default_rng(seed).choice(count, TRAINING_VECTORS, replace=False))
    codes.train(take(vectors, rows))
    for start in range(0, count, BLOCK):
        codes.add(take(vectors, np.arange(start, min(start + BLOCK, count))))
    return faiss.IndexRefine(codes, vectors)


class Part:
    """Vectors under an index that does not change; those that are deleted are passed over."""

    def __init__(self, index: Any, ids: Ints, file: Path | None = None) -> None:
        """`index` from `make_index`, `ids` of its rows, rising, and the file that keeps both."""
        self.ids = ids
        self.file = file
        self.use(index)
        self._gone = np.zeros(len(ids), dtype=bool)
        self.gone_count = 0

    def use(self, index: Any) -> None:
        """Go on with another copy of the same index."""
        self.index = index
        self._vectors = load_faiss().downcast_index(index.refine_index)

    def __len__(self) -> int:
        return len(self.ids) - self.gone_count

    def alive(self) -> Ints:
        """The ids that are left, rising."""
        left: Ints = self.ids[~self._gone]
        return left

    def delete(self, ids: Ints) -> None:
        """Forget these ids; one that is not here is no error."""
        rows, found = find_rows(self.ids, ids)
        self._gone[rows[found]] = True
        self.gone_count = int(self._gone.sum())

    def fetch(self, ids: Ints, into: Vectors) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Write the vectors of those ids that are here to their rows of `into`; returns which they are."""
        rows, found = find_rows(self.ids, ids)
        found = found & ~self._gone[rows]
        into[found] = take(self._vectors, rows[found])
        return found

    def search(self, queries: Vectors, k: int) -> Hits:
        """The k nearest that are left, or all; one may be missed."""
        k = min(k, len(self))
        asked = k + min(self.gone_count, SPARE_HITS)
        candidates = max(CANDIDATES, CANDIDATES_PER_HIT * asked)
        if candidates > len(self.ids) // 4 or k == 0:
            return self.scan(queries, k)
        parameters = load_faiss().IndexRefineSearchParameters(k_factor=candidates / asked)
        squared, rows = search_index(self.index, queries, asked, parameters)
        distances = np.sqrt(squared)
        distances[(rows < 0) | self._gone[rows]] = np.inf
        hits = nearest_of(k, Hits(self.ids[rows], distances))
        short = np.isinf(hits.distances).any(axis=1)
        if short.any():  # too many of its neighbours were deleted: this query is worth a scan
            again = self.scan(queries[short], k)
            hits.ids[short], hits.distances[short] = again.ids, again.distances
        return hits

    def scan(self, queries: Vectors, k: int, among: Ints | None = None) -> Hits:
        """The k nearest that are left, by comparing with all of them, or with those of `among` (each once)."""
        if among is None:
            return scan(self._vectors, self.ids, queries, k, np.flatnonzero(~self._gone))
        rows, found = find_rows(self.ids, among)
        return scan(self._vectors, self.ids, queries, k, rows[found & ~self._gone[rows]])
