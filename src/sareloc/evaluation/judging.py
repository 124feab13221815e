"""Judging rankings by a dataset's protocol, and the report of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Bools, Floats, Ints
from sareloc.datasets.places import Places, Protocol, find_positives
from sareloc.errors import ArgumentError, DatasetError, look_up
from sareloc.evaluation.metrics import (
    average_precision,
    average_precision_at,
    finite_or_none,
    keep_only,
    not_listed,
    one_per_panorama,
    other_time,
    percent_interval,
    precision_recall,
    quantiles,
    recall_at,
    right_results,
)


@dataclass(frozen=True)
class CurvePoint:
    """Precision and recall in percent if only queries whose first result is within `distance` are answered."""

    distance: float
    precision: float
    recall: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of an evaluation. Shares are percentages of all queries; errors are metres to the first result."""

    dataset: str
    split: str
    model: str = ""
    fingerprint: str = ""
    """Of the model; both are empty for rankings of other systems."""
    dim: int | None = None
    protocol: str
    meaning: str
    """What counts as correct, as text."""
    boxes: Literal["crop", "full"] | None = None
    """Whether queries were cropped to their boxes; None if the dataset has no boxes."""
    database: int
    queries: int
    queries_without_positives: int
    """Queries without a positive in the database; each counts as missed."""
    recall: Mapping[int, float]
    """Recall@N by N."""
    recall_at_1_interval: tuple[float, float] | None
    """95 % bootstrap interval of recall@1 over the queries; None without queries."""
    plain_recall: Mapping[int, float] | None
    """Recall@N by the protocol "radius", for protocols with a rule (Tokyo) that other tools do not apply."""
    mean_average_precision: float | None
    median_error_m: float | None
    """None if positions are unknown, or if half of the queries have no result."""
    error_quantiles_m: Mapping[float, float | None] | None
    """By share of the queries."""
    curve: tuple[CurvePoint, ...]
    """Precision and recall over a threshold on the distance; empty if the distances are unknown."""
    failures: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=lambda: {"database": (), "queries": ()})
    """Photos that could not be decoded, with reasons: a database photo is left out, a query counts as missed."""

    def to_json(self) -> dict[str, Any]:
        """A JSON object, as `sareloc evaluate --json` prints it."""
        return dict(plain_json(asdict(self)))


def plain_json(value: Any) -> Any:
    """The JSON value of a field of a report: keys are texts, tuples lists."""
    if isinstance(value, Mapping):
        return {str(key): plain_json(inner) for key, inner in value.items()}
    return [plain_json(inner) for inner in value] if isinstance(value, tuple) else value


NS = (1, 5, 10, 20)
ERROR_SHARES = (0.25, 0.5, 0.75, 0.9)
CURVE_POINTS = 101
EARTH_M = 6_371_000.0


@dataclass(frozen=True)
class Rule:
    """A protocol: what is removed from a ranking before it is judged."""

    meaning: str
    depth: Callable[[Places, int], int]
    """The number of results that must be searched to judge the first N."""
    keep: Callable[[Places, Ints], Bools] | None = None
    """Which results are kept, (Q, K); None: all."""
    plain: Protocol | None = None
    """The protocol that other tools use instead, if any."""


def _panorama_depth(places: Places, n: int) -> int:
    return n * int(np.unique(_column(places.panoramas, places, "panoramas"), return_counts=True)[1].max(initial=1))


def _average_precision_depth(places: Places, n: int) -> int:
    if places.precision_at is None:
        return len(places.database)
    return max(n, places.precision_at) + max(map(len, places.junk), default=0)


PROTOCOLS: Mapping[str, Rule] = {
    "radius": Rule("within {radius:g} m, every photo counted", lambda _, n: n),
    "panorama": Rule(
        "within {radius:g} m, one photo of each panorama counted",
        _panorama_depth,
        lambda places, rankings: one_per_panorama(rankings, _column(places.panoramas, places, "panoramas")),
        plain="radius",
    ),
    "time": Rule(
        "within {radius:g} m, photos with the query's time stamp dropped",
        lambda _, n: 10 * n,
        lambda places, rankings: other_time(
            rankings,
            _column(places.queries.times, places, "times of queries"),
            _column(places.database.times, places, "times of database photos"),
        ),
        plain="radius",
    ),
    "place-id": Rule("shares a place id with the query", lambda _, n: n),
    "average-precision": Rule(
        "listed as relevant, junk taken out of the ranking",
        _average_precision_depth,
        lambda places, rankings: not_listed(rankings, places.junk or [np.zeros(0, np.int64)] * len(rankings)),
    ),
}


def evaluate_rankings(
    places: Places,
    rankings: Ints,
    distances: Floats | None = None,
    *,
    protocol: Protocol | None = None,
    ns: Sequence[int] = NS,
    seed: int = 0,
) -> Report:
    """Judge rankings, of this or of any other system.

    Args:
        places: the dataset.
        rankings: (Q, K) database rows, best first, -1 for no result; to judge the first N, a protocol may need more
            than N (`PROTOCOLS[name].depth`).
        distances: (Q, K), for the precision-recall curve; default: unknown, no curve.
        protocol: default: that of the dataset.
        ns: the N of recall@N.
        seed: of the bootstrap.

    Raises:
        ArgumentError: if a ranking has an unknown row or one twice.
    """
    places = places if protocol is None else replace(places, protocol=protocol)
    rule = look_up(PROTOCOLS, places.protocol, "protocol")
    rankings = _checked(rankings, places)
    far = np.where(rankings >= 0, 0.0, np.inf) if distances is None else np.asarray(distances, dtype=np.float64)
    if far.shape != rankings.shape:
        raise ArgumentError(f"distances {far.shape} must have the shape of the rankings, {rankings.shape}")
    positives = find_positives(places)
    plain = None
    if rule.plain is not None:
        plain_positives = find_positives(replace(places, protocol=rule.plain))
        plain = _percent(recall_at(right_results(rankings, plain_positives), ns))
    rankings, far = apply_protocol(places, rankings, far)
    right = right_results(rankings, positives)
    first_right = np.asarray(right[:, :1].any(axis=1))
    errors = _position_errors(places, rankings)
    spread = None if errors is None else _error_quantiles(errors)
    return Report(
        dataset=places.name,
        split=places.split,
        protocol=places.protocol,
        meaning=rule.meaning.format(radius=places.hit_radius_m),
        database=len(places.database),
        queries=len(places.queries),
        queries_without_positives=sum(not len(rows) for rows in positives),
        recall=_percent(recall_at(right, ns)),
        recall_at_1_interval=percent_interval(first_right, seed),
        plain_recall=plain,
        mean_average_precision=_mean_average_precision(places, rankings),
        median_error_m=None if spread is None else spread[0.5],
        error_quantiles_m=spread,
        curve=() if distances is None else _curve(far, first_right),
    )


def apply_protocol(places: Places, rankings: Ints, distances: Floats) -> tuple[Ints, Floats]:
    """Rankings and distances without the results that the protocol removes; later ones move up.

    Args:
        places: the dataset.
        rankings: (Q, K) database rows, best first; -1: no result.
        distances: (Q, K).
    """
    rule = look_up(PROTOCOLS, places.protocol, "protocol")
    if rule.keep is None:
        return rankings, distances
    keep = rule.keep(places, rankings)
    return keep_only(rankings, keep, -1), keep_only(distances, keep, np.inf)


def _checked(rankings: Ints, places: Places) -> Ints:
    given = np.asarray(rankings)
    if given.ndim != 2 or len(given) != len(places.queries) or not np.issubdtype(given.dtype, np.integer):
        raise ArgumentError(
            f"rankings must be whole numbers, a row for each of the {len(places.queries)} queries: "
            f"found {given.dtype} {given.shape}"
        )
    ordered = np.sort(given, axis=1)
    repeated = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)
    outside = ((given < -1) | (given >= len(places.database))).any(axis=1)
    for wrong, what in ((repeated, "lists a database row twice"), (outside, "has a row outside the database")):
        if wrong.any():
            raise ArgumentError(
                f"the ranking of query {np.flatnonzero(wrong)[0]} {what} ({len(places.database)} photos)"
            )
    return given.astype(np.int64)


def _position_errors(places: Places, rankings: Ints) -> Floats | None:
    """Metres (Q,) from each query to its first result; inf without one; None if positions are unknown."""
    there, asked = places.database.positions, places.queries.positions
    if there is None or asked is None or (there.frame, there.epsg) != (asked.frame, asked.epsg):
        return None
    errors = np.full(len(rankings), np.inf)
    first = rankings[:, :1].max(axis=1, initial=-1)  # of no columns at all: -1
    answered = np.flatnonzero(first >= 0)
    gaps = there.metres[first[answered]] - asked.metres[answered]
    chords = np.linalg.norm(gaps, axis=1)
    on_earth = there.frame == "ecef"  # chords through the Earth become distances on its surface
    errors[answered] = 2 * EARTH_M * np.arcsin(np.minimum(chords / (2 * EARTH_M), 1)) if on_earth else chords
    return errors


def _error_quantiles(errors_m: Floats) -> dict[float, float | None]:
    return dict(zip(ERROR_SHARES, map(finite_or_none, quantiles(errors_m, ERROR_SHARES)), strict=True))


def _mean_average_precision(places: Places, rankings: Ints) -> float | None:
    if places.protocol != "average-precision":
        return None
    n = places.precision_at
    values = [
        average_precision(ranking, relevant) if n is None else average_precision_at(ranking, relevant, n)
        for ranking, relevant in zip(rankings, places.relevant, strict=True)
    ]
    return 100 * float(np.mean(values)) if values else 0.0


def _curve(distances: Floats, first_right: Bools) -> tuple[CurvePoint, ...]:
    nearest = distances[:, :1].min(axis=1, initial=np.inf)
    thresholds, precision, recall = precision_recall(-nearest, first_right)
    points = np.unique(np.linspace(0, len(thresholds) - 1, min(CURVE_POINTS, len(thresholds))).round().astype(int))
    return tuple(CurvePoint(float(-thresholds[i]), 100 * float(precision[i]), 100 * float(recall[i])) for i in points)


def _percent(shares: Mapping[int, float]) -> dict[int, float]:
    return {n: 100 * share for n, share in shares.items()}


def _column(column: npt.NDArray[Any] | None, places: Places, name: str) -> npt.NDArray[Any]:
    if column is None:
        raise DatasetError(f"{places.name} has no {name}, which the protocol {places.protocol!r} needs")
    return column
