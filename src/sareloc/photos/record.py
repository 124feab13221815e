"""What is known of an image: its address, its geotag, and both in its record.

Addresses: a photo, a view of a 360° photo, or a frame of a video.

    street/photo.jpg
    street/pano.jpg#yaw=30&pitch=0&fov=60&size=640x480     a perspective view of a 360° photo
    drive.mp4#t=12.345                                     the frame shown 12.345 s after the first one

The part behind the file name is written like a URL's fragment. It is short, so that a map stores it as a file name and
any part of the program can decode the image from the original file. A photo's own name cannot be taken for one: it
ends in the extension of a photo.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image as Pillow

from sareloc import arrays
from sareloc.errors import ArgumentError, PositionError

VIDEO_EXTENSIONS = (".mp4", ".mov", ".mkv", ".m4v", ".webm", ".avi", ".insv", ".3gp", ".ts", ".mts", ".m2ts")
LARGEST_SIDE_PX = 16_384
LATEST_S = 1e6  # eleven days
METHOD = "sareloc visual place recognition"
"""How the mark of positions that sareloc estimated begins, which distinguishes them from measured ones."""
MARK_FIELDS = ("GPSAreaInformation", "GPSProcessingMethod")
"""The EXIF and XMP fields with the mark: the one that is written, a free text, and that of earlier versions, for which
the specification knows four words only (GPS, CELLID, WLAN, MANUAL)."""
NOT_MEASURED = "MANUAL"
"""The GPSProcessingMethod of estimates: the one of the four words that names no receiver."""
ESTIMATE_FIELDS = ("GPSHPositioningError", *MARK_FIELDS)
"""The EXIF and XMP fields that belong to one position, and not to the next one of the photo."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_S, LAST_S = (datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (1, 9999))
NUMBER = r"-?\d{1,7}(?:\.\d{1,6})?"
FRAGMENT = re.compile(
    rf"#(?:t=(?P<t>{NUMBER})"
    rf"|yaw=(?P<yaw>{NUMBER})&pitch=(?P<pitch>{NUMBER})&fov=(?P<fov>{NUMBER})"
    r"&size=(?P<width>\d{1,5})x(?P<height>\d{1,5}))",
    re.ASCII,
)


@dataclass(frozen=True)
class View:
    """A perspective view of a 360° photo. Raises ArgumentError for values outside their range."""

    yaw_deg: float
    """Direction of the optical axis from the middle of the panorama, growing to the right, 0 <= yaw < 360."""
    pitch_deg: float = 0.0
    """Of the optical axis above the horizon, -90 to 90."""
    fov_deg: float = 60.0
    """The horizontal field of view, more than 0 and less than 180."""
    width: int = 640
    """Pixels of the image that is cut out, unless another size is asked for."""
    height: int = 480

    def __post_init__(self) -> None:
        if not 0 <= self.yaw_deg < 360:
            raise ArgumentError(f"the yaw of a view must be in 0 <= degrees < 360: found {self.yaw_deg:g}")
        if not -90 <= self.pitch_deg <= 90:
            raise ArgumentError(f"the pitch of a view must be in -90 to 90 degrees: found {self.pitch_deg:g}")
        if not 0 < self.fov_deg < 180:
            raise ArgumentError(f"the field of view must be above 0 and below 180 degrees: found {self.fov_deg:g}")
        if not (1 <= self.width <= LARGEST_SIDE_PX and 1 <= self.height <= LARGEST_SIDE_PX):
            raise ArgumentError(
                f"the sides of a view must be 1 to {LARGEST_SIDE_PX} px: found {self.width} x {self.height}"
            )


@dataclass(frozen=True)
class Address:
    """A file and, unless the image is the whole file, which view or frame of it."""

    file: Path
    view: View | None = None
    """Of a 360° photo."""
    time_s: float | None = None
    """Of a frame of a video: seconds after the first frame."""

    @property
    def fragment(self) -> str:
        """The part of the address behind the file name, with its "#"; empty for a whole file."""
        if self.time_s is not None:
            return f"#t={_number(self.time_s)}"
        if self.view is not None:
            v = self.view
            angles = f"yaw={_number(v.yaw_deg)}&pitch={_number(v.pitch_deg)}&fov={_number(v.fov_deg)}"
            return f"#{angles}&size={v.width}x{v.height}"
        return ""

    @property
    def path(self) -> Path:
        """The address as a path, which names no file of its own if there is a fragment."""
        return self.file.with_name(self.file.name + self.fragment) if self.fragment else self.file


def parse_address(path: str | Path) -> Address:
    """The address in a path; one with a malformed fragment, or values outside their range, is that of a plain file.

    Raises ArgumentError for an image that is not a file.
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(
            f"expected the path of an image, found {type(path).__name__}: images that are not files are read by "
            "read_image"
        )
    text = str(path)
    at = text.rfind("#")
    found = FRAGMENT.fullmatch(text, at) if at > 0 else None
    if found is None:
        return Address(Path(path))
    file = Path(text[:at])
    if found["t"] is not None:
        time_s = float(found["t"])
        return Address(file, time_s=time_s) if 0 <= time_s < LATEST_S else Address(Path(path))
    try:
        yaw, pitch, fov = (float(found[name]) for name in ("yaw", "pitch", "fov"))
        return Address(file, View(yaw, pitch, fov, int(found["width"]), int(found["height"])))
    except ArgumentError:
        return Address(Path(path))


def is_video(path: str | Path) -> bool:
    """Whether a file is a video by its extension, in upper or lower case."""
    return str(path).lower().endswith(VIDEO_EXTENSIONS)


def is_url(text: str | Path) -> bool:
    """Whether this is a URL rather than a path on this machine."""
    return "://" in str(text)


def file_of(path: str | Path) -> Path:
    """The file that holds the image at an address."""
    return parse_address(path).file


def without_fragment(text: str) -> str:
    """The path or URL of the file at an address, as it is written there."""
    return text[: text.rindex("#")] if parse_address(text).fragment else text


def _number(value: float) -> str:
    """At most six decimals: a millionth of a second or of a degree."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Geotag:
    """Position, heading and time of a photo; None: unknown. Raises PositionError for values outside their range."""

    latlon: tuple[float, float]
    """Latitude, longitude in degrees, WGS84."""
    heading_deg: float | None = None
    """Compass direction of the optical axis, clockwise from north, 0 <= heading < 360."""
    time: float | None = None
    """Seconds since 1970 in UTC; a time of unknown zone is read as UTC."""
    estimated: bool = False
    """Whether sareloc estimated the position (see `METHOD`): it is then not used as a true one."""

    def __post_init__(self) -> None:
        latitude, longitude = self.latlon
        if not (abs(latitude) <= 90 and abs(longitude) <= 180):
            raise PositionError(f"invalid coordinates: latitude {latitude}, longitude {longitude}")
        if self.heading_deg is not None and not 0 <= self.heading_deg < 360:
            raise PositionError(f"a heading must be in 0 <= degrees < 360: found {self.heading_deg}")
        if self.time is not None and not FIRST_S <= self.time < LAST_S:
            raise PositionError(f"a time must be in seconds since 1970, in the years 1 to 9998: found {self.time}")


def geotag_at(
    latitude: float | None, longitude: float | None, heading_deg: float | None, time: float | None, estimated: bool
) -> Geotag | None:
    """The geotag with these values; None if one is outside its range, or if there is no position: unknown, or exactly
    0, 0, which receivers without a fix write."""
    if latitude is None or longitude is None or latitude == longitude == 0:
        return None
    try:
        return Geotag((latitude, longitude), heading_deg, time, estimated)
    except PositionError:
        return None


def valid_time(seconds: float | None) -> float | None:
    """A time as `Geotag.time`; None if it is unknown or outside its range."""
    return seconds if seconds is not None and FIRST_S <= seconds < LAST_S else None


@dataclass(frozen=True)
class Estimate:
    """How a position was estimated; written with the position to distinguish it from a GPS measurement."""

    radius_m: float
    """The horizontal positioning error in metres."""
    method: str
    """The mark (see `METHOD`), in ASCII."""


def seconds_since_1970(moment: datetime) -> float:
    """The time in seconds since 1970; a time without a zone is read as UTC."""
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH).total_seconds()


Image = str | Path | bytes | BinaryIO | arrays.Image | Pillow.Image
"""A file or the address of an image in one (see above), the content of a file, an open file, or
pixels: RGB (H, W, 3) uint8, or an image of Pillow."""


@dataclass(frozen=True, eq=False)
class ImageRecord:
    """An image from anywhere with its name and, as far as they are known, its position, heading and time.

    It is what maps are built from and what is localized: a file, a view of a 360° photo, a frame of a video, an upload,
    an image of a stream. A reader of another kind of recording is a generator of such records: see robot_stream.py and
    ros2_bag.py in examples/.
    """

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
    estimated: bool = False
    """Whether sareloc estimated the position."""

    @property
    def geotag(self) -> Geotag | None:
        """The geotag; None without a position. Raises PositionError for values outside their range."""
        return None if self.position is None else Geotag(self.position, self.heading_deg, self.time, self.estimated)


PhotoSource = ImageRecord
"""The name of `ImageRecord` before version 0.2."""


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
