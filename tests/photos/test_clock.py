"""Clock offsets and time zones as text, and the offset estimated from photos that have positions."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sareloc.arrays import Floats
from sareloc.errors import ArgumentError, PositionError
from sareloc.geo import enu_from_wgs84, wgs84_from_enu
from sareloc.photos import Track, estimate_offset, parse_offset, parse_timezone, read_track

NOON = 1_717_156_800.0
HOME = (47.3769, 8.5417)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("-3.2s", -3.2),
        ("-3.2", -3.2),
        ("0", 0),
        (".5", 0.5),
        ("+7", 7),
        ("1h2m3s", 3723),
        ("-1h", -3600),
        ("-1H 30M", -5400),
        ("2d", 172800),
        ("5min", 300),
        ("+00:01:30", 90),
        ("-01:00:00.5", -3600.5),
        ("\u22122s", -2),
        (-3.25, -3.25),
        (90, 90),
    ],
)
def test_offsets(text: str | float, seconds: float) -> None:
    assert parse_offset(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "-", "s", "abc", "1:30", "00:61:00", "1s2m", "nan", "inf", "1e3", "--3", "1h2x"])
def test_invalid_offsets(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"such as -3\.2s") as error:
        parse_offset(text)
    assert repr(text) in str(error.value)


@given(st.integers(-99, 99), st.integers(0, 59), st.integers(0, 59), st.booleans())
def test_both_spellings_of_an_offset_agree(hours: int, minutes: int, seconds: int, minus: bool) -> None:
    sign = "-" if minus else ""
    size = abs(hours) * 3600 + minutes * 60 + seconds
    assert parse_offset(f"{sign}{abs(hours)}h{minutes}m{seconds}s") == (-size if minus else size)
    assert parse_offset(f"{sign}{abs(hours):02d}:{minutes:02d}:{seconds:02d}") == (-size if minus else size)


@pytest.mark.parametrize(
    ("text", "hours"),
    [("+02:00", 2), ("-0330", -3.5), ("+2", 2), ("UTC", 0), ("z", 0), ("Europe/Zurich", 2), ("Asia/Kolkata", 5.5)],
)
def test_time_zones(text: str, hours: float) -> None:
    assert parse_timezone(text).utcoffset(datetime(2024, 5, 31, 12)) == timedelta(hours=hours)


def test_summer_and_winter_time() -> None:
    zone = parse_timezone("Europe/Zurich")
    assert [zone.utcoffset(datetime(2024, month, 1)) for month in (1, 7)] == [timedelta(hours=1), timedelta(hours=2)]


@pytest.mark.parametrize("text", ["", "Zurich", "Europe", "Mars/Base", "../../etc/passwd", "+25:00", "+2:7", "/etc"])
def test_unknown_time_zones(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"unknown time zone .*Europe/Zurich"):
        parse_timezone(text)


def drive(minutes: float = 10.0, speed: float = 8.0, seed: int = 0) -> Track:
    """A way of random turns, one point a second."""
    rng = np.random.default_rng(seed)
    turns = np.cumsum(rng.normal(0, 0.1, round(minutes * 60)))
    enu = np.cumsum(speed * np.stack([np.sin(turns), np.cos(turns)], axis=1), axis=0)
    return Track(NOON + np.arange(len(enu), dtype=float), wgs84_from_enu(enu, HOME))


def photos_on(track: Track, count: int, noise_m: float, seed: int, outliers: int = 0) -> tuple[Floats, Floats]:
    """True times and measured positions of photos."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(track.times[0], track.times[-1], count))
    enu = enu_from_wgs84(track.at(times, 60).latlon, HOME) + rng.normal(0, noise_m, (count, 2))
    enu[rng.permutation(count)[:outliers]] += rng.normal(0, 300, (outliers, 2))
    return times, wgs84_from_enu(enu, HOME)


@pytest.mark.parametrize("offset", [0.0, -3.27, 61.5, -3600.0, 7200 + 12.34, -14 * 3600 + 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_offset_is_found_by_noisy_positions_with_outliers(offset: float, seed: int) -> None:
    """The sign: what is added to the clock. A drive at 8 m/s, noise of 4 m, 4 of 40 positions wrong."""
    track = drive(seed=seed)
    times, latlon = photos_on(track, 40, 4.0, seed, outliers=4)
    found = estimate_offset(times - offset, latlon, track)
    assert found.seconds == pytest.approx(offset, abs=0.3)
    assert not found.ambiguous
    assert found.fits_s[0] < offset < found.fits_s[1]
    assert found.fits_s[1] - found.fits_s[0] < 4
    assert 34 <= found.on_track <= 38


def test_positions_that_lag_behind_do_not_pull_the_offset() -> None:
    """8 of 40 positions are those of 8 s before, 64 m back: the mean error of all would be 1.6 s."""
    track = drive()
    times, latlon = photos_on(track, 40, 2.0, 6)
    late = np.arange(0, 40, 5)
    latlon[late] = track.at(np.maximum(times[late] - 8, NOON)).latlon
    assert estimate_offset(times - 2, latlon, track).seconds == pytest.approx(2, abs=0.4)


def test_without_noise_the_offset_is_exact() -> None:
    track = drive()
    times, latlon = photos_on(track, 20, 0.0, 1)
    assert estimate_offset(times + 17.3, latlon, track).seconds == pytest.approx(-17.3, abs=0.026)


def test_a_straight_way_at_constant_speed_is_not_ambiguous() -> None:
    track = Track(NOON + np.arange(300.0), wgs84_from_enu(np.outer(np.arange(300.0), (8, 0)), HOME))
    times, latlon = photos_on(track, 20, 3.0, 2)
    found = estimate_offset(times - 5, latlon, track)
    assert found.seconds == pytest.approx(5, abs=0.4)
    assert not found.ambiguous


def test_photos_taken_while_standing_still_are_ambiguous() -> None:
    """A minute of standing in the middle of a drive: each offset that keeps the photos in it fits."""
    enu = [(8.0 * min(i, 60) + 8.0 * max(i - 180, 0), 0.0) for i in range(300)]
    track = Track(NOON + np.arange(300.0), wgs84_from_enu(enu, HOME))
    times = NOON + np.linspace(110, 130, 10)
    found = estimate_offset(times, track.at(times).latlon, track)
    assert found.ambiguous
    assert found.fits_s == pytest.approx((-50, 50), abs=8)
    assert "every offset from" in str(found)


def test_a_round_that_was_driven_twice_is_ambiguous() -> None:
    angle = 2 * np.pi * np.arange(600.0) / 300
    track = Track(NOON + np.arange(600.0), wgs84_from_enu(300 * np.stack([np.sin(angle), np.cos(angle)], axis=1), HOME))
    times = NOON + np.linspace(20, 250, 15)
    found = estimate_offset(times, track.at(times).latlon, track)
    assert found.ambiguous
    assert sorted((found.seconds, *found.others)) == pytest.approx([0, 300], abs=1)


def test_what_does_not_fit_is_an_error() -> None:
    track = drive()
    times, latlon = photos_on(track, 20, 3.0, 3)
    for clock, places, why in (
        (times[:2], latlon[:2], "at least 3"),
        (times[:0], latlon[:0], "0 of 0 photos"),
        (times, latlon + 0.5, "0 of 20 photos"),
        (times + 10 * 86400, latlon, "up to 14 hours"),
        (times, latlon[np.random.default_rng(0).permutation(20)], "were they taken with this camera"),
    ):
        with pytest.raises(PositionError, match=why):
            estimate_offset(clock, places, track)


def test_photos_of_other_days_do_not_matter() -> None:
    track = drive()
    times, latlon = photos_on(track, 30, 3.0, 4)
    others = np.concatenate([times + day * 86400 for day in (-2, 3)])
    found = estimate_offset(
        np.concatenate([times - 4.5, others]), np.concatenate([latlon, np.tile(latlon[::-1], (2, 1))]), track
    )
    assert found.seconds == pytest.approx(4.5, abs=0.3)


@pytest.mark.data
def test_on_a_real_track(shared_data: Path) -> None:
    track = read_track(shared_data / "inputs" / "sf_30km_h.gpx")
    rng = np.random.default_rng(5)
    times = np.sort(rng.uniform(track.times[0], track.times[-1], 40))
    origin = track.latlon[0]
    enu = enu_from_wgs84(track.at(times).latlon, origin) + rng.normal(0, 4, (40, 2))
    enu[::10] += 200
    found = estimate_offset(times - 7 * 3600 + 3.2, wgs84_from_enu(enu, origin), track)
    assert found.seconds == pytest.approx(7 * 3600 - 3.2, abs=0.3)
    assert not found.ambiguous
