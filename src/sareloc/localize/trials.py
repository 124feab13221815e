"""Lists of matches of photos whose positions are known, and the calibration they speak for. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sareloc.geo import ecef_from_wgs84
from sareloc.localize.calibration import ABSENT_SHARE, RADIUS_SHARE, Calibration, Outcome, fit_calibration
from sareloc.localize.fusion import PLACE_M, TEMPERATURE, fuse, weigh
from sareloc.place_map import Matches

Floats = npt.NDArray[np.float64]

ELSEWHERE_M = 2 * PLACE_M
"""Without the photos so near to it, a map does not show a place."""
TEMPERATURE_SHARE = 0.15
"""Of the spread of a photo's distances, see `fit_trials`; chosen by the log loss on real photos."""


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


def make_trials(
    matches: Matches, truth_m: Floats, k: int, *, same_spot_m: float = -1.0, absent_m: float = ELSEWHERE_M
) -> list[Trial]:
    """Two trials of k matches for each of Q photos, taken at `truth_m` (Q, 3).

    One without the matches within `same_spot_m` of the truth (by default with all), one without those within
    `absent_m`, as if the map did not show the place; where that leaves fewer than k, without those within 50 m. A
    trial without matches is none.
    """
    trials = []
    for row, truth in enumerate(truth_m):
        away = np.linalg.norm(ecef_from_wgs84(matches.latlon[row]) - truth, axis=1)
        absent = away > (absent_m if (away > absent_m).sum() >= k else min(absent_m, ELSEWHERE_M))
        for left, gone in ((away > same_spot_m, False), (absent, True)):
            rows = np.flatnonzero(left)[:k]
            if len(rows):
                distances = matches.distances[row, rows].astype(np.float64)
                trials.append(Trial(matches.latlon[row, rows], distances, truth, gone))
    return trials


def fit_trials(
    trials: Sequence[Trial],
    origin: str,
    *,
    temperature_share: float = TEMPERATURE_SHARE,
    absent_share: float = ABSENT_SHARE,
    worth: float = 1.0,
    radius_share: float = RADIUS_SHARE,
) -> Calibration:
    """The calibration of these trials, see `fit_calibration`.

    The temperature of the weights is `temperature_share` of the usual difference of squared distances between a
    photo's first match and its last, so that models with near and with far descriptors are weighed alike.
    """
    spreads = [trial.distances[-1] ** 2 - trial.distances[0] ** 2 for trial in trials if not trial.absent]
    usual = float(np.median(spreads)) if spreads else 0.0
    temperature = temperature_share * usual if usual > 0 else TEMPERATURE
    outcomes = judge(trials, temperature)
    return fit_calibration(
        outcomes, origin, temperature=temperature, absent_share=absent_share, worth=worth, radius_share=radius_share
    )


def judge(trials: Sequence[Trial], temperature: float) -> list[Outcome]:
    """What each trial's matches say together, and how far that is from the truth."""
    outcomes = []
    for trial in trials:
        place = fuse(trial.latlon, trial.distances, weigh(trial.distances, temperature))
        error_m = float(np.linalg.norm(ecef_from_wgs84(place.latlon)[0] - trial.truth_m))
        outcomes.append(Outcome(place, math.inf if trial.absent else error_m))
    return outcomes
