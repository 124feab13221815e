"""The map: photos with known positions, searched by descriptor; one GeoPackage, or a collection of Milvus.

`PlaceMap` opens one; `building` makes one and adds to it; `upkeep` looks after it and removes from it; `copying` moves
it. What keeps a map is behind `MapStore`, what searches it behind `MapPhotos`.
"""

from sareloc.geo import Area, Box, Circle
from sareloc.maps.place_map import FileMap, Matches, PlaceMap
from sareloc.maps.records import MapManifest
from sareloc.maps.schema import open_map_file
from sareloc.maps.store import open_or_create_store, open_store

__all__ = [
    "Area",
    "Box",
    "Circle",
    "FileMap",
    "MapManifest",
    "Matches",
    "PlaceMap",
    "open_map_file",
    "open_or_create_store",
    "open_store",
]
