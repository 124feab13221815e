"""The synthetic city as a dataset: in memory (`city_places`), or as photos in the VPR-datasets folder format."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from sareloc.arrays import Floats, Ints
from sareloc.arrays import Image as Pixels
from sareloc.city.geometry import Poses, focal_px, join_poses
from sareloc.city.render import draw_scene, scene_of
from sareloc.city.scene import usable
from sareloc.city.town import SIZES, SPLITS, Town, Views, make_town, make_views, split_seed
from sareloc.datasets.places import PhotoSet, Places
from sareloc.errors import ArgumentError, look_up
from sareloc.files import write_atomically
from sareloc.geo import Positions, wgs84_from_enu
from sareloc.photos import DIAGONAL_35MM, Geotag, exif_bytes, make_utm_name

DRAWN_AT_ONCE = 256
QUALITY = 90


@dataclass(frozen=True, eq=False)
class CityPlaces:
    """One split of a synthetic city: its town, its views, and its `Places` (positions in metres east and north of the
    town's centre; the file names do not exist)."""

    places: Places
    town: Town
    views: Views

    @property
    def poses(self) -> Poses:
        """The poses of the database, then of the queries."""
        return join_poses([self.views.database, self.views.queries])


def city_places(seed: int, size: str = "small", split: str = "test") -> CityPlaces:
    """A split (train, val or test) of the city of a seed, of a size (small, medium or large)."""
    town = make_town(split_seed(seed, split), size)
    views = make_views(town)
    database, queries = (
        _photo_set(town, views, poses, role)
        for poses, role in ((views.database, "database"), (views.queries, "queries"))
    )
    places = Places(f"city-{size}-{seed}", split, database, queries, panoramas=views.panoramas)
    return CityPlaces(places, town, views)


def _photo_set(town: Town, views: Views, poses: Poses, role: str) -> PhotoSet:
    times = np.array([moment.time for moment in views.moments])
    return PhotoSet(
        folder=Path(role),
        files=tuple(f"{i:06d}.jpg" for i in range(len(poses))),
        positions=Positions.from_local(town.enu(poses.eye)),
        times=times[poses.moment],
        headings_deg=town.heading_deg(poses.yaw),
    )


def draw_pixels(
    city: CityPlaces,
    height: int,
    width: int,
    device: torch.device | str = "cpu",
    rows: npt.ArrayLike | None = None,
) -> Tensor:
    """Render images (N, 3, height, width) uint8 on `device`: of the database, then the queries, or of these rows."""
    chosen = np.arange(len(city.poses)) if rows is None else np.asarray(rows, dtype=np.int64).reshape(-1)
    images = torch.empty(len(chosen), 3, height, width, dtype=torch.uint8, device=usable(device))
    for where, drawn in draw_in_turn(city, chosen, height, width, device):
        images[torch.from_numpy(where).to(images.device)] = drawn
    return images


def draw_in_turn(
    city: CityPlaces, rows: Ints, height: int, width: int, device: torch.device | str
) -> Iterator[tuple[Ints, Tensor]]:
    """Render the poses `rows` in batches, ordered by moment: pairs of indices into `rows` and images."""
    if not len(rows):
        return
    scene, poses = scene_of(city.town, city.poses.take(rows), city.views.moments, device)
    order = np.argsort(poses.moment, kind="stable")
    for start in range(0, len(order), DRAWN_AT_ONCE):
        where = order[start : start + DRAWN_AT_ONCE]
        yield where, draw_scene(scene, poses.take(where), height, width)


def draw_places(
    out: str | Path,
    seed: int = 0,
    size: str = "small",
    *,
    splits: Sequence[str] = SPLITS,
    photo_size: tuple[int, int] | None = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> int:
    """Write OUT/images/{train,val,test}/{database,queries}/@...@.jpg; EXIF has position, heading, time, focal length.

    `photo_size`: height and width; default: that of the size. Existing photos are skipped, so that an interrupted run
    can be resumed; OUT/city.json records the city. Returns the number of photos written. Raises ArgumentError if the
    folder contains another city.
    """
    height, width = photo_size or look_up(SIZES, size, "size of town").photo
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"{folder} is a file: give a folder to write the photos to")
    _claim(folder, {"format": 1, "seed": seed, "size": size, "photo": [height, width]})
    written = 0
    for split in splits:
        city = city_places(seed, size, split)
        tags, focal_35mm = geotags(city), focal_lengths_35mm(city, height, width)
        paths = [folder / "images" / split / name for name in photo_names(city, tags)]
        for path in {path.parent for path in paths}:
            path.mkdir(parents=True, exist_ok=True)
        missing = np.array([i for i, path in enumerate(paths) if not path.exists()], dtype=np.int64)
        bar = tqdm(total=len(paths), initial=len(paths) - len(missing), desc=split, unit="photo", disable=not progress)
        for where, images in draw_in_turn(city, missing, height, width, device):
            pixels = images.permute(0, 2, 3, 1).cpu().numpy()
            for row, image in zip(missing[where], pixels, strict=True):
                _save(image, paths[row], tags[row], focal_35mm[row])
                bar.update()
        bar.close()
        written += len(missing)
    return written


def _claim(folder: Path, city: dict[str, Any]) -> None:
    """Record the city in the folder; raises ArgumentError if the folder contains another one."""
    record = folder / "city.json"
    if not record.exists():
        write_atomically(record, (json.dumps(city) + "\n").encode())
        return
    try:
        found = json.loads(record.read_text())
    except ValueError as error:
        raise ArgumentError(f"{record} is not JSON ({error}): delete it, or draw into another folder") from error
    if found != city:
        raise ArgumentError(f"{folder} contains another city ({json.dumps(found)}): draw into another folder")


def geotags(city: CityPlaces) -> list[Geotag]:
    """The geotags of the photos: of the database, then of the queries."""
    latlon = wgs84_from_enu(city.town.enu(city.poses.eye), city.town.origin)
    headings = city.town.heading_deg(city.poses.yaw)
    times = [city.views.moments[m].time for m in city.poses.moment]
    return [
        Geotag((float(lat), float(lon)), float(heading), time)
        for (lat, lon), heading, time in zip(latlon, headings, times, strict=True)
    ]


def photo_names(city: CityPlaces, tags: list[Geotag]) -> list[str]:
    """Role and file name of each photo, such as `database/@...@.jpg`."""
    database = [(f"{pano:05d}", int(tile)) for pano, tile in zip(city.views.panoramas, city.views.tiles, strict=True)]
    queries = [(f"q{i:05d}", 0) for i in range(len(city.views.queries))]
    roles = ["database"] * len(database) + ["queries"] * len(queries)
    return [
        f"{role}/{make_utm_name(tag, pano_id=pano, tile=tile)}"
        for role, tag, (pano, tile) in zip(roles, tags, database + queries, strict=True)
    ]


def focal_lengths_35mm(city: CityPlaces, height: int, width: int) -> Floats:
    """The 35 mm equivalent focal lengths (N,) in mm of photos of this size: of the database, then of the queries."""
    return focal_px(city.poses, width) * (DIAGONAL_35MM / math.hypot(height, width))


def _save(image: Pixels, path: Path, tag: Geotag, focal_35mm: float) -> None:
    content = io.BytesIO()  # Pillow does not report a full disk at the end of a file
    Image.fromarray(image).save(content, format="JPEG", quality=QUALITY, exif=exif_bytes(tag, focal_35mm=focal_35mm))
    write_atomically(path, content.getvalue())
