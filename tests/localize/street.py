"""A street of textured walls, photographed twice; small enough to be mapped in a moment."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from sareloc.geo import wgs84_from_enu
from sareloc.maps import MapConfig, PlaceMap, build_map
from sareloc.models import PlaceModel, make_model
from sareloc.photos import Geotag, exif_bytes

START = (48.8584, 2.2945)
PLACES, SPACING_M = 30, 80.0
VIEWS = ((0.0, 0.0), (4.0, 1.0), (-3.0, 5.0))
"""Metres east and north of a place's middle that its photos for the map are taken from."""


@lru_cache
def street_model(seed: int = 1) -> PlaceModel:
    """Random weights tell walls of different colours apart well enough."""
    rng = torch.Generator().manual_seed(seed)
    return make_model("alexnet", "max", size=(112, 168), rng=rng, name="street")


def view(place: int, seed: int, town: int = 0) -> np.ndarray:
    """A photo of a place: its wall a little moved, under light and noise of the moment."""
    rng = np.random.default_rng([town, place])
    wall = np.kron(rng.integers(0, 256, (10, 15, 3)), np.ones((8, 8, 1)))
    moment = np.random.default_rng([town, place, seed, 7])
    x, y = moment.integers(0, 10, 2)
    seen = wall[y : y + 64, x : x + 96] * moment.uniform(0.75, 1.0) + moment.normal(0, 12, (64, 96, 3))
    return np.clip(seen, 0, 255).astype(np.uint8)


def position(place: int, east: float = 0.0, north: float = 0.0) -> tuple[float, float]:
    latitude, longitude = wgs84_from_enu([(place * SPACING_M + east, north)], START)[0]
    return float(latitude), float(longitude)


def write_view(path: Path, image: np.ndarray, latlon: tuple[float, float] | None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    tag = {} if latlon is None else {"exif": exif_bytes(Geotag(latlon))}
    Image.fromarray(image).save(path, quality=92, **tag)
    return path


def write_street(folder: Path, places: int = PLACES) -> list[Path]:
    """The photos for the map: three of each place, or of the first ones."""
    return [
        write_view(folder / f"{place:02d}_{i}.jpg", view(place, i), position(place, *VIEWS[i]))
        for place in range(places)
        for i in range(len(VIEWS))
    ]


def write_queries(
    folder: Path, places: Sequence[int] = range(PLACES), *, tagged: bool = False, town: int = 0
) -> list[Path]:
    """One new photo of each of the places, 3 m east of its middle; of another town the walls are others."""
    return [
        write_view(folder / f"q{place:02d}.jpg", view(place, 99, town), position(place, 3.0) if tagged else None)
        for place in places
    ]


@lru_cache
def _built_street() -> Path:
    """The folder of the street that is mapped once in a process; tests take copies."""
    folder = Path(tempfile.mkdtemp(prefix="street-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_street(folder / "photos")
    build_map(folder / "photos", folder / "street.gpkg", street_model(), config=MapConfig(keypoints=0, progress=False))
    return folder


def build_street(folder: Path) -> PlaceMap:
    """FOLDER/street.gpkg of the photos in FOLDER/photos: all are copies of one map, with one identity."""
    shutil.copytree(_built_street(), folder, dirs_exist_ok=True)
    return PlaceMap(folder / "street.gpkg")
