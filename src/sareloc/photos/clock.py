"""The camera's clock against a track's: offsets and time zones given as text, and the offset estimated by positions."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats
from sareloc.errors import ArgumentError, PositionError
from sareloc.geo import ecef_from_wgs84
from sareloc.photos.record import seconds_since_1970
from sareloc.photos.tracks import MAX_GAP_S, Track, interpolate
from sareloc.wording import plural

WIDEST_S = 14 * 3600.0  # local times are up to 14 hours from UTC
STEPS_S, FINE_S = (1.0, 5.0), 0.05
FAR_M = 100.0  # a photo further from the track than this counts as if it were just this far
SCALE_M = 20.0  # distances beyond it count less and less: outliers of GPS
ON_TRACK_M = 30.0
MINIMA = 10  # of the first search, of which the best is the estimate and the others may fit as well
LEAST_PHOTOS = 3
SAMPLE = 100  # photos of the first search, of more an even sample
SLACK_M = 0.25  # a mean distance that is this much larger is as good
SIGMAS = 3.0
APART_S = 10.0  # offsets further apart than this are different answers
CHUNK = 500_000  # photo times compared with the track at once

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_PARTS = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+(?:\.\d*)?|\.\d+)s?)?", re.IGNORECASE)
_COLONS = re.compile(r"(\d+):(\d\d):(\d\d(?:\.\d*)?)")


def parse_offset(value: str | float) -> float:
    """Seconds from a clock offset: -3.2, -3.2s, 1h2m3s, 2d, +00:01:30 (hours, minutes, seconds); the sign is for all.

    Raises ArgumentError for other texts.
    """
    text = str(value).strip().replace("\u2212", "-").replace(" ", "")
    sign, rest = (-1.0 if text.startswith("-") else 1.0), re.sub(r"^[+-]", "", text)
    colons, parts = _COLONS.fullmatch(rest), _PARTS.fullmatch(rest)
    if colons and int(colons[2]) < 60 and float(colons[3]) < 60:
        return sign * (int(colons[1]) * 3600 + int(colons[2]) * 60 + float(colons[3]))
    if parts and rest and len(rest) < 30:
        return sign * sum(
            float(part) * unit for part, unit in zip(parts.groups(), _UNITS.values(), strict=True) if part
        )
    raise ArgumentError(
        f"a clock offset must be seconds or hours, minutes and seconds, such as -3.2s, 1h2m3s or +00:01:30: "
        f"found {str(value)!r}"
    )


def parse_timezone(text: str) -> tzinfo:
    """A time zone from its IANA name (Europe/Zurich), UTC, or an offset: +02:00, -0330, +2.

    In the hour that is repeated when summer time ends, a zone by name means the first. Raises ArgumentError if unknown.
    """
    fixed = re.fullmatch(r"([+-])(\d{1,2})(?::?([0-5]\d))?", text.strip().replace("\u2212", "-"))
    if fixed and int(fixed[2]) < 24:
        ahead = timedelta(hours=int(fixed[2]), minutes=int(fixed[3] or 0))
        return timezone(ahead if fixed[1] == "+" else -ahead)
    if text.strip().upper() in ("UTC", "GMT", "Z"):
        return UTC
    try:
        return ZoneInfo(text.strip())
    except (KeyError, ValueError, OSError):  # KeyError: unknown; the others: not a name at all
        raise ArgumentError(
            f"unknown time zone {text!r}: give an IANA name such as Europe/Zurich (where the system does not list "
            "them: pip install tzdata), or an offset from UTC such as +02:00"
        ) from None


def parse_moment(text: str, timezone: str | None = None) -> float:
    """Seconds since 1970 from a date and time, such as 2024-05-31T12:00:00Z; without a zone in `timezone`, else UTC.

    Raises ArgumentError for other texts.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ArgumentError(
            f"a time must be a date and a time of day, such as 2024-05-31T12:00:00Z: found {text!r}"
        ) from None
    if moment.tzinfo is None and timezone is not None:
        moment = moment.replace(tzinfo=parse_timezone(timezone))
    return seconds_since_1970(moment)


@dataclass(frozen=True)
class ClockOffset:
    """The offset of a camera's clock, estimated by `estimate_offset`."""

    seconds: float
    """To be added to what the clock showed: positive if it was slow."""
    fits_s: tuple[float, float]
    """The offsets around it that fit about as well."""
    others: tuple[float, ...]
    """Other offsets that fit about as well, best first."""
    photos: int
    """Photos with positions that were taken within 14 hours of the track."""
    on_track: int
    """Those that are within 30 m of the track at this offset, by which it was estimated."""
    median_m: float
    """Of their distances to the track."""

    @property
    def ambiguous(self) -> bool:
        """Whether offsets more than 10 s away fit about as well."""
        return bool(self.others) or max(abs(end - self.seconds) for end in self.fits_s) > APART_S

    def __str__(self) -> str:
        """One sentence."""
        low, high = self.fits_s
        where = (
            f"{self.on_track:,} of {plural(self.photos, 'photo')} with positions are then on the track, "
            f"{self.median_m:.1f} m away (median)"
        )
        if not self.ambiguous:
            return f"clock offset {self.seconds:+.2f} s (from {low:+.1f} to {high:+.1f} s fits as well): {where}"
        also = f"every offset from {low:+.0f} to {high:+.0f} s" if high - low > APART_S else ""
        also += (" and " if also and self.others else "") + ", ".join(f"{other:+.0f} s" for other in self.others[:3])
        return f"clock offset {self.seconds:+.2f} s, but {also} fits as well: {where}"


def estimate_offset(
    photo_times: npt.ArrayLike, photo_latlon: npt.ArrayLike, track: Track, max_gap_s: float = MAX_GAP_S
) -> ClockOffset:
    """The offset of a camera's clock, by photos with positions: with it they are nearest to the track.

    All offsets up to 14 hours are tried, so that wrong time zones are found, too. The estimate minimizes the mean of
    d²/(d² + (20 m)²), d: the distance of a photo to the track at the shifted time, so that some wrong positions do no
    harm. It is `ambiguous` where positions do not determine the time: photos taken while standing still, or a way
    that was travelled several times.

    Args:
        photo_times: (N,) what the clock showed, in seconds since 1970.
        photo_latlon: (N, 2) degrees.
        track: positions over time.
        max_gap_s: see `Track.at`.

    Raises:
        PositionError: if fewer than 3 photos, or less than half of those within 100 m of the track at any offset, are
            on it.
    """
    clock, points = np.asarray(photo_times, dtype=np.float64), ecef_from_wgs84(photo_latlon)
    given, ecef = len(clock), ecef_from_wgs84(track.latlon)
    rows = np.flatnonzero((clock >= track.times[0] - WIDEST_S) & (clock <= track.times[-1] + WIDEST_S))
    clock, points = clock[rows], points[rows]

    def distances(offsets: Floats, some: npt.NDArray[np.int64] | slice) -> Floats:
        """(K, n) metres of n photos to the track at offsets (K,), at most FAR_M."""
        parts = []
        for few in np.array_split(offsets, math.ceil(offsets.size * clock[some].size / CHUNK)):  # to limit memory
            found = interpolate(track.times, ecef, clock[some] + few[:, None], max_gap_s)[0]
            parts.append(np.fmin(np.linalg.norm(found - points[some], axis=-1), FAR_M))
        return np.concatenate(parts)

    sample = np.unique(np.linspace(0, len(clock) - 1, min(len(clock), SAMPLE)).round().astype(np.int64))
    coarse, coarse_m = np.empty(0), np.empty((0, 0))
    if len(clock):
        step_s = _step_s(track, ecef, max_gap_s)
        earliest, latest = track.times[0] - clock.max(), track.times[-1] - clock.min()
        coarse = np.arange(max(-WIDEST_S, earliest), min(WIDEST_S, latest) + step_s, step_s)
        coarse_m = distances(coarse, sample)
        near = coarse_m.min(axis=0) < FAR_M
        sample, coarse_m = sample[near], coarse_m[:, near]
    if len(sample) < LEAST_PHOTOS:
        raise PositionError(
            f"the clock offset cannot be estimated: {len(sample):,} of {given:,} photos with a position and a time are "
            f"within {FAR_M:.0f} m of the track ({track}) at an offset of up to 14 hours, at least {LEAST_PHOTOS} are "
            "needed; give the offset (--clock-offset)"
        )
    fine = coarse[_minima(_cost(coarse_m))][:, None] + np.arange(-1.5 * step_s, 1.5 * step_s, FINE_S)  # best first
    best = fine[0, np.argmin(_cost(distances(fine[0], slice(None))))]
    away_m, sample_m = distances(np.array([best]), slice(None))[0], distances(np.array([best]), sample)[0]
    on_track = away_m <= ON_TRACK_M
    if 2 * (sample_m <= ON_TRACK_M).sum() < len(sample) or on_track.sum() < LEAST_PHOTOS:
        raise PositionError(
            f"the clock offset cannot be estimated: at the best one ({best:+.1f} s) {on_track.sum():,} of {given:,} "
            f"photos are within {ON_TRACK_M:.0f} m of the track; were they taken with this camera along this track?"
        )
    tried = np.concatenate([coarse, fine.ravel()])
    order = np.argsort(tried, kind="stable")
    fits_s, others = _as_good(
        tried[order], np.concatenate([coarse_m, distances(fine.ravel(), sample)])[order], sample_m, float(best)
    )
    return ClockOffset(float(best), fits_s, others, len(clock), int(on_track.sum()), float(np.median(away_m[on_track])))


def _step_s(track: Track, ecef: Floats, max_gap_s: float) -> float:
    """Seconds between offsets in the first search: less than 30 m along the track, at 19 of 20 of its points."""
    durations = np.diff(track.times)
    known = durations <= max_gap_s
    speeds = np.linalg.norm(np.diff(ecef, axis=0), axis=1)[known] / durations[known]
    return float(np.clip(ON_TRACK_M / max(np.quantile(speeds, 0.95), 1.0), *STEPS_S)) if len(speeds) else STEPS_S[0]


def _cost(away_m: Floats) -> Floats:
    """(K,) of distances (K, N): the mean of d²/(d² + s²), which grows little where d is large."""
    squared = away_m**2
    return np.asarray((squared / (squared + SCALE_M**2)).mean(axis=1))


def _minima(costs: Floats) -> npt.NDArray[np.int64]:
    """The rows of the deepest local minima of costs (K,), deepest first."""
    padded = np.pad(costs, 1, constant_values=np.inf)
    rows = np.flatnonzero((costs <= padded[:-2]) & (costs <= padded[2:]))
    return rows[np.argsort(costs[rows], kind="stable")[:MINIMA]]


def _as_good(
    offsets: Floats, away_m: Floats, best_m: Floats, best: float
) -> tuple[tuple[float, float], tuple[float, ...]]:
    """The ascending offsets (K,) that fit about as well as the best: around it, and the best of each run elsewhere.

    As well: the photos' distances (K, n) are on average not larger than those at the best (n,) by more than chance (3
    standard errors) explains.
    """
    worse = away_m - best_m
    chance = SIGMAS * worse.std(axis=1) / math.sqrt(worse.shape[1])
    good = np.flatnonzero(worse.mean(axis=1) <= np.minimum(chance, ON_TRACK_M / 2) + SLACK_M)
    runs = np.split(good, np.flatnonzero(np.diff(offsets[good]) > APART_S) + 1)
    around = next(run for run in runs if offsets[run[0]] <= best <= offsets[run[-1]])
    costs = _cost(away_m)
    elsewhere = [run[np.argmin(costs[run])] for run in runs if run is not around]
    others = tuple(float(offsets[row]) for row in sorted(elsewhere, key=lambda row: float(costs[row])))
    return (float(offsets[around[0]]), float(offsets[around[-1]])), others
