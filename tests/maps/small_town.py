"""A few small geotagged photos and a fast model, for maps that are built in a moment."""

from __future__ import annotations

import copy
import sqlite3
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from sareloc import maps
from sareloc.maps import gpkg
from sareloc.models import PlaceModel, make_model
from sareloc.photos import Geotag, exif_bytes

HERE = (48.8584, 2.2945)


def build_map(
    photos: Any, out: str | Path, model: Any = None, *, geotags: Any = None, track: Any = None, **options: Any
) -> maps.BuildReport:
    """A map without local features, which take longer than all else in these tests; options: of `MapConfig`."""
    config = maps.MapConfig(**{"keypoints": 0} | options)
    return maps.build_map(photos, out, model, geotags=geotags, track=track, config=config)


def gis(path: str | Path) -> sqlite3.Connection:
    """A connection to a map with the functions that a GIS program defines, which the triggers of the R-tree call."""
    connection = sqlite3.connect(path)
    gpkg.allow_spatial_index(connection)
    return connection


def tiny_model(seed: int = 1) -> PlaceModel:
    """A copy, for one test or module; the weights are drawn once."""
    return copy.deepcopy(_drawn_model(seed))


@cache
def _drawn_model(seed: int) -> PlaceModel:
    return make_model("alexnet", "avg", size=(64, 64), rng=torch.Generator().manual_seed(seed), name="tiny")


def geotag_of(number: int) -> Geotag:
    """About 11 m apart, going north."""
    return Geotag((HERE[0] + number * 1e-4, HERE[1]), float(number % 360), 1.7e9 + number)


def write_photo(path: Path, number: int, *, tagged: bool = True) -> Path:
    pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((72, 64), Image.Resampling.BICUBIC)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, quality=90, **({"exif": exif_bytes(geotag_of(number))} if tagged else {}))
    return path


def write_town(folder: Path, count: int) -> list[Path]:
    return [write_photo(folder / f"{number:04d}.jpg", number) for number in range(count)]
