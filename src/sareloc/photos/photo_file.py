"""A photo's file, opened within limits: its bytes, what it says of the photo, and Pillow's errors as PhotoErrors.

The pixels are decoded by `sareloc.photos.decoding`. Every problem of a file is raised as a PhotoError with its name.
"""

from __future__ import annotations

import io
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.JpegImagePlugin import MARKER as JPEG_MARKERS

from sareloc.errors import PhotoError, SarelocError, need
from sareloc.files import open_regular
from sareloc.photos.raw import FUJIFILM, LEAST_PREVIEW_PX, RAW, RawFile, is_raw, open_raw

Source = str | Path | bytes | BinaryIO

MAX_PIXELS = 200_000_000
"""The largest phone sensors have 200 megapixels; larger files are rejected before they are decoded."""

LARGEST_FILE = 1_500_000_000
"""Bytes of a photo's file: 200 megapixels of 16-bit colours, not compressed, are 1.2 GB."""
SPARSE_BYTES, MIN_STORED = 50_000_000, 0.01  # a larger file of which less is stored is not read
BEGINNINGS = (b"\xff\xd8", b"\x89PNG", b"RIFF", b"II", b"MM", FUJIFILM)
"""Of JPEG, PNG, WebP, TIFF and RAW; AVIF, HEIC and CR3 have "ftyp" after four bytes."""

FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "TIFF")  # no others: each decoder adds attack surface
HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
PNG_EXIF = (b"eXIf", b"Raw profile type exif")

JPEGS = ("JPEG", "MPO")
"""Pillow's names of the formats that begin as a JPEG."""
START_OF_IMAGE, END_OF_IMAGE, START_OF_SCAN = b"\xff\xd8", b"\xff\xd9", 0xDA
NO_LENGTH = {0x00, 0x01, *range(0xD0, 0xD9), 0xFF}  # after 0xFF: markers without content, and bytes that are no marker
MOST_SEGMENTS, MOST_EXIF_SEGMENTS, MOST_BETWEEN = 10_000, 64, 100_000  # before the pixels of a JPEG

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

    @property
    def upright_size(self) -> tuple[int, int]:
        """Width and height in pixels of the upright photo."""
        return (self.height, self.width) if turn_of(self.exif) in SIDEWAYS else (self.width, self.height)


def read_metadata(source: Source, *, name: str | None = None, max_pixels: int = MAX_PIXELS) -> PhotoMetadata:
    """The metadata in a photo's file, of which as little is read as is needed; the pixels are not decoded.

    Args:
        source: a file, its content, or a binary stream.
        name: how errors call a photo without a path.
        max_pixels: larger photos are refused.

    Raises:
        PhotoError: as `read_photo`.
    """
    label = name or label_of(source)
    with pillow_errors(label), _stream(source, label) as stream:
        return metadata_of(*open_photo(stream, label, max_pixels))


def find_metadata(source: Source) -> PhotoMetadata | None:
    """The metadata in a photo's file; None if it cannot be read."""
    try:
        return read_metadata(source)
    except PhotoError:
        return None


def label_of(source: object) -> str:
    """How errors call a photo: its path, or the name of its stream."""
    if isinstance(source, str | Path):
        return str(source)
    given = getattr(source, "name", None)
    return given if isinstance(given, str) else "photo without a name"


def _stream(source: Source, label: str) -> AbstractContextManager[BinaryIO]:
    """A context with the seekable stream of a source; a file is closed at its end."""
    if isinstance(source, bytes):
        return io.BytesIO(source)
    if isinstance(source, str | Path):
        return open_file(source, label)
    return nullcontext(source if source.seekable() else io.BytesIO(source.read()))


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


def all_of(stream: BinaryIO) -> bytes:
    """The content of a stream, from its beginning."""
    stream.seek(0)
    return stream.read()


def open_photo(stream: BinaryIO, label: str, max_pixels: int) -> tuple[Image.Image, BinaryIO, RawFile | None]:
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


def metadata_of(image: Image.Image, stream: BinaryIO, raw: RawFile | None) -> PhotoMetadata:
    """What the file of an opened photo says of it; see `open_photo`."""
    xmp, is_jpeg = image.info.get("xmp"), image.format in JPEGS
    if image.format == "PNG" and not any(tag in all_of(stream) for tag in PNG_EXIF):
        exif = Image.Exif()  # Pillow would decode the pixels to look for it behind them
    else:
        exif = exif_of(image.getexif)
    if raw is not None:
        orientation = raw.preview_orientation(exif.get(ExifTags.Base.Orientation), *image.size)
        exif = exif_of(raw.read_exif) or exif
        exif[ExifTags.Base.Orientation] = orientation
        xmp = exif.get(ExifTags.Base.XMLPacket, xmp)
    return PhotoMetadata(
        *image.size,
        RAW if raw is not None else image.format or "",
        exif,
        xmp.encode() if isinstance(xmp, str) else xmp if isinstance(xmp, bytes) else None,
        is_jpeg and lacks_end(stream),
    )


def exif_of(read: Callable[[], Image.Exif]) -> Image.Exif:
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


def turn_of(exif: Image.Exif) -> Turn | None:
    """The transposition that makes a photo upright, by its EXIF orientation; None: it is."""
    return TURNS.get(exif.get(ExifTags.Base.Orientation, 1))


def check_jpeg_header(stream: BinaryIO, label: str) -> None:
    """Raise PhotoError if a JPEG has more in front of its pixels than a camera writes.

    Pillow copies all EXIF segments for each further one, and reads bytes between segments one by one.
    """
    stream.seek(len(START_OF_IMAGE))
    segments = exif = other = 0
    while byte := stream.read(1):
        marker = (byte == b"\xff" and stream.read(1)) or b"\0"
        while marker == b"\xff":
            marker, other = stream.read(1), other + 1
        handler = JPEG_MARKERS.get(int.from_bytes(b"\xff" + marker, "big"), ("", "", None))[2]
        if marker == START_OF_SCAN.to_bytes() or not marker:
            return
        if handler is None:
            other += 1
        else:
            length = int.from_bytes(stream.read(2), "big")
            segments, exif = segments + 1, exif + (marker == b"\xe1" and stream.read(6) == b"Exif\0\0")
            stream.seek(length - 2 - (6 if marker == b"\xe1" else 0), os.SEEK_CUR)
        if segments > MOST_SEGMENTS or exif > MOST_EXIF_SEGMENTS or other > MOST_BETWEEN:
            raise PhotoError(
                label,
                f"damaged: more than {MOST_SEGMENTS:,} segments, {MOST_EXIF_SEGMENTS} of them EXIF, or "
                f"{MOST_BETWEEN:,} bytes between them precede its pixels",
            )


def lacks_end(stream: BinaryIO) -> bool:
    """Whether a JPEG has no end marker; all of it is read only if that is not its last two bytes."""
    stream.seek(-2, os.SEEK_END)
    return stream.read(2) != END_OF_IMAGE and not scans_of(all_of(stream))[1]


def scans_of(content: bytes) -> tuple[list[bytes], bool]:
    """The headers of a JPEG's scans, and whether it has its end marker."""
    headers: list[bytes] = []
    at = 2
    while 0 <= at < len(content) - 1:
        marker = content[at + 1]
        if content[at] != 0xFF or marker in NO_LENGTH:  # in the pixels of a scan
            at = content.find(b"\xff", at + 1 if content[at] != 0xFF or marker == 0xFF else at + 2)
        elif marker == END_OF_IMAGE[1]:
            return headers, True
        else:
            length = int.from_bytes(content[at + 2 : at + 4], "big")
            if marker == START_OF_SCAN:
                headers.append(content[at + 4 : at + 2 + length])
            at += 2 + length
    return headers, False


class _QuietPillow:
    """A context without Pillow's warnings and pixel limit (`MAX_PIXELS` is checked instead).

    Both are global to the process. Threads may overlap in any order, so the first to enter changes them and the last to
    leave restores them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._warnings = warnings.catch_warnings()
                self._warnings.__enter__()
                warnings.simplefilter("ignore")
                self._limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                Image.MAX_IMAGE_PIXELS = self._limit
                self._warnings.__exit__(None, None, None)


_QUIET = _QuietPillow()


@contextmanager
def pillow_errors(photo: str) -> Iterator[None]:
    """A context that silences Pillow's warnings and raises its errors (a dozen types) as PhotoError."""
    with _QUIET:
        try:
            yield
        except PhotoError:
            raise
        except SarelocError as error:
            raise PhotoError(photo, str(error)) from error
        except UnidentifiedImageError as unknown:
            raise PhotoError(photo, "not a JPEG, PNG, WebP, AVIF, TIFF, HEIC or RAW photo, or damaged") from unknown
        except Exception as error:
            why = str(error) or type(error).__name__
            raise PhotoError(photo, f"cannot be decoded: {why}") from error
