"""The formats in which cameras store positions inside videos: GoPro's GPMF, CAMM, NMEA logs, location tags.

Each reader adds rows of `ROW` to `Found`, with times of the video itself, and counts what it cannot read. Nothing of a
file is trusted: sizes are compared with what is there before anything is made of them.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats
from sareloc.errors import DatasetError, PhotoError
from sareloc.photos.record import METHOD, seconds_since_1970
from sareloc.photos.tracks import MOST_POINTS, parse_nmea

MOST_ENTRIES = 10_000_000  # a GoPro writes some 200 a second
DAY_S, YEAR_2000 = 86_400.0, datetime(2000, 1, 1, tzinfo=UTC).timestamp()
GPS_EPOCH, LEAP_S = datetime(1980, 1, 6, tzinfo=UTC).timestamp(), 18.0  # since 2017

ROW = np.dtype([(name, "f8") for name in ("seconds", "latitude", "longitude", "fix", "dop", "accuracy_m", "clock")])
"""A position: seconds after the first frame, degrees, the dimensions of the fix (less than 2: none), dilution of
precision, accuracy, UTC in seconds since 1970 by the receiver; NaN: unknown."""
Rows = npt.NDArray[np.void]

GPS9, GPS5, GPRI = "GoPro (GPMF, GPS9)", "GoPro (GPMF, GPS5)", "GoPro Karma (GPMF, GPRI)"
CAMM6, CAMM5 = "CAMM (GPS)", "CAMM (positions)"
LOG, LOCATION = "NMEA log of a dashcam", "location tag, the start alone"
SIDECAR, ESTIMATE = "XMP sidecar, the start alone", "estimated by sareloc, the start alone"
STARTS = (LOCATION, SIDECAR, ESTIMATE)
"""One position, of the first frame."""
KINDS = (GPS9, GPS5, GPRI, CAMM6, CAMM5, LOG, *STARTS)
"""Of a video that has several, the first with usable positions is used."""
RETIMED = (GPS9, GPRI)
"""Kinds whose positions have a time of the receiver each, and of the video only together."""


class Payload(NamedTuple):
    """A sample of a telemetry track."""

    seconds: float
    """After the first frame."""
    duration_s: float
    content: memoryview


@dataclass
class Found:
    """The positions so far, and what could not be read."""

    file: Path
    created: float | None
    """When the video was recorded, by its header."""
    rows: dict[str, list[Rows]] = field(default_factory=dict)
    """By kind."""
    problems: Counter[str] = field(default_factory=Counter)
    boots: list[float] = field(default_factory=list)
    """UTC when the clock of a drone was 0."""
    entries: int = 0
    points: int = 0

    def add(self, kind: str, rows: Rows) -> None:
        """Add positions. Raises PhotoError if there are too many."""
        self.points += len(rows)
        if self.points > MOST_POINTS:
            raise PhotoError(self.file, f"its telemetry has more than {MOST_POINTS:,} positions: split it")
        self.rows.setdefault(kind, []).append(rows)

    def count_entry(self) -> None:
        """Raises PhotoError if there are too many entries or packets."""
        self.entries += 1
        if self.entries > MOST_ENTRIES:
            raise PhotoError(self.file, f"its telemetry has more than {MOST_ENTRIES:,} entries")

    def sentences(self) -> list[str]:
        """What could not be read."""
        return [f"not read, {problem}: {count:,}" for problem, count in self.problems.items()]


def _empty(count: int) -> Rows:
    rows = np.empty(count, ROW)
    for name in ROW.names or ():
        rows[name] = np.nan
    return rows


# -- GoPro: https://github.com/gopro/gpmf-parser -----------------------------------------------------------------------

KLV = struct.Struct(">4sBBH")  # key, type, bytes of an element, elements
CODES = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8")
NUMBERS = {letter: np.dtype(f">{code}") for letter, code in zip("bBsSlLjJfd", CODES, strict=True)}
TYPES = re.compile(r"([A-Za-z])(?:\[(\d{1,3})\])?")
MOST_COLUMNS = 255  # an element has as many bytes at most
COLUMNS = {b"GPS9": 9, b"GPS5": 2, b"GPRI": 9, b"SYST": 2}
"""The numbers of an element that are needed, at least."""


class _Entry(NamedTuple):
    key: bytes
    kind: int
    size: int
    """Of an element."""
    repeat: int
    body: memoryview


def _entries(content: memoryview, found: Found) -> Iterator[_Entry]:
    """The entries of one level. Raises ValueError where one is longer than what holds it."""
    at = 0
    while at + KLV.size <= len(content):
        found.count_entry()
        key, kind, size, repeat = KLV.unpack_from(content, at)
        if key == b"\0\0\0\0":  # padding
            return
        begin, length = at + KLV.size, size * repeat
        if begin + length > len(content):
            raise ValueError("GPMF payloads that are cut off or damaged")
        yield _Entry(key, kind, size, repeat, content[begin : begin + length])
        at = begin + -(-length // 4) * 4


def read_gpmf(payloads: Iterator[Payload], found: Found) -> None:
    """Read the positions of GPMF payloads: devices (DEVC) of streams (STRM) of entries; deeper ones are not read."""
    for payload in payloads:
        try:
            for device in _entries(payload.content, found):
                for stream in _entries(device.body, found) if device.key == b"DEVC" else ():
                    if stream.key == b"STRM":
                        _read_stream(payload, stream, found)
        except ValueError as damage:
            found.problems[str(damage)] += 1
    for rows in found.rows.get(GPRI, ()):
        rows["clock"] += np.median(found.boots) if found.boots else np.nan


def _read_stream(payload: Payload, stream: _Entry, found: Found) -> None:
    """Read the positions of a stream, evenly over the time of the payload; entries before them describe them."""
    before: dict[bytes, _Entry] = {}
    for entry in _entries(stream.body, found):
        before[entry.key] = entry
        if entry.key not in COLUMNS or not entry.repeat:
            continue
        try:
            table = _scaled(entry, before)
        except ValueError as problem:
            found.problems[f"{entry.key.decode()} {problem}"] += 1
            continue
        rows = _empty(len(table))
        rows["seconds"] = payload.seconds + payload.duration_s * np.arange(len(table)) / len(table)
        if entry.key == b"GPS9":
            rows["latitude"], rows["longitude"], rows["dop"], rows["fix"] = table.T[[0, 1, 7, 8]]
            rows["clock"] = YEAR_2000 + DAY_S * table[:, 5] + table[:, 6]
            found.add(GPS9, rows)
        elif entry.key == b"GPS5":
            rows["latitude"], rows["longitude"] = table.T[:2]
            rows["fix"], rows["dop"] = _first(before, b"GPSF"), _first(before, b"GPSP") / 100
            rows["clock"][0] = _gps_utc(before)  # of the first position of the payload
            found.add(GPS5, rows)
        elif entry.key == b"GPRI":
            for name, column in (("clock", 0), ("latitude", 1), ("longitude", 2), ("accuracy_m", 4), ("fix", 8)):
                rows[name] = table[:, column]
            found.add(GPRI, rows)
        else:  # the clock of a drone, and UTC
            found.boots += (table[:, 1] - table[:, 0]).tolist()


def _first(before: Mapping[bytes, _Entry], key: bytes) -> float:
    """The first number of an entry; NaN if there is none."""
    try:
        return float(_table(before[key], before)[0, 0])
    except (KeyError, IndexError, ValueError):
        return np.nan


def _gps_utc(before: Mapping[bytes, _Entry]) -> float:
    """GPSU, yymmddhhmmss.sss, in seconds since 1970; NaN if it is missing or not valid."""
    try:
        text = bytes(before[b"GPSU"].body[:16]).decode("ascii")
        return seconds_since_1970(datetime.strptime(text, "%y%m%d%H%M%S.%f").replace(tzinfo=UTC))
    except (KeyError, ValueError):
        return np.nan


def _scaled(entry: _Entry, before: Mapping[bytes, _Entry]) -> Floats:
    """The numbers (N, C) of an entry, divided by the scales before it. Raises ValueError if it cannot be read."""
    table = _table(entry, before)
    if table.shape[1] < COLUMNS[entry.key]:
        raise ValueError("entries with too few numbers")
    if b"SCAL" not in before:
        raise ValueError("entries without a scale (SCAL)")
    scales = _table(before[b"SCAL"], before).ravel()
    if len(scales) not in (1, table.shape[1]) or not (np.isfinite(scales) & (scales != 0)).all():
        raise ValueError("entries whose scale (SCAL) does not fit")
    return np.asarray(table / scales)


def _table(entry: _Entry, before: Mapping[bytes, _Entry]) -> Floats:
    """The numbers (N, C) of an entry, whose type may be a structure (TYPE). Raises ValueError if it is not read."""
    letter = chr(entry.kind)
    if letter == "?":
        if b"TYPE" not in before:
            raise ValueError("entries without a type (TYPE)")
        parts = TYPES.findall(bytes(before[b"TYPE"].body[:MOST_COLUMNS]).decode("latin-1"))
        letters = [one for one, count in parts for _ in range(min(int(count or 1), MOST_COLUMNS))]
    else:
        letters = [letter] * (entry.size // NUMBERS[letter].itemsize if letter in NUMBERS else 1)
    if not set(letters) <= NUMBERS.keys():
        raise ValueError("entries of a type that is not read")
    record = np.dtype([(str(column), NUMBERS[one]) for column, one in enumerate(letters[: MOST_COLUMNS + 1])])
    if not letters or record.itemsize != entry.size:
        raise ValueError("entries whose type does not fit their size")
    table = np.frombuffer(entry.body, record, entry.repeat)
    return np.stack([table[name].astype(np.float64) for name in record.names or ()], axis=1)


# -- CAMM: https://developers.google.com/streetview/publish/camm-spec --------------------------------------------------

PACKETS = {0: 16, 1: 12, 2: 16, 3: 16, 4: 16, 5: 28, 6: 60, 7: 16}
"""Bytes of a packet by its type."""


def read_camm(payloads: Iterator[Payload], found: Found) -> None:
    """Read the positions of CAMM packets, little-endian: 5 (latitude, longitude) and 6 (also time, fix, accuracy)."""
    for payload in payloads:
        content, at = payload.content, 0
        while at + 4 <= len(content):
            found.count_entry()
            kind = int.from_bytes(content[at + 2 : at + 4], "little")
            size = PACKETS.get(kind, 0)
            if not size or at + size > len(content):
                found.problems["CAMM samples that are cut off or of an unknown type"] += 1
                break
            if kind in (5, 6):
                row = _empty(1)
                row["seconds"] = payload.seconds
                if kind == 5:
                    row["latitude"], row["longitude"] = struct.unpack_from("<2d", content, at + 4)
                else:
                    time, row["fix"], row["latitude"], row["longitude"], _, row["accuracy_m"] = struct.unpack_from(
                        "<di2d2f", content, at + 4
                    )
                    row["clock"] = _utc_of_camm(time, found.created)
                found.add(CAMM5 if kind == 5 else CAMM6, row)
            at += size


def _utc_of_camm(time: float, created: float | None) -> float:
    """Seconds since the GPS epoch as UTC; some programs write seconds since 1970, which the file's header shows."""
    by_standard = GPS_EPOCH - LEAP_S + time
    return time if created is not None and abs(time - created) < abs(by_standard - created) else by_standard


READERS: Mapping[bytes, Callable[[Iterator[Payload], Found], None]] = {b"gpmd": read_gpmf, b"camm": read_camm}
"""By the format of a track."""

# -- logs and tags -----------------------------------------------------------------------------------------------------

STAMP = re.compile(rb"\[(\d{10,13})\]")
FIRST_FIX = re.compile(rb"\[(\d{10,13})\]\s{0,2}\$\w\wRMC,[^,\r\n]{0,20},A,")
APPLE_LOCATION = "com.apple.quicktime.location.ISO6709"
LOCATION_TAGS = (APPLE_LOCATION, "location", "location-eng")
NOTE_TAG = "com.apple.quicktime.location.note"
ACCURACY_TAG = "com.apple.quicktime.location.accuracy.horizontal"
ISO6709 = re.compile(r"([+-])(\d{2,6}(?:\.\d{1,12})?)([+-])(\d{3,7}(?:\.\d{1,12})?)(?:[+-]|/|CRS|$)")


def read_log(log: bytes, found: Found) -> None:
    """Read the NMEA sentences of a dashcam, each behind the milliseconds of its clock; the first is of the start."""
    try:
        track = parse_nmea(found.file, STAMP.sub(b"\n", log))
    except DatasetError:
        found.problems["dashcam logs without positions in NMEA sentences"] += 1
        return
    first, first_fix = STAMP.search(log), FIRST_FIX.search(log)
    delay_s = (int(first_fix[1]) - int(first[1])) / 1000 if first and first_fix else 0.0
    rows = _empty(len(track))
    rows["seconds"] = track.times - track.times[0] + delay_s
    rows["latitude"], rows["longitude"] = track.latlon.T
    rows["clock"] = track.times
    found.add(LOG, rows)


def read_location(tags: Mapping[str, str], found: Found) -> None:
    """Read where a phone was when it began to record (ISO 6709), and the estimate that `sareloc geotag` wrote."""
    names = [name for name in LOCATION_TAGS if name in tags]
    accuracy = tags.get(ACCURACY_TAG, "")
    if names[:1] == [APPLE_LOCATION] and METHOD in tags.get(NOTE_TAG, ""):
        _add_location(tags[names.pop(0)], "", ESTIMATE, found)
        accuracy = ""  # that of the estimate
    if names:
        _add_location(tags[names[0]], accuracy, LOCATION, found)


def _add_location(text: str, accuracy: str, kind: str, found: Found) -> None:
    match = ISO6709.match(text)
    if match is None:
        found.problems["location tag that is not ISO 6709"] += 1
        return
    accuracy_m = float(accuracy) if re.fullmatch(r"\d{1,7}(\.\d{1,9})?", accuracy) else math.nan
    add_start((_degrees(match[1], match[2], 2), _degrees(match[3], match[4], 3)), accuracy_m, kind, found)


def add_start(latlon: tuple[float, float], accuracy_m: float, kind: str, found: Found) -> None:
    """Add the position of the first frame, of one of the kinds `STARTS`."""
    row = _empty(1)
    row["seconds"], row["accuracy_m"] = 0.0, accuracy_m
    row["latitude"], row["longitude"] = latlon
    found.add(kind, row)


def _degrees(sign: str, digits: str, whole: int) -> float:
    """Degrees of an ISO 6709 number: its first `whole` digits are degrees, pairs after them minutes and seconds."""
    before, _, fraction = digits.partition(".")
    parts = [before[:whole], *re.findall(r"\d\d?", before[whole:])]
    parts[-1] += f".{fraction or 0}"
    degrees = sum(float(part) / (1.0, 60.0, 3600.0)[place] for place, part in enumerate(parts))
    return -degrees if sign == "-" else degrees
