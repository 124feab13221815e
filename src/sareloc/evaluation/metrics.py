"""Metrics of rankings: recall@N, average precision, precision-recall, position errors. Pure functions.

A *ranking* is a row of database row numbers, best first; rankings of Q queries are a (Q, K) array. -1 means that a
query has no more results; it is never right. Ties are already broken by the order. `positives`: for each query the
database rows that are right, without repeats, in any order; may be empty.

Rules that remove results from a ranking before it is judged are (Q, K) masks (`one_per_panorama`, `other_time`,
`not_listed`), applied by `keep_only`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Bools, Floats, Ints
from sareloc.errors import ArgumentError

Number = TypeVar("Number", np.int64, np.float64)


def right_results(rankings: Ints, positives: Sequence[Ints]) -> Bools:
    """Which results are right: (Q, K), true where a result is among its query's positives."""
    owners = np.repeat(np.arange(len(positives)), [len(p) for p in positives])
    rows = np.concatenate([np.asarray(p, dtype=np.int64) for p in positives] or [np.zeros(0, dtype=np.int64)])
    width = 1 + max(rankings.max(initial=0), rows.max(initial=0))
    # one number for each (query, row) pair, so that one sorted search answers for all queries
    pairs = np.arange(len(rankings))[:, None] * width + rankings
    return np.isin(pairs, owners * width + rows) & (rankings >= 0)


def recall_at(right: Bools, ns: Sequence[int]) -> dict[int, float]:
    """Recall@N: the share of all queries that have a right result among their first N, for every N of `ns`.

    `right` is (Q, K) from `right_results`. A query without positives counts as missed. If K < N, recall@N is that of
    the K results. No queries: 0.
    """
    if any(n < 1 for n in ns):
        raise ArgumentError(f"recall@N counts the first N >= 1 results, not N in {list(ns)}")
    return {n: float(right[:, :n].any(axis=1).mean()) if len(right) else 0.0 for n in ns}


def one_per_panorama(rankings: Ints, panoramas: Ints) -> Bools:
    """Keep the first photo of each panorama (Tokyo 24/7): mask (Q, K).

    `panoramas` is the panorama number of every database photo. To have N results left with panoramas of 12 photos,
    the rule needs the first 12 N of the ranking.
    """
    numbers = np.where(rankings >= 0, panoramas[rankings], -1)
    order = np.argsort(numbers, axis=1, kind="stable")
    ordered = np.take_along_axis(numbers, order, axis=1)
    first = np.ones_like(ordered, dtype=np.bool_)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    keep = np.empty_like(first)
    np.put_along_axis(keep, order, first, axis=1)
    return keep & (rankings >= 0)


def other_time(rankings: Ints, query_times: Floats, database_times: Floats) -> Bools:
    """Drop results that have the query's own time stamp (TokyoTM): mask (Q, K).

    TokyoTM's rule searches 10 N to have N left. An unknown time (NaN) equals no other, and is kept.
    """
    differs: Bools = database_times[rankings] != query_times[:, None]
    return differs & (rankings >= 0)


def not_listed(rankings: Ints, junk: Sequence[Ints]) -> Bools:
    """Drop each query's junk results, neither right nor wrong: mask (Q, K).

    Holidays' rule, that the query itself is ignored, is this with the query's own database row as its junk.
    """
    return (rankings >= 0) & ~right_results(rankings, junk)


def keep_only(ranked: npt.NDArray[Number], keep: Bools, fill: float) -> npt.NDArray[Number]:
    """The kept entries of each row, moved left in their order; `fill` (-1 for rows, inf for distances) after them."""
    order = np.argsort(~keep, axis=1, kind="stable")
    moved = np.take_along_axis(ranked, order, axis=1)
    moved[np.arange(keep.shape[1]) >= keep.sum(axis=1, keepdims=True)] = fill
    return moved


def average_precision(ranking: Ints, relevant: Ints, junk: Ints | Sequence[int] = ()) -> float:
    """Area under one query's precision-recall curve by trapezoids, as Oxford's compute_ap and Holidays compute it.

    Junk is first removed from the ranking (K,). The curve starts at precision 1; a relevant photo at position j
    (from 0) as the i-th right one adds ((i - 1)/j + i/(j + 1)) / 2 / relevant, where 0/0 is 1. Relevant photos that
    the ranking does not list add nothing. Nothing relevant: 0.
    """
    right = _right_without_junk(ranking, relevant, junk)
    at = np.flatnonzero(right)
    count = np.arange(1, len(at) + 1)
    before = np.where(at > 0, (count - 1) / np.maximum(at, 1), 1.0)
    after = count / (at + 1)
    return float((before + after).sum() / 2 / max(len(relevant), 1))


def average_precision_at(ranking: Ints, relevant: Ints, n: int, junk: Ints | Sequence[int] = ()) -> float:
    """Google Landmarks' AP@n: the precision at every right one of the first n results, summed, over min(relevant, n).

    Junk is first removed from the ranking (K,). Nothing relevant: 0.
    """
    right = _right_without_junk(ranking, relevant, junk)[:n]
    precision = np.cumsum(right) / np.arange(1, len(right) + 1)
    return float(precision[right].sum() / max(min(len(relevant), n), 1))


def _right_without_junk(ranking: Ints, relevant: Ints, junk: Ints | Sequence[int]) -> Bools:
    kept = ranking[(ranking >= 0) & ~np.isin(ranking, junk)]
    return np.isin(kept, relevant)


def precision_recall(confidence: Floats, right: Bools) -> tuple[Floats, Floats, Floats]:
    """Precision and recall when only answers of at least a threshold are given: (thresholds, precision, recall).

    `confidence` (Q,) is that of each query's first result, higher is surer; `right` (Q,) says whether it is right.
    Precision: right among answered; recall: right among all Q queries. One point for each distinct confidence, from
    the highest threshold down. A query without a result (confidence -inf or NaN) is never answered, and counts among
    all. No results: no points.
    """
    answered = confidence > -np.inf
    order = np.argsort(-confidence[answered], kind="stable")
    thresholds, hits = confidence[answered][order], np.cumsum(right[answered][order])
    last = np.flatnonzero(np.append(thresholds[1:] != thresholds[:-1], True)[: len(thresholds)])
    return thresholds[last], hits[last] / (last + 1), hits[last] / max(len(right), 1)


def quantiles(errors_m: Floats, shares: Sequence[float]) -> list[float]:
    """The errors not exceeded by these shares of queries (0.5: the median), interpolated between neighbours.

    An error is inf if a query has no result, and so is a quantile that touches one. No errors: NaN.
    """
    if not len(errors_m):
        return [float("nan")] * len(shares)
    ordered = np.sort(errors_m)
    at = np.asarray(shares, dtype=np.float64) * (len(ordered) - 1)
    below, above = ordered[np.floor(at).astype(int)], ordered[np.ceil(at).astype(int)]
    # equal neighbours are not subtracted: inf - inf is NaN
    return [float(lo if lo == hi else lo + part * (hi - lo)) for lo, hi, part in zip(below, above, at % 1, strict=True)]


def bootstrap_interval(
    values: npt.ArrayLike, rng: np.random.Generator, *, level: float = 0.95, draws: int = 10_000
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of `values`: `level` of `draws` resamples with replacement.

    `values` has one number for each query (1 or 0 for recall). No values: (NaN, NaN).
    """
    distinct, counts = np.unique(np.asarray(values, dtype=np.float64), return_counts=True)
    if not len(distinct):
        return float("nan"), float("nan")
    # how often each distinct value comes in a resample is multinomial: no (draws, Q) array is needed
    n = counts.sum()
    means = rng.multinomial(n, counts / n, size=draws) @ distinct / n
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def percent_interval(chosen: Bools, seed: int) -> tuple[float, float] | None:
    """95 % bootstrap interval of the percentage of queries (Q,) that are chosen; None without queries."""
    if not len(chosen):
        return None
    low, high = bootstrap_interval(chosen, np.random.default_rng(seed))
    return 100 * low, 100 * high


def finite_or_none(value: float) -> float | None:
    """The value, or None if it is infinite or NaN: nothing to count, or unknown."""
    return value if math.isfinite(value) else None
