"""Judging fixes of photos whose positions are known, and of out-of-map photos, for which every fix is wrong.

An answer is a fix whose confidence reaches the threshold. A fix is correct if its position, or its guess without one,
is within 25 m of the truth: that is the event whose probability the confidence states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Bools, Floats
from sareloc.errors import ArgumentError, PhotoError
from sareloc.evaluation.judging import plain_json
from sareloc.evaluation.metrics import finite_or_none, percent_interval, quantiles
from sareloc.geo import distance_m
from sareloc.localize import MIN_CONFIDENCE, Fix
from sareloc.localize.calibration import ABSENT_SHARE, expected_calibration_error, sample_weights
from sareloc.localize.estimate import PLACE_M, check_confidence

Failures = Mapping[str, tuple[tuple[str, str], ...]]
Located = Fix | PhotoError
"""The result of localizing a photo; PhotoError: it cannot be decoded."""


@dataclass(frozen=True, kw_only=True)
class FixReport:
    """How good the fixes of photos with known positions are. Shares are percentages; None if there is nothing to count.

    Strangers are out-of-map photos: photos of places that the map does not show.
    """

    dataset: str = ""
    split: str = ""
    model: str = ""
    fingerprint: str = ""
    """Of the model; these are empty, and the next two None, for fixes that `evaluate_fixes` did not make."""
    database: int | None = None
    """Number of photos in the map."""
    verify: int | None = None
    """How many matches of a photo were verified."""
    queries: int
    """Number of photos with a known position; one that cannot be decoded counts as missed and not answered."""
    correct: float | None
    """Of the queries: position or guess within 25 m of the truth, whatever the confidence."""
    correct_interval: tuple[float, float] | None
    """95 % bootstrap interval over the queries."""
    min_confidence: float
    """The least confidence of an answer."""
    answered: float | None
    """Of the queries."""
    answers_correct: float | None
    """Of the answers about queries: within 25 m of the truth."""
    correct_and_answered: float | None
    """Of the queries."""
    correct_and_answered_interval: tuple[float, float] | None
    """95 % bootstrap interval over the queries."""
    answers_in_radius: float | None
    """Of the answers about queries: the truth is within the radius of the fix; meant to be 90."""
    median_error_m: float | None
    """Of the answers about queries, in metres."""
    error_90_m: float | None
    """The error that 90 % of the answers about queries do not exceed, in metres."""
    headings: int
    """Number of answers about queries that have a heading, of queries whose heading is known."""
    median_heading_error_deg: float | None
    """Of these headings, in degrees, 0 to 180."""
    strangers: int
    """Number of out-of-map photos; those that cannot be decoded are left out."""
    strangers_rejected: float | None
    """Of the strangers: not answered."""
    calibration_error: float | None
    """Expected calibration error, 0 to 1, over all fixes, answered or not; every fix of a stranger is wrong. If there
    are strangers, they weigh 25 % together and the queries 75 %, as in fitting a calibration."""
    failures: Failures = field(default_factory=dict)
    """By "database", "queries" and "strangers": photos that were left out or missed, with reasons."""

    def to_json(self) -> dict[str, Any]:
        """A JSON object, as `sareloc evaluate --fixes --json` prints it."""
        return dict(plain_json(asdict(self)))


def judge_fixes(
    fixes: Sequence[Located],
    latlon: npt.ArrayLike,
    headings: npt.ArrayLike | None = None,
    strangers: Sequence[Located] = (),
    *,
    min_confidence: float = MIN_CONFIDENCE,
    seed: int = 0,
) -> FixReport:
    """Judge the fixes of Q queries, and those of out-of-map photos.

    The fixes are to come from a `Localizer` with `min_confidence=0`: then each has its position, radius and heading,
    whatever its confidence. A fix without a position is judged by its guess, but has no heading; one without matches
    is missed and never answered.

    Args:
        fixes: one for each query.
        latlon: (Q, 2) the true positions in degrees.
        headings: (Q,) the true headings in degrees clockwise from north, NaN for unknown; default: all unknown.
        strangers: fixes of out-of-map photos.
        min_confidence: the least confidence of an answer.
        seed: of the bootstrap.

    Raises:
        ArgumentError: if the numbers of fixes, positions and headings differ.
    """
    truth = np.asarray(latlon, dtype=np.float64).reshape(-1, 2)
    directions = np.full(len(fixes), np.nan) if headings is None else np.asarray(headings, dtype=np.float64)
    if not len(fixes) == len(truth) == len(directions):
        raise ArgumentError(
            f"{len(fixes)} fixes need as many positions and headings: found {len(truth)} and {len(directions)}"
        )
    check_confidence(min_confidence)
    others = [fix for fix in strangers if isinstance(fix, Fix)]
    errors_m = fix_errors_m(fixes, truth)
    correct = np.asarray(errors_m <= PLACE_M)
    answered = np.array([_is_answer(fix, min_confidence) for fix in fixes], dtype=bool)
    turned = _heading_errors(fixes, directions)[answered]
    median_m, most_m = quantiles(errors_m[answered], (0.5, 0.9))
    return FixReport(
        queries=len(fixes),
        correct=_percent(correct),
        correct_interval=percent_interval(correct, seed),
        min_confidence=min_confidence,
        answered=_percent(answered),
        answers_correct=_percent(correct[answered]),
        correct_and_answered=_percent(correct & answered),
        correct_and_answered_interval=percent_interval(correct & answered, seed),
        answers_in_radius=_percent((errors_m <= [_radius_m(fix) for fix in fixes])[answered]),
        median_error_m=finite_or_none(median_m),
        error_90_m=finite_or_none(most_m),
        headings=int(np.isfinite(turned).sum()),
        median_heading_error_deg=finite_or_none(quantiles(turned[np.isfinite(turned)], (0.5,))[0]),
        strangers=len(others),
        strangers_rejected=_percent(np.array([not _is_answer(fix, min_confidence) for fix in others], dtype=bool)),
        calibration_error=_calibration_error(fixes, correct, others),
        failures={"queries": _reasons(fixes), "strangers": _reasons(strangers)},
    )


def fix_errors_m(fixes: Sequence[Located], latlon: npt.ArrayLike) -> Floats:
    """Metres (Q,) from the position of each fix, or its guess, to the truth (Q, 2) in degrees; inf without either."""
    positions = [None if isinstance(fix, PhotoError) else fix.latlon or fix.guess for fix in fixes]
    known = {row: position for row, position in enumerate(positions) if position is not None}
    errors_m = np.full(len(fixes), np.inf)
    if known:
        errors_m[list(known)] = distance_m(list(known.values()), np.asarray(latlon, dtype=np.float64)[list(known)])
    return errors_m


def _is_answer(fix: Located, min_confidence: float) -> bool:
    """Whether there is a position or a guess, of this confidence or more."""
    return isinstance(fix, Fix) and (fix.latlon or fix.guess) is not None and fix.confidence >= min_confidence


def _radius_m(fix: Located) -> float:
    """The radius of the position or of the guess; NaN, which contains nothing, without either."""
    radius_m = None if isinstance(fix, PhotoError) else fix.guess_radius_m if fix.latlon is None else fix.radius_m
    return math.nan if radius_m is None else radius_m


def _heading_errors(fixes: Sequence[Located], headings_deg: Floats) -> Floats:
    """Degrees (Q,) between the headings of fixes and the true ones, 0 to 180; NaN if either is unknown."""
    found = [math.nan if isinstance(fix, PhotoError) or fix.heading_deg is None else fix.heading_deg for fix in fixes]
    return np.asarray(np.abs((np.array(found, dtype=np.float64) - headings_deg + 180) % 360 - 180))


def _calibration_error(fixes: Sequence[Located], correct: Bools, strangers: Sequence[Fix]) -> float | None:
    """See `FixReport.calibration_error`; a query that cannot be decoded has no confidence and is left out."""
    told = [(fix.confidence, right) for fix, right in zip(fixes, correct, strict=True) if isinstance(fix, Fix)]
    told += [(fix.confidence, False) for fix in strangers]
    if not told:
        return None
    absent = np.arange(len(told)) >= len(told) - len(strangers)
    confidence, right = zip(*told, strict=True)
    return expected_calibration_error(confidence, right, counts=sample_weights(absent, ABSENT_SHARE))


def _reasons(located: Sequence[Located]) -> tuple[tuple[str, str], ...]:
    return tuple((error.photo, error.reason) for error in located if isinstance(error, PhotoError))


def _percent(chosen: Bools) -> float | None:
    return 100 * float(chosen.mean()) if len(chosen) else None
