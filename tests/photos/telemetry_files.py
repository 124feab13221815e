"""Telemetry as cameras write it, byte by byte: GPMF and CAMM payloads, and MP4 files with a track of them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

Position = tuple[float, float]


def box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I", 8 + len(body)) + kind + body


def full(kind: bytes, *numbers: int) -> bytes:
    """A box of a version, flags, and 32-bit numbers."""
    return box(kind, struct.pack(f">{1 + len(numbers)}I", 0, *numbers))


def add_track(
    video: Path, payloads: Sequence[tuple[float, bytes]], form: bytes = b"gpmd", *, handler: bytes = b"meta"
) -> Path:
    """Add a data track of samples, each with its time in seconds, to an MP4 file; its index (moov) moves to the end."""
    content = bytearray(video.read_bytes())
    index = content.rindex(b"moov") - 4
    old = bytes(content[index + 8 : index + int.from_bytes(content[index : index + 4], "big")])
    content[index + 4 : index + 8] = b"skip"
    offsets, data = [], b""
    for _, payload in payloads:
        offsets.append(len(content) + 8 + len(data))
        data += payload
    times = [round(1000 * time) for time, _ in payloads]
    steps = [after - before for before, after in pairwise(times)] + [1000]
    count = len(payloads)
    table = box(
        b"stbl",
        box(b"stsd", struct.pack(">2I", 0, 1), box(form, bytes(6), b"\0\1")),
        full(b"stts", count, *(number for step in steps[:count] for number in (1, step))),
        full(b"stsc", 1, 1, 1, 1),
        full(b"stsz", 0, count, *(len(payload) for _, payload in payloads)),
        full(b"stco", count, *offsets),
    )
    reference = box(b"dinf", box(b"dref", struct.pack(">2I", 0, 1), full(b"url ")[:-4] + b"\0\0\0\1"))
    media = box(
        b"mdia",
        full(b"mdhd", 0, 0, 1000, sum(steps), 0),
        box(b"hdlr", bytes(8), handler, bytes(12), b"GoPro MET\0"),
        box(b"minf", box(b"gmhd", full(b"gmin", 0, 0, 0)), reference, table),
    )
    matrix = struct.pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
    header = box(b"tkhd", struct.pack(">6I", 1, 0, 0, 99, 0, sum(steps)), bytes(16), matrix, bytes(8))
    video.write_bytes(content + box(b"mdat", data) + box(b"moov", old, box(b"trak", header, media)))
    return video


def klv(key: bytes, kind: bytes, size: int, repeat: int, body: bytes) -> bytes:
    """An entry of GPMF; `kind` b"\\0" is a container."""
    return key + kind + struct.pack(">BH", size, repeat) + body + bytes(-len(body) % 4)


def device(*streams: bytes) -> bytes:
    """A payload of one device, whose streams are lists of entries."""
    return container(
        b"DEVC", klv(b"DVNM", b"c", 1, 6, b"Camera") + b"".join(container(b"STRM", one) for one in streams)
    )


def container(key: bytes, body: bytes) -> bytes:
    """An entry of entries."""
    return klv(key, b"\0", 1, len(body), body) if len(body) < 2**16 else klv(key, b"\0", 4, len(body) // 4, body)


SCALES = klv(b"SCAL", b"l", 4, 5, struct.pack(">5i", 10**7, 10**7, 1000, 1000, 100))


def gps5(
    points: Sequence[Position], utc: float | None = None, *, fix: int = 3, dop: float = 1.6, scales: bytes = SCALES
) -> bytes:
    """A payload of GPS5; `utc`: of its first position."""
    rows = b"".join(struct.pack(">5i", round(lat * 1e7), round(lon * 1e7), 0, 0, 0) for lat, lon in points)
    clock = b"" if utc is None else f"{datetime.fromtimestamp(utc, UTC):%y%m%d%H%M%S.%f}"[:16].encode()
    return device(
        klv(b"GPSF", b"L", 4, 1, struct.pack(">I", fix))
        + (klv(b"GPSU", b"U", 16, 1, clock) if clock else b"")
        + klv(b"GPSP", b"S", 2, 1, struct.pack(">H", round(100 * dop)))
        + scales
        + klv(b"GPS5", b"l", 20, len(points), rows)
    )


def gps9(rows: Sequence[tuple[float, float, float, float, int]], kinds: bytes = b"lllllllSS") -> bytes:
    """A payload of GPS9 rows: latitude, longitude, UTC, DOP, fix."""
    begin = datetime(2000, 1, 1, tzinfo=UTC).timestamp()
    body = b""
    for lat, lon, utc, dop, fix in rows:
        days, seconds = divmod(utc - begin, 86_400)
        numbers = (
            round(lat * 1e7),
            round(lon * 1e7),
            0,
            0,
            0,
            round(days),
            round(seconds * 1000),
            round(dop * 100),
            fix,
        )
        body += struct.pack(">7i2H", *numbers)
    scales = struct.pack(">9i", 10**7, 10**7, 1000, 1000, 100, 1, 1000, 100, 1)
    return device(
        klv(b"TYPE", b"c", 1, len(kinds), kinds)
        + klv(b"SCAL", b"l", 4, 9, scales)
        + klv(b"GPS9", b"?", 32, len(rows), body)
    )


def camm5(lat: float, lon: float) -> bytes:
    return struct.pack("<2H3d", 0, 5, lat, lon, 40.0)


def camm6(lat: float, lon: float, time: float, *, fix: int = 3, accuracy_m: float = 2.5) -> bytes:
    return struct.pack("<2Hdi2d7f", 0, 6, time, fix, lat, lon, 40.0, accuracy_m, 5.0, 0.0, 0.0, 0.0, 0.1)


def nmea(lat: float, lon: float, utc: float, *, status: str = "A") -> str:
    """An RMC sentence with its checksum."""
    moment = datetime.fromtimestamp(utc, UTC)
    places = "".join(
        f"{int(abs(degrees)):0{width}d}{abs(degrees) % 1 * 60:08.5f},{letters[degrees < 0]},"
        for degrees, width, letters in ((lat, 2, "NS"), (lon, 3, "EW"))
    )
    text = f"GPRMC,{moment:%H%M%S}.{moment.microsecond // 10_000:02d},{status},{places}0.0,0.0,{moment:%d%m%y},,,A"
    total = 0
    for letter in text:
        total ^= ord(letter)
    return f"${text}*{total:02X}"
