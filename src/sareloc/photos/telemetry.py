"""Telemetry: the positions over time that a camera stores inside its videos, as a track.

Read are GoPro's GPMF (GPS9, GPS5, and GPRI of the Karma drone), CAMM (packets 5 and 6), the NMEA log of BlackVue
dashcams, and the location tag of phones, which is one position for the start, as is that of an XMP sidecar. Others are
named in the error.

The positions are stored with times of the video itself, so that its frames are placed by them without a clock. The
receiver's own time (UTC) says when the first frame was taken.

    telemetry = read_telemetry("drive.mp4")
    telemetry.track.at(telemetry.start + 12.3)      # where the camera was 12.3 s after the first frame
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from sareloc.errors import PhotoError
from sareloc.geo import ecef_from_wgs84
from sareloc.photos.boxes import boxes, first_box, top_boxes
from sareloc.photos.photo_file import open_file
from sareloc.photos.record import LATEST_S
from sareloc.photos.telemetry_formats import (
    ESTIMATE,
    KINDS,
    LOG,
    READERS,
    RETIMED,
    SIDECAR,
    STARTS,
    Found,
    Payload,
    Rows,
    add_start,
    read_location,
    read_log,
)
from sareloc.photos.tracks import LARGEST_BYTES, Track, make_track, utc
from sareloc.photos.video_reader import borrowed_reader
from sareloc.photos.videos import read_video
from sareloc.photos.xmp import read_sidecar_geotag
from sareloc.wording import plural

POOR_DOP = 10.0  # 1 is ideal, 10 is moderate: times the 3 m of a receiver under an open sky
POOR_M = 30.0
FASTEST_MPS, JITTER_M = 150.0, 20.0  # 540 km/h; and the noise of positions some milliseconds apart
TRIED_PARTS = 4
RETIMED_S = 2.0  # a receiver's own time is used up to here from that of its payload
SMALLEST_PAYLOAD, LARGEST_PAYLOAD = 20, 16_777_216  # bytes; a position needs more, a second of all sensors some 10 kB
MOST_PAYLOADS = 5_000_000
FIRST_CLOCK, LAST_CLOCK = (datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (2016, 2100))
"""Before, no camera wrote such telemetry: clocks that are not set say so, such as 2015."""

NOTHING = "it holds no positions: its frames are placed by a track, give one (--track FILE)"
CUT = "it is damaged: its index is cut off, where positions may be: copy it again, or give a track (--track FILE)"
APPLE = "mebx (Apple timed metadata)"  # rarely positions
UNREAD = {
    b"rtmd": "rtmd (Sony)",
    b"djmd": "djmd (DJI)",
    b"mett": "mett (Parrot)",
    b"mebx": APPLE,
    b"tx3g": "tx3g (subtitles, where some cameras write positions)",
    b"text": "text (subtitles, where some cameras write positions)",
    b"gps0": "gps0 (dashcams)",
    b"priv": "priv (dashcams)",
}
"""Formats of tracks that may hold positions and are not read."""
REPAIR = b"fdsc"  # GoPro's, to repair a file
NOVATEK = "freeGPS (Novatek dashcams)"
INSTA360, INSTA360_MARK = "Insta360 trailer", b"8db42d694ccc418790edff439fe026bf"


@dataclass(frozen=True, eq=False)
class Telemetry:
    """The positions over time inside a video."""

    kind: str
    """What they are stored as, such as GoPro (GPMF, GPS5)."""
    track: Track
    """Its times are seconds since 1970, or after the first frame if `start` is None. Its notes say how many positions
    there are, how accurate they are, which clock they have, and what was left out."""
    start: float | None
    """When the first frame was taken, in seconds since 1970, by the receiver, else by the file; None: unknown."""

    @property
    def estimated(self) -> bool:
        """Whether sareloc estimated the position (`sareloc geotag`): it is then not used as a true one."""
        return self.kind == ESTIMATE

    def starting_at(self, start: float) -> Telemetry:
        """The same with another time of the first frame, in seconds since 1970."""
        moved = replace(self.track, times=self.track.times - (self.start or 0.0) + start)
        return replace(self, track=moved, start=start)


@np.errstate(all="ignore")  # damaged numbers may be infinite
def read_telemetry(path: str | Path) -> Telemetry:
    """The positions inside a video, else that of its XMP sidecar, else one that sareloc estimated.

    Positions without a fix, with a poor one (DOP above 10, accuracy above 30 m), without a valid latitude and
    longitude, and jumps (more than 540 km/h) are left out. Raises PhotoError if the video cannot be read, holds no
    telemetry, or none with a usable position.
    """
    file, video = Path(path), read_video(path)
    inside, found = _Inside.read(file), Found(file, video.start)
    with borrowed_reader(path) as reader, open_file(file, str(file), "video") as opened:
        first_s = float(reader.origin * reader.stream.time_base)
        for stream in reader.container.streams:
            form = inside.formats.get(stream.id, b"")
            if form in READERS and stream.time_base:
                READERS[form](_payloads(opened, stream, first_s, found), found)
        read_location({str(name): str(value) for name, value in reader.container.metadata.items()}, found)
    if inside.log is not None:
        read_log(inside.log, found)
    beside = read_sidecar_geotag(file)
    if beside is not None:
        add_start(beside.latlon, math.nan, ESTIMATE if beside.estimated else SIDECAR, found)
    failures = []
    for kind in KINDS:
        if kind in found.rows:
            rows, left_out = _usable(np.concatenate(found.rows[kind]))
            if len(rows):
                others = inside.unread - {APPLE} if kind in STARTS else ()
                return _telemetry(found, kind, rows, left_out, [_name_unread(file, others)] if others else [])
            failures.append(f"{kind}: {', '.join(left_out) or 'empty'}")
    failures += found.sentences()
    if failures:
        reason = f"it holds telemetry without a usable position ({'; '.join(failures)})"
        raise PhotoError(path, f"{reason}: give a track (--track FILE)")
    if inside.is_cut:
        raise PhotoError(path, CUT)
    if inside.unread:
        raise PhotoError(path, _name_unread(file, inside.unread))
    raise PhotoError(path, NOTHING)


def read_measured(path: str | Path) -> Telemetry:
    """As `read_telemetry`; also raises PhotoError if sareloc estimated the position."""
    telemetry = read_telemetry(path)
    if telemetry.estimated:
        raise PhotoError(path, "its position was estimated by sareloc, which is no track: give one (--track FILE)")
    return telemetry


def find_telemetry(path: str | Path) -> Telemetry | None:
    """The positions inside a video (see `read_telemetry`); None if it holds none that are usable."""
    try:
        return read_telemetry(path)
    except PhotoError:
        return None


def _name_unread(file: Path, unread: Iterable[str]) -> str:
    extract = f"exiftool can extract it with exiftool -ee -p gpx.fmt {file.name} > {file.stem}.gpx"
    types = f"it holds a telemetry track of type {', '.join(sorted(unread))}, which is not read"
    return f"{types}: {extract}, then give --track {file.stem}.gpx"


def _telemetry(found: Found, kind: str, rows: Rows, left_out: list[str], others: list[str]) -> Telemetry:
    file, total, clock = found.file, sum(map(len, found.rows[kind])), rows["clock"]
    known = (clock >= FIRST_CLOCK) & (clock < LAST_CLOCK)
    by_receiver = bool(known.any())
    start = float(np.median((clock - rows["seconds"])[known])) if by_receiver else found.created
    unset = None if by_receiver or not np.isfinite(clock).any() else float(np.nanmin(clock))
    if start is not None and not (start < LAST_CLOCK and (start >= FIRST_CLOCK or kind in STARTS)):
        start, unset = None, start if unset is None else unset
    if start is not None and by_receiver and kind in RETIMED:
        own = clock - start
        rows["seconds"] = np.where(np.abs(own - rows["seconds"]) <= RETIMED_S, own, rows["seconds"])
    rows = rows[np.argsort(rows["seconds"], kind="stable")]
    steady = _without_jumps(rows)
    if not steady.all():
        left_out = [*left_out, f"{(~steady).sum():,} after jumps of more than {FASTEST_MPS * 3.6:g} km/h"]
    rows = rows[steady]
    count = f"{plural(len(rows), 'position')} {'of' if kind in (SIDECAR, ESTIMATE) else 'inside'} the video"
    notes = [f"{file}: {count}, {kind}, {_accuracy(rows)}; {_clock(start, by_receiver, unset)}"]
    if left_out:
        notes.append(f"{file}: of {plural(total, 'position')} were left out: {', '.join(left_out)}")
    if kind == LOG:
        others = ["its log is taken to begin with the first frame, which may be a second off", *others]
    notes += [f"{file}: {sentence}" for sentence in (*found.sentences(), *others)]
    columns = (rows["seconds"] + (start or 0.0), rows["latitude"], rows["longitude"])
    track = make_track(file, zip(*(column.tolist() for column in columns), strict=True), notes)
    assert track is not None  # `_usable` has checked the positions
    return Telemetry(kind, track, start)


def _clock(start: float | None, by_receiver: bool, unset: float | None) -> str:
    """Which clock says when the frames were taken, in words."""
    if start is not None and by_receiver:
        return f"its clock is that of the GPS, first frame at {utc(start)} UTC: no clock offset is needed"
    why = "" if unset is None else f" (a clock was not set: {utc(unset)})"
    when = "when it was recorded is unknown" if start is None else f"the file says that it begins at {utc(start)} UTC"
    return f"the positions are in the video's own time: no clock offset is needed; {when}{why}"


def _accuracy(rows: Rows) -> str:
    for name, words in (("accuracy_m", "accuracy {:.1f} m (median)"), ("dop", "DOP {:.1f} (median)")):
        if np.isfinite(rows[name]).any():
            return words.format(float(np.nanmedian(rows[name])))
    return "accuracy unknown"


def _usable(rows: Rows) -> tuple[Rows, list[str]]:
    """The rows with a fix that is good enough and a valid position, and how many are not, in words."""
    latitude, longitude = rows["latitude"], rows["longitude"]
    no_fix = rows["fix"] < 2
    poor = ~no_fix & ((rows["dop"] > POOR_DOP) | (rows["accuracy_m"] > POOR_M))
    placed = (np.abs(latitude) <= 90) & (np.abs(longitude) <= 180) & ((latitude != 0) | (longitude != 0))
    invalid = ~no_fix & ~poor & ~(placed & (np.abs(rows["seconds"]) < LATEST_S))
    words = (
        (no_fix, "without a fix"),
        (poor, f"with a poor fix (DOP above {POOR_DOP:g}, or accuracy above {POOR_M:g} m)"),
        (invalid, "without a valid position"),
    )
    left_out = [f"{mask.sum():,} {why}" for mask, why in words if mask.any()]
    return rows[~(no_fix | poor | invalid)], left_out


def _without_jumps(rows: Rows) -> npt.NDArray[np.bool_]:
    """Which of the rows, by time, belong to one movement at a possible speed.

    Where two that follow each other are too far apart, one of them is wrong. Each of the longest parts between such
    jumps is tried: what can be reached from it, forwards and backwards, is the movement. The one with the most rows is
    right, of equal ones that over the longest time.
    """
    points = ecef_from_wgs84(np.stack([rows["latitude"], rows["longitude"]], axis=1))
    seconds = rows["seconds"]
    steps_m = np.linalg.norm(np.diff(points, axis=0), axis=1)
    jumps = steps_m > JITTER_M + FASTEST_MPS * np.diff(seconds)
    firsts = np.flatnonzero(np.concatenate([[True], jumps])).tolist()
    lasts = [*(first - 1 for first in firsts[1:]), len(rows) - 1]
    places, times = (points.tolist(), seconds.tolist()) if len(firsts) > 1 else ([], [])

    def reachable(a: int, b: int) -> bool:
        return bool(math.dist(places[a], places[b]) <= JITTER_M + FASTEST_MPS * abs(times[b] - times[a]))

    best: tuple[int, float, list[int]] = (0, 0.0, [0])
    for main in sorted(range(len(firsts)), key=lambda part: firsts[part] - lasts[part])[:TRIED_PARTS]:
        parts, begin, end = [main], main, main
        for part in range(main - 1, -1, -1):
            if reachable(lasts[part], firsts[begin]):
                parts.append(part)
                begin = part
        for part in range(main + 1, len(firsts)):
            if reachable(lasts[end], firsts[part]):
                parts.append(part)
                end = part
        count = sum(lasts[part] - firsts[part] + 1 for part in parts)
        best = max(best, (count, float(seconds[lasts[end]] - seconds[firsts[begin]]), parts))
    kept = np.zeros(len(rows), dtype=bool)
    for part in best[2]:
        kept[firsts[part] : lasts[part] + 1] = True
    return kept


class _Inside(NamedTuple):
    """What the boxes of an MP4 file say about telemetry."""

    formats: dict[int, bytes]
    """Of its tracks, by their numbers."""
    log: bytes | None
    """A log of NMEA sentences in a box of its own."""
    unread: set[str]
    """Telemetry that is not read."""
    is_cut: bool
    """Whether the end of the index is missing."""

    @classmethod
    def read(cls, file: Path) -> _Inside:
        formats: dict[int, bytes] = {}
        log, unread, is_cut = None, set[str](), False
        with open_file(file, str(file), "video") as opened:
            for kind, body, is_whole in top_boxes(opened, (b"moov", b"free")):  # checked when the video was opened
                is_cut |= kind == b"moov" and not is_whole
                for name, content in boxes(body):
                    if (kind, name) == (b"moov", b"trak"):
                        number, form, handler = _track_format(content)
                        formats[number] = form
                        if form in UNREAD or (handler == b"meta" and form not in (*READERS, REPAIR, b"")):
                            unread.add(UNREAD.get(form) or ascii(form.decode("latin-1")))
                    elif (kind, name) == (b"moov", b"gps "):
                        unread.add(NOVATEK)
                    elif name == b"gps " and len(content) <= LARGEST_BYTES:
                        log = bytes(content)
            opened.seek(max(0, os.fstat(opened.fileno()).st_size - len(INSTA360_MARK)))
            if opened.read(len(INSTA360_MARK)) == INSTA360_MARK:
                unread.add(INSTA360)
        return cls(formats, log, unread, is_cut)


def _track_format(track: memoryview) -> tuple[int, bytes, bytes]:
    """The number of a track, the format of its samples and its handler; 0 and empty if they are absent."""
    header, media = first_box(track, b"tkhd"), first_box(track, b"mdia")
    at = 20 if bytes(header[:1]) == b"\1" else 12
    described = first_box(first_box(first_box(media, b"minf"), b"stbl"), b"stsd")
    return int.from_bytes(header[at : at + 4], "big"), bytes(described[12:16]), bytes(first_box(media, b"hdlr")[8:12])


def _payloads(file: BinaryIO, stream: Any, first_s: float, found: Found) -> Iterator[Payload]:
    """The samples of a data stream that are whole and can hold a position, by FFmpeg's index.

    Raises PhotoError if the index lists too many, or more than the file has.
    """
    entries, unit = stream.index_entries, float(stream.time_base)
    if len(entries) > MOST_PAYLOADS:
        raise PhotoError(found.file, f"its telemetry has {len(entries):,} samples, at most {MOST_PAYLOADS:,} are read")
    listed = [(entry.timestamp * unit - first_s, entry.pos, entry.size) for entry in entries]
    end = os.fstat(file.fileno()).st_size
    if sum(size for _, _, size in listed) > 2 * end:
        raise PhotoError(found.file, "its index is damaged: it lists more bytes of telemetry than the file has")
    steps = [after[0] - before[0] for before, after in pairwise(listed)]
    last = steps[-1:] or [1.0]  # the end of the last one is not in the index
    for (seconds, at, size), duration_s in zip(listed, steps + last, strict=False):
        if size < SMALLEST_PAYLOAD:
            continue
        if size > LARGEST_PAYLOAD or not 0 <= at <= end - size:
            found.problems["telemetry samples that are cut off or too large"] += 1
            continue
        file.seek(at)
        yield Payload(seconds, duration_s, memoryview(file.read(size)))
