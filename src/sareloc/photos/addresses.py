"""Addresses of images: a photo, a view of a 360° photo, or a frame of a video.

    street/photo.jpg
    street/pano.jpg#yaw=30&pitch=0&fov=60&size=640x480     a perspective view of a 360° photo
    drive.mp4#t=12.345                                     the frame shown 12.345 s after the first one

The part behind the file name is written like a URL's fragment. It is short, so that a map stores it as a file name and
any part of the program can decode the image from the original file. A photo's own name cannot be taken for one: it
ends in the extension of a photo.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sareloc.errors import ArgumentError

LARGEST_SIDE_PX = 16_384
LATEST_S = 1e6  # eleven days
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
    """Of a frame of a video, after its first frame."""

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
    """The address in a path; one with a malformed fragment, or values outside their range, is that of a plain file."""
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


def file_of(path: str | Path) -> Path:
    """The file that holds the image at an address."""
    return parse_address(path).file


def without_fragment(text: str) -> str:
    """The path or URL of the file at an address, as it is written there."""
    return text[: text.rindex("#")] if parse_address(text).fragment else text


def _number(value: float) -> str:
    """At most six decimals: a millionth of a second or of a degree."""
    return f"{value:.6f}".rstrip("0").rstrip(".")
