"""Geotags from tracks: of photos, which get the position at their time, and of frames of videos every few metres.

Without a track, frames are placed by the telemetry of their video.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Literal

import numpy as np

from sareloc.errors import ArgumentError, MissingExtraError, PhotoError, PositionError
from sareloc.photos.clock import ClockOffset, estimate_offset, parse_moment, parse_offset, parse_timezone
from sareloc.photos.finding import read_geotag
from sareloc.photos.geotags import PhotoTime, time_from_exif
from sareloc.photos.photo_file import find_metadata
from sareloc.photos.record import EPOCH, LAST_S, Geotag
from sareloc.photos.telemetry import read_measured, read_telemetry
from sareloc.photos.tracks import MAX_GAP_S, Track, TrackPositions, nearest_rows, read_tracks, utc
from sareloc.photos.videos import frame_addresses, frame_times, missing_end, read_video, times_every_m
from sareloc.wording import counted, plural

DIGITS = 7  # of a degree: a centimetre
NO_TIME = "no time in its EXIF (DateTimeOriginal)"


@dataclass(frozen=True)
class TrackOptions:
    """Tracks, and how photos are placed on them. Raises ArgumentError for invalid options."""

    track: tuple[Path, ...] = ()
    """GPX files (.gpx), NMEA logs (.nmea, .log, .txt) or videos with telemetry: photos without a position get that of
    the track at their EXIF time. Default for videos: their own telemetry."""
    timezone: str | None = None
    """Time zone of the camera's clock: an IANA name such as Europe/Zurich, or an offset such as +02:00. Default: the
    photo's own (OffsetTimeOriginal), which takes precedence, else its GPS time, else UTC."""
    clock_offset: float | str = 0.0
    """What to add to the camera's clock: -3.2s if it was 3.2 s fast; also 1h2m3s or +00:01:30."""
    max_gap_s: float = MAX_GAP_S
    """Longest time in seconds between two points of the track; photos taken within a longer gap get no position."""
    estimate_offset: bool = False
    """Estimate the clock offset by the photos that have a position already. That of a video: see localize."""
    track_heading: Literal["movement", "none"] = "movement"
    """Heading of the photos: the direction of movement, right for a camera that faces forward, or none."""
    every_m: float = 5.0
    """Of videos: metres between two frames that are used; none are used while the camera stands still."""
    video_start: str | None = None
    """Of a video without a clock, or with a wrong one: when its first frame was taken, such as 2024-05-31T12:00:00Z;
    without a zone in that of --timezone, default UTC."""

    def __post_init__(self) -> None:
        if not self.max_gap_s > 0:
            raise ArgumentError(f"max_gap_s must be greater than 0: found {self.max_gap_s}")
        if not 0 < self.every_m < math.inf:
            raise ArgumentError(f"every_m must be greater than 0: found {self.every_m}")
        if self.timezone is not None:
            parse_timezone(self.timezone)
        if self.video_start is not None:
            parse_moment(self.video_start, self.timezone)
        if parse_offset(self.clock_offset) and self.estimate_offset:
            raise ArgumentError("the clock offset is either given (--clock-offset) or estimated (--estimate-offset)")


@dataclass(frozen=True)
class PlacedPhoto:
    """A photo that got its geotag from a track."""

    photo: Path
    geotag: Geotag
    nearest_s: float
    """Seconds between the photo and the point of the track nearest in time."""
    nearest_m: float
    """Metres from the position to that point."""

    def __str__(self) -> str:
        """One line of text."""
        latitude, longitude = self.geotag.latlon
        heading = "" if self.geotag.heading_deg is None else f", heading {round(self.geotag.heading_deg) % 360}°"
        nearest = f"{self.nearest_s:.1f} s and {self.nearest_m:.1f} m from a track point"
        return f"{self.photo}: {latitude:.6f}, {longitude:.6f}{heading}, {nearest}"


@dataclass(frozen=True, eq=False)
class TrackReport:
    """How photos were placed on a track: each photo is in `placed`, `own` or `untagged`."""

    track: Track
    placed: tuple[PlacedPhoto, ...]
    own: Mapping[Path, Geotag]
    """Photos that have a position of their own, which is kept."""
    untagged: tuple[tuple[Path, str], ...]
    """Photos that got no position, and why."""
    clock_offset_s: float
    """What was added to the camera's clock."""
    estimate: ClockOffset | None
    """How the offset was estimated; None if it was given."""
    notes: tuple[str, ...]
    """What was noticed while reading the track and the times."""

    @property
    def geotags(self) -> Mapping[Path, Geotag]:
        """The geotags by photo, as `build_map` takes them."""
        return {one.photo: one.geotag for one in self.placed}

    def summary(self) -> str:
        """One line: how many photos were placed, and how far from the points of the track."""
        text = f"{plural(len(self.placed), 'photo')} got a position from the track"
        if self.placed:
            seconds, metres = ([getattr(one, name) for one in self.placed] for name in ("nearest_s", "nearest_m"))
            text += (
                f", {np.median(seconds):.1f} s and {np.median(metres):.1f} m from a track point (median; at most "
                f"{max(seconds):.1f} s and {max(metres):.1f} m)"
            )
        own = "1 has its own" if len(self.own) == 1 else f"{len(self.own):,} have their own"
        return f"{text}, {own}, {len(self.untagged):,} got none"


def geotags_by_options(photos: Sequence[Path], options: TrackOptions, own: Mapping[str, Geotag]) -> TrackReport:
    """Read the tracks and place the photos on them, see `geotags_from_track`."""
    return geotags_from_track(
        photos,
        read_tracks(options.track),
        clock_offset_s=None if options.estimate_offset else parse_offset(options.clock_offset),
        timezone=options.timezone,
        max_gap_s=options.max_gap_s,
        heading=options.track_heading == "movement",
        own=own,
    )


def geotags_from_track(
    photos: Iterable[str | Path],
    track: Track,
    *,
    clock_offset_s: float | None = 0.0,
    timezone: str | None = None,
    max_gap_s: float = MAX_GAP_S,
    heading: bool = True,
    own: Mapping[str, Geotag] | None = None,
    progress: bool = True,
) -> TrackReport:
    """Geotags of photos by their EXIF times and a track; photos that have a position keep it.

    The time of a photo is the camera's clock in the photo's zone (OffsetTimeOriginal), else in `timezone`, else the
    photo's GPS time, which needs no offset, else read as UTC.

    Args:
        photos: files.
        track: positions over time.
        clock_offset_s: seconds to add to the camera's clock; None: estimated, see `estimate_offset`.
        timezone: of the camera's clock, see `parse_timezone`.
        max_gap_s: see `Track.at`.
        heading: the heading is the direction of movement; else it is unknown.
        own: positions of photos by absolute path, such as those of a table; default: those that `read_geotag` finds.
        progress: show a progress bar.

    Raises:
        PositionError: if the offset cannot be estimated or is ambiguous.
    """
    from tqdm import tqdm

    zone = None if timezone is None else parse_timezone(timezone)
    known: dict[Path, Geotag] = {}
    times: dict[Path, PhotoTime | None] = {}
    given = own or {}
    for photo in tqdm(
        list(map(Path, photos)), desc="times", unit="photo", disable=None if progress else True, leave=False
    ):
        geotag = given.get(os.path.abspath(photo))
        listed = geotag is not None and not geotag.estimated
        metadata = None if listed and clock_offset_s is not None else find_metadata(photo)
        if not listed:
            geotag = read_geotag(photo, metadata)
        if geotag is not None and not geotag.estimated:
            known[photo] = geotag
        if photo not in known or clock_offset_s is None:
            times[photo] = None if metadata is None else time_from_exif(metadata.exif, zone)
    estimate = None
    if clock_offset_s is None:
        estimate = _estimate(known, times, track, max_gap_s)
        clock_offset_s = estimate.seconds
    timed = {photo: time for photo, time in times.items() if time is not None and photo not in known}
    taken = np.array([time.seconds + (0 if time.zone == "gps" else clock_offset_s) for time in timed.values()])
    found = track.at(taken, max_gap_s)
    placed, untagged = [], [(photo, NO_TIME) for photo, time in times.items() if time is None and photo not in known]
    for row, photo in enumerate(timed):
        if found.found[row]:
            nearest_s, nearest_m = float(found.nearest_s[row]), float(found.nearest_m[row])
            placed.append(PlacedPhoto(photo, _geotag_at(found, row, taken[row], heading), nearest_s, nearest_m))
        else:
            untagged.append((photo, _reason(taken[row], found.gap_s[row], track, max_gap_s)))
    notes = [*track.notes, *_time_notes(timed, taken, estimate, clock_offset_s, track, bool(placed))]
    return TrackReport(track, tuple(placed), known, tuple(sorted(untagged)), clock_offset_s, estimate, tuple(notes))


def _estimate(
    known: Mapping[Path, Geotag], times: Mapping[Path, PhotoTime | None], track: Track, max_gap_s: float
) -> ClockOffset:
    usable = [
        (time.clock, known[photo].latlon)
        for photo, time in times.items()
        if photo in known and time is not None and time.clock is not None
    ]
    estimate = estimate_offset(
        [clock for clock, _ in usable], np.array([latlon for _, latlon in usable]).reshape(-1, 2), track, max_gap_s
    )
    if estimate.ambiguous:
        raise PositionError(f"the clock offset cannot be estimated: {estimate}; give the offset (--clock-offset)")
    return estimate


def _geotag_at(found: TrackPositions, row: int, taken: float | None, heading: bool) -> Geotag:
    latitude, longitude = found.latlon[row].tolist()
    moving = heading and not np.isnan(found.heading_deg[row])
    return Geotag(
        (latitude, longitude),
        float(found.heading_deg[row]) if moving else None,
        None if taken is None else float(taken),
    )


def _reason(taken: float, gap_s: float, track: Track, max_gap_s: float) -> str:
    first, last = track.times[[0, -1]]
    if taken < first:
        return f"taken {_duration(first - taken)} before the track begins"
    if taken > last:
        return f"taken {_duration(taken - last)} after the track ends"
    return f"taken in a gap of the track of {_duration(gap_s)} (--max-gap-s {max_gap_s:g})"


def _time_notes(
    timed: Mapping[Path, PhotoTime],
    taken: np.ndarray[tuple[int], np.dtype[np.float64]],
    estimate: ClockOffset | None,
    clock_offset_s: float,
    track: Track,
    any_placed: bool,
) -> Iterable[str]:
    if estimate is not None:
        yield str(estimate)
    unknown = [str(photo) for photo, time in timed.items() if time.zone == "unknown"]
    if unknown and not clock_offset_s:
        yield (
            f"{counted(unknown, 'photo')} without a time zone: the camera's clock was read as UTC; give --timezone if "
            "it showed local time"
        )
    if len(taken) and not any_placed:
        yield (
            f"no photo was placed: they were taken from {utc(taken.min())} to {utc(taken.max())} UTC, the track has "
            f"{track}; check --timezone and --clock-offset"
        )


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else str(timedelta(seconds=round(min(seconds, LAST_S))))


def track_geotags_csv(placed: Iterable[PlacedPhoto], folder: str | Path) -> str:
    """A table of geotags in `folder` that `sareloc map build` reads: file, lat, lon, heading, time, track_s, track_m.

    The last two columns are the distances to the nearest point of the track.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("file", "lat", "lon", "heading", "time", "track_s", "track_m"))
    for one in placed:
        file = Path(os.path.relpath(one.photo, folder)).as_posix()
        latitude, longitude = (round(degree, DIGITS) for degree in one.geotag.latlon)
        heading = "" if one.geotag.heading_deg is None else round(one.geotag.heading_deg, 1) % 360
        time = "" if one.geotag.time is None else (EPOCH + timedelta(seconds=one.geotag.time)).isoformat()
        table.writerow((file, latitude, longitude, heading, time, round(one.nearest_s, 2), round(one.nearest_m, 1)))
    return text.getvalue()


NO_CLOCK = (
    "the video does not say when it was recorded, so that its frames cannot be placed on the track: give the time of "
    "its first frame (--video-start 2024-05-31T12:00:00Z)"
)
NO_ESTIMATE = (
    "the clock offset of a video is estimated by a map of the place: sareloc localize MAP VIDEO --track FILE "
    "--estimate-offset prints it, then give it here (--clock-offset)"
)
NO_OWN_ESTIMATE = "positions inside a video are in its own time: there is no clock offset to estimate"
ONE_START = "--video-start is the time of one video: give videos without a clock in runs of their own"


@dataclass(frozen=True)
class FramesReport:
    """The frames of videos that have a position on a track."""

    geotags: dict[Path, Geotag]
    """By the address of the frame, in the order of the videos and of time."""
    errors: tuple[PhotoError, ...]
    """Of the videos that gave no frame, and why."""
    notes: tuple[str, ...]
    """How many frames each video gave, truncated videos, notes on the track."""


def frames_on_track(videos: Sequence[Path], options: TrackOptions) -> FramesReport:
    """The frames of videos every `options.every_m` metres along a track, with their geotags.

    A frame's time is that of its video (`options.video_start`, else `Video.start`) plus `options.clock_offset`, plus
    the frame's time in the video. Without tracks, each video is placed by its own telemetry (see `read_telemetry`), and
    its time is that of the receiver; if only the position of the start is known, the first frame is used. A video that
    gives no frame has an error; the others are used.
    """
    from tqdm import tqdm

    track = read_tracks(options.track) if options.track else None
    geotags: dict[Path, Geotag] = {}
    errors: list[PhotoError] = []
    notes = [] if track is None else list(track.notes)
    for path in tqdm(videos, desc="videos", unit="video", disable=None, leave=False):
        try:
            found, found_notes = _frames_of(path, track, options, alone=len(videos) == 1)
        except PhotoError as error:
            errors.append(error)
            continue
        except (ArgumentError, MissingExtraError) as error:
            errors.append(PhotoError(path, str(error)))
            continue
        geotags |= found
        notes += found_notes
    return FramesReport(geotags, tuple(errors), tuple(notes))


def _frames_of(
    path: Path, given: Track | None, options: TrackOptions, *, alone: bool
) -> tuple[dict[Path, Geotag], list[str]]:
    video = read_video(path)
    if options.estimate_offset:
        raise PhotoError(path, NO_OWN_ESTIMATE if given is None else NO_ESTIMATE)
    if options.video_start is not None and not alone:
        raise PhotoError(path, ONE_START)
    start = None if options.video_start is None else parse_moment(options.video_start, options.timezone)
    estimated = False
    if given is None:
        telemetry = read_telemetry(path)
        if start is not None:
            telemetry = telemetry.starting_at(start)
        track, start, notes = telemetry.track, telemetry.start, list(telemetry.track.notes)
        estimated = telemetry.estimated
    else:
        track, start, notes = given, video.start if start is None else start, []
        if start is None:
            raise PhotoError(path, NO_CLOCK)
    first = (start or 0.0) + parse_offset(options.clock_offset)  # in the times of the track
    times = frame_times(path)
    end_s = float(times[-1])
    wanted = times_every_m(
        track.times,
        track.latlon,
        start=first,
        duration_s=end_s,
        every_m=options.every_m,
        max_gap_s=options.max_gap_s,
    )
    if len(track) == 1:
        wanted = track.times - first
    times = times[track.at(first + times, options.max_gap_s).found]
    recorded = f"of {end_s:.0f} s" if start is None else f"from {utc(first)} to {utc(first + end_s)} UTC"
    if not len(times):
        raise PhotoError(
            path,
            f"none of its frames is on the track: it was recorded {recorded}, the track has {track}; check "
            "--clock-offset, or give --video-start",
        )
    times = times[np.unique(nearest_rows(times, wanted))]
    at = track.at(first + times, options.max_gap_s)
    moving = options.track_heading == "movement"
    tags = {}
    for row, address in enumerate(frame_addresses(path, times)):
        taken = None if start is None else first + times[row]
        tags[address] = replace(_geotag_at(at, row, taken, moving), estimated=estimated)
    apart = f", {options.every_m:g} m apart," if len(tags) > 1 else ""
    notes.append(f"{path}: {plural(len(tags), 'frame')}{apart} of a video {recorded}")
    truncated = missing_end(video, [end_s])
    return tags, notes if truncated is None else [*notes, truncated]


def tracks_in_videos(videos: Sequence[Path], options: TrackOptions) -> Track:
    """The track that videos hold: of several, one after the other (see `merge_tracks`).

    `options.video_start` is the time of the first frame of one video. Raises PhotoError if a video holds no usable
    positions (see `read_telemetry`), or if their times are unknown.
    """
    if options.video_start is None:
        return read_tracks(videos)
    if len(videos) > 1:
        raise ArgumentError(ONE_START)
    return read_measured(videos[0]).starting_at(parse_moment(options.video_start, options.timezone)).track
