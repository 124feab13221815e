"""A town of walls whose corners are local features, with headings: each photographed twice, from 8 px aside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from tests.geometry.scenes import texture
from tests.localize.street import position, street_model
from tests.photos.panorama_files import gpano_xmp, save_panorama

from sareloc.geo import wgs84_from_enu
from sareloc.maps import MapConfig, PlaceMap, build_map
from sareloc.photos import Geotag, exif_bytes

PLACES, HEADING_DEG = 12, 350.0
WELLINGTON = (-41.2866, 174.7756)


def wall(place: int, shift: int = 0) -> np.ndarray:
    """A photo of a place: boxes, seen from `shift` px aside, darker the farther."""
    whole = texture(160, 288, seed=place)
    return (whole[:, shift : shift + 224] * (1 - shift / 200)).astype(np.uint8)


def write_town(folder: Path, keypoints: int) -> PlaceMap:
    """FOLDER/town.gpkg of the photos in FOLDER/photos, with local features of so many keypoints; 0: without."""
    for place in range(PLACES):
        for i in range(2):
            tag = Geotag(position(place, 3.0 * i), HEADING_DEG)
            path = folder / "photos" / f"{place:02d}_{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(wall(place, 8 * i)).save(path, quality=95, exif=exif_bytes(tag))
    build_map(
        folder / "photos", folder / "town.gpkg", street_model(), config=MapConfig(keypoints=keypoints, progress=False)
    )
    return PlaceMap(folder / "town.gpkg")


def world_position(place: int, east: float = 0.0) -> tuple[float, float]:
    """In Paris, or, if the place is odd, in Wellington, 18,980 km away."""
    if place % 2 == 0:
        return position(place, east)
    latitude, longitude = wgs84_from_enu([(80.0 * place + east, 0.0)], WELLINGTON)[0]
    return float(latitude), float(longitude)


def sphere(place: int) -> np.ndarray:
    """A 360° photo of a place."""
    return texture(256, 512, seed=100 + place)


def write_world(folder: Path) -> Path:
    """FOLDER/world.gpkg with local features: walls 0 to 3, each photographed twice, and spheres 4 and 5.

    Beside it the queries wall.jpg of place 3, 20 px aside, and sphere.jpg of place 5.
    """
    (folder / "photos").mkdir(parents=True)
    for place in range(4):
        for i in range(2):
            tag = Geotag(world_position(place, 3.0 * i), HEADING_DEG)
            path = folder / "photos" / f"{place:02d}_{i}.jpg"
            Image.fromarray(wall(place, 8 * i)).save(path, quality=95, exif=exif_bytes(tag))
    for place in (4, 5):
        tag = Geotag(world_position(place))
        save_panorama(folder / "photos" / f"{place:02d}.jpg", sphere(place), tag, gpano_xmp(heading=HEADING_DEG))
    build_map(folder / "photos", folder / "world.gpkg", street_model(), config=MapConfig(keypoints=200, progress=False))
    Image.fromarray(wall(3, 20)).save(folder / "wall.jpg", quality=95)
    save_panorama(folder / "sphere.jpg", np.roll(sphere(5), -128, axis=1))
    return folder / "world.gpkg"
