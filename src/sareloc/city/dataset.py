"""Write a drawn city to disk, in the folder format that the field's tools read."""

from __future__ import annotations

import io
import json
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

from sareloc.city.geometry import Poses, join_poses
from sareloc.city.render import draw_scene, scene_of
from sareloc.city.scene import usable
from sareloc.city.town import SIZES, SPLITS, Town, Views, make_town, make_views, split_seed
from sareloc.datasets.places import PhotoSet, Places
from sareloc.errors import ArgumentError, look_up
from sareloc.files import replacing
from sareloc.geo import Positions, wgs84_from_enu
from sareloc.photos import Geotag, exif_bytes, make_utm_name

# A drawn town as a dataset without files: positions, and images drawn when they are asked for.

DRAWN_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class CityPlaces:
    """One split of a drawn city: its town, who photographs it, and its `Places` (positions in metres east and north of
    the town's middle; file names that no file bears)."""

    places: Places
    town: Town
    views: Views

    @property
    def poses(self) -> Poses:
        """Of the database, then of the queries."""
        return join_poses([self.views.database, self.views.queries])


def city_places(seed: int, size: str = "small", split: str = "test") -> CityPlaces:
    """The split of the drawn city of this seed: small, medium or large; train, val or test."""
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
    """Images (N, 3, height, width) uint8 on `device`: of database, then queries, or of some of these rows."""
    chosen = np.arange(len(city.poses)) if rows is None else np.asarray(rows, dtype=np.int64).reshape(-1)
    images = torch.empty(len(chosen), 3, height, width, dtype=torch.uint8, device=usable(device))
    for where, drawn in draw_in_turn(city, chosen, height, width, device):
        images[torch.from_numpy(where).to(images.device)] = drawn
    return images


def draw_in_turn(
    city: CityPlaces, rows: npt.NDArray[np.int64], height: int, width: int, device: torch.device | str
) -> Iterator[tuple[npt.NDArray[np.int64], Tensor]]:
    """Draw poses `rows` some hundred at a time, moment by moment: pairs of places in `rows` and images."""
    if not len(rows):
        return
    scene, poses = scene_of(city.town, city.poses.take(rows), city.views.moments, device)
    order = np.argsort(poses.moment, kind="stable")
    for start in range(0, len(order), DRAWN_AT_ONCE):
        where = order[start : start + DRAWN_AT_ONCE]
        yield where, draw_scene(scene, poses.take(where), height, width)


QUALITY = 90


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
    """Write OUT/images/{train,val,test}/{database,queries}/@...@.jpg, with EXIF position, heading and time in each.

    `photo_size` is height and width; None: the size's own. Photos that are there already are left alone, so that an
    interrupted run goes on where it stopped; OUT/city.json says which city that was, and no other is mixed into it.
    Returns how many were written.
    """
    height, width = photo_size or look_up(SIZES, size, "size of town").photo
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"{folder} is a file: give a folder to write the photos to")
    _claim(folder, {"format": 1, "seed": seed, "size": size, "photo": [height, width]})
    written = 0
    for split in splits:
        city = city_places(seed, size, split)
        tags = geotags(city)
        paths = [folder / "images" / split / name for name in photo_names(city, tags)]
        for path in {path.parent for path in paths}:
            path.mkdir(parents=True, exist_ok=True)
        missing = np.array([i for i, path in enumerate(paths) if not path.exists()], dtype=np.int64)
        bar = tqdm(total=len(paths), initial=len(paths) - len(missing), desc=split, unit="photo", disable=not progress)
        for where, images in draw_in_turn(city, missing, height, width, device):
            pixels = images.permute(0, 2, 3, 1).cpu().numpy()
            for row, image in zip(missing[where], pixels, strict=True):
                _save(image, paths[row], tags[row])
                bar.update()
        bar.close()
        written += len(missing)
    return written


def _claim(folder: Path, city: dict[str, Any]) -> None:
    """Note in the folder which city it holds; another one's folder is an ArgumentError."""
    note = folder / "city.json"
    if not note.exists():
        with replacing(note) as beside:
            beside.write_text(json.dumps(city) + "\n")
        return
    try:
        held = json.loads(note.read_text())
    except ValueError as damaged:
        raise ArgumentError(f"{note} is not JSON ({damaged}): delete it, or draw into another folder") from damaged
    if held != city:
        raise ArgumentError(f"{folder} holds another city ({json.dumps(held)}): draw this one into a folder of its own")


def geotags(city: CityPlaces) -> list[Geotag]:
    """Where, in which direction and when each photo is taken: of the database, then of the queries."""
    latlon = wgs84_from_enu(city.town.enu(city.poses.eye), city.town.origin)
    headings = city.town.heading_deg(city.poses.yaw)
    times = [city.views.moments[m].time for m in city.poses.moment]
    return [
        Geotag((float(lat), float(lon)), float(heading), time)
        for (lat, lon), heading, time in zip(latlon, headings, times, strict=True)
    ]


def photo_names(city: CityPlaces, tags: list[Geotag]) -> list[str]:
    """Role and file name of each photo, such as `database/@...@.jpg`."""
    cut = [(f"{pano:05d}", int(tile)) for pano, tile in zip(city.views.panoramas, city.views.tiles, strict=True)]
    asked = [(f"q{i:05d}", 0) for i in range(len(city.views.queries))]
    roles = ["database"] * len(cut) + ["queries"] * len(asked)
    return [
        f"{role}/{make_utm_name(tag, pano_id=pano, tile=tile)}"
        for role, tag, (pano, tile) in zip(roles, tags, cut + asked, strict=True)
    ]


def _save(image: np.typing.NDArray[np.uint8], path: Path, tag: Geotag) -> None:
    content = io.BytesIO()  # Pillow itself does not notice where the last bytes of a file find no space
    Image.fromarray(image).save(content, format="JPEG", quality=QUALITY, exif=exif_bytes(tag))
    with replacing(path) as beside:
        beside.write_bytes(content.getvalue())
