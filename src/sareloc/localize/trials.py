"""Lists of matches of photos whose positions are known, and the calibration they speak for. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sareloc.geo import ecef_from_wgs84
from sareloc.localize.calibration import Calibration, Outcome, expected_calibration_error, fit_calibration
from sareloc.localize.fusion import PLACE_M, TEMPERATURE, fuse, weigh
from sareloc.place_map import Matches

Floats = npt.NDArray[np.float64]

ELSEWHERE_M = 2 * PLACE_M
"""Without the photos so near to it, a map does not show a place."""
TEMPERATURE_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class Trial:
    """The matches that were found for a photo, and where it was taken."""

    latlon: Floats
    """(K, 2) degrees."""
    distances: Floats
    """(K,) rising."""
    truth_m: Floats
    """(3,) earth-centred metres."""
    absent: bool
    """Whether the photos around the truth were taken out: then no answer is right."""


def make_trials(matches: Matches, truth_m: Floats, k: int, *, same_spot_m: float = -1.0) -> list[Trial]:
    """Two trials of k matches for each of Q photos, taken at `truth_m` (Q, 3).

    One without the matches within `same_spot_m` of the truth (by default with all), one without those within 50 m, as
    if the map did not show the place. A trial without matches is none.
    """
    return [
        trial
        for row, truth in enumerate(truth_m)
        for beyond_m in (same_spot_m, ELSEWHERE_M)
        if len((trial := _without(matches, row, truth, beyond_m, k)).distances)
    ]


def _without(matches: Matches, row: int, truth: Floats, beyond_m: float, k: int) -> Trial:
    away = np.linalg.norm(ecef_from_wgs84(matches.latlon[row]) - truth, axis=1)
    left = np.flatnonzero(away > beyond_m)[:k]
    distances = matches.distances[row, left].astype(np.float64)
    return Trial(matches.latlon[row, left], distances, truth, beyond_m == ELSEWHERE_M)


def fit_trials(trials: Sequence[Trial], origin: str, *, worth: float = 1.0) -> Calibration:
    """The calibration of these trials, see `fit_calibration`.

    The temperature of the weights is a quarter of the usual difference of squared distances between a photo's first
    match and its last, so that models with near and with far descriptors are weighed alike.
    """
    spreads = [trial.distances[-1] ** 2 - trial.distances[0] ** 2 for trial in trials if not trial.absent]
    usual = float(np.median(spreads)) if spreads else 0.0
    temperature = TEMPERATURE_SHARE * usual if usual > 0 else TEMPERATURE
    return fit_calibration(judge(trials, temperature), origin, temperature=temperature, worth=worth)


def judge(trials: Sequence[Trial], temperature: float) -> list[Outcome]:
    """What each trial's matches say together, and how far that is from the truth."""
    outcomes = []
    for trial in trials:
        place = fuse(trial.latlon, trial.distances, weigh(trial.distances, temperature))
        error_m = float(np.linalg.norm(ecef_from_wgs84(place.latlon)[0] - trial.truth_m))
        outcomes.append(Outcome(place, math.inf if trial.absent else error_m))
    return outcomes


def calibration_error(judged: Sequence[tuple[Sequence[Trial], Calibration]]) -> float:
    """How far confidence is from being right (expected calibration error) over trials, each judged by a calibration."""
    confidence: list[float] = []
    right: list[bool] = []
    for trials, calibration in judged:
        outcomes = judge(trials, calibration.temperature)
        confidence += [calibration.confidence(outcome.place) for outcome in outcomes]
        right += [outcome.right for outcome in outcomes]
    return expected_calibration_error(confidence, right)
