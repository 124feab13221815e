"""Decoding photos to upright RGB images at several sizes, within a limit of memory."""

from __future__ import annotations

import ctypes
import io
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from sareloc import arrays
from sareloc.errors import ArgumentError, PhotoError
from sareloc.photos.photo_file import (
    END_OF_IMAGE,
    FORMATS,
    JPEGS,
    MAX_PIXELS,
    SIDEWAYS,
    PhotoMetadata,
    Source,
    all_of,
    exif_of,
    find_metadata,
    label_of,
    metadata_of,
    open_photo,
    pillow_errors,
    read_bytes,
    scans_of,
    turn_of,
)

SizeRule = Callable[[int, int], tuple[int, int]]
Interpolation = Literal["bilinear", "bicubic"]
RESAMPLINGS: dict[Interpolation, Image.Resampling] = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}
Box = tuple[float, float, float, float]
Size = tuple[int, int]  # width, height as in the file

DRAFT_GAP = 2  # a JPEG is decoded at 1/2, 1/4 or 1/8 if that leaves at least twice the target size
LEAST_DECODED_PX = 960
"""... and at least so many pixels on its longer side: enough for local features (twice 480 px), so that the pixels of
an image do not depend on what else is read with it."""
REDUCING_GAP = 3.0  # beyond 6 times the target size a box filter is applied first; Pillow calls 3 indistinguishable
TRUNCATED = "truncated: the end of the file is missing, the rest was used"
MIN_ROWS = 0.8  # fraction of the rows of a truncated JPEG; the last 3 % of its bytes may be more than 3 % of its rows
STRIP_PIXELS = 1_000_000
BACKGROUND = "white"  # behind transparent pixels

DECODING_BYTES = 600_000_000  # limit for all photos that one process decodes at the same time
BYTES_PER_PIXEL = 8  # Pillow uses four for RGB and RGBA, and there are two copies
LARGE_BYTES = 100_000_000


@dataclass(frozen=True)
class Resizing:
    """A size rule with its interpolation; any other size rule is bilinear. Both are antialiased."""

    size: SizeRule
    interpolation: Interpolation = "bilinear"

    def __call__(self, height: int, width: int) -> tuple[int, int]:
        """The (height, width) to which a photo of this height and width is resized."""
        return self.size(height, width)


def interpolation_of(size: SizeRule) -> Interpolation:
    """The interpolation with which photos are resized to the sizes of this rule."""
    return size.interpolation if isinstance(size, Resizing) else "bilinear"


def read_photo(
    source: Source,
    sizes: Sequence[SizeRule | None],
    *,
    name: str | None = None,
    max_pixels: int = MAX_PIXELS,
) -> tuple[PhotoMetadata, tuple[arrays.Image, ...]]:
    """Read a photo once: what its file says of it, and its upright RGB image (H, W, 3) uint8 at each of several sizes.

    Formats: JPEG, PNG, WebP, AVIF, TIFF, (with the extra "heic") HEIC and (with the extra "raw") the previews in RAW
    files of cameras, detected by content. The EXIF orientation is
    applied; of an animation the first frame is used; 16-bit pixels are scaled to 8; transparent pixels become white;
    colour profiles are ignored. A truncated JPEG is used if at least `MIN_ROWS` of its rows are present; missing rows
    are grey.

    Threads that decode large photos wait for each other: together they use at most about `DECODING_BYTES`, or the
    memory of one photo.

    Args:
        source: a file, its content, or a binary stream.
        sizes: size rules, each called with height and width of the upright photo; None: not resized. The photo is
            decoded once, and resized to each size. Resizing is antialiased, and bilinear unless the rule is a
            `Resizing` with another interpolation: most published models were trained so, and unlike bicubic it does
            not overshoot.
        name: how errors call a photo without a path.
        max_pixels: larger photos are refused before they are decoded.

    Raises:
        PhotoError: if the file is missing, not a photo, damaged, truncated by more, too large, or if a size rule raises
            ArgumentError; nothing else is raised.
    """
    label = name or label_of(source)
    with ExitStack() as held:
        try:
            return _read(source, sizes, label, max_pixels, held)
        except PhotoError as error:
            failed: BaseException | None = error
            while failed is not None:  # frames of the error would keep the pixels alive
                traceback.clear_frames(failed.__traceback__)
                failed = failed.__cause__ or failed.__context__
            raise


def _read(
    source: Source, sizes: Sequence[SizeRule | None], label: str, max_pixels: int, held: ExitStack
) -> tuple[PhotoMetadata, tuple[arrays.Image, ...]]:
    """As `read_photo`; reserves memory in `held`, which the caller releases after the images are deleted."""
    with pillow_errors(label):
        image, stream, raw = open_photo(io.BytesIO(read_bytes(source, label)), label, max_pixels)
        held.enter_context(MEMORY.hold(BYTES_PER_PIXEL * image.width * image.height))
        if image.format not in JPEGS:
            image.load()  # Pillow rotates a TIFF while loading; a PNG may have its EXIF after the pixels
        metadata = metadata_of(image, stream, raw)
    turn, (upright_width, upright_height) = turn_of(metadata.exif), metadata.upright_size
    targets = [None if size is None else target_size(size, upright_height, upright_width, label) for size in sizes]
    # (width, height) as in the file
    stored = [None if one is None else one if turn in SIDEWAYS else one[::-1] for one in targets]
    with pillow_errors(label):
        try:
            rgb, box = _reduced(image, stored, label)
        except OSError:
            if not metadata.truncated:
                raise
            rgb, box = _reduced_with_end(all_of(stream), stored, label)
        images = []
        for size, target in zip(sizes, stored, strict=True):
            resized_rgb = rgb
            if size is not None and target is not None:
                method = RESAMPLINGS[interpolation_of(size)]
                resized_rgb = rgb.resize(target, method, box=box, reducing_gap=REDUCING_GAP)
            images.append(np.array(resized_rgb if turn is None else resized_rgb.transpose(turn)))
        return metadata, tuple(images)


def read_pillow(image: Image.Image, label: str) -> tuple[Image.Exif, arrays.Image]:
    """The EXIF of an image of Pillow, and its pixels (H, W, 3) uint8 as `read_photo` reads those of its file.

    Raises PhotoError, which calls it `label`, if it cannot be decoded.
    """
    with pillow_errors(label):
        rgb = _rgb(image, label)  # before the orientation is read: Pillow rotates a TIFF while loading
        exif = exif_of(image.getexif)
        turn = turn_of(exif)
        return exif, np.array(rgb if turn is None else rgb.transpose(turn))


def is_truncated(photo: str | Path) -> bool:
    """Whether a file is a JPEG without its end; it can be decoded if at least `MIN_ROWS` of its rows are present."""
    metadata = find_metadata(photo)
    return metadata is not None and metadata.truncated


def longest_side(pixels: int) -> SizeRule:
    """The size rule that shrinks a photo until its longer side has at most `pixels`; keeps the aspect ratio."""

    def size(height: int, width: int) -> tuple[int, int]:
        shrink = min(1.0, pixels / max(height, width))
        return max(1, round(height * shrink)), max(1, round(width * shrink))

    return size


def target_size(size: SizeRule, height: int, width: int, photo: str) -> tuple[int, int]:
    """The result of a size rule for a photo; raises PhotoError if the rule raises ArgumentError."""
    try:
        target = size(height, width)
    except ArgumentError as error:
        raise PhotoError(photo, str(error)) from error
    if not (len(target) == 2 and all(isinstance(side, int) and side > 0 for side in target)):
        raise ArgumentError(f"a size rule must return two positive integers: found {target} for {height} x {width} px")
    return target


def _reduced(image: Image.Image, stored: Sequence[Size | None], label: str) -> tuple[Image.Image, Box | None]:
    """The RGB image, a JPEG decoded at a fraction of its size if that suffices for all of `stored`, and its box."""
    box = None
    targets = [target for target in stored if target is not None]
    if len(targets) == len(stored) and image.format in JPEGS:
        least = min(1.0, LEAST_DECODED_PX / max(image.size))
        width, height = (
            max(round(least * side), DRAFT_GAP * max(sides))
            for side, sides in zip(image.size, zip(*targets, strict=True), strict=True)
        )
        draft = image.draft(None, (width, height))
        box = draft[1] if draft else None
    return _rgb(image, label), box


def _reduced_with_end(content: bytes, stored: Sequence[Size | None], label: str) -> tuple[Image.Image, Box | None]:
    """As `_reduced` for a truncated JPEG: with an end marker appended, libjpeg fills missing rows with grey."""
    image = Image.open(io.BytesIO(content + END_OF_IMAGE), formats=FORMATS)
    progressive = bool(image.info.get("progressive"))
    rgb, box = _reduced(image, stored, label)
    rows = np.asarray(rgb)
    present = np.flatnonzero((rows != rows[-1, -1]).any(axis=(1, 2)))
    share = (present[-1] + 1) / len(rows) if len(present) else 0.0
    if share < MIN_ROWS or (progressive and not _shows_all_detail(scans_of(content)[0])):
        missing = "the details are" if progressive else f"{1 - share:.0%} of the rows are"
        raise PhotoError(label, f"truncated: {missing} missing")
    return rgb, box


def _shows_all_detail(scans: list[bytes]) -> bool:
    """Whether the last scan of a progressive JPEG, with the lowest bit of the highest luma frequency, has started."""
    for scan in scans:
        components = scan[0] if scan else 0
        if len(scan) == 2 * components + 4 and scans[0][1] in scan[1 : 1 + 2 * components : 2]:
            last, low_bit = scan[-2], scan[-1] & 15
            if (last, low_bit) == (63, 0):
                return True
    return False


def _rgb(image: Image.Image, label: str) -> Image.Image:
    image.load()
    if image.mode.startswith("I;16"):
        # The high byte, as Pillow does for 16-bit colour: the inverse of multiplying 8-bit values by 257.
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise PhotoError(label, "32-bit pixels are not supported (their white level is undefined): save 8 or 16 bits")
    if image.has_transparency_data:
        return _on_background(image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _on_background(image: Image.Image) -> Image.Image:
    """An image with transparent pixels on the background, as RGB; in strips, to need only one more copy."""
    rgb = Image.new("RGB", image.size)
    rows = max(1, STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height))).convert("RGBA")
        rgb.paste(Image.alpha_composite(Image.new("RGBA", strip.size, BACKGROUND), strip).convert("RGB"), (0, top))
    return rgb


def resized(image: arrays.Image, height: int, width: int, interpolation: Interpolation = "bilinear") -> arrays.Image:
    """The image at another size, as `decode` resizes; itself if it has that size.

    Args:
        image: (H, W, 3) uint8.
        height: pixels.
        width: pixels.
        interpolation: "bilinear" or "bicubic", antialiased.
    """
    if image.shape[:2] == (height, width):
        return image
    return np.array(Image.fromarray(image).resize((width, height), RESAMPLINGS[interpolation]))


class DecodingMemory:
    """The memory limit for decoding, shared by all threads of a process; a photo that needs more is decoded alone."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._used = 0
        self._freed = threading.Condition()
        self._queue = threading.Lock()  # first come, first served: small photos must not starve a large one

    @contextmanager
    def hold(self, needed: int) -> Iterator[None]:
        """A context that holds `needed` bytes; waits until they are free."""
        needed = min(needed, self._total)
        with self._queue, self._freed:
            self._freed.wait_for(lambda: self._used + needed <= self._total)
            self._used += needed
        try:
            yield
        finally:
            if needed >= LARGE_BYTES:
                _trim_heap()
            with self._freed:
                self._used -= needed
                self._freed.notify_all()


MEMORY = DecodingMemory(DECODING_BYTES)


def _trim_heap() -> None:
    """Return freed memory to the system; glibc would keep it for the thread that used it."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only in glibc
        if trim is not None:
            trim(0)
