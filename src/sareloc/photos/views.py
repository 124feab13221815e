"""Perspective views cut from 360° photos (see `sareloc.photos.panoramas` for the angles)."""

from __future__ import annotations

import io
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from sareloc import arrays
from sareloc.errors import ArgumentError, PhotoError
from sareloc.files import write_atomically
from sareloc.photos.addresses import Address, View
from sareloc.photos.decoding import MAX_PIXELS, SizeRule, Source, decode_photo, open_photo, resized, target_size
from sareloc.photos.finding import read_geotag
from sareloc.photos.geotags import heading_from_exif, view_focal_35mm
from sareloc.photos.panoramas import UNUSABLE, Panorama, label_of, looks_like_panorama, read_panorama
from sareloc.photos.write_geotags import exif_bytes

LEAST_INSIDE = 0.95
"""A view of which a smaller share is inside a partial panorama is not cut."""
SHARPNESS = 1.1
"""A view has at most so many times the resolution of its panorama in the middle of the view."""
NO_VIEW = "it shows less than 95 % of each view that is cut; a smaller field of view (--view-fov) may be inside"
WIDTH_STEP = 32
CACHE_BYTES = 128_000_000
JPEG_QUALITY = 92

Angles = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ViewOptions:
    """Which views of a panorama are cut: every yaw at every pitch."""

    yaw_deg: tuple[float, ...] = tuple(range(0, 360, 30))
    pitch_deg: tuple[float, ...] = (0.0,)
    fov_deg: float = 60.0
    """Horizontal field of view."""
    width: int = 640
    """Largest width; views of a panorama of low resolution are smaller, of the same proportions."""
    height: int = 480
    untagged: bool = False
    """Also cut photos without GPano tags that are 2:1: they are full spheres."""

    def __post_init__(self) -> None:
        if not self.yaw_deg or not self.pitch_deg:
            raise ArgumentError("views need at least one yaw and one pitch")
        if not all(map(math.isfinite, self.yaw_deg)):
            raise ArgumentError(f"a yaw must be a number of degrees: found {self.yaw_deg}")
        self.views()

    def views(self) -> tuple[View, ...]:
        """The views, by pitch and yaw; raises ArgumentError for values outside their range."""
        return tuple(
            View(round(yaw % 360, 6) % 360, round(pitch, 6), round(self.fov_deg, 6), self.width, self.height)
            for pitch in self.pitch_deg
            for yaw in self.yaw_deg
        )


def cut_photo(
    photo: Source, options: ViewOptions, *, name: str | None = None
) -> tuple[Panorama | None, tuple[View, ...]]:
    """The panorama that a photo is, and its views, by its GPano tags and the options; None and no views: an ordinary
    photo. Raises PhotoError as `read_panorama`, or if the options have no view inside a partial panorama."""
    panorama = read_panorama(photo, name=name)
    if panorama is None and options.untagged:
        with open_photo(photo, name=name) as image:
            panorama = untagged_sphere(*image.size, options, heading_from_exif(image.getexif()))
    if panorama is None:
        return None, ()
    views = views_of(panorama, options)
    if not views:
        raise PhotoError(name or label_of(photo), f"{UNUSABLE}: {NO_VIEW}")
    return panorama, views


def untagged_sphere(width: int, height: int, options: ViewOptions, heading_deg: float | None = None) -> Panorama | None:
    """The full sphere that an image of this size without GPano tags is; None if it is not 2:1, or is not to be cut."""
    cut = options.untagged and looks_like_panorama(width, height)
    return Panorama(width, height, heading_deg=heading_deg) if cut else None


def views_of(panorama: Panorama, options: ViewOptions | None = None, *, enlarge: bool = False) -> tuple[View, ...]:
    """The views to cut, by pitch and yaw; none of which less than `LEAST_INSIDE` is inside a partial panorama.

    enlarge: views keep their size even if the panorama has a lower resolution.
    """
    options = options or ViewOptions()
    half = math.tan(math.radians(options.fov_deg / 2))
    sharp = SHARPNESS * 2 * half * math.degrees(panorama.pixels_per_degree)
    if sharp < options.width and not enlarge:
        width = max(int(sharp) // WIDTH_STEP, 1) * WIDTH_STEP
        height = max(round(width * options.height / options.width), 1)
        options = replace(options, width=width, height=height)
    return tuple(view for view in options.views() if share_inside(panorama, view) >= LEAST_INSIDE)


def share_inside(panorama: Panorama, view: View) -> float:
    """The share of a view's area that the panorama shows, 0 to 1, on a grid of 48 x 48 points."""
    return float(_inside(panorama, *_fractions(panorama, view, 48, 48)).mean())


@dataclass(frozen=True, eq=False)
class PanoramaPixels:
    """The pixels of a panorama from which views are cut (see `cut_view`)."""

    panorama: Panorama
    planes: arrays.Image
    """(3, H + 2, W + 2): red, green, blue, with a border of one pixel from beyond the edges."""


def panorama_pixels(image: arrays.Image, panorama: Panorama) -> PanoramaPixels:
    """The pixels of a panorama (H, W, 3), which may have been resized.

    The border continues the image: beyond the left edge is the right one, beyond a pole the meridian opposite; beyond
    the edges of a partial panorama they are repeated.
    """
    height, width, _ = image.shape
    planes = np.empty((3, height + 2, width + 2), np.uint8)
    planes[:, 1:-1, 1:-1] = image.transpose(2, 0, 1)
    columns = (width, 1) if panorama.wraps else (1, width)
    planes[:, 1:-1, 0], planes[:, 1:-1, -1] = planes[:, 1:-1, columns[0]], planes[:, 1:-1, columns[1]]
    opposite = (np.arange(width + 2) - 1 + width // 2) % width + 1
    for row, edge, at_pole in (
        (0, 1, panorama.top_deg >= 90),
        (-1, -2, panorama.top_deg - panorama.height_deg <= -90),
    ):
        planes[:, row] = planes[:, edge, opposite] if at_pole and panorama.wraps else planes[:, edge]
    return PanoramaPixels(panorama, planes)


def cut_view(pixels: PanoramaPixels, view: View, height: int, width: int) -> arrays.Image:
    """A perspective view (height, width, 3): what a camera at the panorama's position with this yaw and pitch sees.

    The tilt of the panorama is removed, so that a view of pitch 0 is level. The target size may have other proportions
    than the view, which is then stretched. Bilinear; panoramas of higher resolution must be reduced before (see
    `matching_size`). Pixels outside a partial panorama are black.
    """
    panorama, planes = pixels.panorama, pixels.planes
    across, down = _fractions(panorama, view, height, width)
    inside = None if panorama.wraps and panorama.height_deg >= 180 else _inside(panorama, across, down)
    _, rows, columns = planes.shape
    x, left = _split(across, columns - 2)
    y, top = _split(down, rows - 2)
    first = top * columns + left
    both = x * y
    weights = ((0, 1 - x - y + both), (1, x - both), (columns, y - both), (columns + 1, both))
    view_pixels = np.empty((height, width, 3), np.uint8)
    for channel, plane in enumerate(planes.reshape(3, -1)):
        mixed = np.full((height, width), 0.5, np.float32)  # rounds
        for shift, weight in weights:
            mixed += plane[shift:].take(first) * weight
        view_pixels[..., channel] = mixed
    if inside is not None:
        view_pixels[~inside] = 0
    return view_pixels


def matching_size(panorama: Panorama, view: View, height: int, width: int) -> SizeRule:
    """The size rule that reduces a panorama to the resolution that a view of this size has in its middle."""
    half = math.tan(math.radians(view.fov_deg / 2))
    per_degree = math.radians(width / (2 * half)), math.radians(height / (2 * half) * view.width / view.height)

    def size(stored_height: int, stored_width: int) -> tuple[int, int]:
        return (
            min(stored_height, max(1, math.ceil(per_degree[1] * panorama.height_deg))),
            min(stored_width, max(1, math.ceil(per_degree[0] * panorama.width_deg))),
        )

    return size


def read_view(
    source: Source,
    view: View,
    *,
    size: SizeRule | None = None,
    name: str | None = None,
    max_pixels: int = MAX_PIXELS,
) -> arrays.Image:
    """A view of a 360° photo (H, W, 3), resized to `size(height, width)` of the view; default: not resized.

    The view is projected to that size, whatever the interpolation of a `Resizing`. A photo without GPano tags must be a
    full sphere. The reduced pixels of the last files are kept, since the views of
    one photo follow each other. Raises PhotoError as `decode_photo` and `read_panorama`.
    """
    label = name or label_of(source)
    panorama = read_panorama(source, assume=True, name=label)
    assert panorama is not None
    height, width = (view.height, view.width) if size is None else target_size(size, view.height, view.width, label)
    if height * width > max_pixels:
        raise PhotoError(label, f"a view of {width} x {height} px is more than {max_pixels / 1e6:g} megapixels")
    reduced = matching_size(panorama, view, height, width)(panorama.height, panorama.width)

    def load() -> PanoramaPixels:
        return panorama_pixels(
            decode_photo(source, size=lambda *_: reduced, name=label, max_pixels=max_pixels), panorama
        )

    if not isinstance(source, str | Path):
        return cut_view(load(), view, height, width)
    status = os.stat(source)
    key = (os.path.abspath(source), status.st_size, status.st_mtime_ns, status.st_ctime_ns, reduced)
    pixels = _CACHE.get(key)
    if pixels is None:
        pixels = load()
        _CACHE.put(key, pixels)
    return cut_view(pixels, view, height, width)


def read_views(
    source: Source | arrays.Image,
    panorama: Panorama,
    views: Sequence[View],
    *,
    size: SizeRule | None = None,
    name: str | None = None,
    max_pixels: int = MAX_PIXELS,
) -> list[arrays.Image]:
    """As `read_view`, all views of a panorama, which have one size and field of view; it is decoded once.

    source: also its pixels (H, W, 3).
    """
    label = name or label_of(source)
    height, width = views[0].height, views[0].width
    if size is not None:
        height, width = target_size(size, height, width, label)
    reduced = matching_size(panorama, views[0], height, width)
    if isinstance(source, np.ndarray):
        image = resized(source, *reduced(*source.shape[:2]))
    else:
        image = decode_photo(source, size=reduced, name=label, max_pixels=max_pixels)
    pixels = panorama_pixels(image, panorama)
    return [cut_view(pixels, view, height, width) for view in views]


def panorama_places(panorama: Panorama, view: View, xy: npt.ArrayLike) -> arrays.Floats:
    """Where points (N, 2) of a view are in the image of its panorama; both as fractions of width and height."""
    right, lower = (2 * np.asarray(xy, dtype=np.float64) - 1).T * math.tan(math.radians(view.fov_deg / 2))
    turn = _axes(0.0, panorama.pitch_deg, panorama.roll_deg) @ _axes(view.yaw_deg, view.pitch_deg, 0.0).T
    x, y, z = turn @ np.stack([right, lower * view.height / view.width, np.ones_like(right)])
    across = (np.degrees(np.arctan2(x, z)) - panorama.left_deg) % 360 / panorama.width_deg
    down = (panorama.top_deg + np.degrees(np.arctan2(y, np.hypot(x, z)))) / panorama.height_deg
    return np.stack([across, down], axis=1)


def write_views(
    source: str | Path, out: str | Path, options: ViewOptions, *, assume: bool = False
) -> tuple[tuple[Path, ...], tuple[View, ...]]:
    """Cut a 360° photo into views of exactly these options and write them as JPEGs, PHOTO_yaw030_pitch+00.jpg.

    Their EXIF has the photo's position, the view's heading and its focal length. Returns the files, and the views left
    out because they are not inside a partial panorama. assume: see `read_panorama`. Raises PhotoError if the photo is
    not a 360° photo or shows none of the views.
    """
    source = Path(source)
    panorama = read_panorama(source, assume=assume)
    if panorama is None:
        raise PhotoError(
            source,
            "has no GPano tags, so that it is not known to be a 360° photo; --panorama treats a 2:1 photo as one",
        )
    views = views_of(panorama, options, enlarge=True)
    if not views:
        raise PhotoError(source, "shows none of these views: a partial panorama shows other directions")
    from tqdm import tqdm

    written = []
    for view in tqdm(views, desc="views", unit="view", disable=None, leave=False):
        geotag = read_geotag(Address(source, view).path)
        pixels, content = read_view(source, view), io.BytesIO()
        exif = exif_bytes(geotag, focal_35mm=view_focal_35mm(view))
        Image.fromarray(pixels).save(content, format="JPEG", quality=JPEG_QUALITY, exif=exif)
        name = f"{source.stem}_yaw{view.yaw_deg:03g}_pitch{view.pitch_deg:+03g}.jpg"
        written.append(write_atomically(Path(out) / name, content.getvalue()))
    return tuple(written), tuple(view for view in options.views() if view not in views)


class _PixelCache:
    """The panoramas used last, of at most `CACHE_BYTES` together; shared by the threads of a process."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[object, ...], PanoramaPixels] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[object, ...]) -> PanoramaPixels | None:
        """The pixels kept under this key; None if there are none."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: tuple[object, ...], pixels: PanoramaPixels) -> None:
        """Keep these pixels in place of the ones used longest ago."""
        with self._lock:
            self._kept[key] = pixels
            while sum(one.planes.nbytes for one in self._kept.values()) > CACHE_BYTES:
                self._kept.popitem(last=False)


_CACHE = _PixelCache()


def _fractions(panorama: Panorama, view: View, height: int, width: int) -> tuple[Angles, Angles]:
    """For each pixel (height, width) of a view, its place in the panorama's image: 0 at its left and upper edges, 1 at
    its right and lower edges, more or less outside."""
    tilt = (panorama.pitch_deg, panorama.roll_deg)
    turned = 0.0 if tilt == (0.0, 0.0) else view.yaw_deg  # views of a level panorama differ by a shift
    yaw, pitch = _directions(turned, view.pitch_deg, view.fov_deg, view.height / view.width, tilt, height, width)
    across = (yaw + np.float32(view.yaw_deg - turned - panorama.left_deg)) / np.float32(360)
    across -= np.floor(across)
    across *= np.float32(360 / panorama.width_deg)
    down = (np.float32(panorama.top_deg) - pitch) / np.float32(panorama.height_deg)
    return across, down


@lru_cache(maxsize=4)
def _directions(
    yaw_deg: float, pitch_deg: float, fov_deg: float, ratio: float, tilt: tuple[float, float], height: int, width: int
) -> tuple[Angles, Angles]:
    """Yaw and pitch in degrees in the panorama's own frame of each pixel (height, width) of a view of this height to
    width ratio; tilt: pitch and roll of the panorama."""
    half = math.tan(math.radians(fov_deg / 2))
    turn = (_axes(0.0, *tilt) @ _axes(yaw_deg, pitch_deg, 0.0).T).astype(np.float32)  # from the view to the panorama
    right = (half * ((2 * np.arange(width) + 1) / width - 1)).astype(np.float32)
    lower = (half * ratio * ((2 * np.arange(height) + 1) / height - 1)).astype(np.float32)[:, None]
    x, y, z = (row[0] * right + (row[1] * lower + row[2]) for row in turn)
    found = np.degrees(np.arctan2(x, z)), -np.degrees(np.arctan2(y, np.sqrt(x * x + z * z)))
    for angles in found:
        angles.setflags(write=False)  # the cache shares them
    return found


def _axes(yaw_deg: float, pitch_deg: float, roll_deg: float) -> arrays.Floats:
    """The axes (3, 3) of a camera, one in each row: to its right, down and ahead; roll clockwise as it sees."""
    yaw, pitch, roll = map(math.radians, (yaw_deg, pitch_deg, roll_deg))
    ahead = np.array([math.sin(yaw) * math.cos(pitch), -math.sin(pitch), math.cos(yaw) * math.cos(pitch)])
    right = np.array([math.cos(yaw), 0.0, -math.sin(yaw)])
    down = np.cross(ahead, right)
    cos, sin = math.cos(roll), math.sin(roll)
    return np.array([cos * right + sin * down, cos * down - sin * right, ahead])


def _inside(panorama: Panorama, across: Angles, down: Angles) -> arrays.Bools:
    """Whether the panorama shows these places (see `_fractions`)."""
    return np.asarray(((across <= 1) | panorama.wraps) & (down >= 0) & (down <= 1))


def _split(places: Angles, count: int) -> tuple[Angles, npt.NDArray[np.intp]]:
    """Places along an axis of `count` pixels, a border of one pixel before and after it, as index and remainder."""
    at = np.clip(places * np.float32(count) + np.float32(0.5), 0, np.float32(count + 0.5))
    index = at.astype(np.intp)
    return at - index.astype(np.float32), index
