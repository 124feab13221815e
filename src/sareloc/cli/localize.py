"""`sareloc localize`: where photos were taken."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from cyclopts import Parameter
from tqdm import tqdm

from sareloc.cli import Device, Precision, print_notes
from sareloc.errors import ArgumentError, PhotoError, PositionError
from sareloc.geo import distance_m
from sareloc.localize import Fix, Localizer, Search, open_localizer, walk_clock_offset
from sareloc.localize.formats import POINT_FORMATS, TRACK_FORMATS, Answer, iso_time, sentence
from sareloc.maps import Area, Box, Circle
from sareloc.photos import Track, ViewOptions, find_photos, read_time, read_tracks
from sareloc.photos.clock import parse_moment, parse_offset
from sareloc.photos.collect import read_tables
from sareloc.photos.tracks import utc
from sareloc.photos.video_geotags import NO_CLOCK, ONE_START
from sareloc.photos.videos import Video, is_video, missing_end, read_video, video_frames

SPEED_MPS = 40.0  # of a camera that records a video: 144 km/h


@dataclass(frozen=True)
class VideoClock:
    """The clock of videos. Raises ArgumentError for invalid options."""

    track: tuple[Path, ...] = ()
    """Of a video: the GPX files or NMEA logs that were recorded with it. A note on standard error says how far from
    the track the positions are."""
    estimate_offset: bool = False
    """Estimate the offset of the video's clock against the track, by the positions found. It is printed on standard
    error, as map build takes it (--clock-offset), and added to the times."""
    clock_offset: Annotated[float | str, Parameter(allow_leading_hyphen=True)] = 0.0
    """Of a video: what to add to the camera's clock, such as -3.2s if it was 3.2 s fast."""
    video_start: str | None = None
    """Of a video without a clock, or with a wrong one: when its first frame was taken, such as 2024-05-31T12:00:00Z."""

    def __post_init__(self) -> None:
        if self.estimate_offset and not self.track:
            raise ArgumentError("the clock offset is estimated against a track: name it (--track FILE)")
        if parse_offset(self.clock_offset) and self.estimate_offset:
            raise ArgumentError("the clock offset is either given (--clock-offset) or estimated (--estimate-offset)")
        if self.video_start is not None:
            parse_moment(self.video_start)

    def check(self, videos: Sequence[Path]) -> None:
        """Raise ArgumentError if these options do not fit the number of videos."""
        if self != VideoClock() and not videos:
            raise ArgumentError("--track, --estimate-offset, --clock-offset and --video-start are options of videos")
        if self.video_start is not None and len(videos) > 1:
            raise ArgumentError(ONE_START)

    def start_of(self, video: Video) -> float | None:
        """When the first frame was taken, in seconds since 1970; None: unknown."""
        start = video.start if self.video_start is None else parse_moment(self.video_start)
        return None if start is None else start + parse_offset(self.clock_offset)


def localize_command(
    place_map: Annotated[Path, Parameter(name="map")],
    photos: Annotated[list[Path], Parameter(negative=())],
    *,
    model: str | None = None,
    top: int = 5,
    min_confidence: float = 0.5,
    box: Annotated[tuple[float, float, float, float] | None, Parameter(negative=())] = None,
    circle: Annotated[tuple[float, float, float] | None, Parameter(negative=())] = None,
    walk_step_m: float | None = None,
    every_s: float = 1.0,
    clock: Annotated[VideoClock | None, Parameter(name="*", negative=(), consume_multiple=True)] = None,
    panorama: Annotated[bool, Parameter(negative=())] = False,
    search: Annotated[Search | None, Parameter(name="*")] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    as_geojson: Annotated[bool, Parameter(name="--geojson", negative=())] = False,
    as_csv: Annotated[bool, Parameter(name="--csv", negative=())] = False,
    as_gpx: Annotated[bool, Parameter(name="--gpx", negative=())] = False,
    as_kml: Annotated[bool, Parameter(name="--kml", negative=())] = False,
    batch: int = 8,
    workers: int = 2,
    device: Device = None,
    precision: Precision = "auto",
) -> int:
    """Say where photos, or the frames of a video, were taken, by the photos of a map that show the same place.

    Each position has a confidence, the probability that it is within 25 m of the truth, and a radius: of 10 positions
    of photos in the map, 9 are within their radius of the truth. Photos that cannot be read are listed on standard
    error. The exit status is 1 if none can be read.

    Parameters
    ----------
    place_map
        The map: a file, or an address such as milvus://HOST:PORT/NAME.
    photos
        The queries: photos, folders of photos with their subfolders, or videos, each of which is one walk.
    model
        Checkpoint that the map was built with; default: the packaged model that the map was built with.
    top
        Number of matches to list for each photo.
    min_confidence
        Minimum confidence of a position; photos below it are reported as not in this map.
    box
        Search only this area: south, west, north and east in degrees.
    circle
        Search only this area: latitude, longitude in degrees, radius in metres.
    walk_step_m
        Estimate the positions together, as of one walk, with at most this distance in metres between two photos that
        follow each other. Photos are sorted by time if all have one (in a table beside them, their EXIF, a sidecar or
        their names); otherwise they stay in the order given. Default for the frames of a video: 40 m for each second
        between them.
    every_s
        Of videos: seconds between two frames that are localized. A frame is named as its file and time, such as
        drive.mp4#t=12.
    panorama
        Treat photos without GPano tags that are 2:1 as 360° photos. A 360° photo is cut into views, which give one
        position together; the heading is that of its middle.
    as_json
        Print one JSON object a line: photo, latlon, radius_m, confidence, heading_deg, matches; without a position also
        reason, guess and guess_radius_m.
    as_geojson
        Print one GeoJSON FeatureCollection.
    as_csv
        Print a CSV: photo, lat, lon, radius_m, confidence, match, distance, heading_deg, time.
    as_gpx
        Print a GPX 1.1 file of the positions found: waypoints, or a track with --walk-step-m.
    as_kml
        Print a KML file of the positions found: placemarks, and a line through them with --walk-step-m.
    batch
        Maximum photos described at once.
    workers
        Number of processes that decode photos.
    """
    flags = {"json": as_json, "geojson": as_geojson, "csv": as_csv, "gpx": as_gpx, "kml": as_kml}
    chosen = [name for name, given in flags.items() if given]
    if len(chosen) > 1:
        raise ArgumentError(f"choose one of {', '.join(f'--{name}' for name in flags)}: found {len(chosen)} of them")
    files = listed(photos)
    stills, videos = [file for file in files if not is_video(file)], [file for file in files if is_video(file)]
    formats = POINT_FORMATS if walk_step_m is None and stills else TRACK_FORMATS
    written = formats.get(chosen[0]) if chosen else None
    times = {} if walk_step_m is None and written is None else read_times(stills, photos)
    if walk_step_m is not None:
        stills = sorted_by_time(stills, times)
    clock = clock or VideoClock()
    clock.check(videos)
    track = read_tracks(clock.track) if clock.track else None
    print_notes(() if track is None else track.notes)
    parts = [Part(stills, walk_step_m)] if stills else []
    for video in videos:
        try:
            part, when = frames_of(video, every_s, walk_step_m, clock)
        except PhotoError as error:
            print(f"sareloc: {error}", file=sys.stderr)
            continue
        parts.append(part)
        times |= when
    if not parts:
        return 1
    localizer = open_localizer(
        place_map,
        model,
        search,
        min_confidence=min_confidence,
        views=ViewOptions(untagged=panorama),
        device=device,
        precision=precision,
        batch=batch,
        workers=workers,
    )
    near = area(box, circle)

    def localized() -> Iterator[tuple[str, Fix | PhotoError]]:
        for part in parts:
            fixes = localize_files(localizer, part.files, part.walk_step_m, near=near, top=top)
            if part.video is None or track is None:
                yield from fixes
            else:
                answers = list(fixes)
                print_notes([compare_clock(part, [fix for _, fix in answers], times, track, clock.estimate_offset)])
                yield from answers

    found = report_unreadable(localized())
    count = 0
    if written is not None:
        answers = [Answer(photo, times[Path(photo)], fix) for photo, fix in found]
        count = len(answers)
        print(written(answers).rstrip("\n"))
    else:
        for photo, fix in found:
            count += 1
            told = {"time": iso_time(times[Path(photo)])} if Path(photo) in times else {}
            print(json.dumps(fix.to_json(photo) | told) if as_json else sentence(photo, fix), flush=True)
    return 0 if count else 1


class Part(NamedTuple):
    """Queries that are localized together."""

    files: Sequence[Path]
    walk_step_m: float | Sequence[float] | None
    """The largest distance between two that follow each other, or one for each step; None: they are not one walk."""
    video: Path | None = None
    """The video that they are frames of."""


def frames_of(
    video: Path, every_s: float, walk_step_m: float | None, clock: VideoClock
) -> tuple[Part, dict[Path, float | None]]:
    """The frames of a video as a walk, and when they were taken; a note on a truncated video is printed.

    Raises PhotoError if the video cannot be read.
    """
    frames, times = video_frames(video, every_s)
    told = read_video(video)
    print_notes(note for note in [missing_end(told, times[-1:] + every_s)] if note is not None)
    reach_m = (SPEED_MPS * np.diff(times)).tolist() if walk_step_m is None else walk_step_m
    start = clock.start_of(told)
    moments = [None if start is None else start + time for time in times.tolist()]
    return Part(frames, reach_m, video), dict(zip(frames, moments, strict=True))


def compare_clock(
    part: Part, fixes: Sequence[Fix | PhotoError], times: dict[Path, float | None], track: Track, estimate: bool
) -> str:
    """What a track says about the clock of a video, in a sentence; an offset that is estimated is added to `times`."""
    clock = [times[file] for file in part.files]
    if None in clock:
        return f"{part.video}: {NO_CLOCK}"
    try:
        found = walk_clock_offset(fixes, clock, track) if estimate else None
    except PositionError as error:
        return f"{part.video}: {error}"
    if found is not None:
        if not found.ambiguous:
            times |= {file: (times[file] or 0.0) + found.seconds for file in part.files}
        return f"{part.video}: {found}"
    return f"{part.video}: {distance_from_track(fixes, [time or 0.0 for time in clock], track)}"


def distance_from_track(fixes: Sequence[Fix | PhotoError], clock: Sequence[float], track: Track) -> str:
    """How far from a track, at the times of their frames, the positions are."""
    at = track.at(np.array(clock))
    away_m = [
        float(distance_m(fix.latlon, at.latlon[row]))
        for row, fix in enumerate(fixes)
        if isinstance(fix, Fix) and fix.latlon is not None and at.found[row]
    ]
    if not away_m:
        begins = f"the video begins at {utc(clock[0])} UTC, the track has {track}"
        return f"none of the positions is of a time on the track: {begins}; check --clock-offset"
    return f"{len(away_m):,} positions are of times on the track, {np.median(away_m):.1f} m from it (median)"


def listed(given: Sequence[Path]) -> list[Path]:
    """The photos given and those in the folders given. Whether a file exists is checked when it is read."""
    files = [file for one in given for file in (find_photos(one) if one.is_dir() else [one])]
    if not files:
        raise ArgumentError(f"no photos in {', '.join(map(str, given))}" if given else "no photos given")
    return files


def read_times(files: Sequence[Path], given: Sequence[Path]) -> dict[Path, float | None]:
    """The time of each photo: in a table beside the photos, else by `read_time`; None: unknown.

    `given`: the folders and photos as the user named them. Notes on the tables are printed to standard error.
    """
    table = read_tables(given, None, files)
    print_notes(table.notes)
    tags = {file: table.tags.get(os.path.abspath(file)) for file in files}
    return {file: read_time(file) if tag is None or tag.time is None else tag.time for file, tag in tags.items()}


def sorted_by_time(files: Sequence[Path], times: Mapping[Path, float | None]) -> list[Path]:
    """The photos of a walk by the time they were taken; equal times keep the order given.

    If one has no time, all stay in the order given; if others have one, a note is printed to standard error.
    """
    known = [time for file in files if (time := times[file]) is not None]
    if 0 < len(known) < len(files):
        message = f"{len(files) - len(known):,} of {len(files):,} photos have no time: the walk is in the order given"
        print(f"sareloc: {message}", file=sys.stderr)
    if len(known) < len(files):
        return list(files)
    return [files[row] for row in sorted(range(len(files)), key=known.__getitem__)]


def area(box: tuple[float, float, float, float] | None, circle: tuple[float, float, float] | None) -> Area | None:
    """The area to search."""
    if box is not None and circle is not None:
        raise ArgumentError("choose one of --box and --circle")
    if circle is not None:
        return Circle(circle[:2], circle[2])
    return None if box is None else Box(*box)


def localize_files(
    localizer: Localizer,
    files: Sequence[Path],
    walk_step_m: float | Sequence[float] | None = None,
    *,
    near: Area | None = None,
    top: int = 5,
) -> Iterator[tuple[str, Fix | PhotoError]]:
    """Each photo with its fix, as soon as it is known, with a progress bar on standard error."""
    fixes: Iterable[Fix | PhotoError]
    if walk_step_m is None:
        each = localizer.localize_each(files, near=near, top=top)
        fixes = tqdm(each, total=len(files), desc="localize", unit="photo", disable=None)
    else:
        fixes = localizer.localize_walk(files, walk_step_m, near=near, top=top, progress=True)
    yield from zip(map(str, files), fixes, strict=True)


def report_unreadable(found: Iterator[tuple[str, Fix | PhotoError]]) -> Iterator[tuple[str, Fix]]:
    """The photos with a fix; errors of the others are printed to standard error."""
    for photo, fix in found:
        if isinstance(fix, PhotoError):
            tqdm.write(f"sareloc: {fix}", file=sys.stderr)
        else:
            yield photo, fix
