"""Frames of videos along a track: one every so many metres, each with the position of the track at its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sareloc.arrays import Floats, Ints
from sareloc.errors import ArgumentError, PhotoError
from sareloc.photos.clock import parse_moment, parse_offset
from sareloc.photos.geotags import Geotag
from sareloc.photos.track_geotags import TrackOptions
from sareloc.photos.tracks import Track, read_tracks, utc
from sareloc.photos.videos import frame_addresses, frame_times, missing_end, read_video, times_every_m

NO_CLOCK = (
    "the video does not say when it was recorded, so that its frames cannot be placed on the track: give the time of "
    "its first frame (--video-start 2024-05-31T12:00:00Z)"
)
NO_ESTIMATE = (
    "the clock offset of a video is estimated by a map of the place: sareloc localize MAP VIDEO --track FILE "
    "--estimate-offset prints it, then give it here (--clock-offset)"
)
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
    the frame's time in the video. A video that gives no frame has an error; the others are used.
    """
    from tqdm import tqdm

    track = read_tracks(options.track)
    geotags: dict[Path, Geotag] = {}
    errors: list[PhotoError] = []
    notes = list(track.notes)
    for path in tqdm(videos, desc="videos", unit="video", disable=None, leave=False):
        try:
            found, told = _placed(path, track, options, alone=len(videos) == 1)
        except PhotoError as error:
            errors.append(error)
            continue
        except ArgumentError as error:
            errors.append(PhotoError(path, str(error)))
            continue
        geotags |= found
        notes += told
    return FramesReport(geotags, tuple(errors), tuple(notes))


def _placed(path: Path, track: Track, options: TrackOptions, *, alone: bool) -> tuple[dict[Path, Geotag], list[str]]:
    video = read_video(path)
    if options.estimate_offset:
        raise PhotoError(path, NO_ESTIMATE)
    if options.video_start is not None and not alone:
        raise PhotoError(path, ONE_START)
    start = video.start if options.video_start is None else parse_moment(options.video_start, options.timezone)
    if start is None:
        raise PhotoError(path, NO_CLOCK)
    start += parse_offset(options.clock_offset)
    times = frame_times(path)
    end_s = float(times[-1])
    wanted = times_every_m(
        track.times,
        track.latlon,
        start=start,
        duration_s=end_s,
        every_m=options.every_m,
        max_gap_s=options.max_gap_s,
    )
    times = times[track.at(start + times, options.max_gap_s).found]
    recorded = f"{utc(start)} to {utc(start + end_s)} UTC"
    if not len(times):
        raise PhotoError(
            path,
            f"none of its frames is on the track: it was recorded from {recorded}, the track has {track}; check "
            "--clock-offset, or give --video-start",
        )
    times = times[np.unique(_nearest(times, wanted))]
    at = track.at(start + times, options.max_gap_s)
    moving = options.track_heading == "movement"
    tags = {
        address: Geotag(
            (float(position[0]), float(position[1])),
            float(heading) if moving and not np.isnan(heading) else None,
            float(start + time),
        )
        for address, position, heading, time in zip(
            frame_addresses(path, times), at.latlon, at.heading_deg, times, strict=True
        )
    }
    told = [f"{path}: {len(tags):,} frames, {options.every_m:g} m apart, of a video from {recorded}"]
    truncated = missing_end(video, [end_s])
    return tags, told if truncated is None else [*told, truncated]


def _nearest(times: Floats, wanted: Floats) -> Ints:
    """The rows of the ascending `times` nearest to the wanted ones."""
    after = np.clip(np.searchsorted(times, wanted), 1, max(len(times) - 1, 1))
    after = np.minimum(after, len(times) - 1)
    before = np.maximum(after - 1, 0)
    return np.where(wanted - times[before] <= times[after] - wanted, before, after)
