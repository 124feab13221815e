"""How sure a fix is, and how far off: fitted on photos whose position is known. Pure functions and one record."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Bools, Floats
from sareloc.errors import ArgumentError, MapError
from sareloc.localize.fusion import PLACE_M, TEMPERATURE, Place

FORMAT = 1
PRIOR = (0.0, -3.0, 16.0, 3.0)
"""What whitened descriptors of street photos gave, in a drawn town and in a real one, rounded."""
PRIOR_SPREAD = (3.0, 4.0, 10.0, 2.0)
MIN_CONFIDENCE = 0.5
"""Default: a fix that is less sure is no answer."""
RADIUS_SHARE = 0.9
ABSENT_SHARE = 0.25
GRAIN_M = 5.0
LARGEST_SCALE = 10.0
"""Where more than one answer in ten is at another place altogether, no useful radius holds nine of ten."""
MOST_STEPS = 50


def features(place: Place) -> Floats:
    """What the confidence looks at (4,): 1, the first distance, the lead over any other place, and agreement.

    With d the smallest descriptor distance in the place and d' the smallest elsewhere, the third is `1 - d / d'` (the
    ratio test, 0 where both are alike, at least -1); the fourth is the share of weight in the place.
    """
    lead = 1 - place.nearest / place.other if place.other > 0 else 0.0 if place.nearest == 0 else -1.0
    return np.array([1.0, place.nearest, max(lead, -1.0), place.share])


@dataclass(frozen=True)
class Calibration:
    """From what a list of matches says to a probability and a radius.

    The probability that the place is within 25 m of the truth is `1 / (1 + exp(-weights . features))`; the radius is
    `radius_scale * sqrt(scatter^2 + (5 m)^2)`.
    """

    weights: tuple[float, float, float, float] = PRIOR
    radius_scale: float = 4.0
    temperature: float = TEMPERATURE
    """Of the weights of matches, see `weigh`."""
    photos: int = 0
    """How many photos with known positions it was fitted on; 0: none, these are the numbers to start from."""
    origin: str = "nothing"
    """What it was fitted on: "photos" of the user's, the "map" itself, or "nothing"."""

    def confidence(self, place: Place) -> float:
        """The probability that the place is right."""
        return float(sigmoid(features(place) @ np.array(self.weights)))

    def radius_m(self, place: Place) -> float:
        """Of 10 answers (confidence 0.5 or more) about places in the map, 9 are at most so far from the truth."""
        return self.radius_scale * math.hypot(place.scatter_m, GRAIN_M)

    def to_json(self) -> str:
        """One line that `from_json` reads."""
        return json.dumps({"format": FORMAT, **asdict(self)})

    @staticmethod
    def from_json(text: str) -> Calibration:
        """The calibration that `to_json` wrote; raises MapError for anything else, as a stranger's map may hold it."""
        try:
            given: dict[str, Any] = json.loads(text)
            if given.pop("format") != FORMAT:
                raise ValueError("its format is a newer one")
            first, second, third, fourth = (float(weight) for weight in given.pop("weights"))
            read = Calibration(weights=(first, second, third, fourth), **given)
            if not all(math.isfinite(number) for number in (*read.weights, read.radius_scale, read.temperature)):
                raise ValueError("a number is not finite")
            if read.radius_scale < 0 or read.temperature <= 0 or type(read.photos) is not int or read.photos < 0:
                raise ValueError("a number is out of range")
            if not isinstance(read.origin, str):
                raise TypeError("its origin is not a text")
            return read
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as wrong:
            raise MapError(
                f'the calibration in this map cannot be read ({wrong}): make it again with "sareloc map calibrate"'
            ) from wrong


@dataclass(frozen=True)
class Outcome:
    """What a list of matches said about a photo, and what was true."""

    place: Place
    error_m: float
    """From the place to where the photo was taken; inf where the map does not show it."""

    @property
    def right(self) -> bool:
        """Whether the place is within 25 m."""
        return self.error_m <= PLACE_M

    @property
    def absent(self) -> bool:
        """Whether the map does not show the photo's place: then no answer is right."""
        return math.isinf(self.error_m)


def fit_calibration(
    outcomes: Sequence[Outcome],
    origin: str,
    *,
    temperature: float = TEMPERATURE,
    absent_share: float = ABSENT_SHARE,
    worth: float = 1.0,
    radius_share: float = RADIUS_SHARE,
) -> Calibration:
    """The calibration that these outcomes speak for; with few of them it stays near the numbers it starts from.

    Logistic regression of "right" on `features`, with a normal prior around `PRIOR` (that is, L2-regularised). Photos
    that the map does not show (an infinite error) count together as `absent_share` of all: how often such photos come
    is not for the map to know. `temperature` is the one that the outcomes were fused with. Each outcome counts as many
    times as it is `worth`. For the radius see `fit_radius`; `radius_share` of the answers are to be inside.
    """
    if not 0 <= absent_share < 1:
        raise ArgumentError(f"the share of photos from elsewhere lies in 0 <= share < 1: found {absent_share}")
    if not outcomes:
        return Calibration(temperature=temperature)
    x = np.stack([features(outcome.place) for outcome in outcomes])
    right = np.array([outcome.right for outcome in outcomes])
    absent = np.array([outcome.absent for outcome in outcomes])
    weights = fit_logistic(x, right, worth * importance(absent, absent_share))
    answered = (sigmoid(x @ weights) >= MIN_CONFIDENCE) & ~absent
    scale = fit_radius([outcome for outcome, one in zip(outcomes, answered, strict=True) if one], radius_share)
    first, second, third, fourth = weights.tolist()
    return Calibration((first, second, third, fourth), scale, temperature, int((~absent).sum()), origin)


def fit_radius(answers: Sequence[Outcome], share: float = RADIUS_SHARE) -> float:
    """The `radius_scale` with which this share of answers about places in the map, right or wrong, is in the radius.

    The `ceil(share (n + 1))`-th smallest of the n values `error / sqrt(scatter^2 + (5 m)^2)`: that order statistic
    holds the next answer of the same kind with at least that probability (split conformal prediction). Where n is too
    small for it, the largest value or that of `Calibration()`, whichever is larger. At most `LARGEST_SCALE`.
    """
    ratios = sorted(answer.error_m / math.hypot(answer.place.scatter_m, GRAIN_M) for answer in answers)
    rank = math.ceil(share * (len(ratios) + 1))
    scale = ratios[rank - 1] if rank <= len(ratios) else max([*ratios, Calibration().radius_scale])
    return min(scale, LARGEST_SCALE)


def importance(absent: Bools, share: float) -> Floats:
    """Weights (n,) with which absent photos make up this share of the sum, which stays n."""
    if absent.all() or not absent.any():
        return np.ones(len(absent))
    return np.asarray(np.where(absent, share / absent.mean(), (1 - share) / (~absent).mean()))


def fit_logistic(x: Floats, right: Bools, counts: Floats) -> Floats:
    """Weights (D,) that maximise the likelihood of `right` (n,) given rows x (n, D), times the prior.

    Minimises `sum_i counts_i log(1 + exp(-s_i w . x_i)) + sum_j (w_j - prior_j)^2 / (2 spread_j^2)`, s = +-1: a
    convex function with one minimum, also where a line separates right from wrong. By Newton's method, steps halved
    where they overshoot.
    """
    prior, precision = np.array(PRIOR), 1 / np.array(PRIOR_SPREAD) ** 2
    w = prior.copy()
    for _ in range(MOST_STEPS):
        p = sigmoid(x @ w)
        slope = x.T @ (counts * (p - right)) + precision * (w - prior)
        curve = (x.T * (counts * p * (1 - p))) @ x + np.diag(precision)
        step = np.linalg.solve(curve, slope)
        while _loss(x, right, counts, w - step) > _loss(x, right, counts, w) and np.abs(step).max() > 1e-12:
            step = step / 2
        w = w - step
        if np.abs(step).max() < 1e-9:
            break
    return w


def _loss(x: Floats, right: Bools, counts: Floats, w: Floats) -> float:
    margins = np.where(right, 1, -1) * (x @ w)
    away = (w - np.array(PRIOR)) / np.array(PRIOR_SPREAD)
    return float(counts @ np.logaddexp(0, -margins) + away @ away / 2)


def sigmoid(x: npt.ArrayLike) -> Floats:
    """`1 / (1 + exp(-x))` without overflow."""
    return np.asarray(np.exp(-np.logaddexp(0, -np.asarray(x, dtype=np.float64))))


def expected_calibration_error(
    confidence: npt.ArrayLike, right: npt.ArrayLike, bins: int = 10, *, counts: npt.ArrayLike | None = None
) -> float:
    """How far confidence is from being right, on average: 0 is perfect, 1 always sure and always wrong.

    Answers are sorted into `bins` equal parts of 0..1 by confidence; each bin's |mean confidence - share right| counts
    with its number of answers (Naeini et al. 2015). `counts` (n,): how much each answer counts; default: 1 each. No
    answers: 0.
    """
    sure, truth = np.asarray(confidence, dtype=np.float64), np.asarray(right, dtype=np.float64)
    each = np.ones(len(sure)) if counts is None else np.asarray(counts, dtype=np.float64)
    which = np.minimum((sure * bins).astype(int), bins - 1)
    gaps = [abs(float((each * (sure - truth))[which == b].sum())) for b in range(bins)]
    return sum(gaps) / (float(each.sum()) or 1.0)
