"""Videos: their frames as upright RGB images, the times of the frames, and which frames to take along a track.

A frame is named by its time in seconds after the first frame. Which frame is shown at a time follows from the time
stamps in the file, so that a variable frame rate needs no special case.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sareloc import arrays
from sareloc.errors import ArgumentError, PhotoError, need
from sareloc.geo import ecef_from_wgs84
from sareloc.photos.decoding import SizeRule
from sareloc.photos.photo_file import MAX_PIXELS, Turn
from sareloc.photos.record import LATEST_S, Address, seconds_since_1970
from sareloc.photos.video_reader import TOLERANCE_S, VideoReader, borrowed_reader, open_container, video_stream

CLOCKS = ("com.apple.quicktime.creationdate", "creation_time")  # the former survives an export, and has a time zone
FIRST_YEAR = 1990  # clocks that are not set write 1904, 1970 or 1980
MOST_FRAMES = 5_000_000  # two days at 30 frames per second
MOST_TAKEN = 1_000_000  # frames along a track
MISSING_S = 1.0  # a video that ends this much before the end that its header says is truncated
CLOCKWISE_DEG = {Turn.ROTATE_270: 90, Turn.ROTATE_180: 180, Turn.ROTATE_90: 270}


@dataclass(frozen=True)
class Video:
    """The metadata of a video file."""

    path: Path
    width: int
    """Of the upright frames, in square pixels."""
    height: int
    duration_s: float | None
    """By the header, which a file that was cut off still has; None: unknown."""
    fps: float | None
    """Frames per second on average; None: unknown."""
    start: float | None
    """The time of the first frame in seconds since 1970, UTC; None if the file has no valid time.

    It is the creation time of the file: some cameras write local time, some the end of the recording.
    """
    rotation_deg: int
    """By which the frames are turned clockwise to be upright: 0, 90, 180 or 270."""


def read_video(path: str | Path) -> Video:
    """The metadata of a video. Raises PhotoError if it is missing, not a video, or has no frame to decode."""
    with borrowed_reader(path) as reader:
        height, width = reader.size
        stream, container = reader.stream, reader.container
        if stream.duration is not None:
            duration: float | None = float(stream.duration * stream.time_base)
        else:
            duration = None if container.duration is None else container.duration / 1e6
        return Video(
            Path(path),
            width,
            height,
            duration,
            float(stream.average_rate) if stream.average_rate else None,
            _start_time([container.metadata, stream.metadata]),
            CLOCKWISE_DEG.get(reader.turn, 0) if reader.turn is not None else 0,
        )


def frame_times(path: str | Path) -> arrays.Floats:
    """The times of all frames in seconds after the first one, ascending, read without decoding them.

    Of a truncated file: of the frames that are there (see `missing_end`). Raises PhotoError as `read_video` does, and
    if there is none, if there are more than `MOST_FRAMES`, or if they span more than eleven days.
    """
    with borrowed_reader(path) as reader:
        origin = reader.origin
    av = need("av", "video")
    with open_container(path) as container:
        stream = video_stream(container, path)
        times, frame_bytes = array("q"), 0
        packets, file_bytes = container.demux(stream), os.path.getsize(path)
        while True:
            try:
                packet = next(packets, None)
            except av.FFmpegError:  # a damaged or truncated file
                break
            if packet is None:
                break
            frame_bytes += packet.size
            if frame_bytes > 2 * file_bytes:
                raise PhotoError(path, "its index is damaged: it lists more bytes of frames than the file has")
            if packet.pts is not None and not packet.is_corrupt and not packet.is_discard:
                times.append(packet.pts)
                if len(times) > MOST_FRAMES:
                    raise PhotoError(path, f"it has more than {MOST_FRAMES:,} frames: split it")
        found = np.unique(np.array(times, dtype=np.int64))
        seconds = (found[found >= origin].astype(np.float64) - origin) * float(stream.time_base)
    if not len(seconds):
        raise PhotoError(path, "no frame of it can be read")
    if not seconds[-1] < LATEST_S:
        raise PhotoError(
            path,
            f"its time stamps are damaged: the last frame is {seconds[-1]:,.0f} s after the first, expected less "
            f"than {LATEST_S:,.0f} s",
        )
    return seconds


def frame_time(path: str | Path, time_s: float) -> float | None:
    """When a frame was taken, in seconds since 1970, by the clock of its video; None if that is unknown."""
    try:
        start = read_video(path).start
    except PhotoError:
        return None
    return None if start is None else start + time_s


def video_frames(path: str | Path, every_s: float = 1.0) -> tuple[list[Path], arrays.Floats]:
    """The addresses of frames of a video, one for every `every_s` seconds, and their times after the first frame.

    A frame is taken once: where the video has fewer frames, there are fewer. Raises PhotoError as `read_video` does.
    """
    if not 0 < every_s < math.inf:
        raise ArgumentError(f"the seconds between two frames must be greater than 0: found {every_s}")
    times = frame_times(path)
    first = np.ceil((times - TOLERANCE_S) / every_s)  # the first step at which each frame is shown, up to rounding
    steps = np.unique(np.concatenate([first, first + 1]).clip(min=0))
    wanted = steps[steps * every_s < times[-1] + TOLERANCE_S] * every_s
    shown = np.unique(np.searchsorted(times, wanted + TOLERANCE_S, side="right") - 1)
    return frame_addresses(path, times[shown]), times[shown]


def frame_addresses(path: str | Path, times: npt.ArrayLike) -> list[Path]:
    """The addresses of the frames of a video at these times, to the millisecond."""
    return [Address(Path(path), time_s=round(float(time), 3)).path for time in np.asarray(times)]


def missing_end(video: Video, times: npt.ArrayLike) -> str | None:
    """A sentence about a video whose frames, at `times`, end long before the end that its header says; else None."""
    last = float(np.max(times, initial=0.0))
    if video.duration_s is None or video.duration_s - last - (1 / video.fps if video.fps else 0) < MISSING_S:
        return None
    return f"{video.path}: truncated: {last:.1f} of {video.duration_s:.1f} s can be read, and were used"


def decode_frame(
    path: str | Path,
    time_s: float,
    *,
    size: SizeRule | None = None,
    name: str | None = None,
    max_pixels: int = MAX_PIXELS,
) -> arrays.Image:
    """The frame of `read_frame` at one size.

    Args:
        path: the video.
        time_s: seconds after the first frame.
        size: size rule; default: not resized.
        name: how errors call the frame; default: path#t=time.
        max_pixels: larger videos are refused.
    """
    return read_frame(path, time_s, (size,), name=name, max_pixels=max_pixels)[0][0]


def read_frame(
    path: str | Path,
    time_s: float,
    sizes: Sequence[SizeRule | None],
    *,
    name: str | None = None,
    max_pixels: int = MAX_PIXELS,
) -> tuple[tuple[arrays.Image, ...], tuple[int, int]]:
    """The frame shown at a time, as upright RGB images (H, W, 3) uint8 at several sizes; height and width of the video.

    The display rotation and the aspect ratio of the pixels are applied; resizing is that of `read_photo`. Frames in
    ascending order are decoded from one to the next; the result does not depend on the order.

    Args:
        path: the video.
        time_s: seconds after the first frame, to the millisecond.
        sizes: size rules; None: not resized.
        name: how errors call the frame; default: path#t=time.
        max_pixels: larger videos are refused.

    Raises:
        PhotoError: if the file is missing, not a video, damaged at that time, too large, or ends before.
    """
    label = name or f"{path}#t={time_s:.3f}"
    try:
        with borrowed_reader(path, max_pixels) as reader:
            return reader.images(time_s, sizes, label), reader.size
    except PhotoError as error:
        raise PhotoError(label, error.reason) from error


def frames(
    path: str | Path, times: Iterable[float], *, size: SizeRule | None = None
) -> Iterator[tuple[float, arrays.Image | PhotoError]]:
    """Each time and its frame as by `decode_frame`, or the PhotoError with the reason; one frame is in memory."""
    reader = VideoReader(path)
    try:
        for time_s in times:
            try:
                yield time_s, reader.images(time_s, (size,), f"{path}#t={time_s:.3f}")[0]
            except PhotoError as error:
                yield time_s, error
    finally:
        reader.close()


def times_every_m(
    track_times: npt.ArrayLike,
    track_latlon: npt.ArrayLike,
    *,
    start: float,
    duration_s: float,
    every_m: float,
    max_gap_s: float = 10.0,
) -> arrays.Floats:
    """The times in a video, in seconds after its start, at which the camera is `every_m` metres from the last one.

    `track_times` (N,) seconds since 1970, ascending, and `track_latlon` (N, 2) degrees: the track, with straight lines
    between its points; `start`: of the video, in the track's clock. The first time is the first of the video within the
    track. Distances are straight lines between the positions taken, so that the noise of a receiver at rest adds
    nothing. Where the track has no point for more than `max_gap_s`, there are no times. May be empty.
    """
    if not (every_m > 0 and duration_s >= 0 and max_gap_s > 0):
        raise ArgumentError(f"every_m and max_gap_s must be positive: found {every_m} and {max_gap_s}")
    moments = np.asarray(track_times, dtype=np.float64) - start
    points = ecef_from_wgs84(track_latlon)
    if len(moments) != len(points) or (np.diff(moments) < 0).any():
        raise ArgumentError(f"a track needs ascending times, one per position: found {len(moments)} and {len(points)}")
    taken: list[float] = []
    last: arrays.Floats | None = None
    for begin, end, a, b in zip(moments[:-1], moments[1:], points[:-1], points[1:], strict=True):
        first, final = max(begin, 0.0), min(end, duration_s)
        if end == begin or end - begin > max_gap_s or first > final:
            continue
        speed = (b - a) / (end - begin)
        at: float | None = first
        if last is not None:
            at = _time_away(a + speed * (first - begin) - last, speed, every_m, first, final)
        while at is not None:
            if len(taken) == MOST_TAKEN:
                raise ArgumentError(
                    f"more than {MOST_TAKEN:,} frames are {every_m:g} m apart on the track: check the track, or use "
                    "a larger every_m (--every-m)"
                )
            taken.append(float(at))
            last = a + speed * (at - begin)
            at = _time_away(np.zeros(3), speed, every_m, at, final)
    return np.array(taken, dtype=np.float64)


def _time_away(offset: arrays.Floats, speed: arrays.Floats, metres: float, first: float, final: float) -> float | None:
    """The first time in [first, final] at which |offset + speed (time - first)| >= metres; None if there is none."""
    missing = metres**2 - float(offset @ offset)
    if missing <= 0:
        return first
    a, half_b = float(speed @ speed), float(offset @ speed)
    if a == 0:
        return None
    time = first + (math.sqrt(half_b**2 + a * missing) - half_b) / a
    return time if time <= final else None


def _start_time(tags: Iterable[Any]) -> float | None:
    for name in CLOCKS:
        for metadata in tags:
            try:
                moment = datetime.fromisoformat(metadata.get(name, ""))
            except ValueError:
                continue
            if moment.year >= FIRST_YEAR:
                return seconds_since_1970(moment)
    return None
