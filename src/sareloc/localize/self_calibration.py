"""What a map says of itself: its own photos, asked as if they were not in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats, Vectors
from sareloc.geo import ecef_from_wgs84
from sareloc.localize.calibration import ABSENT_SHARE, RADIUS_SHARE, Calibration, Outcome, fit_calibration
from sareloc.localize.fusion import PLACE_M, TEMPERATURE, fuse, weigh
from sareloc.maps import Matches, PlaceMap

# Lists of matches of photos whose positions are known, and the calibration they speak for. Pure functions.

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


SAMPLE = 256
SAME_SPOT_M = 1.0  # views cut from one panorama overlap: too easy a question
DEEPEST = 2000
MOST_DISTURBED = 2.5
WORTH = 0.2
"""A photo of the map is a guess at what will be asked: five of them count as one that somebody really asked with."""
MAP_TEMPERATURE_SHARE = 0.25  # more than for photos: disturbed descriptors have a smaller spread of distances
MAP_ABSENT_SHARE = 0.5
MAP_RADIUS_SHARE = 0.92  # photos of the map are nearer to one another than queries are to them


def calibrate_by_map(place_map: PlaceMap, candidates: int) -> Calibration:
    """A calibration of a plain search from the map alone, on up to 256 of its photos, always the same ones.

    Each is looked for twice: among the photos that were not taken on the same spot, and among those more than 50 m
    away, as a photo that the map does not show. Photos of one drive look more alike than those of another night or
    year, and how much more is not for the map to know: descriptors are disturbed first, in random directions, some not
    at all and some by 2.5 times the usual distance to the most alike photo. The radius scale is the geometric mean of
    the one that these photos give and the one to start from: how far off answers will be depends on where queries are
    taken, too. A map too small to say anything gives the numbers to start from.
    """
    rng = np.random.default_rng(0)
    ids, latlon = place_map.sample(SAMPLE, rng)
    truth_m, vectors = ecef_from_wgs84(latlon), place_map.descriptors(ids)
    k = deep_enough(place_map, truth_m, candidates)
    plain = make_trials(place_map.search(vectors, k), truth_m, 1, same_spot_m=SAME_SPOT_M)
    usual = np.median([trial.distances[0] for trial in plain if not trial.absent]) if plain else 0.0
    asked = disturbed(vectors, usual * np.linspace(0, MOST_DISTURBED, len(ids)), rng)
    trials = make_trials(place_map.search(asked, k), truth_m, candidates, same_spot_m=SAME_SPOT_M)
    fitted = fit_trials(
        trials,
        "map",
        temperature_share=MAP_TEMPERATURE_SHARE,
        absent_share=MAP_ABSENT_SHARE,
        worth=WORTH,
        radius_share=MAP_RADIUS_SHARE,
    )
    return replace(fitted, radius_scale=math.sqrt(fitted.radius_scale * Calibration().radius_scale))


def disturbed(vectors: Vectors, lengths: npt.NDArray[np.float64], rng: np.random.Generator) -> Vectors:
    """Unit vectors (n, dim), moved by so much (n,) each in a random direction, and scaled to unit length again."""
    directions = rng.normal(size=vectors.shape)
    moved = vectors + (lengths / np.linalg.norm(directions, axis=1))[:, None] * directions
    return np.asarray(moved / np.linalg.norm(moved, axis=1, keepdims=True), dtype=np.float32)


def deep_enough(
    place_map: PlaceMap, truth_m: npt.NDArray[np.float64], candidates: int, absent_m: float = ELSEWHERE_M
) -> int:
    """How many matches to look for, so that so many are left without those within `absent_m` of the truth (Q, 3)."""
    around = place_map.count_around(truth_m, absent_m)
    return min(candidates + int(around.max(initial=0)), DEEPEST)


def chance_of_place(place_map: PlaceMap) -> float:
    """How probable it is that two photos of the map, drawn at random, show the same place."""
    _, latlon = place_map.sample(SAMPLE, np.random.default_rng(0))
    return float(place_map.count_around(ecef_from_wgs84(latlon), PLACE_M).mean()) / len(place_map)
