"""EXIF blocks inside JPEG, PNG, WebP and TIFF files: found and replaced, while all other bytes stay as they are.

A block is a TIFF header with directories, which `sareloc.photos.write_geotags.with_gps` extends. In a PNG it is the
chunk eXIf, in a WebP the chunk EXIF; a TIFF is such a block itself. Image data is never decoded or encoded.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Literal

from PIL import Image

from sareloc.photos.raw import TIFF

Kind = Literal["jpeg", "png", "webp", "tiff"]
Change = Callable[[bytes], bytes]
"""From an EXIF block, which may be `NO_TAGS`, to the one that replaces it. Raises ValueError if it is damaged."""

EXIF = b"Exif\0\0"
NO_TAGS = b"II*\0" + struct.pack("<IHI", 8, 0, 0)
JPEG_TAGS = b"II*\0" + struct.pack(  # the tags that EXIF requires of a JPEG: 72 dpi, chroma samples centred
    "<IH" + "HHII" * 4 + "IIIII", 8, 4, 0x011A, 5, 1, 62, 0x011B, 5, 1, 70, 0x0128, 3, 1, 2, 0x0213, 3, 1, 1, 0, 72, 1,
    72, 1,
)  # fmt: skip
LARGEST_SEGMENT = 0xFFFF - 2
START, SCAN, APP0, APP1 = b"\xff\xd8", 0xDA, 0xE0, 0xE1
PNG, PROFILE = b"\x89PNG\r\n\x1a\n", b"Raw profile type exif\0"
EXIF_FLAG, ALPHA_FLAG = 0x08, 0x10  # of the chunk VP8X
LARGEST_RIFF = 0xFFFFFFFE


def file_kind(start: bytes) -> Kind | None:
    """The kind of a file by its first twelve bytes; None: another one, of which no EXIF is written here."""
    if start.startswith(START):
        return "jpeg"
    if start.startswith(PNG):
        return "png"
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "webp"
    return "tiff" if start[:4] in TIFF else None


def change_exif(content: bytes, change: Change) -> bytes:
    """The bytes of a photo with its EXIF block changed; raises ValueError if it is damaged or of another kind."""
    kind = file_kind(content[:12])
    if kind is None:
        raise ValueError("it is not a JPEG, PNG, WebP or TIFF")
    return WRITERS[kind](content, change)


def change_jpeg(jpeg: bytes, change: Change) -> bytes:
    """A JPEG: its EXIF segments become one."""
    segments = _segments(jpeg)
    ours = [(at, end) for marker, at, end in segments if marker == APP1 and jpeg[at + 4 : end].startswith(EXIF)]
    old = b"".join(jpeg[at + 4 + len(EXIF) : end] for at, end in ours)
    payload = EXIF + change(old or JPEG_TAGS)
    if len(payload) > LARGEST_SEGMENT:
        raise ValueError(f"its EXIF would have {len(payload)} bytes, a JPEG allows at most {LARGEST_SEGMENT}")
    # Without EXIF the new segment follows the JFIF segment, which must be the first.
    start = ours[0][0] if ours else next((end for marker, _, end in segments[:1] if marker == APP0), len(START))
    result, kept_to = jpeg[:start] + struct.pack(">BBH", 0xFF, APP1, len(payload) + 2) + payload, start
    for at, end in ours:
        result += jpeg[kept_to:at]
        kept_to = end
    return result + jpeg[kept_to:]


def change_png(png: bytes, change: Change) -> bytes:
    """A PNG: the chunk eXIf, before the image data. EXIF in a text chunk, as ImageMagick writes it, is taken over."""
    chunks = []
    at = len(PNG)
    while at + 12 <= len(png):
        end = at + 12 + int.from_bytes(png[at : at + 4], "big")
        chunks.append((png[at + 4 : at + 8], at, end))
        at = end
        if chunks[-1][0] == b"IEND":
            break
    if not chunks or chunks[0][0] != b"IHDR" or chunks[-1][0] != b"IEND" or at > len(png):
        raise ValueError("it is damaged (its chunks do not end with IEND)")
    old = next((png[start + 8 : end - 4] for name, start, end in chunks if name == b"eXIf"), b"")
    profiles = {
        start
        for name, start, end in chunks
        if name[1:] in (b"TXt", b"EXt") and png[start + 8 : end].startswith(PROFILE)
    }
    if not old and profiles:
        with Image.open(io.BytesIO(png)) as image:
            image.load()
            old = image.getexif().tobytes().removeprefix(EXIF) if len(image.getexif()) else b""
    block = b"eXIf" + change(old or NO_TAGS)
    written = struct.pack(">I", len(block) - 4) + block + struct.pack(">I", zlib.crc32(block))
    result, done = [PNG], False
    for name, start, end in chunks:
        if name == b"IDAT" and not done:
            result.append(written)
            done = True
        if name != b"eXIf" and start not in profiles:
            result.append(png[start:end])
    return b"".join([*result, png[at:]])


def change_webp(webp: bytes, change: Change) -> bytes:
    """A WebP: the chunk EXIF behind the image data, and its flag in VP8X, which is added to a simple file."""
    size = 8 + int.from_bytes(webp[4:8], "little")
    chunks: list[tuple[bytes, bytes]] = []
    at = 12
    while at + 8 <= min(size, len(webp)):
        length = int.from_bytes(webp[at + 4 : at + 8], "little")
        chunks.append((webp[at : at + 4], webp[at + 8 : at + 8 + length]))
        if len(chunks[-1][1]) < length:
            raise ValueError("it is damaged (a chunk is cut)")
        at += 8 + length + length % 2
    names = [name for name, _ in chunks]
    if not {b"VP8X", b"VP8 ", b"VP8L"} & set(names[:1]):
        raise ValueError("it is damaged (no image data)")
    old = next((block for name, block in chunks if name == b"EXIF"), b"").removeprefix(EXIF)
    block = change(old or NO_TAGS)
    if names[0] == b"VP8X":
        header = bytes([chunks[0][1][0] | EXIF_FLAG]) + chunks[0][1][1:]
        chunks = chunks[1:]
    else:
        with Image.open(io.BytesIO(webp)) as image:
            (width, height), alpha = image.size, image.mode == "RGBA"
        header = bytes([EXIF_FLAG | (ALPHA_FLAG if alpha else 0), 0, 0, 0])
        header += (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    kept = [one for one in chunks if one[0] != b"EXIF"]
    images = max(row for row, (name, _) in enumerate(kept) if name in (b"VP8 ", b"VP8L", b"ANMF")) + 1
    body = b"WEBP" + b"".join(
        name + struct.pack("<I", len(part)) + part + b"\0" * (len(part) % 2)
        for name, part in [(b"VP8X", header), *kept[:images], (b"EXIF", block), *kept[images:]]
    )
    if len(body) > LARGEST_RIFF:
        raise ValueError("it would be larger than 4 GiB, which a WebP cannot be")
    return b"RIFF" + struct.pack("<I", len(body)) + body + webp[size + size % 2 :]


WRITERS: Mapping[Kind, Callable[[bytes, Change], bytes]] = {
    "jpeg": change_jpeg,
    "png": change_png,
    "webp": change_webp,
    "tiff": lambda tiff, change: change(tiff),
}


def _segments(jpeg: bytes) -> list[tuple[int, int, int]]:
    """Marker, start and end of each segment before the image data."""
    found: list[tuple[int, int, int]] = []
    at = len(START)
    while jpeg[at : at + 1] == b"\xff" and at + 4 <= len(jpeg):
        marker = jpeg[at + 1]
        if marker == SCAN:
            return found
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
        found.append((marker, at, end))
        at = end
    raise ValueError("it is damaged before the image data")
