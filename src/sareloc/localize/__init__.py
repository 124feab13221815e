"""From photos to fixes: position, radius and confidence of each, by the photos of a map that show the same place."""

from typing import TYPE_CHECKING

from sareloc import lazy_names
from sareloc.localize.condition import Condition, UsedCondition, open_condition, save_condition
from sareloc.localize.estimate import MIN_CONFIDENCE, Calibration, Fix, Match, estimate
from sareloc.localize.localizer import Localizer, Localizes, open_localizer
from sareloc.localize.verify import Search
from sareloc.localize.walk import estimate_walk, walk_clock_offset

if TYPE_CHECKING:
    from sareloc.localize.clock import (
        VideoFixes,
        VideoOptions,
        VideoWalk,
        VideoWalks,
        localize_video,
        read_photo_times,
        read_video_walk,
        read_video_walks,
        sort_by_time,
    )
    from sareloc.localize.geotagging import (
        GeotagOptions,
        GeotagOutputs,
        GeotagPlan,
        GeotagReport,
        plan_geotags,
        write_positions,
    )
    from sareloc.localize.photo_calibration import CalibrationReport, calibrate
    from sareloc.localize.place_names import Town, find_town
    from sareloc.localize.several import SeveralMaps

__all__ = [
    "MIN_CONFIDENCE",
    "Calibration",
    "CalibrationReport",
    "Condition",
    "Fix",
    "GeotagOptions",
    "GeotagOutputs",
    "GeotagPlan",
    "GeotagReport",
    "Localizer",
    "Localizes",
    "Match",
    "Search",
    "SeveralMaps",
    "Town",
    "UsedCondition",
    "VideoFixes",
    "VideoOptions",
    "VideoWalk",
    "VideoWalks",
    "calibrate",
    "estimate",
    "estimate_walk",
    "find_town",
    "localize_video",
    "open_condition",
    "open_localizer",
    "plan_geotags",
    "read_photo_times",
    "read_video_walk",
    "read_video_walks",
    "save_condition",
    "sort_by_time",
    "walk_clock_offset",
    "write_positions",
]

__getattr__ = lazy_names(
    __name__,
    {
        "clock": "VideoFixes VideoOptions VideoWalk VideoWalks localize_video read_photo_times read_video_walk "
        "read_video_walks sort_by_time",
        "geotagging": "GeotagOptions GeotagOutputs GeotagPlan GeotagReport plan_geotags write_positions",
        "photo_calibration": "CalibrationReport calibrate",
        "place_names": "Town find_town",
        "several": "SeveralMaps",
    },
)
