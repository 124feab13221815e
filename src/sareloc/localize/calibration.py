"""Fitting a `Calibration`: to the map's own photos, or to trials of photos whose positions are known.

A trial is a photo with a known position and its matches; each photo gives two, one as it is and one as if the map did
not show its place. Confidence is a logistic regression over trials, the radius an order statistic of their errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Bools, Floats, Ints, Vectors
from sareloc.errors import ArgumentError
from sareloc.geo import ecef_from_wgs84
from sareloc.geometry import Evidence
from sareloc.localize.estimate import (
    CANDIDATES,
    GRAIN_M,
    MAP_ORIGIN,
    MIN_CONFIDENCE,
    PLACE_M,
    PRIOR,
    TEMPERATURE,
    VERIFIED_PRIOR,
    Calibration,
    Place,
    features,
    fuse,
    sigmoid,
    weigh,
)
from sareloc.maps import Matches, PlaceMap

PRIOR_STD = (3.0, 4.0, 10.0, 2.0)
"""Of the normal prior of the weights, around `PRIOR`."""
VERIFIED_STD = (2.0, 3.0, 3.0, 2.0, 0.5, 0.5, 0.5, 0.5, 0.5)
"""Of the normal prior of the weights of verified matches, around `VERIFIED_PRIOR`."""
RADIUS_SHARE = 0.9
ABSENT_SHARE = 0.25
TEMPERATURE_SHARE = 0.15
"""Of the spread of a photo's distances, see `fit_trials`; chosen by the log loss on real photos."""
LARGEST_SCALE = 10.0
"""If more than one answer in ten is at another place altogether, no useful radius contains nine of ten."""
ELSEWHERE_M = 2 * PLACE_M
"""Without its photos within this distance, a map does not show a place."""
GRADIENT_TOLERANCE = 1e-9


# of calibrations by the map's own photos
SAMPLE = 256
SAME_SPOT_M = 1.0  # views cut from one panorama overlap: too easy a query
DEEPEST = 2000
LARGEST_NOISE = 2.5
MAP_SAMPLE_WEIGHT = 0.2
"""A photo of the map is not a real query: five of them count as one known photo."""
MAP_TEMPERATURE_SHARE = 0.25  # more than for photos: descriptors with noise have a smaller spread of distances
MAP_ABSENT_SHARE = 0.5
MAP_RADIUS_SHARE = 0.92  # photos of the map are nearer to one another than queries are to them


def calibrate_by_map(place_map: PlaceMap, candidates: int = CANDIDATES) -> Calibration:
    """A calibration of a plain search from the map alone, on up to 256 of its photos, always the same ones.

    Each is searched twice: among the photos that were not taken on the same spot, and among those more than 50 m away,
    as a photo that the map does not show. Photos of one drive look more alike than photos of another night or year,
    and the map does not show how much more: noise is added to the descriptors first, in random directions, from none up
    to 2.5 times the median distance to the nearest photo. The radius scale is the geometric mean of the fitted one and
    the default, because errors also depend on where queries are taken. A map too small to fit anything gives the
    default calibration. `finish_map` stores that of 20 candidates in the map.
    """
    rng = np.random.default_rng(0)
    ids, latlon = place_map.sample(SAMPLE, rng)
    truth_m, vectors = ecef_from_wgs84(latlon), place_map.descriptors(ids)
    k = search_depth(place_map, truth_m, candidates)
    plain = make_trials(place_map.search(vectors, k), truth_m, 1, same_spot_m=SAME_SPOT_M)
    usual = np.median([trial.distances[0] for trial in plain if not trial.absent]) if plain else 0.0
    queries = add_noise(vectors, usual * np.linspace(0, LARGEST_NOISE, len(ids)), rng)
    trials = make_trials(place_map.search(queries, k), truth_m, candidates, same_spot_m=SAME_SPOT_M)
    fitted = fit_trials(
        trials,
        MAP_ORIGIN,
        temperature_share=MAP_TEMPERATURE_SHARE,
        absent_share=MAP_ABSENT_SHARE,
        sample_weight=MAP_SAMPLE_WEIGHT,
        radius_share=MAP_RADIUS_SHARE,
    )
    return replace(fitted, radius_scale=math.sqrt(fitted.radius_scale * Calibration().radius_scale))


def add_noise(vectors: Vectors, lengths: Floats, rng: np.random.Generator) -> Vectors:
    """Unit vectors (n, dim), each moved by its length (n,) in a random direction, and scaled to unit length again."""
    directions = rng.normal(size=vectors.shape)
    moved = vectors + (lengths / np.linalg.norm(directions, axis=1))[:, None] * directions
    return np.asarray(moved / np.linalg.norm(moved, axis=1, keepdims=True), dtype=np.float32)


def search_depth(place_map: PlaceMap, truth_m: Floats, candidates: int, absent_m: float = ELSEWHERE_M) -> int:
    """How many matches to search, so that `candidates` are left without those within `absent_m` of the truth (Q, 3)."""
    around = place_map.count_around(truth_m, absent_m)
    return min(candidates + int(around.max(initial=0)), DEEPEST)


@dataclass(frozen=True, eq=False)
class Trial:
    """The matches of a photo, and where it was taken."""

    latlon: Floats
    """(K, 2) degrees."""
    distances: Floats
    """(K,)."""
    truth_m: Floats
    """(3,) earth-centred metres."""
    absent: bool
    """Whether the photos around the truth were removed: then no answer is right."""
    spread: float
    """How much the squared distances of the 20 nearest photos differ, before any pre-filter."""
    evidence: Evidence | None = None
    """Of verified matches."""


def make_trials(
    matches: Matches,
    truth_m: Floats,
    k: int,
    *,
    same_spot_m: float = -1.0,
    absent_m: float = ELSEWHERE_M,
    verify: Callable[[int, Ints], tuple[Ints, Evidence]] | None = None,
) -> list[Trial]:
    """Two trials of k matches for each of Q photos, taken at `truth_m` (Q, 3).

    One without the matches within `same_spot_m` of the truth (default: with all), one without those within `absent_m`,
    as if the map did not show the place; if that leaves fewer than k, without those within 50 m. There is no trial
    without matches. verify: chooses among the matches of a photo, by its row and theirs, those that are verified, and
    gives their evidence; default: none is verified.
    """
    trials = []
    for row, truth in enumerate(truth_m):
        away = np.linalg.norm(ecef_from_wgs84(matches.latlon[row]) - truth, axis=1)
        absent = away > (absent_m if (away > absent_m).sum() >= k else min(absent_m, ELSEWHERE_M))
        for left, removed in ((away > same_spot_m, False), (absent, True)):
            rows = np.flatnonzero(left)[:k]
            if len(rows):
                squared = matches.distances[row, rows[:CANDIDATES]].astype(np.float64) ** 2
                rows, evidence = (rows, None) if verify is None else verify(row, rows)
                distances, spread = matches.distances[row, rows].astype(np.float64), float(squared[-1] - squared[0])
                trials.append(Trial(matches.latlon[row, rows], distances, truth, removed, spread, evidence))
    return trials


@dataclass(frozen=True)
class Outcome:
    """What the matches of a trial say together, and the error."""

    place: Place
    error_m: float
    """From the place to where the photo was taken; inf if the map does not show it."""

    @property
    def right(self) -> bool:
        """Whether the place is within 25 m."""
        return self.error_m <= PLACE_M

    @property
    def absent(self) -> bool:
        """Whether the map does not show the photo's place: then no answer is right."""
        return math.isinf(self.error_m)


def outcomes_of(trials: Sequence[Trial], temperature: float) -> list[Outcome]:
    """The outcome of each trial, with the weights of matches at this temperature."""
    outcomes = []
    for trial in trials:
        weights = weigh(trial.distances, temperature, trial.evidence)
        place = fuse(trial.latlon, trial.distances, weights, trial.evidence)
        error_m = float(np.linalg.norm(ecef_from_wgs84(place.latlon)[0] - trial.truth_m))
        outcomes.append(Outcome(place, math.inf if trial.absent else error_m))
    return outcomes


def fit_trials(
    trials: Sequence[Trial],
    origin: str,
    *,
    temperature_share: float = TEMPERATURE_SHARE,
    absent_share: float = ABSENT_SHARE,
    sample_weight: float = 1.0,
    radius_share: float = RADIUS_SHARE,
) -> Calibration:
    """The calibration of these trials, see `fit_calibration`.

    The temperature of the weights is `temperature_share` of the median `spread`, so that models with near and with far
    descriptors are treated alike.
    """
    spreads = [trial.spread for trial in trials if not trial.absent]
    usual = float(np.median(spreads)) if spreads else 0.0
    temperature = temperature_share * usual if usual > 0 else TEMPERATURE
    return fit_calibration(
        outcomes_of(trials, temperature),
        origin,
        temperature=temperature,
        absent_share=absent_share,
        sample_weight=sample_weight,
        radius_share=radius_share,
    )


def fit_calibration(
    outcomes: Sequence[Outcome],
    origin: str,
    *,
    temperature: float = TEMPERATURE,
    absent_share: float = ABSENT_SHARE,
    sample_weight: float = 1.0,
    radius_share: float = RADIUS_SHARE,
) -> Calibration:
    """The calibration fitted to these outcomes; with few of them it stays near the prior.

    Logistic regression of "right" on `features`, with a normal prior around `PRIOR` (that is, L2-regularised). Photos
    that the map does not show (an infinite error) count together as `absent_share` of all: the map does not show how
    often such queries come. Verified matches have weights and a prior of their own. `temperature` is the one
    that the outcomes were fused with. `sample_weight`: how much each outcome counts.
    For the radius see `fit_radius`; `radius_share` of the answers are to be inside.
    """
    if not 0 <= absent_share < 1:
        raise ArgumentError(f"absent_share must be in 0 <= share < 1: found {absent_share}")
    if not outcomes:
        return Calibration(temperature=temperature)
    x = np.stack([features(outcome.place) for outcome in outcomes])
    right = np.array([outcome.right for outcome in outcomes])
    absent = np.array([outcome.absent for outcome in outcomes])
    verified = x.shape[1] == len(VERIFIED_PRIOR)
    counts = sample_weight * sample_weights(absent, absent_share)
    prior, std = (VERIFIED_PRIOR, VERIFIED_STD) if verified else (PRIOR, PRIOR_STD)
    weights = fit_logistic(x, right, counts, prior, std)
    answered = (sigmoid(x @ weights) >= MIN_CONFIDENCE) & ~absent
    scale = fit_radius([outcome for outcome, one in zip(outcomes, answered, strict=True) if one], radius_share)
    known = int((~absent).sum())
    fitted = Calibration(radius_scale=scale, temperature=temperature, photos=known, origin=origin)
    found = tuple(weights.tolist())
    return replace(fitted, verified_weights=found) if verified else replace(fitted, weights=found)


def fit_radius(answers: Sequence[Outcome], share: float = RADIUS_SHARE) -> float:
    """The `radius_scale` with which this share of answers about places in the map, right or wrong, is in the radius.

    The `ceil(share (n + 1))`-th smallest of the n values `error / sqrt(scatter^2 + (5 m)^2)`: that order statistic
    contains the next answer of the same kind with at least that probability (split conformal prediction). If n is too
    small for it, the largest value or that of `Calibration()`, whichever is larger. At most `LARGEST_SCALE`.
    """
    ratios = sorted(answer.error_m / math.hypot(answer.place.scatter_m, GRAIN_M) for answer in answers)
    rank = math.ceil(share * (len(ratios) + 1))
    scale = ratios[rank - 1] if rank <= len(ratios) else max([*ratios, Calibration().radius_scale])
    return min(scale, LARGEST_SCALE)


def sample_weights(absent: Bools, share: float) -> Floats:
    """Weights (n,) with which absent photos make up this share of the sum, which stays n."""
    if absent.all() or not absent.any():
        return np.ones(len(absent))
    return np.asarray(np.where(absent, share / absent.mean(), (1 - share) / (~absent).mean()))


def fit_logistic(
    x: Floats, right: Bools, counts: Floats, prior: Sequence[float] = PRIOR, std: Sequence[float] = PRIOR_STD
) -> Floats:
    """Weights (D,) that maximise the likelihood of `right` (n,) given rows x (n, D), times the prior.

    Minimises `sum_i counts_i log(1 + exp(-s_i w . x_i)) + sum_j (w_j - prior_j)^2 / (2 std_j^2)`, s = +-1: a strictly
    convex function with one finite minimum, also if a plane separates right from wrong.
    """
    from scipy.optimize import minimize  # not needed where the calibration is stored in the map

    start, precision = np.array(prior), 1 / np.array(std) ** 2
    signs = np.where(right, 1.0, -1.0)

    def loss(w: Floats) -> float:
        return float(counts @ np.logaddexp(0, -signs * (x @ w)) + precision @ (w - start) ** 2 / 2)

    def gradient(w: Floats) -> Floats:
        return np.asarray(x.T @ (counts * (sigmoid(x @ w) - right)) + precision * (w - start))

    def hessian(w: Floats) -> Floats:
        p = sigmoid(x @ w)
        return np.asarray((x.T * (counts * p * (1 - p))) @ x + np.diag(precision))

    # the gradient's rounding error grows with the number of rows, so that a fixed tolerance may not be reached
    found = minimize(
        loss, start, jac=gradient, hess=hessian, method="trust-exact", options={"gtol": GRADIENT_TOLERANCE}
    )
    return np.asarray(found.x, dtype=np.float64)


def expected_calibration_error(
    confidence: npt.ArrayLike, right: npt.ArrayLike, bins: int = 10, *, counts: npt.ArrayLike | None = None
) -> float:
    """How far confidence is from the share of right answers: 0 is perfect, 1 always sure and always wrong.

    Answers are sorted into `bins` equal parts of 0..1 by confidence; each bin's |mean confidence - share right| counts
    with its number of answers (Naeini et al. 2015). `counts` (n,): how much each answer counts; default: 1 each. No
    answers: 0.
    """
    sure, truth = np.asarray(confidence, dtype=np.float64), np.asarray(right, dtype=np.float64)
    each = np.ones(len(sure)) if counts is None else np.asarray(counts, dtype=np.float64)
    which = np.minimum((sure * bins).astype(int), bins - 1)
    gaps = [abs(float((each * (sure - truth))[which == b].sum())) for b in range(bins)]
    return sum(gaps) / (float(each.sum()) or 1.0)
