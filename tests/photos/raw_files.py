"""Small RAW files: a DNG and a RAF with a JPEG preview, EXIF, a position and an image of 64 x 48 sensor values."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
from PIL import Image

from sareloc.photos import Estimate, Geotag
from sareloc.photos.write_geotags import with_gps

BYTE, ASCII, SHORT, LONG = 1, 2, 3, 4
Tags = dict[int, tuple[int, bytes]]


def jpeg(width: int, height: int, seed: int = 0) -> bytes:
    """A JPEG whose left half is dark."""
    pixels = np.random.default_rng(seed).integers(128, 256, (6, 8, 3), dtype=np.uint8)
    pixels[:, :4] //= 8
    file = io.BytesIO()
    Image.fromarray(pixels).resize((width, height), Image.Resampling.NEAREST).save(file, "JPEG", quality=90)
    return file.getvalue()


def make_dng(
    preview: bytes | None,
    geotag: Geotag | None = None,
    estimate: Estimate | None = None,
    *,
    orientation: int = 1,
    taken: str = "2024:05:31 12:00:00",
) -> bytes:
    """A DNG; preview: a JPEG, None: without one."""
    sensor = np.arange(64 * 48, dtype="<u2").tobytes()
    exif_tags: Tags = {36867: (ASCII, taken.encode() + b"\0")}
    size = (0, 0) if preview is None else Image.open(io.BytesIO(preview)).size
    at = 8
    blocks: list[bytes] = []

    def place(block: bytes) -> int:
        nonlocal at
        blocks.append(block + b"\0" * (len(block) % 2))
        start, at = at, at + len(blocks[-1])
        return start

    sensor_at = place(sensor)
    preview_at = place(preview or b"")
    raw_tags: Tags = {
        254: _long(0), 256: _long(64), 257: _long(48), 258: _short(16), 259: _short(1), 262: _short(32803),
        273: _long(sensor_at), 277: _short(1), 278: _long(48), 279: _long(len(sensor)),
        33421: (SHORT, struct.pack("<HH", 2, 2)), 33422: (BYTE, bytes([0, 1, 1, 2])),
    }  # fmt: skip
    raw_at, exif_at = place(_directory(raw_tags, at)), 0
    exif_at = place(_directory(exif_tags, at))
    first: Tags = {
        254: _long(1), 271: (ASCII, b"Little\0"), 272: (ASCII, b"Camera\0"), 274: _short(orientation),
        330: _long(raw_at), 34665: _long(exif_at), 50706: (BYTE, bytes([1, 4, 0, 0])),
        50708: (ASCII, b"Little Camera\0"),
    }  # fmt: skip
    if preview is not None:
        first |= {
            256: _long(size[0]), 257: _long(size[1]), 258: (SHORT, struct.pack("<HHH", 8, 8, 8)), 259: _short(7),
            262: _short(6), 273: _long(preview_at), 277: _short(3), 278: _long(size[1]), 279: _long(len(preview)),
        }  # fmt: skip
    first_at = place(_directory(first, at))
    dng = b"II*\0" + struct.pack("<I", first_at) + b"".join(blocks)
    return dng if geotag is None else with_gps(dng, geotag, estimate)


def make_raf(preview: bytes) -> bytes:
    """A RAF; preview: a JPEG whose first segment is its EXIF, as cameras write it, and the only one of the file."""
    size, sensor, at = (48, 64), np.full(48 * 64, 500, "<u2").tobytes(), 160
    tags = struct.pack(">I4H4H", 2, 0x100, 4, *size, 0x121, 4, *size)
    tags_at = at + len(preview) + len(preview) % 2
    sensor_at = tags_at + len(tags)
    model = b"FUJIFILMCCD-RAW 0201FF383501" + b"X100".ljust(32, b"\0") + b"0100" + bytes(20)
    index = struct.pack(">6I", at, len(preview), tags_at, len(tags), sensor_at, len(sensor))
    return (model + index).ljust(at, b"\0") + preview.ljust(tags_at - at, b"\0") + tags + sensor


def write_dng(path: Path, geotag: Geotag | None = None, *, seed: int = 0) -> Path:
    """Write a DNG with a preview of 400 x 300 px."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(make_dng(jpeg(400, 300, seed), geotag))
    return path


def _long(value: int) -> tuple[int, bytes]:
    return LONG, struct.pack("<I", value)


def _short(value: int) -> tuple[int, bytes]:
    return SHORT, struct.pack("<H", value)


def _directory(tags: Tags, at: int) -> bytes:
    """A directory at this offset, with the values that do not fit into it behind it."""
    values_at, entries, values = at + 2 + 12 * len(tags) + 4, b"", b""
    for tag, (kind, value) in sorted(tags.items()):
        count = len(value) // {BYTE: 1, ASCII: 1, SHORT: 2, LONG: 4}[kind]
        held = value.ljust(4, b"\0")
        if len(value) > 4:
            held = struct.pack("<I", values_at + len(values))
            values += value + b"\0" * (len(value) % 2)
        entries += struct.pack("<HHI", tag, kind, count) + held
    return struct.pack("<H", len(tags)) + entries + b"\0" * 4 + values
