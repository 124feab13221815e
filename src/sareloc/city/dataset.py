"""The synthetic city as a dataset: in memory (`city_places`), or as photos in the VPR-datasets folder format.

The database is the views of the panoramas, or with `panoramas=True` the panoramas themselves, as 360° photos:
equirectangular images, resampled from the six faces of a cube. Column c of a photo W pixels wide is the yaw
2π (c + 1/2) / W - π, which grows to the right and is 0, the heading of the pose, in the middle; row r of H = W / 2 is
the elevation π/2 - π (r + 1/2) / H, straight up at the upper edge. Every ray is projected into the face that it passes
through, as by `project`, and the face is interpolated bilinearly.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
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
from sareloc.city.geometry import Poses, focal_px, join, project
from sareloc.city.moment import Moment
from sareloc.city.render import draw_scene, scene_of
from sareloc.city.scene import Scene
from sareloc.city.town import CAR_ANGLE, SIZES, SPLITS, Town, Views, make_town, make_views, split_seed
from sareloc.datasets.places import PhotoSet, Places
from sareloc.errors import ArgumentError, look_up
from sareloc.files import write_atomically
from sareloc.geo import Positions, wgs84_from_enu
from sareloc.models.preprocess import TORCH_DEVICES, find_device
from sareloc.photos import DIAGONAL_35MM, Geotag, exif_bytes, make_utm_name

FACE_YAWS = np.deg2rad([0.0, -90.0, 180.0, 90.0, 0.0, 0.0])  # ahead, right, back, left, up, down
FACE_PITCHES = np.deg2rad([0.0, 0.0, 0.0, 0.0, 90.0, -90.0])
FACES = len(FACE_YAWS)
FACE_SCALE = 1.25
"""Pixels per radian in the middle of a face, relative to the photo's: interpolation then costs little sharpness."""
FACE_MARGIN = 1
"""Pixels of a face beyond 90 degrees on each side, for the interpolation at its edges."""
SMALLEST_HEIGHT = 32
GPANO = "http://ns.google.com/photos/1.0/panorama/"


def panorama_poses(views: Views) -> Poses:
    """One level pose for each panorama of the database, in their order, with the yaw of its first view."""
    poses = views.database.take(np.flatnonzero(views.tiles == 0))
    return replace(poses, pitch=np.zeros(len(poses)), roll=np.zeros(len(poses)))


def panorama_height(width: int, width_angle: float = CAR_ANGLE) -> int:
    """The height of 360° photos with the resolution of perspective photos of this width and angle (radians).

    The resolution is that of the middle of the photo; rounded up to a multiple of 16 pixels.
    """
    pixels_per_radian = width / 2 / math.tan(width_angle / 2)
    return max(SMALLEST_HEIGHT, 16 * math.ceil(math.pi * pixels_per_radian / 16))


def without_camera_noise(moment: Moment) -> Moment:
    """The moment without the effects that depend on the pixel of one image: they would show the edges of the faces."""
    return replace(moment, grain=0.0, vignette=0.0, bend=0.0, blur=0.0)


def draw_spheres(scene: Scene, poses: Poses, height: int) -> Tensor:
    """Render equirectangular images (N, 3, height, 2 * height) uint8 on the scene's device.

    The poses must be level (pitch and roll are ignored, and so is the angle); `Poses.moment` are indices of the scene's
    moments, which should be those of `without_camera_noise`. Raises ArgumentError if `height` is less than 32.
    """
    if height < SMALLEST_HEIGHT:
        raise ArgumentError(f"a 360° photo must be at least {SMALLEST_HEIGHT} pixels high: found {height}")
    side = _face_side(height)
    faces = draw_scene(scene, _face_poses(poses, side), side, side)
    table = _lookup(height)
    at, right, down = (torch.from_numpy(x).to(scene.device) for x in (table.pixel, table.right, table.down))
    images = [_interpolate(some, at, right, down) for some in faces.view(-1, FACES, 3, side, side)]
    return torch.stack(images).view(-1, 3, height, 2 * height)


def sphere_rays(height: int) -> Floats:
    """(height * 2 * height, 3) unit vectors ahead, left and up through the pixel centres, row by row."""
    yaw = (np.arange(2 * height) + 0.5) * (np.pi / height) - np.pi
    up = (np.pi / 2 - (np.arange(height) + 0.5) * (np.pi / height))[:, None]
    rays = np.stack([np.cos(up) * np.cos(yaw), -np.cos(up) * np.sin(yaw), np.sin(up) + 0 * yaw], axis=-1)
    return rays.reshape(-1, 3)


def gpano_xmp(height: int, heading_deg: float) -> bytes:
    """The XMP packet of a whole equirectangular photo: GPano's projection, sizes, and heading of its middle."""
    width = 2 * height
    values = {
        "ProjectionType": "equirectangular",
        "UsePanoramaViewer": "True",
        "FullPanoWidthPixels": width,
        "FullPanoHeightPixels": height,
        "CroppedAreaImageWidthPixels": width,
        "CroppedAreaImageHeightPixels": height,
        "CroppedAreaLeftPixels": 0,
        "CroppedAreaTopPixels": 0,
        "PoseHeadingDegrees": f"{round(heading_deg, 6) % 360:.6f}",
        "PosePitchDegrees": "0.0",
        "PoseRollDegrees": "0.0",
    }
    tags = "".join(f"\n   <GPano:{name}>{value}</GPano:{name}>" for name, value in values.items())
    return (
        '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n'
        '<x:xmpmeta xmlns:x="adobe:ns:meta/">\n'
        ' <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">\n'
        f'  <rdf:Description rdf:about="" xmlns:GPano="{GPANO}">{tags}\n'
        "  </rdf:Description>\n </rdf:RDF>\n</x:xmpmeta>\n"
        '<?xpacket end="r"?>'
    ).encode()


@dataclass(frozen=True, eq=False)
class _Lookup:
    """Where the P pixels of a photo are in its faces (6, side, side)."""

    pixel: Ints
    """(P,) index of the upper left of the four pixels around the point."""
    right: Floats
    down: Floats
    """(P,) fractions of a pixel from its centre to the point."""


@lru_cache(maxsize=2)
def _lookup(height: int) -> _Lookup:
    side, rays = _face_side(height), sphere_rays(height)
    nearest = np.zeros(len(rays))
    found = np.zeros((3, len(rays)))  # face, column, row
    zero, none = np.zeros(1), np.zeros(1, dtype=np.int64)
    faces = _face_poses(Poses(np.zeros((1, 3)), zero, zero, zero, zero, none, none), side)
    for number in range(FACES):
        column, row, depth = project(faces.take([number]), rays, side, side)[0].T
        ahead = depth > nearest
        nearest[ahead] = depth[ahead]
        found[:, ahead] = np.stack([np.full(len(rays), number), column, row])[:, ahead]
    face, column, row = found
    left, top = np.floor(column - 0.5), np.floor(row - 0.5)
    pixel = ((face * side + top) * side + left).astype(np.int64)
    return _Lookup(pixel, (column - 0.5 - left).astype(np.float32), (row - 0.5 - top).astype(np.float32))


def _face_side(height: int) -> int:
    return math.ceil(FACE_SCALE * 2 * height / math.pi) + 2 * FACE_MARGIN


def _face_poses(poses: Poses, side: int) -> Poses:
    """The six faces of each pose: (6 * N,) square views of 90 degrees and the margin."""
    n = len(poses)
    every = poses.take(np.repeat(np.arange(n), FACES))
    angle = 2 * math.atan(side / (side - 2 * FACE_MARGIN))
    return replace(
        every,
        yaw=every.yaw + np.tile(FACE_YAWS, n),
        pitch=np.tile(FACE_PITCHES, n),
        roll=np.zeros(n * FACES),
        width_angle=np.full(n * FACES, angle),
    )


def _interpolate(faces: Tensor, pixel: Tensor, right: Tensor, down: Tensor) -> Tensor:
    """Bilinear interpolation (3, P) uint8 in faces (6, 3, side, side)."""
    side = faces.shape[-1]
    flat = faces.permute(1, 0, 2, 3).reshape(3, -1)
    upper, lower = (
        torch.lerp(flat[:, first].float(), flat[:, first + 1].float(), right) for first in (pixel, pixel + side)
    )
    return (torch.lerp(upper, lower, down) + 0.5).floor().to(torch.uint8)


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
        return join([self.views.database, self.views.queries])


def city_places(seed: int, size: str = "small", split: str = "test") -> CityPlaces:
    """A split of the city of a seed.

    Args:
        seed: seed of the city.
        size: small, medium or large.
        split: train, val or test.
    """
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
    """Render images (N, 3, height, width) uint8 on the device: of the database, then the queries.

    Args:
        city: see `city_places`.
        height: image height in pixels.
        width: image width in pixels.
        device: where to render.
        rows: only these images; default: all.
    """
    chosen = np.arange(len(city.poses)) if rows is None else np.asarray(rows, dtype=np.int64).reshape(-1)
    images = torch.empty(len(chosen), 3, height, width, dtype=torch.uint8, device=find_device(device, TORCH_DEVICES))
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

    Without vignette and camera noise; for the middle column see `sareloc.city.dataset`.
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

    Existing photos are skipped, so that an interrupted run can be resumed; OUT/city.json records the city.

    Args:
        out: the folder.
        seed: seed of the city.
        size: small, medium or large.
        splits: which of train, val and test.
        photo_size: height and width; default: that of the size.
        panoramas: the database is 360° photos with GPano tags, at the same positions and with the same pixels per
            degree, instead of the views cut from them; the queries are the same.
        device: where to render.
        progress: show a bar on standard error.

    Returns:
        The number of photos written.

    Raises:
        ArgumentError: if the folder contains another city.
    """
    height, width = photo_size or look_up(SIZES, size, "size of town").photo
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"{folder} is a file: give a folder to write the photos to")
    record = {"format": 2, "seed": seed, "size": size, "photo": [height, width]}
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
