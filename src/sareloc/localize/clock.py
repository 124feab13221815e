"""When photos and the frames of videos were taken: the order of a walk, and a video's clock against a track.

A video is localized as one walk. Its clock may be wrong: with a track that was recorded together with it, the positions
found say by how much. A video that holds positions itself (telemetry) has the clock of its GPS receiver, and its own
track.

    walk = read_video_walk("drive.mp4", every_s=2.0, clock=VideoClock(offset="-3.2s"))
    answer = localize_video(localizer, walk, track=read_tracks(["drive.gpx"]), estimate_offset=True)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sareloc.errors import PhotoError, PositionError
from sareloc.geo import Area, distance_m
from sareloc.localize.condition import UsedCondition
from sareloc.localize.estimate import Fix
from sareloc.localize.localizer import Localizes
from sareloc.localize.walk import walk_clock_offset
from sareloc.photos import ClockOffset, Telemetry, Track, parse_offset, read_time, read_video, video_frames
from sareloc.photos.clock import parse_moment
from sareloc.photos.collect import read_tables
from sareloc.photos.telemetry import find_telemetry
from sareloc.photos.track_geotags import NO_CLOCK
from sareloc.photos.tracks import utc
from sareloc.photos.videos import Video, missing_end

NO_TRACK = "the clock offset is estimated against a track, and the video holds none: name one (--track FILE)"
SPEED_MPS = 40.0
"""Largest speed of a camera that records a video: 144 km/h."""


@dataclass(frozen=True)
class VideoClock:
    """How the clock of a video is corrected. Raises ArgumentError for invalid options."""

    offset: float | str = 0.0
    """What to add to the camera's clock, in seconds or as text: -3.2s if it was 3.2 s fast; also 1h2m3s or
    +00:01:30."""
    start: str | None = None
    """When the first frame was taken, such as 2024-05-31T12:00:00Z; default: by the telemetry of the video, else by
    the header of the file."""

    def __post_init__(self) -> None:
        parse_offset(self.offset)
        if self.start is not None:
            parse_moment(self.start)

    def start_of(self, video: Video, telemetry: Telemetry | None = None) -> float | None:
        """When the first frame was taken, in seconds since 1970; None: unknown."""
        said = video.start if telemetry is None or telemetry.start is None else telemetry.start
        start = said if self.start is None else parse_moment(self.start)
        return None if start is None else start + parse_offset(self.offset)


@dataclass(frozen=True)
class VideoWalk:
    """Frames of a video, which are localized as one walk."""

    video: Path
    frames: tuple[Path, ...]
    """The T frames, each as its file and time: drive.mp4#t=12."""
    times: tuple[float | None, ...]
    """(T,) When they were taken, in seconds since 1970; None: unknown."""
    reach_m: float | tuple[float, ...]
    """The largest distance between two frames that follow each other; one number, or one for each of T - 1 steps."""
    track: Track | None = None
    """The positions inside the video."""
    notes: tuple[str, ...] = ()
    """A truncated file; how many positions are inside it, and which clock they have."""


@dataclass(frozen=True)
class VideoFixes:
    """What was found for the frames of a video."""

    fixes: tuple[Fix | PhotoError, ...]
    """(T,) Of each frame."""
    times: tuple[float | None, ...]
    """(T,) When the frames were taken, in seconds since 1970, with the estimated offset if there is one."""
    offset: ClockOffset | None = None
    """The offset of the video's clock that was estimated."""
    note: str | None = None
    """What the track says about the clock, in a sentence; None: there is no track."""


def read_video_walk(
    video: str | Path, every_s: float = 1.0, *, clock: VideoClock | None = None, step_m: float | None = None
) -> VideoWalk:
    """The frames of a video as a walk, and when they were taken.

    Args:
        video: the file.
        every_s: seconds between two frames.
        clock: how its clock is corrected; default: not at all.
        step_m: the largest distance in metres between two frames that follow each other; default: 40 m for each second
            between them.

    Raises:
        PhotoError: if the video cannot be read.
    """
    frames, times = video_frames(video, every_s)
    described, telemetry = read_video(video), find_telemetry(video)
    note = missing_end(described, times[-1:] + every_s)
    start = (clock or VideoClock()).start_of(described, telemetry)
    own = None if telemetry is None or telemetry.start is None or len(telemetry.track) == 1 else telemetry.track
    return VideoWalk(
        video=Path(video),
        frames=tuple(frames),
        times=tuple(None if start is None else start + time for time in times.tolist()),
        reach_m=tuple((SPEED_MPS * np.diff(times)).tolist()) if step_m is None else step_m,
        track=own,
        notes=(*(() if own is None else own.notes), *(() if note is None else (note,))),
    )


def localize_video(
    localizer: Localizes[Any],
    walk: VideoWalk,
    *,
    track: Track | None = None,
    estimate_offset: bool = False,
    near: Area | None = None,
    top: int = 5,
    condition: UsedCondition = "auto",
    progress: bool = False,
) -> VideoFixes:
    """Localize the frames of a video as one walk, and compare its clock with a track.

    Args:
        localizer: of the map, or of several.
        walk: see `read_video_walk`.
        track: recorded together with the video; default: that inside it.
        estimate_offset: estimate the offset of the video's clock against the track by the positions found, and add it
            to the times, unless it is ambiguous (see `walk_clock_offset`).
        near: search only there.
        top: how many matches each fix lists.
        condition: see `Localizer.localize_many`.
        progress: show a bar on standard error.
    """
    fixes = tuple(
        localizer.localize_walk(walk.frames, walk.reach_m, near=near, top=top, condition=condition, progress=progress)
    )
    track = track or walk.track
    if track is None:
        return VideoFixes(fixes, walk.times, note=NO_TRACK if estimate_offset else None)
    times = [time for time in walk.times if time is not None]
    if len(times) < len(walk.times):
        return VideoFixes(fixes, walk.times, note=NO_CLOCK)
    if not estimate_offset:
        return VideoFixes(fixes, walk.times, note=distance_from_track(fixes, times, track))
    try:
        offset = walk_clock_offset(fixes, times, track)
    except PositionError as error:
        return VideoFixes(fixes, walk.times, note=str(error))
    shifted = walk.times if offset.ambiguous else tuple(time + offset.seconds for time in times)
    return VideoFixes(fixes, shifted, offset, str(offset))


def distance_from_track(fixes: Sequence[Fix | PhotoError], times: Sequence[float], track: Track) -> str:
    """How far from a track, at the times of their frames, the positions are, in a sentence.

    Args:
        fixes: T answers.
        times: (T,) when the frames were taken, in seconds since 1970.
        track: recorded together with them.
    """
    at = track.at(np.array(times))
    away_m = [
        float(distance_m(fix.latlon, at.latlon[row]))
        for row, fix in enumerate(fixes)
        if isinstance(fix, Fix) and fix.latlon is not None and at.found[row]
    ]
    if not away_m:
        begins = f"the video begins at {utc(times[0])} UTC, the track has {track}"
        return f"none of the positions is of a time on the track: {begins}; check --clock-offset"
    return f"{len(away_m):,} positions are of times on the track, {np.median(away_m):.1f} m from it (median)"


def read_photo_times(files: Sequence[Path], given: Sequence[Path]) -> tuple[dict[Path, float | None], tuple[str, ...]]:
    """When each photo was taken, in seconds since 1970, and notes on the tables that were read.

    A time is that of a table beside the photos, else of `read_time`; None: unknown.

    Args:
        files: the photos.
        given: the folders and photos as the user named them, whose tables are read.
    """
    table = read_tables(given, None, files)
    tags = {file: table.tags.get(os.path.abspath(file)) for file in files}
    times = {file: read_time(file) if tag is None or tag.time is None else tag.time for file, tag in tags.items()}
    return times, tuple(table.notes)


def sort_by_time(files: Sequence[Path], times: Mapping[Path, float | None]) -> tuple[list[Path], tuple[str, ...]]:
    """The photos of a walk by the time they were taken, and notes; equal times keep the order given.

    If one has no time, all stay in the order given, and if others have one, a note says so.
    """
    known = [time for file in files if (time := times[file]) is not None]
    if len(known) == len(files):
        return [files[row] for row in sorted(range(len(files)), key=known.__getitem__)], ()
    if not known:
        return list(files), ()
    missing = len(files) - len(known)
    return list(files), (f"{missing:,} of {len(files):,} photos have no time: the walk is in the order given",)
