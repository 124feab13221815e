"""The approximate engine: a scan of short codes finds candidates, half-precision vectors put them in order.

The codes have 4 bits for every two dimensions (product quantisation after a random rotation), a quarter of the bytes of
the vectors, and are compared 32 at a time in registers. All codes are read as long as that takes a millisecond: such
a scan does not depend on how the descriptors cluster. From `CLUSTERED_NUMBERS` on they are also sorted into
clusters, of which a query visits the nearest ones; how many is measured on the vectors themselves when the index is
made, so that descriptors without clusters cost time and not recall.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sareloc.engines.coding import CANDIDATES, CANDIDATES_PER_HIT, make_index
from sareloc.engines.contract import (
    EngineInfo,
    Hits,
    Ints,
    Vectors,
    checked_ids,
    checked_k,
    checked_vectors,
    in_batches,
    nearest_of,
)
from sareloc.engines.exact import ExactEngine, find_rows, half_precision, load_faiss, scan, search_index, take
from sareloc.engines.index_file import open_index, save_index

EXACT_NUMBERS = 20_000 * 512
"""So many numbers, of however many vectors, are compared in about a millisecond: an index would not pay."""
CLUSTERED_NUMBERS = 250_000 * 512
"""From so many numbers on, reading all codes takes longer than a millisecond or two: clusters pay."""
LATE_SHARE = 0.1  # a tenth of the vectors may have come or gone since the index was made, before it is made anew
SPARE_HITS = 100  # asked for beyond k, in place of hits that were deleted after the index was made


def exact_below(dim: int) -> int:
    """Up to so many vectors are searched without an index."""
    return EXACT_NUMBERS // dim


class ApproximateEngine:
    """Vectors under an index; those that came after it was made are compared exactly until it is made anew."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._late = ExactEngine(dim)
        self._set_index(None, np.zeros(0, dtype=np.int64))

    def upsert(self, ids: Ints, vectors: Vectors) -> None:
        """See `Engine`."""
        rows = checked_vectors(vectors, self.dim)
        new = checked_ids(ids, len(rows))
        self._drop_indexed(new)
        self._late.upsert(new, rows)

    def delete(self, ids: Ints) -> None:
        """See `Engine`."""
        self._drop_indexed(np.asarray(ids, dtype=np.int64))
        self._late.delete(ids)

    def search(self, queries: Vectors, k: int, among: Ints | None = None) -> Hits:
        """See `Engine`. Without `among` a hit may be missed (recall@10 about 0.99); with it the search is exact."""
        self.settle()
        asked, k = checked_vectors(queries, self.dim), checked_k(k)
        late = self._late.search(asked, k, among)
        if self._index is None:
            return late
        if among is None:
            return nearest_of(k, self._search_indexed(asked, k), late)
        rows, found = find_rows(self._ids, np.unique(np.asarray(among, dtype=np.int64)))
        chosen = rows[found]
        return nearest_of(k, scan(self._vectors, self._ids, asked, k, chosen[~self._gone[chosen]]), late)

    def fetch(self, ids: Ints) -> Vectors:
        """See `Engine`."""
        wanted = np.asarray(ids, dtype=np.int64)
        rows, found = find_rows(self._ids, wanted)
        indexed = found & ~self._gone[rows] if len(self._ids) else found
        vectors = np.empty((len(wanted), self.dim), dtype=np.float32)
        if indexed.any():
            vectors[indexed] = take(self._vectors, rows[indexed])
        vectors[~indexed] = self._late.fetch(wanted[~indexed])
        return vectors

    def iterate(self, batch: int = 4096) -> Iterator[tuple[Ints, Vectors]]:
        """See `Engine`."""
        return in_batches(np.concatenate([self._ids[~self._gone], self._late.ids]), self.fetch, batch)

    def info(self) -> EngineInfo:
        """See `Engine`."""
        count = len(self._ids) - self._gone_count + len(self._late.ids)
        codes = self.dim // 4 * len(self._ids)
        kind = "approximate" if self._index is not None else "exact"
        return EngineInfo(kind, count, self.dim, codes + 2 * self.dim * (len(self._ids) + len(self._late.ids)))

    def settle(self) -> bool:
        """Make the index, or make it anew, where enough vectors came or went since; says whether it did."""
        changed = len(self._late.ids) + self._gone_count
        if changed <= max(exact_below(self.dim) if self._index is None else 0, LATE_SHARE * len(self._ids)):
            return False
        ids, everything = self._late.ids, self._late.vectors
        if len(self._ids) or (np.diff(ids) < 0).any():
            everything = half_precision(self.dim)
            ids = np.sort(np.concatenate([self._ids[~self._gone], ids]))
            for _, vectors in self.iterate():
                everything.add(vectors)
        self._late = ExactEngine(self.dim)
        index = make_index(everything, clustered=len(ids) * self.dim >= CLUSTERED_NUMBERS) if len(ids) else None
        self._set_index(index, ids)
        return True

    def save(self, path: Path, about: dict[str, Any]) -> None:
        """Write the index to a file and go on with it from there, out of memory.

        What came or went since the index was made is not in the file.
        """
        if self._index is not None:
            self._use(save_index(path, self._index, self._ids, about))

    def load(self, path: Path, about: dict[str, Any]) -> Ints:
        """Take the index from a file that is `about` the same; returns its ids, none where there is no such file."""
        found = open_index(path, about)
        if found is not None:
            self._set_index(*found)
        return self._ids

    def _set_index(self, index: Any, ids: Ints) -> None:
        self._use(index)
        self._ids = ids
        self._gone = np.zeros(len(ids), dtype=bool)
        self._gone_count = 0

    def _use(self, index: Any) -> None:
        self._index = index
        self._vectors = None if index is None else load_faiss().downcast_index(index.refine_index)

    def _drop_indexed(self, ids: Ints) -> None:
        rows, found = find_rows(self._ids, ids)
        self._gone[rows[found]] = True
        self._gone_count = int(self._gone.sum())

    def _search_indexed(self, queries: Vectors, k: int) -> Hits:
        k = min(k, len(self._ids) - self._gone_count)
        asked = k + min(self._gone_count, SPARE_HITS)
        candidates = max(CANDIDATES, CANDIDATES_PER_HIT * asked)
        if candidates > len(self._ids) // 4 or k == 0:
            return self._scan_indexed(queries, k)
        parameters = load_faiss().IndexRefineSearchParameters(k_factor=candidates / asked)
        squared, rows = search_index(self._index, queries, asked, parameters)
        distances = np.sqrt(squared)
        distances[(rows < 0) | self._gone[rows]] = np.inf
        hits = nearest_of(k, Hits(self._ids[rows], distances))
        short = np.isinf(hits.distances).any(axis=1)
        if short.any():  # too many of its neighbours were deleted: this query is worth a scan
            again = self._scan_indexed(queries[short], k)
            hits.ids[short], hits.distances[short] = again.ids, again.distances
        return hits

    def _scan_indexed(self, queries: Vectors, k: int) -> Hits:
        return scan(self._vectors, self._ids, queries, k, np.flatnonzero(~self._gone))
