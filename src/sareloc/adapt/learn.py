"""Learning the adaptation of search vectors from pairs of photos that show the same thing. Pure functions.

Pairs of photos that show the same thing differ in directions that say nothing about the place, such as night, season
and viewpoint. With W the mean of `(a - b)(a - b)^T / 2` over pairs and s the mean variance of the map's vectors, the
adaptation is `A = (I + strength W / s)^(-1/2)`: the whitening of the differences, shrunk towards the identity. Few
pairs, and a small strength, leave most directions as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sareloc.arrays import Bools, Floats, Ints, Vectors
from sareloc.geometry.adaptation import MOST_DIRECTIONS, SMALLEST_FACTOR, Adaptation, Step
from sareloc.geometry.local_features import unit_vectors
from sareloc.localize.calibration import TEMPERATURE_SHARE
from sareloc.localize.estimate import CANDIDATES

STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0)
WEIGHTS = (0.8, 1.0, 1.25)
"""Of the aggregated local features, beside the descriptor."""
LEAST_CHANGE = 0.002  # a direction whose factor differs less from 1 is left out


@dataclass(frozen=True, eq=False)
class Pairs:
    """n pairs of search vectors of photos that show the same thing, of one kind."""

    a: Vectors
    """(n, D)"""
    b: Vectors
    """(n, D)"""
    weights: Floats
    """(n,) such as the confidence that they do."""
    cells: Ints
    """(n,) the cell of the area that they are in; -1: in two cells."""

    def take(self, rows: Bools) -> Pairs:
        """The pairs of a mask (n,)."""
        return Pairs(self.a[rows], self.b[rows], self.weights[rows], self.cells[rows])

    def __len__(self) -> int:
        return len(self.a)


@dataclass(frozen=True, eq=False)
class Queries:
    """n search vectors that are searched among those of the map, of one kind."""

    vectors: Vectors
    """(n, D)"""
    positives: Bools
    """(n, N) the photos of the map that are right: within 25 m, and not taken on the same spot."""
    ignored: Bools
    """(n, N) those that are neither right nor wrong, or the query itself."""
    cells: Ints
    """(n,) of the area."""

    def take(self, rows: Bools) -> Queries:
        """The queries of a mask (n,)."""
        return Queries(self.vectors[rows], self.positives[rows], self.ignored[rows], self.cells[rows])

    def __len__(self) -> int:
        return len(self.vectors)


def within_scatter(kinds: Sequence[Pairs], weigh: Step, dim: int) -> Floats:
    """W (D, D): the mean over kinds of the weighted mean of `(a - b)(a - b)^T / 2`; kinds without pairs are left out.

    Args:
        kinds: of pairs, each counts the same.
        weigh: applied to the vectors before.
        dim: of the descriptor.
    """
    scatters = []
    for pairs in (kind for kind in kinds if len(kind)):
        a, b = (unit_vectors(weigh(one, dim)) for one in (pairs.a, pairs.b))
        apart = (a - b).astype(np.float64)
        scatters.append((apart * pairs.weights[:, None]).T @ apart / (2 * pairs.weights.sum()))
    return np.asarray(np.mean(scatters, axis=0))


def fit_steps(kinds: Sequence[Pairs], vectors: Vectors, dim: int, weight: float) -> Iterator[tuple[float, Step]]:
    """The adaptation of each of `STRENGTHS`, for one weight of the aggregated local features.

    Args:
        kinds: of pairs.
        vectors: of the map's photos (N, D), whose variance is the unit.
        dim: of the descriptor.
        weight: of the other part.
    """
    weigh = Step(weight, np.zeros((0, vectors.shape[1]), dtype=np.float32), np.zeros(0))
    unit = float(unit_vectors(weigh(vectors, dim)).var(axis=0, dtype=np.float64).mean())
    values, columns = np.linalg.eigh(within_scatter(kinds, weigh, dim) / max(unit, 1e-12))
    values, columns = np.maximum(values[::-1], 0), columns[:, ::-1]
    for strength in STRENGTHS:
        factors = np.maximum(1 / np.sqrt(1 + strength * values), SMALLEST_FACTOR)
        kept = min(int((1 - factors >= LEAST_CHANGE).sum()), MOST_DIRECTIONS)
        yield strength, Step(weight, np.ascontiguousarray(columns[:, :kept].T, dtype=np.float32), factors[:kept])


def sare_losses(queries: Vectors, database: Vectors, positives: Bools, ignored: Bools) -> Floats:
    """SARE's negative log likelihood (n,) of the nearest positive against all photos that are wrong.

    With the temperature t of a calibration, a share of the spread of the nearest distances,
    `-log(exp(-d_p^2 / t) / (exp(-d_p^2 / t) + sum_n exp(-d_n^2 / t)))`.

    Args:
        queries: (n, D) unit vectors.
        database: (N, D) unit vectors.
        positives: (n, N), at least one in each row.
        ignored: (n, N).
    """
    squared = np.maximum(2 - 2 * queries.astype(np.float64) @ database.T.astype(np.float64), 0)  # (n, N)
    known = np.where(ignored, np.inf, squared)
    depth = min(CANDIDATES, known.shape[1]) - 1
    nearest = np.partition(known, (0, depth), axis=1)
    spreads = (nearest[:, depth] - nearest[:, 0])[np.isfinite(nearest[:, depth])]
    temperature = TEMPERATURE_SHARE * float(np.median(spreads)) if len(spreads) else 1.0
    best = np.where(positives & ~ignored, squared, np.inf).min(axis=1, keepdims=True)
    others = np.where(positives | ignored, np.inf, squared)
    scores = np.concatenate([best, others], axis=1) / -max(temperature, 1e-6)
    top = scores.max(axis=1, keepdims=True)
    return np.asarray((top[:, 0] + np.log(np.exp(scores - top).sum(axis=1))) - scores[:, 0])


def first_right(queries: Queries, database: Vectors) -> Bools:
    """Whether the nearest photo (n,) of each query, of those that are not ignored, is right."""
    cosines = np.where(queries.ignored, -np.inf, queries.vectors @ database.T)
    return np.asarray(np.take_along_axis(queries.positives, cosines.argmax(axis=1)[:, None], axis=1)[:, 0])


def choose_step(
    kinds: Sequence[Pairs], asked: Sequence[Queries], database: Vectors, dim: int, folds: Ints
) -> tuple[float, float] | None:
    """The strength and the weight with the smallest SARE loss on cells that they were not fitted on.

    Args:
        kinds: of pairs.
        asked: queries, by kind, each with a positive; each kind counts the same.
        database: search vectors of the map (N, D).
        dim: of the descriptor.
        folds: (cells,) the fold of each cell.

    Returns:
        None if no change is better.
    """
    losses: dict[tuple[float, float] | None, list[Floats]] = {}
    for fold in np.unique(folds):
        tested = [queries.take(folds[queries.cells] == fold) for queries in asked]
        fitted = [pairs.take((pairs.cells >= 0) & (folds[pairs.cells] != fold)) for pairs in kinds]
        if not any(map(len, fitted)) or not any(map(len, tested)):
            continue
        _add(losses, None, tested, database, None)
        for weight in WEIGHTS:
            for strength, step in fit_steps(fitted, database, dim, weight):
                _add(losses, (strength, weight), tested, database, Adaptation(dim, (step,)))
    count = len(asked)
    means = {
        option: float(np.mean([np.concatenate(found[kind::count]).mean() for kind in range(count)]))
        for option, found in losses.items()
    }
    return min(means, key=lambda option: means[option]) if means else None


def _add(
    losses: dict[tuple[float, float] | None, list[Floats]],
    option: tuple[float, float] | None,
    tested: Sequence[Queries],
    database: Vectors,
    adaptation: Adaptation | None,
) -> None:
    photos = database if adaptation is None else adaptation(database)
    for queries in tested:
        vectors = queries.vectors if adaptation is None else adaptation(queries.vectors)
        found = sare_losses(vectors, photos, queries.positives, queries.ignored) if len(queries) else np.zeros(0)
        losses.setdefault(option, []).append(found)


def bootstrap_gain(gains: Floats, cells: Ints, rng: np.random.Generator, count: int = 2000) -> Floats:
    """Means (count,) of gains (n,) over places that are drawn with replacement: photos of a place are not independent.

    Args:
        gains: of each query, after minus before.
        cells: (n,) the place of each.
        rng: draws.
        count: of draws.
    """
    _, rows = np.unique(cells, return_inverse=True)
    sums, sizes = np.bincount(rows, weights=gains), np.bincount(rows)
    drawn = rng.integers(0, len(sums), (count, len(sums)))
    return np.asarray(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))
