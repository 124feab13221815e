"""PhotoSource: an image from anywhere with what is known of it. What `build_map` and `Localizer` accept beside files.

A reader of another kind of recording is a generator of such records: see robot_stream.py and ros2_bag.py in examples/.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from sareloc import arrays
from sareloc.errors import PhotoError
from sareloc.photos.decoding import RESAMPLINGS, Interpolation, SizeRule, interpolation_of, target_size
from sareloc.photos.geotags import Geotag
from sareloc.photos.images import decode


@dataclass(frozen=True, eq=False)
class PhotoSource:
    """An image with its name and, as far as they are known, its position, heading and time."""

    name: str
    """Identifies the image in its recording, such as "front/000123"."""
    image: str | Path | bytes | arrays.Image
    """A file (see `sareloc.photos.addresses`), the content of one, or RGB pixels (H, W, 3) uint8."""
    position: tuple[float, float] | None = None
    """Latitude, longitude in degrees, WGS84; None: unknown, as of a query."""
    heading_deg: float | None = None
    """Compass direction of the optical axis, clockwise from north, 0 <= heading < 360."""
    time: float | None = None
    """Seconds since 1970 in UTC."""
    focal_35mm: float | None = None
    """35 mm equivalent focal length in mm; None: that in the photo's EXIF, if any."""

    @property
    def geotag(self) -> Geotag | None:
        """The geotag; None without a position. Raises PositionError for values outside their range."""
        return None if self.position is None else Geotag(self.position, self.heading_deg, self.time)

    @property
    def pixels(self) -> arrays.Image | None:
        """The image if it is given as pixels. Raises PhotoError if they have another shape or type."""
        if isinstance(self.image, str | Path | bytes):
            return None
        if self.image.ndim != 3 or self.image.shape[2] != 3 or self.image.dtype != np.uint8 or not self.image.size:
            raise PhotoError(
                self.name, f"expected RGB pixels (H, W, 3) uint8, found {self.image.shape} {self.image.dtype}"
            )
        return self.image


def read_source(source: PhotoSource, size: SizeRule) -> arrays.Image:
    """The image of a source at `size(height, width)`. Raises PhotoError if it cannot be decoded."""
    pixels = source.pixels
    if pixels is None:
        assert isinstance(source.image, str | Path | bytes)
        return decode(source.image, size=size, name=source.name)
    height, width = target_size(size, pixels.shape[0], pixels.shape[1], source.name)
    return resized(pixels, height, width, interpolation_of(size))


def resized(image: arrays.Image, height: int, width: int, interpolation: Interpolation = "bilinear") -> arrays.Image:
    """The image at this size, as `decode` resizes; itself if it has that size."""
    if image.shape[:2] == (height, width):
        return image
    return np.array(Image.fromarray(image).resize((width, height), RESAMPLINGS[interpolation]))
