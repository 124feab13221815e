"""Maps: geotagged photos with their descriptors, in a GeoPackage file or on a server, searched by descriptor.

`build_map`, `add_photos`, `sync_map` and `add_local_features` write a map; `PlaceMap` opens one for searching;
`map_info`, `verify_map`, `remove_photos`, `compact_map` and `copy_map` maintain it. `MapStore` is the rows of an open
map, for reading and writing; `map_class` and `store_class` find both classes by the address of a map.
"""

from typing import TYPE_CHECKING

from sareloc import lazy_names
from sareloc.geo import Area, Box, Circle
from sareloc.maps.file import MapFile, open_map_file
from sareloc.maps.place_map import PlaceMap
from sareloc.maps.records import Entry, ListedPhoto, ListedPhotos, MapInfo, MapManifest, MapPhoto, Matches
from sareloc.maps.schema import create_map_file
from sareloc.maps.store import MapStore, load_map_model, map_class, open_or_create_store, open_store, store_class

if TYPE_CHECKING:
    from sareloc.maps.build import BuildReport, SyncReport, add_photos, build_map, sync_map
    from sareloc.maps.config import MapConfig
    from sareloc.maps.copy import CopyReport, copy_map
    from sareloc.maps.maintain import compact_map, find_gone, list_maps, map_info, remove_photos, verify_map
    from sareloc.maps.upgrade import FeaturesReport, add_local_features

__all__ = [
    "Area",
    "Box",
    "BuildReport",
    "Circle",
    "CopyReport",
    "Entry",
    "FeaturesReport",
    "ListedPhoto",
    "ListedPhotos",
    "MapConfig",
    "MapFile",
    "MapInfo",
    "MapManifest",
    "MapPhoto",
    "MapStore",
    "Matches",
    "PlaceMap",
    "SyncReport",
    "add_local_features",
    "add_photos",
    "build_map",
    "compact_map",
    "copy_map",
    "create_map_file",
    "find_gone",
    "list_maps",
    "load_map_model",
    "map_class",
    "map_info",
    "open_map_file",
    "open_or_create_store",
    "open_store",
    "remove_photos",
    "store_class",
    "sync_map",
    "verify_map",
]

FileMap, MapBackend, map_backend = PlaceMap, MapStore, store_class  # their names until version 0.1


__getattr__ = lazy_names(
    __name__,
    {
        "build": "BuildReport SyncReport add_photos build_map sync_map",
        "config": "MapConfig",
        "copy": "CopyReport copy_map",
        "maintain": "compact_map find_gone list_maps map_info remove_photos verify_map",
        "upgrade": "FeaturesReport add_local_features",
    },
)
