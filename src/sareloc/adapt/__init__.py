"""What a map's own photos teach: which geotags are wrong, and a search that is adapted to the map.

`check_geotags` lists the photos whose geotags geometry contradicts; `adapt_map` learns from a map's own photos.
"""

from typing import TYPE_CHECKING

from sareloc import lazy_names

if TYPE_CHECKING:
    from sareloc.adapt.adapt import AdaptReport, adapt_map
    from sareloc.adapt.geotags import GeotagCheck, SuspiciousGeotag, check_geotags, check_geotags_of_dataset

__all__ = ["AdaptReport", "GeotagCheck", "SuspiciousGeotag", "adapt_map", "check_geotags", "check_geotags_of_dataset"]

__getattr__ = lazy_names(
    __name__,
    {
        "adapt": "AdaptReport adapt_map",
        "geotags": "GeotagCheck SuspiciousGeotag check_geotags check_geotags_of_dataset",
    },
)
