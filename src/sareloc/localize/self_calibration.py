"""What a map says of itself: its own photos, asked as if they were not in it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sareloc.geo import ecef_from_wgs84
from sareloc.localize.calibration import Calibration
from sareloc.localize.fusion import PLACE_M
from sareloc.localize.trials import ELSEWHERE_M, fit_trials, make_trials
from sareloc.place_map import PlaceMap

SAMPLE = 256
SAME_SPOT_M = 1.0  # views cut from one panorama overlap: too easy a question
DEEPEST = 2000
MOST_DISTURBED = 2.5
WORTH = 0.2
"""A photo of the map is a guess at what will be asked: five of them count as one that somebody really asked with."""
TEMPERATURE_SHARE = 0.25  # more than for photos: disturbed descriptors have a smaller spread of distances
ABSENT_SHARE = 0.5
RADIUS_SHARE = 0.92  # photos of the map are nearer to one another than queries are to them

Vectors = npt.NDArray[np.float32]


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
        temperature_share=TEMPERATURE_SHARE,
        absent_share=ABSENT_SHARE,
        worth=WORTH,
        radius_share=RADIUS_SHARE,
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
