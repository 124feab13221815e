"""Maps: geotagged photos with their descriptors, in a GeoPackage file or on a server, searched by descriptor.

`build_map`, `add_photos`, `sync_map` and `add_local_features` write a map; `PlaceMap` opens one for searching;
`map_info`, `verify_map`, `remove_photos`, `compact_map` and `copy_map` maintain it. `MapStore` is an open map for
reading and writing, whatever stores it; the backend of an address is found by `map_backend`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sareloc.geo import Area, Box, Circle
from sareloc.maps.copy import CopyReport, copy_map
from sareloc.maps.features import FeaturesReport, add_local_features
from sareloc.maps.file import MapFile, open_map_file
from sareloc.maps.gpkg import create_map_file
from sareloc.maps.maintain import MapInfo, compact_map, find_gone, map_info, remove_photos, verify_map
from sareloc.maps.place_map import FileMap, Matches, PlaceMap
from sareloc.maps.store import (
    Entry,
    MapBackend,
    MapManifest,
    MapPhoto,
    MapStore,
    load_map_model,
    map_backend,
    open_or_create_store,
    open_store,
)

if TYPE_CHECKING:
    from sareloc.maps.build import BuildReport, SyncReport, add_photos, build_map, sync_map
    from sareloc.maps.config import MapConfig

__all__ = [
    "Area",
    "Box",
    "BuildReport",
    "Circle",
    "CopyReport",
    "Entry",
    "FeaturesReport",
    "FileMap",
    "MapBackend",
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
    "load_map_model",
    "map_backend",
    "map_info",
    "open_map_file",
    "open_or_create_store",
    "open_store",
    "remove_photos",
    "sync_map",
    "verify_map",
]


def __getattr__(name: str) -> Any:
    """Names of `sareloc.maps.build` and `sareloc.maps.config`, imported at the first use: they import torch."""
    if name in ("BuildReport", "SyncReport", "add_photos", "build_map", "sync_map"):
        return getattr(import_module("sareloc.maps.build"), name)
    if name == "MapConfig":
        return import_module("sareloc.maps.config").MapConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
