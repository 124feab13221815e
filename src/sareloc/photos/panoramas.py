"""360° photos: what an equirectangular image shows, by its GPano tags.

In an equirectangular panorama a column is a yaw and a row is a pitch. Yaw is measured in the horizontal plane from the
middle of the full panorama, to the right; pitch upwards from the horizon. A partial panorama is a rectangle of the full
one. GPano tags are those of Google's "Photo Sphere XMP Metadata".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sareloc.errors import PanoramaError, PhotoError
from sareloc.photos.addresses import View
from sareloc.photos.decoding import PhotoMetadata, Source, read_metadata
from sareloc.photos.geotags import heading_from_exif
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

    def heading_of(self, view: View) -> float | None:
        """The compass direction of a view's optical axis, 0 <= heading < 360; None: unknown."""
        return None if self.heading_deg is None else (self.heading_deg + view.yaw_deg) % 360


def looks_like_panorama(width: int, height: int) -> bool:
    """Whether an image has the proportions of a full sphere, 2:1."""
    return abs(width / (2 * height) - 1) <= RATIO_TOLERANCE


def read_panorama(source: Source, *, assume: bool = False, name: str | None = None) -> Panorama | None:
    """What a 360° photo shows, by its GPano tags; see `panorama_from`. Raises PhotoError if it cannot be read."""
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
    width, height = metadata.upright_size
    heading = heading_from_exif(metadata.exif)
    tags = _gpano_tags(metadata.xmp, name)
    if not {"ProjectionType", "FullPanoWidthPixels"} & set(tags):
        if not assume:
            return None
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


def label_of(source: object) -> str:
    """How errors call a photo."""
    return str(source) if isinstance(source, str | Path) else "photo without a name"


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
    """A number among the tags, at most `LARGEST`; raises ValueError with the tag's name if it is none."""
    if name not in tags:
        return default
    try:
        value = float(tags[name])
    except ValueError:
        value = math.nan
    if not abs(value) <= LARGEST:
        raise ValueError(f"{name} is {tags[name]!r}, expected a number")
    return value
