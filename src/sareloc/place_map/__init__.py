"""The map: photos with known positions in one GeoPackage, searched by descriptor.

`PlaceMap` opens one; `building` makes one and adds to it; `upkeep` looks after it and removes from it.
"""

from sareloc.place_map.areas import Area, Box, Circle
from sareloc.place_map.map_file import Manifest
from sareloc.place_map.opening import open_map_file
from sareloc.place_map.place_map import Matches, PlaceMap

__all__ = ["Area", "Box", "Circle", "Manifest", "Matches", "PlaceMap", "open_map_file"]
