"""Making the index of the approximate engine: short codes over half-precision vectors, and clusters of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from sareloc.engines.contract import Ints
from sareloc.engines.exact import load_faiss, scan, take

TRAINING_VECTORS = 50_000
TRAINING_PER_CLUSTER = 64
PROBE_QUERIES, PROBE_HITS = 200, 10
PROBE_RECALL = 0.99
CANDIDATES, CANDIDATES_PER_HIT = 500, 10
BLOCK = 16_384  # vectors expanded to full precision at a time


def make_index(vectors: Any, *, clustered: bool, seed: int = 0) -> Any:
    """A faiss index that finds candidates by their codes and puts them in order by `vectors`, which it keeps.

    `vectors`: a filled index of `half_precision`. Codes have 4 bits for two dimensions, after a random rotation that
    spreads the variance evenly over them. `clustered`: sort them into about sqrt(n) clusters as well.
    """
    faiss = load_faiss()
    count, dim = vectors.ntotal, vectors.d
    even = dim + dim % 2
    clusters = 2 ** round(np.log2(count) / 2) if clustered else 0
    parts = [f"RR{even}", f"IVF{clusters}" if clustered else "", f"PQ{even // 2}x4fs"]
    codes = faiss.index_factory(dim, ",".join(filter(None, parts)), faiss.METRIC_L2)
    rng = np.random.default_rng(seed)
    sample = max(TRAINING_VECTORS, TRAINING_PER_CLUSTER * clusters)
    codes.train(take(vectors, _some_rows(rng, count, sample)))
    for start in range(0, count, BLOCK):
        codes.add(take(vectors, np.arange(start, min(start + BLOCK, count))))
    index = faiss.IndexRefine(codes, vectors)
    if clustered:
        _set_probes(index, rng)
    return index


def _some_rows(rng: np.random.Generator, count: int, wanted: int) -> Ints:
    """So many different rows, in rising order; all where there are no more."""
    return np.arange(count) if wanted >= count else np.sort(rng.choice(count, wanted, replace=False))


def _set_probes(index: Any, rng: np.random.Generator) -> None:
    """Visit as many clusters as stored vectors need to find their own neighbours, and twice as many to be safe."""
    faiss = load_faiss()
    vectors, clusters = faiss.downcast_index(index.refine_index), faiss.extract_index_ivf(index.base_index)
    rows = _some_rows(rng, vectors.ntotal, PROBE_QUERIES)
    queries = take(vectors, rows)
    everything = np.arange(vectors.ntotal)
    nearest = scan(vectors, everything, queries, PROBE_HITS + 1).ids
    probes = 8
    while probes < clusters.nlist:
        clusters.nprobe = probes
        candidates = index.base_index.search(queries, CANDIDATES)[1]
        if _recall_without_self(nearest, candidates, rows) >= PROBE_RECALL:
            break
        probes *= 2
    clusters.nprobe = min(2 * probes, clusters.nlist)


def _recall_without_self(nearest: Ints, candidates: Ints, rows: Ints) -> float:
    """The mean share of each row's nearest that are among its candidates, the row itself not counted."""
    shares = []
    for truth, found, own in zip(nearest, candidates, rows, strict=True):
        others = truth[truth != own]
        shares.append(np.isin(others, found).mean())
    return float(np.mean(shares))
