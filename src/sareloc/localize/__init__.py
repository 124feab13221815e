"""From a photo to a fix: where it was taken, how far off that may be, and how sure it is."""

from sareloc.localize.calibration import Calibration
from sareloc.localize.estimate import estimate, estimate_walk
from sareloc.localize.fix import Fix, Match
from sareloc.localize.localizer import Localizer, Search, open_localizer

__all__ = ["Calibration", "Fix", "Localizer", "Match", "Search", "estimate", "estimate_walk", "open_localizer"]
