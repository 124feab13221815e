"""Reading an image once: its pixels at every size that is needed, and what its file says of it."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image as Pillow

from sareloc import arrays
from sareloc.errors import ArgumentError, PanoramaError, PhotoError
from sareloc.photos.decoding import SizeRule, interpolation_of, read_photo, read_pillow, resized, target_size
from sareloc.photos.geotags import focal_35mm_from_exif, view_focal_35mm
from sareloc.photos.panoramas import (
    Panorama,
    PanoramaPixels,
    ViewOptions,
    cut_photo,
    cut_view,
    looks_like_panorama,
    matching_size,
    panorama_from,
    panorama_pixels,
    views_of,
)
from sareloc.photos.photo_file import MAX_PIXELS, PhotoMetadata, open_file, read_bytes, read_metadata
from sareloc.photos.record import Address, Image, ImageRecord, View, file_of, parse_address, record_of

Stamp = tuple[int, int]
"""Size in bytes and modification time in ns since 1970."""

CACHE_BYTES = 128_000_000  # of panoramas whose views are read one by one
ORDINARY = "used as an ordinary photo"


@dataclass(frozen=True, eq=False)
class ReadImage:
    """An image that was read."""

    name: str
    pixels: tuple[arrays.Image, ...]
    """The upright RGB image (H, W, 3) uint8 at each size that was asked for; empty for a 360° photo with `views`."""
    width: int
    """Pixels, as stored in the file; of a view, its own."""
    height: int
    focal_35mm: float | None = None
    """35 mm equivalent focal length in mm; None: unknown."""
    sha256: bytes | None = None
    """Identifies the content, if it was asked for (see `content_digest`)."""
    metadata: PhotoMetadata | None = None
    """The metadata in a photo's file; None for other images, and for those read by another process."""
    truncated: bool = False
    """Whether the end of the file is missing, and the rest was used."""
    note: str = ""
    """A warning, such as GPano tags that cannot be used."""
    panorama: Panorama | None = None
    """What a 360° photo shows, if it was cut into views."""
    view: View | None = None
    """Which view of a 360° photo it is."""
    time_s: float | None = None
    """Of a frame of a video: seconds after the first frame."""
    views: tuple[ReadImage, ...] = ()
    """The views of a 360° photo."""

    @property
    def is_untagged_sphere(self) -> bool:
        """Whether a photo has the proportions of a full sphere and was used as an ordinary one."""
        whole = self.panorama is None and self.view is None and self.time_s is None and not self.note
        return whole and looks_like_panorama(self.width, self.height)

    @property
    def images(self) -> tuple[ReadImage, ...]:
        """The views of a 360° photo, else the image itself."""
        return self.views or (self,)

    def take(self, rows: Sequence[int]) -> ReadImage:
        """The same at some of the sizes that it was read at, by their numbers."""
        pixels = tuple(self.pixels[row] for row in rows) if self.pixels else ()
        return replace(self, pixels=pixels, views=tuple(view.take(rows) for view in self.views))


def check_several(images: object, alone: str) -> None:
    """Raise ArgumentError if these are not several images but a single one.

    Args:
        images: of the caller's caller.
        alone: how a single one is given instead.
    """
    kinds = str | bytes | Path | ImageRecord | ReadImage | Pillow.Image
    if isinstance(images, kinds) or hasattr(images, "read") or getattr(images, "ndim", 4) == 3:
        raise ArgumentError(f"expected a list of images, found a single one ({type(images).__name__}): use {alone}")


def read_image(
    image: Image | ImageRecord,
    sizes: Sequence[SizeRule | None] = (),
    *,
    cut: ViewOptions | None = None,
    digest: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> ReadImage:
    """Read an image: one open and one decode of its file, whatever is asked for.

    Args:
        image: a path or address, the bytes of a file, pixels, or the record of one of them.
        sizes: size rules, each called with height and width of the upright image; None: not resized. Without sizes no
            pixels are decoded.
        cut: a 360° photo is cut into these views; default: it is read as an ordinary photo. It is one by its GPano
            tags, pixels, which have none, only by `cut.untagged`. With tags that cannot be used it is an ordinary
            photo, with a note.
        digest: also compute the SHA-256 of the content.
        max_pixels: larger images are refused before they are decoded.

    Raises:
        PhotoError: if the image cannot be read, or is too small for a size rule.
    """
    record = record_of(image)
    given = record.image
    if isinstance(given, str | Path):
        address = parse_address(given)
        if address.time_s is not None:
            return _read_frame(record, address, sizes, digest, max_pixels)
        if address.view is not None:
            return _read_view(record, address, address.view, sizes, digest, max_pixels)
    elif isinstance(given, Pillow.Image):
        exif, pixels = read_pillow(given, record.name)
        focal = focal_35mm_from_exif(exif) if record.focal_35mm is None else record.focal_35mm
        return _read_pixels(replace(record, focal_35mm=focal), pixels, sizes, cut, digest)
    elif isinstance(given, np.ndarray):
        return _read_pixels(record, _checked_pixels(given, record.name), sizes, cut, digest)
    return _read_photo(record, read_bytes(given, record.name), sizes, cut, digest, max_pixels)


def decode(
    image: Image | ImageRecord,
    *,
    size: SizeRule | None = None,
    name: str | None = None,
    max_pixels: int = MAX_PIXELS,
) -> arrays.Image:
    """The upright RGB image (H, W, 3) uint8.

    Args:
        image: see `read_image`; formats: see `read_photo`.
        size: size rule, called with height and width; default: not resized.
        name: how errors call it; default: its path.
        max_pixels: larger images are refused before they are decoded.

    Raises:
        PhotoError: see `read_image`.
    """
    return read_image(record_of(image, name), (size,), max_pixels=max_pixels).pixels[0]


def _read_photo(
    record: ImageRecord,
    content: bytes,
    sizes: Sequence[SizeRule | None],
    cut: ViewOptions | None,
    digest: bool,
    max_pixels: int,
) -> ReadImage:
    name, panorama, views, note = record.name, None, tuple[View, ...](), ""
    metadata: PhotoMetadata | None = None
    if cut is not None or not sizes:
        metadata = read_metadata(content, name=name, max_pixels=max_pixels)
    if cut is not None and metadata is not None:
        try:
            panorama, views = cut_photo(metadata, cut, name=name)
        except PanoramaError as error:
            note = f"{error}; {ORDINARY}"
    sha256 = hashlib.sha256(content).digest() if digest else None
    if panorama is not None and metadata is not None:
        reduced = _reductions(panorama, views[0], sizes, name)
        planes = [] if not sizes else read_photo(content, reduced, name=name, max_pixels=max_pixels)[1]
        pixels = [panorama_pixels(image, panorama) for image in planes]
        parts = tuple(_view_of(record, pixels, view, sizes, sha256) for view in views)
        return ReadImage(
            name, (), metadata.width, metadata.height, None, sha256, metadata, metadata.truncated, note, panorama,
            views=parts,
        )  # fmt: skip
    images: tuple[arrays.Image, ...] = ()
    if sizes:
        metadata, images = read_photo(content, sizes, name=name, max_pixels=max_pixels)
    assert metadata is not None
    focal = record.focal_35mm if record.focal_35mm is not None else focal_35mm_from_exif(metadata.exif)
    return ReadImage(name, images, metadata.width, metadata.height, focal, sha256, metadata, metadata.truncated, note)


def _read_pixels(
    record: ImageRecord,
    pixels: arrays.Image,
    sizes: Sequence[SizeRule | None],
    cut: ViewOptions | None,
    digest: bool,
) -> ReadImage:
    height, width = pixels.shape[:2]
    sha256 = hashlib.sha256(pixels.tobytes()).digest() if digest else None
    if cut is not None and cut.untagged and looks_like_panorama(width, height):
        panorama = Panorama(width, height)
        views = views_of(panorama, cut)
        reduced = _reductions(panorama, views[0], sizes, record.name)
        planes = [panorama_pixels(resized(pixels, *rule(height, width)), panorama) for rule in reduced]
        parts = tuple(_view_of(record, planes, view, sizes, sha256) for view in views)
        return ReadImage(record.name, (), width, height, sha256=sha256, panorama=panorama, views=parts)
    images = tuple(
        pixels
        if size is None
        else resized(pixels, *target_size(size, height, width, record.name), interpolation_of(size))
        for size in sizes
    )
    return ReadImage(record.name, images, width, height, record.focal_35mm, sha256)


def _read_frame(
    record: ImageRecord, address: Address, sizes: Sequence[SizeRule | None], digest: bool, max_pixels: int
) -> ReadImage:
    from sareloc.photos.videos import read_frame, read_video

    assert address.time_s is not None
    sha256 = content_digest(address.path) if digest else None
    if sizes:
        images, (height, width) = read_frame(
            address.file, address.time_s, sizes, name=record.name, max_pixels=max_pixels
        )
    else:
        video = read_video(address.file)
        images, height, width = (), video.height, video.width
    return ReadImage(record.name, images, width, height, record.focal_35mm, sha256, time_s=address.time_s)


def _read_view(
    record: ImageRecord,
    address: Address,
    view: View,
    sizes: Sequence[SizeRule | None],
    digest: bool,
    max_pixels: int,
) -> ReadImage:
    """A view of a 360° photo. What was read of the last files is kept: the views of one photo follow each other."""
    found = _PANORAMAS.get(address.file, view, sizes, record.name, max_pixels)
    part = _view_of(record, found.pixels, view, sizes, found.sha256 if digest else None)
    return replace(part, name=record.name, metadata=found.metadata, truncated=found.metadata.truncated)


def _view_of(
    record: ImageRecord,
    planes: Sequence[PanoramaPixels],
    view: View,
    sizes: Sequence[SizeRule | None],
    whole: bytes | None,
) -> ReadImage:
    """A view, cut from the pixels of its panorama at the resolution of each size; `whole`: the digest of its file."""
    fragment = Address(Path(), view).fragment
    name = f"{record.name}{fragment}"
    images = tuple(
        cut_view(pixels, view, *_view_size(size, view, name)) for pixels, size in zip(planes, sizes, strict=True)
    )
    sha256 = None if whole is None else part_digest(whole, fragment)
    return ReadImage(name, images, view.width, view.height, view_focal_35mm(view), sha256, view=view)


def _view_size(size: SizeRule | None, view: View, name: str) -> tuple[int, int]:
    return (view.height, view.width) if size is None else target_size(size, view.height, view.width, name)


def _reductions(panorama: Panorama, view: View, sizes: Sequence[SizeRule | None], name: str) -> list[SizeRule]:
    """The sizes to which a panorama is reduced for views of these sizes."""
    return [matching_size(panorama, view, *_view_size(size, view, name)) for size in sizes]


@dataclass(frozen=True, eq=False)
class _PanoramaFile:
    """The file of a 360° photo, as far as it was read."""

    sha256: bytes
    metadata: PhotoMetadata
    pixels: tuple[PanoramaPixels, ...]
    """At the resolutions of the sizes that were asked for."""


class _PanoramaCache:
    """The 360° photos that were read last, of at most `CACHE_BYTES` together; shared by the threads of a process."""

    def __init__(self) -> None:
        self._files: OrderedDict[tuple[object, ...], _PanoramaFile] = OrderedDict()
        self._lock = threading.Lock()

    def get(
        self, file: Path, view: View, sizes: Sequence[SizeRule | None], name: str, max_pixels: int
    ) -> _PanoramaFile:
        """The file, with pixels for views of this field of view at these sizes; read if it is not here, or changed."""
        key = (os.path.abspath(file), _identity(file), view.fov_deg, *(_view_size(size, view, name) for size in sizes))
        with self._lock:
            if key in self._files:
                self._files.move_to_end(key)
                return self._files[key]
        found = self._read(file, view, sizes, name, max_pixels)
        with self._lock:
            self._files[key] = found
            while sum(p.planes.nbytes for one in self._files.values() for p in one.pixels) > CACHE_BYTES:
                self._files.popitem(last=False)
        return found

    def _read(
        self, file: Path, view: View, sizes: Sequence[SizeRule | None], name: str, max_pixels: int
    ) -> _PanoramaFile:
        content = read_bytes(file, name)
        metadata = read_metadata(content, name=name, max_pixels=max_pixels)
        panorama = panorama_from(metadata, assume=True, name=name)
        assert panorama is not None
        for height, width in (_view_size(size, view, name) for size in sizes):
            if height * width > max_pixels:
                raise PhotoError(name, f"a view of {width} x {height} px is more than {max_pixels / 1e6:g} megapixels")
        reduced = _reductions(panorama, view, sizes, name)
        images = read_photo(content, reduced, name=name, max_pixels=max_pixels)[1] if sizes else ()
        planes = tuple(panorama_pixels(image, panorama) for image in images)
        return _PanoramaFile(hashlib.sha256(content).digest(), metadata, planes)


_PANORAMAS = _PanoramaCache()


def _checked_pixels(image: arrays.Image, name: str) -> arrays.Image:
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
        raise PhotoError(name, f"expected RGB pixels (H, W, 3) uint8, found {image.shape} {image.dtype}")
    return image


def image_size(path: str | Path) -> tuple[int, int]:
    """Width and height in pixels of the image at an address, as stored. Raises PhotoError if it cannot be opened."""
    address = parse_address(path)
    if address.view is not None:
        return address.view.width, address.view.height
    if address.time_s is not None:
        from sareloc.photos.videos import read_video

        video = read_video(address.file)
        return video.width, video.height
    metadata = read_metadata(path)
    return metadata.width, metadata.height


def stamp(path: str | Path) -> Stamp | None:
    """Size in bytes and modification time in ns of the file at an address; None if there is no such file."""
    file = file_of(path)
    try:
        status = file.stat()
    except (OSError, ValueError):  # the latter: a NUL character
        return None
    return status.st_size, fitting_ns(status.st_mtime_ns)


def fitting_ns(time_stamp_ns: int) -> int:
    """A time stamp as a signed 64-bit number, for SQLite, Milvus and numpy; it wraps around after the year 2262."""
    return (time_stamp_ns + (1 << 63)) % (1 << 64) - (1 << 63)


def content_digest(path: str | Path) -> bytes:
    """The SHA-256 that identifies the content of the image at an address, whatever the name of its file.

    Of a view or a frame: the SHA-256 of its file's SHA-256 and its fragment. Raises PhotoError if the file cannot be
    read.
    """
    address = parse_address(path)
    if not address.fragment:
        return _digest(address.file)
    return part_digest(_digest_once(address.file, _identity(address.file)), address.fragment)


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
def _digest_once(file: Path, _: tuple[int, ...] | None) -> bytes:
    """The digest of a file that holds many images; read again when the file changes."""
    return _digest(file)


def _identity(file: Path) -> tuple[int, ...] | None:
    """Differs if a file was replaced or written, also where its time stamp was restored; None if there is none."""
    try:
        status = file.stat()
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
