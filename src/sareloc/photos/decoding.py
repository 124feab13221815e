"""Decoding photos to upright RGB images. Every problem of a file is raised as a PhotoError with its name."""

from __future__ import annotations

import hashlib
import io
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from sareloc import arrays
from sareloc.errors import ArgumentError, PhotoError, need
from sareloc.files import open_regular
from sareloc.photos.jpeg import (
    END_OF_IMAGE,
    JPEGS,
    START_OF_IMAGE,
    all_of,
    check_jpeg_header,
    lacks_end,
    scans_of,
    shows_all_detail,
)
from sareloc.photos.pillow_limits import BYTES_PER_PIXEL, MEMORY, pillow_errors
from sareloc.photos.raw import FUJIFILM, LEAST_PREVIEW_PX, RAW, RawFile, is_raw, open_raw

Source = str | Path | bytes | BinaryIO
SizeRule = Callable[[int, int], tuple[int, int]]
Interpolation = Literal["bilinear", "bicubic"]
RESAMPLINGS: dict[Interpolation, Image.Resampling] = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}
Box = tuple[float, float, float, float]
Size = tuple[int, int]  # width, height as in the file

MAX_PIXELS = 200_000_000
"""The largest phone sensors have 200 megapixels; larger files are rejected before they are decoded."""

LARGEST_FILE = 1_500_000_000
"""Bytes of a photo's file: 200 megapixels of 16-bit colours, not compressed, are 1.2 GB."""
BEGINNINGS = (b"\xff\xd8", b"\x89PNG", b"RIFF", b"II", b"MM", FUJIFILM)
"""Of JPEG, PNG, WebP, TIFF and RAW; AVIF, HEIC and CR3 have "ftyp" after four bytes."""

FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "TIFF")  # no others: each decoder adds attack surface
HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
DRAFT_GAP = 2  # a JPEG is decoded at 1/2, 1/4 or 1/8 if that leaves at least twice the target size
LEAST_DECODED_PX = 960
"""... and at least so many pixels on its longer side: enough for local features (twice 480 px), so that the pixels of
an image do not depend on what else is read with it."""
REDUCING_GAP = 3.0  # beyond 6 times the target size a box filter is applied first; Pillow calls 3 indistinguishable
PNG_EXIF = (b"eXIf", b"Raw profile type exif")
TRUNCATED = "truncated: the end of the file is missing, the rest was used"
MIN_ROWS = 0.8  # fraction of the rows of a truncated JPEG; the last 3 % of its bytes may be more than 3 % of its rows
STRIP_PIXELS = 1_000_000
SPARSE_BYTES, MIN_STORED = 50_000_000, 0.01  # a larger file of which less is stored is not read
BACKGROUND = "white"  # behind transparent pixels

Turn = Image.Transpose
TURNS = {  # EXIF orientation -> the transposition that makes the image upright
    2: Turn.FLIP_LEFT_RIGHT,
    3: Turn.ROTATE_180,
    4: Turn.FLIP_TOP_BOTTOM,
    5: Turn.TRANSPOSE,
    6: Turn.ROTATE_270,
    7: Turn.TRANSVERSE,
    8: Turn.ROTATE_90,
}
SIDEWAYS = {Turn.TRANSPOSE, Turn.ROTATE_270, Turn.TRANSVERSE, Turn.ROTATE_90}


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


@dataclass(frozen=True, eq=False)
class PhotoMetadata:
    """The metadata in a photo's file."""

    width: int
    """Pixels, as stored in the file."""
    height: int
    format: str
    """Pillow's name of the file format, such as "JPEG"."""
    exif: Image.Exif
    """Empty if there is none, or if it is damaged."""
    xmp: bytes | None
    """The XMP packet inside the file."""
    truncated: bool
    """Whether it is a JPEG without its end (see `read_photo`)."""
    sha256: bytes | None
    """Of the bytes of the file, if all of them were read."""

    @property
    def upright_size(self) -> tuple[int, int]:
        """Width and height in pixels of the upright photo."""
        return (self.height, self.width) if _turn(self.exif) in SIDEWAYS else (self.width, self.height)


def read_metadata(
    source: Source, *, digest: bool = False, name: str | None = None, max_pixels: int = MAX_PIXELS
) -> PhotoMetadata:
    """The metadata in a photo's file; the pixels are not decoded.

    Args:
        source: a file, its content, or a binary stream.
        digest: read all of it and compute its SHA-256; else as little as is needed.
        name: how errors call a photo without a path.
        max_pixels: larger photos are refused.

    Raises:
        PhotoError: as `read_photo`.
    """
    label = name or _name_of(source)
    with pillow_errors(label):
        content = read_bytes(source, label) if digest else None
        with _stream(source if content is None else content, label) as stream:
            image, pixels, raw = _open(stream, label, max_pixels)
            return _metadata(image, pixels, content, raw)


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
    label = name or _name_of(source)
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
        content = read_bytes(source, label)
        image, stream, raw = _open(io.BytesIO(content), label, max_pixels)
        held.enter_context(MEMORY.hold(BYTES_PER_PIXEL * image.width * image.height))
        if image.format not in JPEGS:
            image.load()  # Pillow rotates a TIFF while loading; a PNG may have its EXIF after the pixels
        metadata = _metadata(image, stream, content, raw)
    turn, (upright_width, upright_height) = _turn(metadata.exif), metadata.upright_size
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
        exif = _exif(image.getexif)
        turn = _turn(exif)
        return exif, np.array(rgb if turn is None else rgb.transpose(turn))


def is_truncated(photo: str | Path) -> bool:
    """Whether a file is a JPEG without its end; it can be decoded if at least `MIN_ROWS` of its rows are present."""
    try:
        return read_metadata(photo).truncated
    except PhotoError:
        return False


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


def _name_of(source: Source) -> str:
    if isinstance(source, str | Path):
        return str(source)
    given = getattr(source, "name", None)
    return given if isinstance(given, str) else "photo without a name"


@contextmanager
def _stream(source: Source, label: str) -> Iterator[BinaryIO]:
    """A context with the seekable stream of a source; a file is closed at its end."""
    if isinstance(source, bytes):
        yield io.BytesIO(source)
        return
    if not isinstance(source, str | Path):
        yield source if source.seekable() else io.BytesIO(source.read())
        return
    with open_file(source, label) as file:
        yield file


def open_file(path: str | Path, name: str, what: str = "photo") -> io.BufferedReader:
    """Open a regular file (see `open_regular`); raises PhotoError with `name`, also for a file that is almost empty:
    decoders would search its zeros, which take no space on the disk, for hours."""
    try:
        file = open_regular(path)
    except FileNotFoundError:
        raise PhotoError(name, "no such file") from None
    except PermissionError:
        raise PhotoError(name, "permission denied: it cannot be read by this user") from None
    except IsADirectoryError:
        raise PhotoError(name, f"is a folder, not a {what}") from None
    except OSError as error:
        raise PhotoError(name, f"cannot be read: {error.strerror}") from error
    status = os.fstat(file.fileno())
    if status.st_size > SPARSE_BYTES and 0 < 512 * status.st_blocks < MIN_STORED * status.st_size:
        file.close()
        raise PhotoError(
            name,
            f"is a sparse file: of its {status.st_size:,} bytes {512 * status.st_blocks:,} are stored, the others are "
            "zeros; its copy or download is not complete",
        )
    return file


def read_bytes(source: Source, name: str) -> bytes:
    """The content of a photo's file; of a file that does not begin as a photo, only the beginning.

    Raises PhotoError, which calls it `name`, if it cannot be read or is larger than `LARGEST_FILE`.
    """
    if isinstance(source, bytes):
        return source
    with pillow_errors(name), _stream(source, name) as stream:
        stream.seek(0)
        head = stream.read(12)
        if not head.startswith(BEGINNINGS) and head[4:8] != b"ftyp":
            return head
        content = head + stream.read(LARGEST_FILE)
    if len(content) > LARGEST_FILE:
        raise PhotoError(name, f"the file has more than {LARGEST_FILE / 1e9:g} GB: use a smaller copy")
    return content


def _open(stream: BinaryIO, label: str, max_pixels: int) -> tuple[Image.Image, BinaryIO, RawFile | None]:
    """The opened photo, the stream of its pixels, and the RAW file whose preview it is, if it is one."""
    raw = open_raw(read_bytes(stream, label), label, max_pixels) if is_raw(stream) else None
    pixels = stream if raw is None else io.BytesIO(raw.preview)
    image = _image(pixels, label, max_pixels)
    if raw is not None and max(image.size) < LEAST_PREVIEW_PX:
        width, height = image.size
        raise PhotoError(label, f"the preview in this RAW file has only {width} x {height} px: export it as a JPEG")
    return image, pixels, raw


def _image(stream: BinaryIO, label: str, max_pixels: int) -> Image.Image:
    """The opened photo, of which only the header is read."""
    stream.seek(0)
    head = stream.read(12)
    if not head:
        raise PhotoError(label, "the file is empty (0 bytes)")
    if head[:2] == START_OF_IMAGE:
        check_jpeg_header(stream, label)
        stream.seek(0)
    try:
        image = Image.open(stream, formats=FORMATS)
    except UnidentifiedImageError:
        # "mif1" is a brand of AVIF and HEIC, so AVIF is tried first.
        if head[4:8] != b"ftyp" or head[8:12] not in HEIC_BRANDS:
            raise
        stream.seek(0)
        image = need("pillow_heif", "heic").HeifImageFile(stream)
    width, height = image.size
    if width * height > max_pixels:
        raise PhotoError(
            label,
            f"{width} x {height} px is more than the limit of {max_pixels / 1e6:g} megapixels: use a smaller copy",
        )
    return image


def _metadata(image: Image.Image, stream: BinaryIO, content: bytes | None, raw: RawFile | None) -> PhotoMetadata:
    """What the file of an opened photo says of it; `content`: all of it, if it was read."""
    xmp, is_jpeg = image.info.get("xmp"), image.format in JPEGS
    if image.format == "PNG" and not any(tag in (content or all_of(stream)) for tag in PNG_EXIF):
        exif = Image.Exif()  # Pillow would decode the pixels to look for it behind them
    else:
        exif = _exif(image.getexif)
    if raw is not None:
        orientation = raw.preview_orientation(exif.get(ExifTags.Base.Orientation), *image.size)
        exif = _exif(raw.read_exif) or exif
        exif[ExifTags.Base.Orientation] = orientation
        xmp = exif.get(ExifTags.Base.XMLPacket, xmp)
    return PhotoMetadata(
        *image.size,
        RAW if raw is not None else image.format or "",
        exif,
        xmp.encode() if isinstance(xmp, str) else xmp if isinstance(xmp, bytes) else None,
        is_jpeg and lacks_end(stream),
        None if content is None else hashlib.sha256(content).digest(),
    )


def _exif(read: Callable[[], Image.Exif]) -> Image.Exif:
    """The EXIF of an opened photo, with the parts that are read later; without those that are damaged."""
    try:
        exif = read()
    except Exception:  # damaged: the pixels are used as they are
        return Image.Exif()
    for part in (ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo):
        try:
            exif.get_ifd(part)  # from now on in memory
        except Exception:
            whole, exif = exif, Image.Exif()
            exif.update({tag: value for tag, value in whole.items() if tag != part})
    return exif


def _turn(exif: Image.Exif) -> Turn | None:
    return TURNS.get(exif.get(ExifTags.Base.Orientation, 1))


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
    if share < MIN_ROWS or (progressive and not shows_all_detail(scans_of(content)[0])):
        missing = "the details are" if progressive else f"{1 - share:.0%} of the rows are"
        raise PhotoError(label, f"truncated: {missing} missing")
    return rgb, box


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
