"""Tracks: positions over time, as GPS receivers record them, in GPX files, NMEA 0183 logs and videos.

A track places whatever has a time: between two of its points the position is on the straight line between them, and
the heading is the direction of movement.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from datetime import time as day_time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats
from sareloc.errors import ArgumentError, DatasetError, PhotoError
from sareloc.files import read_regular
from sareloc.geo import distance_m, ecef_from_wgs84, wgs84_from_ecef
from sareloc.photos.record import EPOCH, FIRST_S, LAST_S, seconds_since_1970
from sareloc.photos.xmp import XmlError, parse_xml
from sareloc.wording import plural

MAX_GAP_S = 30.0
"""Default for the longest time between two points of a track that positions are interpolated over."""
HEADING_WINDOW_S = 2.0  # before and after: a walk of 1.4 m/s moves further in it than positions jitter
MIN_MOVE_M = 2.0  # within this window; less is standing still
AGREE_M = 50.0  # median distance between two receivers in one pocket, with bad reception
SAME_DEG = 1e-5  # a metre: sentences of one position differ in their number of digits
COVERED_S = 10.0  # a track says where one was between two points at most this far apart
LARGEST_BYTES = 100_000_000  # four days at 1 Hz with heart rate and cadence
MOST_POINTS = 1_000_000
MOST_ELEMENTS = 4_000_000
OTHER_ELEMENTS, MOST_PER_POINT = 100_000, 30  # beside the points, and in each
OTHER_CHARACTERS, CHARACTERS_PER_POINT = 1_000_000, 5_000
NO_TRACK = "no track was given: name a GPX file or an NMEA log (--track FILE)"
SUFFIXES = (".gpx", ".nmea", ".log", ".txt")
SENTENCE = re.compile(r"\$\w\w(?:RMC|GGA),[^$\r\n]{0,200}")  # of at most 82 characters by the standard


@dataclass(frozen=True, eq=False)
class TrackPositions:
    """Where a track was at N times; see `Track.at`."""

    latlon: Floats
    """(N, 2) degrees, WGS84; NaN where the track has no position."""
    heading_deg: Floats
    """(N,) direction of movement, clockwise from north; NaN where there is no position or no movement."""
    gap_s: Floats
    """(N,) between the two points of the track around the time; infinite before the first and after the last."""
    nearest_s: Floats
    """(N,) to the point of the track that is nearest in time."""
    nearest_m: Floats
    """(N,) from the position to that point; NaN where there is no position."""

    @property
    def found(self) -> npt.NDArray[np.bool_]:
        """(N,) whether there is a position."""
        return ~np.isnan(self.latlon[:, 0])


@dataclass(frozen=True, eq=False)
class Track:
    """Positions over time. Raises ArgumentError without points, or if the times are not ascending."""

    times: Floats
    """(N,) seconds since 1970 in UTC, strictly ascending; N is at least 1."""
    latlon: Floats
    """(N, 2) degrees, WGS84."""
    files: tuple[Path, ...] = ()
    """The files that it was read from."""
    notes: tuple[str, ...] = ()
    """What was noticed while reading: points left out, a truncated file, tracks that overlap."""

    def __post_init__(self) -> None:
        if self.times.shape != self.latlon.shape[:1] or self.latlon.shape[1:] != (2,) or not len(self.times):
            raise ArgumentError(
                f"a track needs times (N,) and positions (N, 2), N at least 1: found {self.times.shape} and "
                f"{self.latlon.shape}"
            )
        if not (np.diff(self.times) > 0).all():
            raise ArgumentError("the times of a track must be strictly ascending")

    def __len__(self) -> int:
        return len(self.times)

    def __str__(self) -> str:
        """Its points and its first and last time."""
        return f"{plural(len(self), 'point')}, {utc(self.times[0])} to {utc(self.times[-1])} UTC"

    def at(self, times: npt.ArrayLike, max_gap_s: float = MAX_GAP_S) -> TrackPositions:
        """Positions and headings at these times (N,), in seconds since 1970.

        A position is on the straight line between the two points around the time. There is none before the first point,
        after the last one, and between two points that are more than `max_gap_s` apart, but there is one at a point's
        own time. The heading is the direction from the position 2 s before to that 2 s after, or to the end of what is
        known; undefined if they are less than 2 m apart.
        """
        wanted = np.atleast_1d(np.asarray(times, dtype=np.float64))
        ecef = ecef_from_wgs84(self.latlon)
        points, gap_s = interpolate(self.times, ecef, wanted, max_gap_s)
        found = np.isfinite(points[:, 0])
        latlon = np.full((len(wanted), 2), np.nan)
        latlon[found] = wgs84_from_ecef(points[found])
        nearest = nearest_rows(self.times, wanted)
        nearest_m = np.full(len(wanted), np.nan)
        nearest_m[found] = distance_m(latlon[found], self.latlon[nearest[found]])
        heading = np.full(len(wanted), np.nan)
        heading[found] = self._headings(ecef, wanted[found], latlon[found], max_gap_s)
        return TrackPositions(latlon, heading, gap_s, np.abs(wanted - self.times[nearest]), nearest_m)

    def _headings(self, ecef: Floats, wanted: Floats, latlon: Floats, max_gap_s: float) -> Floats:
        """The direction of movement at times with a position; the window ends where a gap begins."""
        part = np.concatenate([[0], np.cumsum(np.diff(self.times) > max_gap_s)])  # of each point
        firsts = np.flatnonzero(np.diff(part, prepend=-1))
        lasts = np.append(firsts[1:] - 1, len(self) - 1)
        own = part[np.searchsorted(self.times, wanted, side="right") - 1]
        ends = [
            np.clip(wanted + shift, self.times[firsts[own]], self.times[lasts[own]])
            for shift in (-HEADING_WINDOW_S, HEADING_WINDOW_S)
        ]
        start, end = (interpolate(self.times, ecef, when, max_gap_s)[0] for when in ends)
        latitude, longitude = np.radians(latlon).T
        moved = end - start
        x, y, z = moved.T
        east = -np.sin(longitude) * x + np.cos(longitude) * y
        north = np.cos(latitude) * z - np.sin(latitude) * (np.cos(longitude) * x + np.sin(longitude) * y)
        heading = np.degrees(np.arctan2(east, north)) % 360
        heading = np.where(heading >= 360, 0.0, heading)  # -1e-15 % 360 is 360
        return np.where(np.linalg.norm(moved, axis=1) >= MIN_MOVE_M, heading, np.nan)


def interpolate(times: Floats, points: Floats, wanted: Floats, max_gap_s: float) -> tuple[Floats, Floats]:
    """Points (..., D) on the straight lines between `points` (M, D) at the ascending `times` (M,), and the gaps (...).

    See `Track.at` for where there is none: NaN there. The gap is that between the two times around the wanted one.
    """
    after = np.searchsorted(times, wanted, side="left")
    before = np.clip(after - 1, 0, len(times) - 1)
    after = np.minimum(after, len(times) - 1)
    outside = (wanted < times[0]) | (wanted > times[-1])
    gap_s = np.where(outside, np.inf, times[after] - times[before])
    exact = times[after] == wanted
    share = np.where(gap_s > 0, (wanted - times[before]) / np.where(gap_s > 0, gap_s, 1.0), 0.0)
    share = np.where(exact, 1.0, share)[..., None]
    found = points[before] + share * (points[after] - points[before])
    found[~exact & (gap_s > max_gap_s)] = np.nan
    return found, gap_s


def nearest_rows(times: Floats, wanted: Floats) -> npt.NDArray[np.int64]:
    """The rows of the ascending `times` that are nearest to the wanted ones; of two, the earlier."""
    after = np.minimum(np.clip(np.searchsorted(times, wanted), 1, max(len(times) - 1, 1)), len(times) - 1)
    before = np.maximum(after - 1, 0)
    return np.where(wanted - times[before] <= times[after] - wanted, before, after)


def utc(seconds: float) -> str:
    """A time in seconds since 1970 as text, in UTC: 2024-05-31 12:00:00."""
    return f"{EPOCH + timedelta(seconds=round(min(max(seconds, FIRST_S), LAST_S))):%Y-%m-%d %H:%M:%S}"


def read_tracks(paths: Sequence[str | Path]) -> Track:
    """The track in several files: see `read_track` and `merge_tracks`."""
    if not paths:
        raise ArgumentError(NO_TRACK)
    return merge_tracks([read_track(path) for path in paths])


def read_track(path: str | Path) -> Track:
    """The track in a GPX file (.gpx), an NMEA 0183 log (.nmea, .log, .txt) or a video (see `read_telemetry`).

    Tracks and segments of a GPX file become one track, as by `merge_tracks`. Of a truncated or damaged GPX file the
    points before the damage are read. Points without a time or a valid position, and sentences without a valid
    checksum, are left out; the notes say how many. A time of unknown zone is read as UTC. Raises DatasetError if the
    file cannot be read, is larger than the limits, or has no points with times; PhotoError for a video without them.
    """
    from sareloc.photos.record import is_video
    from sareloc.photos.telemetry import read_measured  # which makes tracks of its own

    file = Path(path)
    if is_video(file):
        telemetry = read_measured(file)
        if telemetry.start is None:
            raise PhotoError(
                file, "its positions have no times, as its clock was not set: they place its own frames alone"
            )
        return telemetry.track
    if file.suffix.lower() not in SUFFIXES:
        raise ArgumentError(f"{file}: a track must be a GPX file (.gpx), an NMEA log (.nmea, .log or .txt) or a video")
    try:
        content = read_regular(file, LARGEST_BYTES)
    except OSError as error:
        raise DatasetError(f"{file} cannot be read: {error.strerror}") from error
    return _read_gpx(file, content) if file.suffix.lower() == ".gpx" else parse_nmea(file, content)


def gpx_of_track(track: Track) -> str:
    """A track as GPX 1.1, times to the millisecond."""
    from gpxpy import gpx as files

    points = [
        files.GPXTrackPoint(round(lat, 8), round(lon, 8), time=EPOCH + timedelta(milliseconds=round(1000 * time)))
        for (lat, lon), time in zip(track.latlon.tolist(), track.times.tolist(), strict=True)
    ]
    document = files.GPX()
    document.creator = "sareloc"
    document.tracks.append(files.GPXTrack())
    document.tracks[0].segments.append(files.GPXTrackSegment(points))
    return f"{document.to_xml('1.1')}\n"


def merge_tracks(tracks: Sequence[Track]) -> Track:
    """One track of several, at least one.

    Where tracks overlap in time, the points of the earlier in the sequence are used, and those of the others between
    its points that are more than 10 s apart; a note says so. Raises DatasetError if the tracks were at different
    places at the same time (more than 50 m apart, median).
    """
    merged = tracks[0]
    for track in tracks[1:]:
        points, _ = interpolate(merged.times, ecef_from_wgs84(merged.latlon), track.times, COVERED_S)
        covered = np.isfinite(points[:, 0])
        notes = (*merged.notes, *track.notes)
        if covered.any():
            apart_m = np.linalg.norm(points[covered] - ecef_from_wgs84(track.latlon[covered]), axis=1)
            first, last = track.times[covered][[0, -1]]
            both = f"{_names(merged)} and {_names(track)} overlap from {utc(first)} to {utc(last)} UTC"
            if np.median(apart_m) > AGREE_M:
                raise DatasetError(
                    f"{both} and are {np.median(apart_m):,.0f} m apart there: give the track of the camera alone, or "
                    "place the photos of each track in a run of their own"
                )
            if apart_m.max() > 0:
                notes += (
                    f"{both} and are {np.median(apart_m):,.1f} m apart (median; at most {apart_m.max():,.1f} m): the "
                    "former is used there",
                )
        times = np.concatenate([merged.times, track.times[~covered]])
        latlon = np.concatenate([merged.latlon, track.latlon[~covered]])
        order = np.argsort(times, kind="stable")
        merged = Track(times[order], latlon[order], tuple(dict.fromkeys((*merged.files, *track.files))), notes)
    return merged


def _names(track: Track) -> str:
    return ", ".join(map(str, track.files)) or "a track"


def make_track(file: Path, rows: Iterable[tuple[float, float, float]], notes: Sequence[str]) -> Track | None:
    """A track of (time, latitude, longitude) in any order, with notes on points left out; None without points."""
    table = np.array(list(rows), dtype=np.float64).reshape(-1, 3)
    time, latitude, longitude = table.T
    valid = (np.abs(latitude) <= 90) & (np.abs(longitude) <= 180) & (time >= FIRST_S) & (time < LAST_S)
    valid &= (latitude != 0) | (longitude != 0)  # written without a fix
    found_notes = list(notes)
    if not valid.all():
        found_notes.append(f"{file}: {plural(int((~valid).sum()), 'point')} without a valid position or year left out")
    table = table[valid]
    if not len(table):
        return None
    backwards = int((np.diff(table[:, 0]) < 0).sum())
    if backwards:
        found_notes.append(
            f"{file}: {plural(backwards, 'point', ('is', 'are'))} earlier than the one before: sorted by time"
        )
    times, firsts = np.unique(table[:, 0], return_index=True)  # of points with one time the first
    latlon = table[firsts, 1:]
    again = np.delete(table, firsts, axis=0)
    others = int((np.abs(again[:, 1:] - latlon[np.searchsorted(times, again[:, 0])]) > SAME_DEG).any(axis=1).sum())
    if others:
        found_notes.append(
            f"{file}: {plural(others, 'point', ('has', 'have'))} the time of another point at another place: left out"
        )
    return Track(times, latlon, (file,), tuple(found_notes))


def _read_gpx(file: Path, content: bytes) -> Track:
    import gpxpy

    text, notes = _checked_gpx(file, content)
    try:
        gpx = gpxpy.parse(text)
    except (gpxpy.gpx.GPXException, ValueError) as error:
        raise DatasetError(f"{file} is not valid GPX: {error}") from error
    tracks = [
        [(_gpx_time(point.time), point.latitude, point.longitude) for part in track.segments for point in part.points]
        for track in gpx.tracks
    ]
    points = sum(map(len, tracks))
    if not points:
        others = len(gpx.waypoints) + sum(len(route.points) for route in gpx.routes)
        found = f"it has {others:,} waypoints and route points, which are not a record of movement" if others else ""
        raise DatasetError(f"{file} has no track points{': ' if found else ''}{found}")
    timeless = sum(time is None for rows in tracks for time, _, _ in rows)
    if timeless == points:
        raise DatasetError(
            f"{file} has {plural(points, 'track point')} and none has a time, so that photos cannot be placed on it by "
            "their time: export the recorded track with times, not a planned route"
        )
    if timeless:
        notes.append(f"{file}: {timeless:,} of {plural(points, 'point')} left out: no time")
    read = [make_track(file, ((time, lat, lon) for time, lat, lon in rows if time is not None), ()) for rows in tracks]
    known = [track for track in read if track is not None]
    if not known:
        raise DatasetError(f"{file} has {plural(points, 'track point')} and none has a valid position")
    merged = merge_tracks(known)
    return replace(merged, notes=(*notes, *merged.notes))


def _gpx_time(moment: datetime | None) -> float | None:
    try:
        return None if moment is None else seconds_since_1970(moment)
    except ValueError:  # a zone of 24 hours or more
        return None


class _PointCounter:
    """Counts the track points of a GPX file while it is read; raises XmlError for more points, or more elements and
    text for each, than a recording has."""

    def __init__(self) -> None:
        self._points = self._others = self._characters = 0

    def start(self, tag: str, attrs: dict[str, str]) -> None:
        if tag == "trkpt":
            self._points += 1
        else:
            self._others += 1
        if self._points > MOST_POINTS:
            raise XmlError(f"it has more than {MOST_POINTS:,} points: split it")
        if self._others > OTHER_ELEMENTS + MOST_PER_POINT * self._points:
            raise XmlError(f"it has {self._points:,} track points and more than {self._others - 1:,} other elements")

    def end(self, tag: str) -> None:
        pass

    def data(self, data: str) -> None:
        self._characters += len(data)
        if self._characters > OTHER_CHARACTERS + CHARACTERS_PER_POINT * self._points:
            raise XmlError(f"it has {self._points:,} track points and {self._characters:,} characters of text")


def _checked_gpx(file: Path, content: bytes) -> tuple[str, list[str]]:
    """The text of a GPX file, cut after the last point before any damage, and notes.

    Raises DatasetError as `parse_xml` does (document types, limits), for too many points or other elements, and for a
    file that is damaged before its first point.
    """
    notes: list[str] = []
    try:
        encoding = parse_xml(content, _PointCounter(), most_elements=MOST_ELEMENTS, namespaces=False)
    except XmlError as error:
        if error.damaged_at is None:
            raise DatasetError(f"{file} is not read as GPX: {error}") from error
        encoding = error.encoding
        closed = content.rfind(b"</trkpt>", 0, error.damaged_at) + len(b"</trkpt>")
        if closed < len(b"</trkpt>"):
            raise DatasetError(f"{file} is not valid GPX: {error}, before the first complete track point") from error
        lost = content.count(b"<trkpt", closed)
        notes.append(
            f"{file} is truncated or damaged ({error}): the {content.count(b'</trkpt>', 0, closed):,} points before "
            f"that were read" + (f", {lost:,} after it were not" if lost else "")
        )
        content = content[:closed] + b"</trkseg></trk></gpx>"
    if encoding is None or encoding.lower() in ("utf-8", "utf8"):
        encoding = "utf-8-sig"
    try:
        text = content.decode(encoding)
    except (UnicodeDecodeError, LookupError) as error:
        raise DatasetError(f"{file} is not text in {encoding}: {error}") from error
    return re.sub(r"^\s*<\?xml[^>]*\?>", "", text.removeprefix("\ufeff"), count=1), notes


def parse_nmea(file: Path, content: bytes) -> Track:
    """The positions of the RMC sentences (with dates) and GGA sentences (times of day, near those of the last RMC)."""
    import pynmea2

    found: list[tuple[day_time, date | None, float, float]] = []
    bad = without_fix = 0
    for match in SENTENCE.finditer(content.decode("ascii", "replace")):
        try:
            sentence = pynmea2.parse(match[0].strip(), check=True)
            moment, day = sentence.timestamp, getattr(sentence, "datestamp", None)
            is_rmc = sentence.sentence_type == "RMC"
            if not (sentence.status == "A" if is_rmc else int(sentence.gps_qual or 0) > 0):
                without_fix += 1
            elif not isinstance(moment, day_time) or (is_rmc and not isinstance(day, date)):
                bad += 1
            else:
                found.append((moment, day, sentence.latitude, sentence.longitude))
        except (pynmea2.ParseError, ValueError, TypeError, AttributeError):
            bad += 1
        if len(found) > 2 * MOST_POINTS:
            raise DatasetError(f"{file} has more than {2 * MOST_POINTS:,} positions: split it")
    left_out = [
        f"{file}: {plural(count, 'sentence')} {why} left out"
        for count, why in ((bad, "with a wrong or missing checksum or field"), (without_fix, "without a fix"))
        if count
    ]
    if not found:
        why = f": {'; '.join(left_out)}" if left_out else ""
        raise DatasetError(f"{file} has no positions in NMEA sentences RMC or GGA{why}")
    dated = [datetime.combine(day, moment, UTC) for moment, day, _, _ in found if day is not None]
    if not dated:
        raise DatasetError(
            f"{file} has {len(found):,} positions with times of day and no date: the log must have RMC sentences, too"
        )
    rows = []
    near = dated[0]
    for moment, day, latitude, longitude in found:
        near = _dated(moment, near) if day is None else datetime.combine(day, moment, UTC)
        rows.append((seconds_since_1970(near), latitude, longitude))
    track = make_track(file, rows, left_out)
    if track is None:
        raise DatasetError(f"{file} has {len(found):,} positions and none is valid")
    return track


def _dated(moment: day_time, near: datetime) -> datetime:
    """The time of day on the day that puts it nearest to another time: at midnight the date changes in between."""
    days = [datetime.combine(near.date(), moment, UTC) + timedelta(days=shift) for shift in (-1, 0, 1)]
    return min(days, key=lambda one: abs(one - near))
