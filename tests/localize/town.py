"""A town of walls whose corners are local features, with headings: each photographed twice, from 8 px aside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from tests.geometry.scenes import texture
from tests.localize.street import position, street_model

from sareloc.maps import PlaceMap, build_map
from sareloc.photos import Geotag, exif_bytes

PLACES, HEADING_DEG = 12, 350.0


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
    build_map(street_model(), folder / "photos", folder / "town.gpkg", keypoints=keypoints, progress=False)
    return PlaceMap(folder / "town.gpkg")
