"""The synthetic city as a dataset: in memory (`city_places`), or as photos in the VPR-datasets folder format.

The database is the views of the panoramas, or with `panoramas=True` the panoramas themselves, as 360° photos.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
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
from sareloc.city.panoramas import draw_spheres, gpano_xmp, panorama_height, panorama_poses, without_camera_noise
from sareloc.city.render import draw_scene, scene_of
from sareloc.city.scene import usable
from sareloc.city.town import SIZES, SPLITS, Town, Views, make_town, make_views, split_seed
from sareloc.datasets.places import PhotoSet, Places
from sareloc.errors import ArgumentError, look_up
from sareloc.files import write_atomically
from sareloc.geo import Positions, wgs84_from_enu
from sareloc.photos import DIAGONAL_35MM, Geotag, exif_bytes, make_utm_name

DRAWN_AT_ONCE = 256
PANORAMAS_AT_ONCE = 5
"""Their thirty faces fill one batch of a GPU."""
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
    if len(rows):
        scene, poses = scene_of(city.town, city.poses.take(rows), city.views.moments, device)
        for where in _by_moment(poses, DRAWN_AT_ONCE):
            yield where, draw_scene(scene, poses.take(where), height, width)


def draw_panoramas_in_turn(
    city: CityPlaces, rows: Ints, height: int, device: torch.device | str
) -> Iterator[tuple[Ints, Tensor]]:
    """Render the panoramas `rows` in batches, ordered by moment: pairs of indices into `rows` and 360° photos.

    Without vignette and camera noise; for the middle column see `sareloc.city.panoramas`.
    """
    if len(rows):
        moments = [without_camera_noise(moment) for moment in city.views.moments]
        scene, poses = scene_of(city.town, panorama_poses(city.views).take(rows), moments, device)
        for where in _by_moment(poses, PANORAMAS_AT_ONCE):
            yield where, draw_spheres(scene, poses.take(where), height)


def _by_moment(poses: Poses, at_once: int) -> Iterator[Ints]:
    order = np.argsort(poses.moment, kind="stable")
    return (order[start : start + at_once] for start in range(0, len(order), at_once))


def draw_places(
    out: str | Path,
    seed: int = 0,
    size: str = "small",
    *,
    splits: Sequence[str] = SPLITS,
    photo_size: tuple[int, int] | None = None,
    panoramas: bool = False,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> int:
    """Write OUT/images/{train,val,test}/{database,queries}/@...@.jpg; EXIF has position, heading, time, focal length.

    `photo_size`: height and width; default: that of the size. `panoramas`: the database is 360° photos with GPano tags,
    at the same positions and with the same pixels per degree, instead of the views cut from them; the queries are the
    same. Existing photos are skipped, so that an interrupted run can be resumed; OUT/city.json records the city.
    Returns the number of photos written. Raises ArgumentError if the folder contains another city.
    """
    height, width = photo_size or look_up(SIZES, size, "size of town").photo
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"{folder} is a file: give a folder to write the photos to")
    record = {"format": 1, "seed": seed, "size": size, "photo": [height, width]}
    claim(folder / "city.json", record | ({"panoramas": True} if panoramas else {}), "city")
    written = 0
    for split in splits:
        city = city_places(seed, size, split)
        rows = np.arange(len(city.poses))
        parts = [
            _perspective_photos(city, rows[len(city.views.database) :] if panoramas else rows, height, width, device)
        ]
        if panoramas:
            parts.insert(0, _panorama_photos(city, panorama_height(width), device))
        for part in parts:
            written += _write_missing(part, folder / "images" / split, progress)
    return written


def claim(record: Path, content: dict[str, Any], what: str) -> None:
    """Record in a JSON file what is drawn into its folder; raises ArgumentError if the file records something else."""
    if not record.exists():
        write_atomically(record, (json.dumps(content) + "\n").encode())
        return
    try:
        found = json.loads(record.read_text())
    except ValueError as error:
        raise ArgumentError(f"{record} is not JSON ({error}): delete it, or draw into another folder") from error
    if found != content:
        raise ArgumentError(f"{record.parent} contains another {what} ({json.dumps(found)}): draw into another folder")


@dataclass(frozen=True, eq=False)
class _Photos:
    """Photos to be written: their names, EXIF and XMP for Pillow's `save`, and a function that renders some of them."""

    names: list[str]
    metadata: list[dict[str, bytes]]
    draw_rows: Callable[[Ints], Iterator[tuple[Ints, Tensor]]]


def _perspective_photos(city: CityPlaces, rows: Ints, height: int, width: int, device: torch.device | str) -> _Photos:
    tags, focal_35mm = geotags(city), focal_lengths_35mm(city, height, width)
    names = photo_names(city, tags)
    return _Photos(
        [names[row] for row in rows],
        [{"exif": exif_bytes(tags[row], focal_35mm=focal_35mm[row])} for row in rows],
        lambda some: draw_in_turn(city, rows[some], height, width, device),
    )


def _panorama_photos(city: CityPlaces, height: int, device: torch.device | str) -> _Photos:
    tags, first = geotags(city), np.flatnonzero(city.views.tiles == 0)
    chosen = [tags[row] for row in first]
    return _Photos(
        [f"database/{make_utm_name(tag, pano_id=f'{i:05d}')}" for i, tag in enumerate(chosen)],
        [{"exif": exif_bytes(tag), "xmp": gpano_xmp(height, tag.heading_deg or 0.0)} for tag in chosen],
        lambda some: draw_panoramas_in_turn(city, some, height, device),
    )


def _write_missing(photos: _Photos, folder: Path, progress: bool) -> int:
    """Render and write the photos that do not exist; returns their number."""
    paths = [folder / name for name in photos.names]
    for parent in {path.parent for path in paths}:
        parent.mkdir(parents=True, exist_ok=True)
    missing = np.array([i for i, path in enumerate(paths) if not path.exists()], dtype=np.int64)
    done = len(paths) - len(missing)
    with tqdm(total=len(paths), initial=done, desc=folder.name, unit="photo", disable=not progress) as bar:
        for where, images in photos.draw_rows(missing):
            pixels = images.permute(0, 2, 3, 1).cpu().numpy()
            for row, image in zip(missing[where], pixels, strict=True):
                _save(image, paths[row], photos.metadata[row])
                bar.update()
    return len(missing)


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


def _save(image: Pixels, path: Path, metadata: dict[str, bytes]) -> None:
    content = io.BytesIO()  # Pillow does not report a full disk at the end of a file
    Image.fromarray(image).save(content, format="JPEG", quality=QUALITY, **metadata)
    write_atomically(path, content.getvalue())
