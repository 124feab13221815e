"""The image at an address: its pixels, its size, and the identity of its content."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from sareloc import arrays
from sareloc.errors import PhotoError
from sareloc.photos.addresses import file_of, parse_address
from sareloc.photos.decoding import MAX_PIXELS, SizeRule, Source, decode_photo, open_file, open_photo
from sareloc.photos.finding import Stamp, fitting_ns
from sareloc.photos.videos import decode_frame, read_video
from sareloc.photos.views import read_view

CHANGED = "has changed since it was examined: add it again"


def decode(
    source: Source, *, size: SizeRule | None = None, name: str | None = None, max_pixels: int = MAX_PIXELS
) -> arrays.Image:
    """The image (H, W, 3) uint8 of a photo, or at an address, resized to `size(height, width)`.

    See `decode_photo` for the arguments, the formats and the errors, `read_view` for views of 360° photos,
    `decode_frame` for frames of videos.
    """
    if isinstance(source, str | Path):
        address, label = parse_address(source), name or str(source)
        if address.view is not None:
            return read_view(address.file, address.view, size=size, name=label, max_pixels=max_pixels)
        if address.time_s is not None:
            return decode_frame(address.file, address.time_s, size=size, name=label, max_pixels=max_pixels)
    return decode_photo(source, size=size, name=name, max_pixels=max_pixels)


def decode_unchanged(path: str | Path, sha256: bytes, *, size: SizeRule | None = None) -> arrays.Image:
    """As `decode`, of the image at an address whose `content_digest` was this one.

    Raises PhotoError if the content that is decoded is another, or changes meanwhile.
    """
    before = read_identity(path)
    if content_digest(path) != sha256:
        raise PhotoError(path, CHANGED)
    image = decode(path, size=size)
    if read_identity(path) != before:
        raise PhotoError(path, CHANGED)
    return image


def read_identity(path: str | Path) -> tuple[int, int, int] | None:
    """Size and times of the file at an address; None if there is no such file.

    Differs from earlier if the content was changed in between, also if the modification time was set back: every change
    sets the time of the last status change, which no program can choose.
    """
    try:
        status = file_of(path).stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def image_size(path: str | Path) -> tuple[int, int]:
    """Width and height in pixels of the image at an address, as stored. Raises PhotoError if it cannot be opened."""
    address = parse_address(path)
    if address.view is not None:
        return address.view.width, address.view.height
    if address.time_s is not None:
        video = read_video(address.file)
        return video.width, video.height
    with open_photo(path) as image:
        return image.size


def stamp(path: str | Path) -> Stamp | None:
    """Size in bytes and modification time in ns of the file at an address; None if there is no such file."""
    try:
        status = file_of(path).stat()
    except (OSError, ValueError):  # the latter: a NUL character
        return None
    return status.st_size, fitting_ns(status.st_mtime_ns)


def content_digest(path: str | Path) -> bytes:
    """The SHA-256 that identifies the content of the image at an address, whatever the name of its file.

    Of a view or a frame: the SHA-256 of its file's SHA-256 and its fragment. Raises PhotoError if the file cannot be
    read.
    """
    address = parse_address(path)
    if not address.fragment:
        return _digest(address.file)
    return part_digest(_digest_once(address.file, read_identity(address.file)), address.fragment)


def part_digest(whole: bytes, fragment: str) -> bytes:
    """The SHA-256 that identifies a view or a frame, by that of its file and the fragment of its address."""
    return hashlib.sha256(whole + fragment.encode()).digest()


def _digest(file: Path) -> bytes:
    try:
        with open_file(file, str(file)) as content:
            return hashlib.file_digest(content, "sha256").digest()
    except OSError as lost:
        raise PhotoError(file, f"cannot be read: {lost.strerror}") from lost


@lru_cache(maxsize=64)
def _digest_once(file: Path, _identity: tuple[int, int, int] | None) -> bytes:
    """The digest of a file that holds many images; read again when its identity changes."""
    return _digest(file)
