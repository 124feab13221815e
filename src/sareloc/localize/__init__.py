"""From photos to fixes: position, radius and confidence of each, by the photos of a map that show the same place."""

from sareloc.localize.clock import (
    VideoClock,
    VideoFixes,
    VideoWalk,
    localize_video,
    read_photo_times,
    read_video_walk,
    sort_by_time,
)
from sareloc.localize.condition import Condition, UsedCondition, open_condition, save_condition
from sareloc.localize.estimate import MIN_CONFIDENCE, Calibration, Fix, Match, estimate
from sareloc.localize.localizer import Localizer, Search, open_localizer
from sareloc.localize.place_names import Town, find_town
from sareloc.localize.walk import estimate_walk, walk_clock_offset

__all__ = [
    "MIN_CONFIDENCE",
    "Calibration",
    "Condition",
    "Fix",
    "Localizer",
    "Match",
    "Search",
    "Town",
    "UsedCondition",
    "VideoClock",
    "VideoFixes",
    "VideoWalk",
    "estimate",
    "estimate_walk",
    "find_town",
    "localize_video",
    "open_condition",
    "open_localizer",
    "read_photo_times",
    "read_video_walk",
    "save_condition",
    "sort_by_time",
    "walk_clock_offset",
]
