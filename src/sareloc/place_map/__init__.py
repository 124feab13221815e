"""The map: photos with known positions, searched by descriptor; one GeoPackage, or a collection of Milvus.

`PlaceMap` opens one; `building` makes one and adds to it; `upkeep` looks after it and removes from it; `copying` moves
it. What keeps a map is behind `MapStore`, what searches it behind `MapPhotos`.
"""

from sareloc.place_map.areas import Area, Box, Circle
from sareloc.place_map.matches import Matches
from sareloc.place_map.opening import open_map_file
from sareloc.place_map.place_map import PlaceMap
from sareloc.place_map.records import Manifest
from sareloc.place_map.store import open_store

__all__ = ["Area", "Box", "Circle", "Manifest", "Matches", "PlaceMap", "open_map_file", "open_store"]
