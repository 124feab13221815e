"""What a map's own photos teach: which geotags are wrong, and a search that is adapted to the map.

`check_geotags` lists the photos whose geotags geometry contradicts; `adapt_map` learns from a map's own photos.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sareloc.adapt.adapt import AdaptReport, adapt_map
    from sareloc.adapt.geotags import GeotagCheck, SuspiciousGeotag, check_geotags, check_geotags_of_dataset

__all__ = ["AdaptReport", "GeotagCheck", "SuspiciousGeotag", "adapt_map", "check_geotags", "check_geotags_of_dataset"]

_MODULES = ("geotags", "adapt")


def __getattr__(name: str) -> Any:
    """Names of the modules, imported at their first use: they import torch."""
    for module in _MODULES if name in __all__ else ():
        if hasattr(found := import_module(f"{__name__}.{module}"), name):
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
