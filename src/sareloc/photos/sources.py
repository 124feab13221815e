"""PhotoSource: an image from anywhere with what is known of it. What `build_map` and `Localizer` accept beside files.

A reader of another kind of recording is a generator of such records: see robot_stream.py and ros2_bag.py in examples/.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sareloc import arrays
from sareloc.errors import PhotoError
from sareloc.photos.addresses import Address, View
from sareloc.photos.decoding import SizeRule, interpolation_of, resized, target_size
from sareloc.photos.geotags import Geotag, view_focal_35mm
from sareloc.photos.images import decode
from sareloc.photos.panoramas import UNUSABLE
from sareloc.photos.views import ViewOptions, cut_photo, read_views, untagged_sphere, views_of


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
    """Compass direction of the optical axis, clockwise from north, 0 <= heading < 360; of a 360° photo that of its
    middle."""
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


def cut_source(source: PhotoSource, options: ViewOptions) -> tuple[PhotoSource, ...] | None:
    """The views of a 360° photo, each a source with its own heading; None: an ordinary photo, or it cannot be read.

    It is one by its GPano tags; pixels, which have none, only by `options.untagged`. The heading of the source is that
    of the panorama's middle; default: that of the tags. A view is named as an address is, "front/000123#yaw=30&...";
    that of a file is the address of it. Raises PhotoError if the tags cannot be used.
    """
    pixels, views = source.pixels, tuple[View, ...]()
    if pixels is None:
        assert isinstance(source.image, str | Path | bytes)
        try:
            panorama, views = cut_photo(source.image, options, name=source.name)
        except PhotoError as error:
            if error.reason.startswith(UNUSABLE):
                raise
            return None
    else:
        panorama = untagged_sphere(pixels.shape[1], pixels.shape[0], options)
        views = () if panorama is None else views_of(panorama, options)
    if panorama is None:
        return None
    if isinstance(source.image, str | Path):
        images: Sequence[Path | arrays.Image] = [Address(Path(source.image), view).path for view in views]
    else:
        images = read_views(source.image, panorama, views, name=source.name)
    heading = panorama.heading_deg if source.heading_deg is None else source.heading_deg
    return tuple(
        replace(
            source,
            name=f"{source.name}{Address(Path(), view).fragment}",
            image=image,
            heading_deg=None if heading is None else (heading + view.yaw_deg) % 360,
            focal_35mm=view_focal_35mm(view),
        )
        for image, view in zip(images, views, strict=True)
    )
