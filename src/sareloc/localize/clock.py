"""When photos and the frames of videos were taken: the order of a walk, and a video's clock against a track.

A video is localized as one walk. Its clock may be wrong: with a track that was recorded together with it, the positions
found say by how much. A video that holds positions itself (telemetry) has the clock of its GPS receiver, and its own
track.

    walk = read_video_walk("drive.mp4", VideoOptions(every_s=2.0, track=(Path("drive.gpx"),), estimate_offset=True))
    answer = localize_video(localizer, walk)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sareloc.errors import ArgumentError, PhotoError, PositionError
from sareloc.geo import Area, distance_m
from sareloc.localize.condition import UsedCondition
from sareloc.localize.estimate import Fix
from sareloc.localize.localizer import Localizes
from sareloc.localize.walk import walk_clock_offset
from sareloc.photos import ClockOffset, Telemetry, Track, parse_offset, read_time, read_tracks, read_video, video_frames
from sareloc.photos.clock import parse_moment
from sareloc.photos.collect import read_tables
from sareloc.photos.telemetry import find_telemetry
from sareloc.photos.track_geotags import NO_CLOCK, ONE_START
from sareloc.photos.tracks import utc
from sareloc.photos.videos import Video, missing_end
from sareloc.wording import plural

NO_TRACK = "the clock offset is estimated against a track, and the video holds none: name one (--track FILE)"
SPEED_MPS = 40.0
"""Largest speed of a camera that records a video: 144 km/h."""


@dataclass(frozen=True)
class VideoOptions:
    """Which frames of videos are localized, and what is added to their clocks. Raises ArgumentError if invalid."""

    every_s: float = 1.0
    """Seconds between two frames that are localized."""
    track: tuple[Path, ...] = ()
    """GPX files or NMEA logs that were recorded with the videos; default: the positions inside the videos."""
    estimate_offset: bool = False
    """Estimate the offset of a video's clock against the track by the positions found, and add it to the times, unless
    it is ambiguous (see `walk_clock_offset`)."""
    clock_offset: float | str = 0.0
    """What to add to a video's clock, in seconds or as text: -3.2s if it was 3.2 s fast; also 1h2m3s or +00:01:30."""
    video_start: str | None = None
    """When the first frame of a video was taken, such as 2024-05-31T12:00:00Z; default: by the telemetry of the video,
    else by the header of the file."""

    def __post_init__(self) -> None:
        if parse_offset(self.clock_offset) and self.estimate_offset:
            raise ArgumentError("the clock offset is either given (--clock-offset) or estimated (--estimate-offset)")
        if self.video_start is not None:
            parse_moment(self.video_start)

    def start_of(self, video: Video, telemetry: Telemetry | None = None) -> float | None:
        """When the first frame was taken, in seconds since 1970; None: unknown."""
        said = video.start if telemetry is None or telemetry.start is None else telemetry.start
        start = said if self.video_start is None else parse_moment(self.video_start)
        return None if start is None else start + parse_offset(self.clock_offset)


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
    """That of the options, else the positions inside the video."""
    estimate_offset: bool = False
    """See `VideoOptions`."""
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


@dataclass(frozen=True)
class VideoWalks:
    """The walks of several videos."""

    walks: tuple[VideoWalk, ...]
    """Of those that can be read."""
    errors: tuple[PhotoError, ...]
    """Of the others."""
    notes: tuple[str, ...]
    """On the tracks and the videos."""


def read_video_walks(
    videos: Sequence[Path], options: VideoOptions | None = None, *, step_m: float | None = None
) -> VideoWalks:
    """The frames of videos, each of which is a walk, and when they were taken.

    Args:
        videos: the files.
        options: which frames, and what is added to the clocks.
        step_m: the largest distance in metres between two frames that follow each other; default: 40 m for each second
            between them.

    Raises:
        ArgumentError: if a clock is to be estimated and there is no track, or one start is given for several videos.
    """
    options = options or VideoOptions()
    if options.video_start is not None and len(videos) > 1:
        raise ArgumentError(ONE_START)
    recorded = read_tracks(options.track) if options.track else None
    walks: list[VideoWalk] = []
    errors: list[PhotoError] = []
    for video in videos:
        try:
            walks.append(_read_walk(video, options, recorded, step_m))
        except PhotoError as error:
            errors.append(error)
    if options.estimate_offset and walks and not any(walk.track for walk in walks):
        raise ArgumentError(NO_TRACK)
    notes = [] if recorded is None else list(recorded.notes)
    return VideoWalks(tuple(walks), tuple(errors), tuple(notes + [note for walk in walks for note in walk.notes]))


def read_video_walk(
    video: str | Path, options: VideoOptions | None = None, *, step_m: float | None = None
) -> VideoWalk:
    """The walk of one video, see `read_video_walks`. Raises PhotoError if it cannot be read.

    Args:
        video: the file.
        options: as for `read_video_walks`.
        step_m: as for `read_video_walks`.
    """
    found = read_video_walks([Path(video)], options, step_m=step_m)
    if found.errors:
        raise found.errors[0]
    return found.walks[0]


def _read_walk(video: Path, options: VideoOptions, recorded: Track | None, step_m: float | None) -> VideoWalk:
    frames, times = video_frames(video, options.every_s)
    described, telemetry = read_video(video), find_telemetry(video)
    note = missing_end(described, times[-1:] + options.every_s)
    start = options.start_of(described, telemetry)
    own = None if telemetry is None or telemetry.start is None or len(telemetry.track) == 1 else telemetry.track
    return VideoWalk(
        video=video,
        frames=tuple(frames),
        times=tuple(None if start is None else start + time for time in times.tolist()),
        reach_m=tuple((SPEED_MPS * np.diff(times)).tolist()) if step_m is None else step_m,
        track=recorded or own,
        estimate_offset=options.estimate_offset,
        notes=(*(() if own is None else own.notes), *(() if note is None else (note,))),
    )


def localize_video(
    localizer: Localizes[Any],
    walk: VideoWalk,
    *,
    near: Area | None = None,
    top: int = 5,
    condition: UsedCondition = "auto",
    progress: bool = False,
) -> VideoFixes:
    """Localize the frames of a video as one walk, and compare its clock with a track.

    Args:
        localizer: of the map, or of several.
        walk: see `read_video_walks`.
        near: search only there.
        top: how many matches each fix lists.
        condition: see `Localizer.localize_many`.
        progress: show a bar on standard error.
    """
    fixes = tuple(
        localizer.localize_walk(walk.frames, walk.reach_m, near=near, top=top, condition=condition, progress=progress)
    )
    track = walk.track
    if track is None:
        return VideoFixes(fixes, walk.times, note=NO_TRACK if walk.estimate_offset else None)
    times = [time for time in walk.times if time is not None]
    if len(times) < len(walk.times):
        return VideoFixes(fixes, walk.times, note=NO_CLOCK)
    if not walk.estimate_offset:
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
    placed = plural(len(away_m), "position", ("is of a time", "are of times"))
    return f"{placed} on the track, {np.median(away_m):.1f} m from it (median)"


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
