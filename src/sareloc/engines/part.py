"""A part of an index: short codes of up to a quarter of a million vectors, and the vectors at half precision.

A code has 4 bits for every two or three dimensions (product quantisation), of all of them or of the half in which the
vectors differ most: a sixteenth to an eighth of the bytes of the vectors; 32 are compared at a time, in registers. All
of them are read for each query and the best candidates are put in order by their vectors. Graphs and clusters would
read fewer, but find neighbours only as far as descriptors cluster, and whitened ones hardly do: of 64 clusters of real
ones half must be visited to find 99 %.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sareloc.engines.contract import Hits, Ints, Vectors, nearest_of
from sareloc.engines.exact import find_rows, load_faiss, one_thread, scan, search_index, take
from sareloc.engines.index_file import PartFile

TRAINING_VECTORS = 50_000
CANDIDATES, CANDIDATES_PER_HIT = 400, 10
SPARE_HITS = 100  # asked for beyond k, in place of hits that were deleted after the part was made
BLOCK = 16_384  # vectors expanded to full precision at a time
SHAPES = ((2, 2), (1, 3), (1, 2))
"""Of codes, the shortest first: one of so many dimensions is kept, and so many of those are coded together."""
TRIALS, TRIAL_HITS, TRIAL_RECALL = 400, 10, 0.98


def make_index(vectors: Any) -> Any:
    """A faiss index that finds candidates by their codes and puts them in order by `vectors`, which it keeps.

    `vectors`: a filled index of `half_precision`. Codes are the shortest that are good enough for some of these vectors
    to find their own neighbours.
    """
    rng = np.random.default_rng(0)
    training = take(vectors, _some_rows(rng, vectors.ntotal, TRAINING_VECTORS))
    asked = _some_rows(rng, vectors.ntotal, TRIALS)
    queries = take(vectors, asked)
    nearest = scan(vectors, np.arange(vectors.ntotal), queries, TRIAL_HITS + 1).ids
    others = [found[found != own] for found, own in zip(nearest, asked, strict=True)]
    for shape in SHAPES:
        codes = _make_codes(vectors, training, *shape)
        candidates = codes.search(queries, min(CANDIDATES, vectors.ntotal))[1]
        recall = np.mean([np.isin(truth, found).mean() for truth, found in zip(others, candidates, strict=True)])
        if recall >= TRIAL_RECALL:
            break
    return load_faiss().IndexRefine(codes, vectors)


def _make_codes(vectors: Any, training: Vectors, one_of: int, together: int) -> Any:
    faiss = load_faiss()
    per_vector = -(-vectors.d // (one_of * together))
    kept = per_vector * together
    # the rotation spreads the variance evenly over the codes
    turned = f"PCAR{kept}" if kept < vectors.d else f"RR{kept}"
    codes = faiss.index_factory(vectors.d, f"{turned},PQ{per_vector}x4fs", faiss.METRIC_L2)
    with one_thread():  # hundreds of small problems
        codes.train(training)
    for start in range(0, vectors.ntotal, BLOCK):
        codes.add(take(vectors, np.arange(start, min(start + BLOCK, vectors.ntotal))))
    return codes


def _some_rows(rng: np.random.Generator, count: int, wanted: int) -> Ints:
    """So many different rows, in rising order; all where there are no more."""
    return np.arange(count) if wanted >= count else np.sort(rng.choice(count, wanted, replace=False))


class Part:
    """Vectors under an index that does not change; those that are deleted are passed over."""

    def __init__(self, index: Any, ids: Ints, file: PartFile | None = None) -> None:
        """`index` from `make_index`, `ids` of its rows, rising, and the file that keeps both."""
        self.ids = ids
        self.use(index, file)
        self.gone = np.zeros(len(ids), dtype=bool)
        self.gone_count = 0

    def use(self, index: Any, file: PartFile | None) -> None:
        """Go on with another copy of the same index, which this file keeps."""
        self.index = index
        self.file = file
        self._vectors = load_faiss().downcast_index(index.refine_index)

    def __len__(self) -> int:
        return len(self.ids) - self.gone_count

    def bytes(self) -> int:
        """What codes and vectors take, in memory or mapped."""
        each: int = self.index.base_index.sa_code_size() + self._vectors.sa_code_size()
        return each * len(self.ids)

    def alive(self) -> Ints:
        """The ids that are left, rising."""
        left: Ints = self.ids[~self.gone]
        return left

    def delete(self, ids: Ints) -> None:
        """Forget these ids; one that is not here is no error."""
        rows, found = find_rows(self.ids, ids)
        self.gone[rows[found]] = True
        self.gone_count = int(self.gone.sum())

    def fetch(self, ids: Ints, into: Vectors) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Write the vectors of those ids that are here to their rows of `into`; returns which they are."""
        rows, found = find_rows(self.ids, ids)
        found = found & ~self.gone[rows]
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
        distances[(rows < 0) | self.gone[rows]] = np.inf
        hits = nearest_of(k, Hits(self.ids[rows], distances))
        short = np.isinf(hits.distances).any(axis=1)
        if short.any():  # too many of its neighbours were deleted: this query is worth a scan
            again = self.scan(queries[short], k)
            hits.ids[short], hits.distances[short] = again.ids, again.distances
        return hits

    def scan(self, queries: Vectors, k: int, among: Ints | None = None) -> Hits:
        """The k nearest that are left, by comparing with all of them, or with those of `among` (each once)."""
        if among is None:
            return scan(self._vectors, self.ids, queries, k, np.flatnonzero(~self.gone))
        rows, found = find_rows(self.ids, among)
        return scan(self._vectors, self.ids, queries, k, rows[found & ~self.gone[rows]])
