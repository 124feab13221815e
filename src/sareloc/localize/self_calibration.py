"""What a map says of itself: its own photos, asked as if they were not in it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sareloc.geo import within_radius
from sareloc.localize.calibration import Calibration
from sareloc.localize.searching import Searcher
from sareloc.localize.trials import ELSEWHERE_M, fit_trials, make_trials

SAMPLE = 256
SAME_SPOT_M = 1.0  # views cut from one panorama overlap: too easy a question
DEEPEST = 2000


def calibrate_by_map(searcher: Searcher) -> Calibration:
    """A calibration from the map alone, on up to 256 of its photos, always the same ones.

    Each is looked for twice: among the photos that were not taken on the same spot, and among those more than 50 m
    away, as a photo that the map does not show. Photos of one drive look more alike than those of another year: real
    queries are met with caution. A map too small to say anything gives the numbers to start from.
    """
    place_map = searcher.place_map
    rows = np.sort(np.random.default_rng(0).permutation(len(place_map))[:SAMPLE])
    truth_m = place_map.positions.metres[rows]
    matches = searcher.find(place_map.descriptors(place_map.ids[rows]), deep_enough(searcher, truth_m))
    trials = make_trials(matches, truth_m, searcher.search.candidates, same_spot_m=SAME_SPOT_M)
    return fit_trials(trials, "map")


def deep_enough(searcher: Searcher, truth_m: npt.NDArray[np.float64]) -> int:
    """How many matches to look for, so that enough are left without those around the true positions (Q, 3)."""
    around = within_radius(searcher.place_map.positions.metres, truth_m, ELSEWHERE_M)
    crowd = max((len(rows) for rows in around), default=0)
    return min(searcher.search.candidates + crowd, DEEPEST)
