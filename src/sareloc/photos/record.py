"""ImageRecord: an image from anywhere with what is known of it.

It is what maps are built from and what is localized: a file, a view of a 360° photo, a frame of a video, an upload, an
image of a stream. A reader of another kind of recording is a generator of such records: see robot_stream.py and
ros2_bag.py in examples/.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image as Pillow

from sareloc import arrays
from sareloc.errors import ArgumentError
from sareloc.photos.geotags import Geotag

Image = str | Path | bytes | BinaryIO | arrays.Image | Pillow.Image
"""A file or the address of an image in one (see `sareloc.photos.addresses`), the content of a file, an open file, or
pixels: RGB (H, W, 3) uint8, or an image of Pillow."""


@dataclass(frozen=True, eq=False)
class ImageRecord:
    """An image with its name and, as far as they are known, its position, heading and time."""

    name: str
    """Identifies the image in its recording, such as "front/000123"; of a file, its path or URL."""
    image: Image
    position: tuple[float, float] | None = None
    """Latitude, longitude in degrees, WGS84; None: unknown, as of a query; of a file, that of its own geotag."""
    heading_deg: float | None = None
    """Compass direction of the optical axis, clockwise from north, 0 <= heading < 360; of a 360° photo that of its
    middle."""
    time: float | None = None
    """Seconds since 1970 in UTC."""
    focal_35mm: float | None = None
    """35 mm equivalent focal length in mm; None: that in the photo's EXIF, if any."""
    stamp: tuple[int, int] | None = None
    """Size in bytes and modification time in ns of the file, if they are known; else they are read."""

    @property
    def geotag(self) -> Geotag | None:
        """The geotag; None without a position. Raises PositionError for values outside their range."""
        return None if self.position is None else Geotag(self.position, self.heading_deg, self.time)


def record_of(image: Image | ImageRecord, name: str | None = None) -> ImageRecord:
    """The record of an image of which nothing else is known; a record itself.

    Args:
        image: see `Image`.
        name: default: the path of a file.

    Raises:
        ArgumentError: if it is not an image.
    """
    if isinstance(image, ImageRecord):
        return image
    if isinstance(image, list | tuple):
        raise ArgumentError(
            f"one image was expected, found a {type(image).__name__} of {len(image)}: use the function for several, "
            "such as localize_many"
        )
    if not (isinstance(image, str | Path | bytes | np.ndarray | Pillow.Image) or hasattr(image, "read")):
        raise ArgumentError(
            f"an image must be a path, the bytes of a file, RGB pixels (H, W, 3) uint8 or a Pillow image: found "
            f"{type(image).__name__}"
        )
    own = str(image) if isinstance(image, str | Path) else getattr(image, "name", None)
    return ImageRecord(name or (own if isinstance(own, str) else "photo without a name"), image)
