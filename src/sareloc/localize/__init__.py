"""From photos to fixes: position, radius and confidence of each, by the photos of a map that show the same place."""

from sareloc.localize.estimate import MIN_CONFIDENCE, Calibration, Fix, Match, estimate
from sareloc.localize.localizer import Localizer, Search, open_localizer
from sareloc.localize.walk import estimate_walk, walk_clock_offset

__all__ = [
    "MIN_CONFIDENCE",
    "Calibration",
    "Fix",
    "Localizer",
    "Match",
    "Search",
    "estimate",
    "estimate_walk",
    "open_localizer",
    "walk_clock_offset",
]
