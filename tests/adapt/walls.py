"""A town of walls, each photographed four times, with some geotags that are wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from PIL import Image
from tests.localize.street import position, street_model
from tests.localize.town import wall

from sareloc.maps import MapConfig, build_map
from sareloc.photos import Geotag, exif_bytes

PLACES, PHOTOS = 8, 4


def write_walls(folder: Path, wrong: Mapping[tuple[int, int], int], times: bool = False, photos: int = PHOTOS) -> Path:
    """FOLDER/photos: so many photos of each place, 3 m and 8 px apart; `wrong`: (place, photo) -> the place it is
    tagged with."""
    for place in range(PLACES):
        for i in range(photos):
            tag = Geotag(position(wrong.get((place, i), place), 3.0 * i), time=1.7e9 + 1e5 * i if times else None)
            path = folder / "photos" / f"{place:02d}_{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(wall(place, 8 * i)).save(path, quality=95, exif=exif_bytes(tag))
    return folder / "photos"


def build_walls(folder: Path, wrong: Mapping[tuple[int, int], int], keypoints: int = 200, photos: int = PHOTOS) -> Path:
    """FOLDER/walls.gpkg of these photos."""
    written = write_walls(folder, wrong, photos=photos)
    config = MapConfig(keypoints=keypoints, progress=False)
    build_map(written, folder / "walls.gpkg", street_model(), config=config)
    return folder / "walls.gpkg"
