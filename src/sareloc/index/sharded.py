"""The sharded index: product-quantisation codes in parts, searched in parallel; recent vectors are compared exactly.

A part holds up to 2**18 vectors at half precision and short codes of them. A code has 4 bits for every two or three
dimensions, of all dimensions or of the half with the largest variance: a sixteenth to an eighth of the bytes of the
vectors; 32 codes are compared at a time, in registers. A search compares the query with all codes and re-ranks the best
candidates by their vectors. Graphs and inverted lists would compare fewer, but rely on clusters, which whitened
descriptors hardly have: with 64 clusters of real ones, half must be visited to find 99 % of the nearest.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from sareloc.arrays import Bools, Ints, Vectors
from sareloc.index.cache import IndexCache, PartFile
from sareloc.index.exact import (
    ExactIndex,
    Hits,
    IndexInfo,
    checked_ids,
    checked_k,
    checked_vectors,
    find_rows,
    half_precision,
    load_faiss,
    nearest_of,
    one_thread,
    scan,
    search_index,
    take,
)

TRAINING_VECTORS = 50_000
CANDIDATES, CANDIDATES_PER_HIT = 400, 10
SPARE_HITS = 100  # searched for beyond k, to replace hits that were deleted after the part was built
BLOCK = 16_384  # vectors converted to full precision at a time
SHAPES = ((2, 2), (1, 3), (1, 2))
"""(a, b) of codes, the shortest first: 1 of `a` dimensions is kept, and `b` of those are coded together."""
TRIALS, TRIAL_HITS, TRIAL_RECALL = 400, 10, 0.98


def make_index(vectors: Any) -> Any:
    """A faiss index that finds candidates by their codes and re-ranks them by `vectors`, which it takes over.

    `vectors`: a filled index of `half_precision`. The shortest codes are chosen whose recall is at least `TRIAL_RECALL`
    when some of these vectors search for their neighbours.
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
    """`wanted` different rows, ascending; all if there are no more."""
    return np.arange(count) if wanted >= count else np.sort(rng.choice(count, wanted, replace=False))


class Part:
    """Vectors under an index that does not change; deleted ones are skipped."""

    def __init__(self, index: Any, ids: Ints, file: PartFile | None = None) -> None:
        """`index` from `make_index`, `ids` of its rows, ascending, and the file that holds both."""
        self.ids = ids
        self.use(index, file)
        self.gone = np.zeros(len(ids), dtype=bool)
        self.gone_count = 0

    def use(self, index: Any, file: PartFile | None) -> None:
        """Replace the index by an equal one that is mapped from this file."""
        self.index = index
        self.file = file
        self._vectors = load_faiss().downcast_index(index.refine_index)

    def __len__(self) -> int:
        return len(self.ids) - self.gone_count

    def bytes(self) -> int:
        """Bytes of codes and vectors, in memory or mapped."""
        each: int = self.index.base_index.sa_code_size() + self._vectors.sa_code_size()
        return each * len(self.ids)

    def alive(self) -> Ints:
        """The ids that are not deleted, ascending."""
        left: Ints = self.ids[~self.gone]
        return left

    def delete(self, ids: Ints) -> None:
        """Delete these ids; unknown ones are ignored."""
        rows, found = find_rows(self.ids, ids)
        self.gone[rows[found]] = True
        self.gone_count = int(self.gone.sum())

    def fetch(self, ids: Ints, into: Vectors) -> Bools:
        """Write the vectors of those ids that this part holds to their rows of `into`; returns which they are."""
        rows, found = find_rows(self.ids, ids)
        found = found & ~self.gone[rows]
        into[found] = take(self._vectors, rows[found])
        return found

    def search(self, queries: Vectors, k: int) -> Hits:
        """The k nearest that are not deleted, or all; one may be missed."""
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
        if short.any():  # too many of its neighbours were deleted: compare with all
            again = self.scan(queries[short], k)
            hits.ids[short], hits.distances[short] = again.ids, again.distances
        return hits

    def scan(self, queries: Vectors, k: int, among: Ints | None = None) -> Hits:
        """The k nearest that are not deleted, by comparing with all, or with those of `among` (each once)."""
        if among is None:
            return scan(self._vectors, self.ids, queries, k, np.flatnonzero(~self.gone))
        rows, found = find_rows(self.ids, among)
        return scan(self._vectors, self.ids, queries, k, rows[found & ~self.gone[rows]])


EXACT_NUMBERS = 20_000 * 512
"""This many numbers (vectors x dim) are compared in about a millisecond: an index would not be faster."""
PART_VECTORS = 2**18
HANDFUL = 4  # queries that one thread searches at a time
LATER = 4  # if there are parts, vectors outside of them may be 1/4 as many as without parts
GONE_SHARE = 0.1  # a part with more deleted vectors is built again


def exact_below(dim: int) -> int:
    """The largest number of vectors that are searched without codes.

    Codes are of rotated vectors: to rotate a query reads dim² float32 numbers, as many bytes as 2 dim vectors have, and
    fitting the rotation of thousands of dimensions takes minutes.
    """
    return max(EXACT_NUMBERS // dim, 2 * dim)


class State(NamedTuple):
    """The vectors of an index: replaced as one, so that a search sees them either before or after a build."""

    parts: tuple[Part, ...]
    late: ExactIndex
    """Vectors that are in no part."""


class ShardedIndex:
    """An approximate index: parts with product-quantisation codes; vectors that fill no part yet are compared exactly.

    Searching and fetching are safe from several threads, also while one of them builds the index; `upsert`, `delete`,
    `save` and `load` are not.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._state = State((), ExactIndex(dim))
        self._building = threading.Lock()
        self._threads = ThreadPoolExecutor(
            os.cpu_count() or 1, "sareloc-search", initializer=lambda: load_faiss().omp_set_num_threads(1)
        )

    def upsert(self, ids: Ints, vectors: Vectors) -> None:
        """See `Index`."""
        rows = checked_vectors(vectors, self.dim)
        new = checked_ids(ids, len(rows))
        for part in self._state.parts:
            part.delete(new)
        self._state.late.upsert(new, rows)

    def delete(self, ids: Ints) -> None:
        """See `Index`."""
        gone = np.asarray(ids, dtype=np.int64)
        for part in self._state.parts:
            part.delete(gone)
        self._state.late.delete(gone)

    def search(self, queries: Vectors, k: int, among: Ints | None = None) -> Hits:
        """See `Index`. Without `among` a hit may be missed (recall@10 above 0.99); with it the search is exact."""
        self.build_index()
        asked, k = checked_vectors(queries, self.dim), checked_k(k)
        parts, late = self._state
        found = late.search(asked, k, among)
        if among is None:
            return nearest_of(k, found, *self._search_parts(parts, asked, k))
        allowed = np.unique(np.asarray(among, dtype=np.int64))
        return nearest_of(k, found, *(part.scan(asked, k, allowed) for part in parts))

    def _search_parts(self, parts: tuple[Part, ...], queries: Vectors, k: int) -> list[Hits]:
        """The hits in each part; parts, and groups of `HANDFUL` queries, are searched in parallel."""
        pieces = np.array_split(queries, max(1, -(-len(queries) // HANDFUL)))
        jobs = [(part, piece) for part in parts for piece in pieces]
        if len(jobs) > 1:
            found = list(self._threads.map(lambda job: job[0].search(job[1], k), jobs))
        else:
            found = [part.search(piece, k) for part, piece in jobs]
        return [
            Hits(np.concatenate([hits.ids for hits in hit_list]), np.concatenate([hits.distances for hits in hit_list]))
            for hit_list in (found[i : i + len(pieces)] for i in range(0, len(found), len(pieces)))
        ]

    def fetch(self, ids: Ints) -> Vectors:
        """See `Index`."""
        wanted = np.asarray(ids, dtype=np.int64)
        vectors = np.empty((len(wanted), self.dim), dtype=np.float32)
        missing = np.ones(len(wanted), dtype=bool)
        parts, late = self._state
        for part in parts:
            missing &= ~part.fetch(wanted, into=vectors)
        vectors[missing] = late.fetch(wanted[missing])
        return vectors

    def info(self) -> IndexInfo:
        """See `Index`."""
        parts, late = self._state
        count = sum(map(len, parts)) + len(late.ids)
        used = sum(part.bytes() for part in parts) + late.info().index_bytes
        return IndexInfo("approximate" if parts else "exact", count, self.dim, used)

    def build_index(self) -> bool:
        """Build parts of recent vectors, and build parts with many deleted vectors again; returns whether it did.

        Parts that are less than half full are included, so that there are never many. A thread that calls this while
        another builds waits for it.
        """
        with self._building:
            parts, late = self._state
            limit = exact_below(self.dim) // (LATER if parts else 1)
            worn = [part for part in parts if part.gone_count > GONE_SHARE * len(part.ids)]
            if not worn and len(late.ids) <= limit:
                return False
            if len(late.ids) + sum(map(len, worn)) > limit:
                worn = [part for part in parts if part in worn or len(part) < PART_VECTORS // 2]
            ids = np.sort(np.concatenate([*(part.alive() for part in worn), late.ids]))
            left, fresh = ExactIndex(self.dim), list[Part]()
            if len(ids) <= limit:
                left.upsert(ids, self.fetch(ids))
            else:
                fresh = [self._make_part(piece) for piece in np.array_split(ids, -(-len(ids) // PART_VECTORS))]
            self._state = State((*(part for part in parts if part not in worn), *fresh), left)
            return True

    def _make_part(self, ids: Ints) -> Part:
        late = self._state.late
        vectors = late.vectors
        if not np.array_equal(late.ids, ids):
            vectors = half_precision(self.dim)
            for start in range(0, len(ids), BLOCK):
                vectors.add(self.fetch(ids[start : start + BLOCK]))
        return Part(make_index(vectors), ids)

    def save(self, cache: IndexCache, ids: Ints, checksums: Ints, change_id: str) -> None:
        """Write the parts to a cache and map them from there, which frees memory. Vectors in no part are not written.

        Args:
            cache: the cache to write to.
            ids: (n,) ascending.
            checksums: (n,) of the descriptors that the vectors were made from: `load` returns only vectors whose ids
                and checksums are equal.
            change_id: the state of the map that the vectors belong to.

        Raises:
            OSError: if the cache cannot be written.
            RuntimeError: likewise, from the index library.
        """
        files = []
        for part in self._state.parts:
            if part.file is None or not cache.holds(part.file):
                rows, known = find_rows(ids, part.ids)
                saved = cache.write(part.index, part.ids, np.where(known & ~part.gone, checksums[rows], 0))
                part.use(saved.index, saved.file)
            assert part.file is not None
            files.append(part.file)
        cache.write_manifest(files, change_id)

    def load(self, cache: IndexCache, ids: Ints, checksums: Ints) -> Ints:
        """Load the saved vectors whose ids and checksums are equal; returns their ids.

        Args:
            cache: the cache to read from.
            ids: (n,) ascending.
            checksums: (n,) of the descriptors; 0 never matches.
        """
        taken, parts = np.zeros(len(ids), dtype=bool), list[Part]()
        for saved in cache.read():
            rows, known = find_rows(ids, saved.ids)
            equal = known & (saved.checksums != 0)
            equal[equal] = (checksums[rows[equal]] == saved.checksums[equal]) & ~taken[rows[equal]]
            taken[rows[equal]] = True
            if equal.any():
                parts.append(Part(saved.index, saved.ids, saved.file))
                parts[-1].delete(saved.ids[~equal])
        self._state = State((*self._state.parts, *parts), self._state.late)
        return ids[taken]
