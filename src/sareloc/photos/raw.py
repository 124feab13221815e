"""RAW files of cameras (NEF, CR2, CR3, ARW, DNG, ORF, RW2, RAF): the preview that the camera stored, and their EXIF.

The values of the sensor are not developed: the preview is the camera's own picture, mostly at full size, and reading it
needs neither the time nor the memory. LibRaw finds it (extra "raw"). EXIF is read here: most RAW files are TIFF files,
some with another magic number; CR3 has blocks of it in boxes, RAF only in the preview.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

from PIL import Image
from PIL.ExifTags import IFD

from sareloc.errors import PhotoError, need
from sareloc.photos.boxes import boxes

RAW_EXTENSIONS = (".nef", ".cr2", ".cr3", ".arw", ".dng", ".orf", ".rw2", ".raf")
RAW = "RAW"
"""The `PhotoMetadata.format` of RAW files."""
FUJIFILM, CR3, CR2 = b"FUJIFILM", b"ftypcrx ", b"CR\x02"
TIFF = {b"II*\0": "<", b"MM\0*": ">"}  # magic number -> byte order
NEARLY_TIFF = {b"IIU\0": b"II*\0", b"IIRO": b"II*\0", b"IIRS": b"II*\0", b"MMOR": b"MM\0*"}  # RW2, ORF
NEW_SUBFILE_TYPE, SUB_IFDS, DNG_VERSION = 254, 330, 50706
ITEM_BYTES = {2: 1, 3: 2, 4: 4, 5: 8, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8}  # by TIFF type; others: 1
CANON_BOX = bytes.fromhex("85c0b687820f11e08111f4ce462b6a48")
MOST_BOXES = 10_000
LEAST_PREVIEW_PX = 320
"""Of a preview's longer side: smaller ones are icons, which show too little of a place."""
ORIENTATIONS = {1: 2, 2: 4, 3: 3, 4: 5, 5: 8, 6: 6, 7: 7}  # LibRaw's flip -> EXIF orientation; else 1
NO_PREVIEW = "this RAW file has no embedded preview that can be read: export it as a JPEG"


@dataclass(frozen=True)
class RawFile:
    """What is used of a RAW file."""

    content: bytes
    preview: bytes
    """A JPEG file; a TIFF file of a preview that is stored as pixels."""
    orientation: int
    """EXIF orientation of the sensor's image."""
    is_wide: bool
    """Whether the sensor's image is wider than high."""

    def read_exif(self) -> Image.Exif:
        """The EXIF of the file; empty if only the preview has it. Raises as Pillow does if it is damaged."""
        exif = Image.Exif()
        if self.content[4:12] == CR3:
            blocks = dict(_canon_blocks(self.content))
            exif.load(blocks.get(b"CMT1", b""))
            for part, name in ((IFD.Exif, b"CMT2"), (IFD.GPSInfo, b"CMT4")):
                block = Image.Exif()
                block.load(blocks.get(name, b""))
                exif.get_ifd(part).update(block)
        elif not self.content.startswith(FUJIFILM):
            magic = NEARLY_TIFF.get(self.content[:4], self.content[:4])
            directory = _first_directory(io.BytesIO(self.content), TIFF[magic])
            if sum(count * ITEM_BYTES.get(kind, 1) for kind, count, _ in directory.values()) > 2 * len(self.content):
                raise ValueError("its EXIF claims to be larger than the file")
            exif.load(magic + self.content[4:])
        return exif

    def preview_orientation(self, own: int | None, width: int, height: int) -> int:
        """The EXIF orientation of the preview: 1 if it is high where the sensor is wide, for it is upright already.

        Args:
            own: that in the preview's EXIF, which counts before that of the file; None: there is none. LibRaw gives
                previews without EXIF that of the file.
            width: pixels of the preview.
            height: pixels.
        """
        if (width >= height) != self.is_wide:
            return 1
        return self.orientation if own is None else own


def is_raw(stream: BinaryIO) -> bool:
    """Whether a file is a RAW file, by its content.

    One that is TIFF has the version of DNG, or a first directory that holds a reduced image and points to others.
    """
    stream.seek(0)
    head = stream.read(16)
    if head.startswith((FUJIFILM, *NEARLY_TIFF)) or head[4:12] == CR3:
        return True
    order = TIFF.get(head[:4])
    if order is None:
        return False
    tags = _first_directory(stream, order)
    reduced = NEW_SUBFILE_TYPE in tags and tags[NEW_SUBFILE_TYPE][2] & 1 == 1
    return head[8:11] == CR2 or DNG_VERSION in tags or (reduced and SUB_IFDS in tags)


def open_raw(content: bytes, name: str, max_pixels: int) -> RawFile:
    """Find the preview of a RAW file.

    Args:
        content: of the file.
        name: how errors call it.
        max_pixels: a larger preview is refused.

    Raises:
        PhotoError: if LibRaw cannot read it, or finds no preview.
        MissingExtraError: without the extra "raw".
    """
    rawpy = need("rawpy", "raw")
    try:
        with rawpy.RawPy() as raw:
            raw.open_buffer(io.BytesIO(content))
            sizes, thumb = raw.sizes, raw.extract_thumb()
    except (rawpy.LibRawNoThumbnailError, rawpy.LibRawUnsupportedThumbnailError) as error:
        raise PhotoError(name, NO_PREVIEW) from error
    except rawpy.LibRawError as error:
        why = error.args[0] if error.args else ""
        said = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        raise PhotoError(name, f"damaged, or a RAW file that LibRaw does not know ({said})") from error
    preview = thumb.data
    if thumb.format == rawpy.ThumbFormat.BITMAP:
        height, width = preview.shape[:2]
        if height * width > max_pixels:
            raise PhotoError(name, f"its preview of {width} x {height} px is too large: export it as a JPEG")
        file = io.BytesIO()
        Image.fromarray(preview.squeeze()).save(file, "TIFF")
        preview = file.getvalue()
    elif thumb.format != rawpy.ThumbFormat.JPEG:
        raise PhotoError(name, NO_PREVIEW)
    return RawFile(content, bytes(preview), ORIENTATIONS.get(sizes.flip, 1), sizes.width >= sizes.height)


def _first_directory(stream: BinaryIO, order: str) -> dict[int, tuple[int, int, int]]:
    """Type, count and value of each tag in the first directory of a TIFF file; empty if it is outside the file."""
    stream.seek(4)
    try:
        stream.seek(struct.unpack(order + "I", stream.read(4))[0])
        (count,) = struct.unpack(order + "H", stream.read(2))
    except struct.error:
        return {}
    entries = stream.read(12 * count)
    found = {}
    for at in range(0, len(entries) - 11, 12):
        tag, kind, items = struct.unpack_from(order + "HHI", entries, at)
        value = struct.unpack_from(order + ("H" if kind == 3 else "I"), entries, at + 8)[0]
        found[tag] = kind, items, value
    return found


def _canon_blocks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The blocks of EXIF in a CR3 file by the names of their boxes, each a TIFF file of one directory."""
    for kind, index in _boxes(memoryview(content)):
        for inner, body in _boxes(index) if kind == b"moov" else ():
            if inner == b"uuid" and body[:16] == CANON_BOX:
                yield from ((name, bytes(block)) for name, block in _boxes(body[16:]))


def _boxes(content: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    return islice(boxes(content, whole=True), MOST_BOXES)
