"""The structure of a JPEG: its segments, its scans and its end, read without decoding its pixels."""

from __future__ import annotations

import os
from typing import BinaryIO

from PIL.JpegImagePlugin import MARKER as JPEG_MARKERS

from sareloc.errors import PhotoError

JPEGS = ("JPEG", "MPO")
"""Pillow's names of the formats that begin as a JPEG."""
START_OF_IMAGE, END_OF_IMAGE, START_OF_SCAN = b"\xff\xd8", b"\xff\xd9", 0xDA
NO_LENGTH = {0x00, 0x01, *range(0xD0, 0xD9), 0xFF}  # after 0xFF: markers without content, and bytes that are no marker
MOST_SEGMENTS, MOST_EXIF_SEGMENTS, MOST_BETWEEN = 10_000, 64, 100_000  # before the pixels of a JPEG


def all_of(stream: BinaryIO) -> bytes:
    """The content of a stream, from its beginning."""
    stream.seek(0)
    return stream.read()


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


def shows_all_detail(scans: list[bytes]) -> bool:
    """Whether the last scan of a progressive JPEG, with the lowest bit of the highest luma frequency, has started."""
    for scan in scans:
        components = scan[0] if scan else 0
        if len(scan) == 2 * components + 4 and scans[0][1] in scan[1 : 1 + 2 * components : 2]:
            last, low_bit = scan[-2], scan[-1] & 15
            if (last, low_bit) == (63, 0):
                return True
    return False
