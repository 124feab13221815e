"""360° photos: what an equirectangular image shows, by its GPano tags, and perspective views cut from it.

In an equirectangular panorama a column is a yaw and a row is a pitch. Yaw is measured in the horizontal plane from the
middle of the full panorama, to the right; pitch upwards from the horizon. A partial panorama is a rectangle of the full
one. GPano tags are those of Google's "Photo Sphere XMP Metadata".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sareloc import arrays
from sareloc.errors import ArgumentError, PanoramaError, PhotoError
from sareloc.photos.decoding import SizeRule
from sareloc.photos.geotags import heading_from_exif
from sareloc.photos.photo_file import PhotoMetadata, Source, label_of, read_metadata
from sareloc.photos.record import View
from sareloc.photos.xmp import GPANO, xmp_properties

PROJECTION = "equirectangular"
LARGEST = 1e9
"""Number in a tag: of pixels or degrees."""
RATIO_TOLERANCE = 0.01
"""A width may differ by so much, as a fraction, from twice the height of a full sphere."""


@dataclass(frozen=True)
class Panorama:
    """What an equirectangular image shows; a full sphere by default."""

    width: int
    """Of the upright image, in pixels; `height` too."""
    height: int
    left_deg: float = -180.0
    """Yaw of the left edge."""
    width_deg: float = 360.0
    top_deg: float = 90.0
    """Pitch of the upper edge."""
    height_deg: float = 180.0
    heading_deg: float | None = None
    """Compass direction of the middle of the full panorama, clockwise from north; None: unknown."""
    pitch_deg: float = 0.0
    """Of the middle of the full panorama, upwards from the horizon."""
    roll_deg: float = 0.0
    """Of the camera, clockwise as the photographer sees it: the horizon is turned counterclockwise in the image."""

    @property
    def wraps(self) -> bool:
        """Whether the right edge continues at the left edge."""
        return self.width_deg >= 360

    @property
    def pixels_per_degree(self) -> float:
        """The horizontal resolution at the horizon."""
        return self.width / self.width_deg


def looks_like_panorama(width: int, height: int) -> bool:
    """Whether an image has the proportions of a full sphere, 2:1."""
    return abs(width / (2 * height) - 1) <= RATIO_TOLERANCE


def read_panorama(source: Source, *, assume: bool = False, name: str | None = None) -> Panorama | None:
    """What a 360° photo shows, by its GPano tags; see `panorama_from`. Raises PhotoError if it cannot be read.

    Args:
        source: a file, its content, or a binary stream.
        assume: a 2:1 photo without tags is a full sphere.
        name: how errors call a photo without a path.
    """
    label = name or label_of(source)
    return panorama_from(read_metadata(source, name=label), assume=assume, name=label)


def panorama_from(metadata: PhotoMetadata, *, assume: bool = False, name: str) -> Panorama | None:
    """What a 360° photo shows, by the GPano tags of its file; None if it has none.

    The heading is that of the tags, else EXIF's GPSImgDirection. Sizes in the tags are those before the image was
    resized.

    Args:
        metadata: what the file says of the photo.
        assume: a photo without tags is a full sphere.
        name: how errors call the photo.

    Raises:
        PanoramaError: if the tags are malformed or name another projection.
        PhotoError: if a photo that is assumed to be a full sphere is not 2:1.
    """
    tags = _gpano_tags(metadata.xmp, name)
    is_tagged = bool({"ProjectionType", "FullPanoWidthPixels"} & set(tags))
    if not (is_tagged or assume):
        return None
    (width, height), heading = metadata.upright_size, heading_from_exif(metadata.exif)
    if not is_tagged:
        if not looks_like_panorama(width, height):
            raise PhotoError(
                name,
                f"not a 360° photo: {width} x {height} px without GPano tags; a full sphere is twice as wide as high",
            )
        return Panorama(width, height, heading_deg=heading)
    try:
        found = _panorama(tags, width, height)
    except ValueError as error:
        raise PanoramaError(name, str(error)) from error
    return replace(found, heading_deg=heading) if found.heading_deg is None else found


def _gpano_tags(xmp: bytes | None, photo: str) -> dict[str, str]:
    """The GPano properties in an XMP packet, from attributes and elements; empty if there are none."""
    if xmp is None or GPANO.encode() not in xmp:
        return {}
    try:
        found = xmp_properties(xmp)
    except ValueError as error:
        raise PanoramaError(photo, f"the XMP is malformed ({error})") from error
    start = f"{{{GPANO}}}"
    return {name.removeprefix(start): value.strip() for name, value in found.items() if name.startswith(start)}


def _panorama(tags: Mapping[str, str], width: int, height: int) -> Panorama:
    """The panorama that these tags of an image of this size describe; raises ValueError if they contradict it."""
    projection = tags.get("ProjectionType", PROJECTION)
    if projection.lower() != PROJECTION:
        raise ValueError(f"the projection is {projection!r}, expected {PROJECTION!r}")
    crop_width = _number(tags, "CroppedAreaImageWidthPixels", width)
    crop_height = _number(tags, "CroppedAreaImageHeightPixels", height)
    full_width, full_height = (
        _number(tags, "FullPanoWidthPixels", crop_width),
        _number(tags, "FullPanoHeightPixels", crop_height),
    )
    left, top = _number(tags, "CroppedAreaLeftPixels", 0.0), _number(tags, "CroppedAreaTopPixels", 0.0)
    said = f"an area of {crop_width:g} x {crop_height:g} px at {left:g}, {top:g} of {full_width:g} x {full_height:g} px"
    if not (0 < crop_width <= full_width and 0 < crop_height <= full_height):
        raise ValueError(f"{said} is not inside the full panorama")
    if not (0 <= left < full_width and 0 <= top <= full_height - crop_height):
        raise ValueError(f"{said} is not inside the full panorama")
    if not looks_like_panorama(round(full_width), max(round(full_height), 1)):
        raise ValueError(
            f"the full panorama has {full_width:g} x {full_height:g} px, a sphere is twice as wide as high"
        )
    if abs(width / height * crop_height / crop_width - 1) > 2 * RATIO_TOLERANCE:
        raise ValueError(f"{said}, but the image has {width} x {height} px: other proportions")
    heading = _number(tags, "PoseHeadingDegrees", math.nan)
    return Panorama(
        width,
        height,
        left_deg=360 * left / full_width - 180,
        width_deg=360 * crop_width / full_width,
        top_deg=90 - 180 * top / full_height,
        height_deg=180 * crop_height / full_height,
        heading_deg=None if math.isnan(heading) else heading % 360,
        pitch_deg=_number(tags, "PosePitchDegrees", 0.0),
        roll_deg=_number(tags, "PoseRollDegrees", 0.0),
    )


def _number(tags: Mapping[str, str], name: str, default: float) -> float:
    """A number among the tags, at most `LARGEST`; raises ValueError with the tag's name if it is not a number."""
    if name not in tags:
        return default
    try:
        value = float(tags[name])
    except ValueError:
        value = math.nan
    if not abs(value) <= LARGEST:
        raise ValueError(f"{name} is {tags[name]!r}, expected a number")
    return value


LEAST_INSIDE = 0.95
"""A view of which a smaller share is inside a partial panorama is not cut."""
SHARPNESS = 1.1
"""A view has at most so many times the resolution of its panorama in the middle of the view."""
NO_VIEW = "it shows less than 95 % of each view that is cut; a smaller field of view (--view-fov) may be inside"
WIDTH_STEP = 32

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


def cut_photo(metadata: PhotoMetadata, options: ViewOptions, *, name: str) -> tuple[Panorama | None, tuple[View, ...]]:
    """The panorama that a photo is, and its views, by its GPano tags and the options; None and no views: an ordinary
    photo.

    Args:
        metadata: what the photo's file says of it.
        options: which views are cut.
        name: how errors call the photo.

    Raises:
        PanoramaError: if the tags cannot be used, or if the options have no view inside a partial panorama.
    """
    assume = options.untagged and looks_like_panorama(*metadata.upright_size)
    panorama = panorama_from(metadata, assume=assume, name=name)
    if panorama is None:
        return None, ()
    views = views_of(panorama, options)
    if not views:
        raise PanoramaError(name, NO_VIEW)
    return panorama, views


def views_of(panorama: Panorama, options: ViewOptions | None = None, *, enlarge: bool = False) -> tuple[View, ...]:
    """The views to cut, by pitch and yaw; none of which less than `LEAST_INSIDE` is inside a partial panorama.

    Args:
        panorama: what the photo shows.
        options: which views; default: twelve around, level.
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

    The tilt of the panorama is removed, so that a view of pitch 0 is level. Bilinear; panoramas of higher resolution
    must be reduced before (see `matching_size`). Pixels outside a partial panorama are black.

    Args:
        pixels: of the panorama (see `panorama_pixels`).
        view: direction and field of view.
        height: pixels of the result, which is stretched if its proportions differ from those of the view.
        width: pixels of the result.
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


def panorama_places(panorama: Panorama, view: View, xy: npt.ArrayLike) -> arrays.Floats:
    """Where points (N, 2) of a view are in the image of its panorama; both as fractions of width and height."""
    right, lower = (2 * np.asarray(xy, dtype=np.float64) - 1).T * math.tan(math.radians(view.fov_deg / 2))
    turn = _axes(0.0, panorama.pitch_deg, panorama.roll_deg) @ _axes(view.yaw_deg, view.pitch_deg, 0.0).T
    x, y, z = turn @ np.stack([right, lower * view.height / view.width, np.ones_like(right)])
    across = (np.degrees(np.arctan2(x, z)) - panorama.left_deg) % 360 / panorama.width_deg
    down = (panorama.top_deg + np.degrees(np.arctan2(y, np.hypot(x, z)))) / panorama.height_deg
    return np.stack([across, down], axis=1)


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
