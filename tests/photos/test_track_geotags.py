"""Photos placed on a track by their EXIF times: zones, sub-seconds, offsets, gaps, and what is reported."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.ExifTags import GPS, IFD, Base
from tests.photos.test_tracks import gpx, north, write

from sareloc.errors import ArgumentError, PositionError
from sareloc.geo import distance_m, enu_from_wgs84, wgs84_from_enu
from sareloc.photos import (
    Geotag,
    Track,
    TrackOptions,
    geotags_from_track,
    parse_timezone,
    read_exif_time,
    read_geotag_table,
    write_geotag,
)
from sareloc.photos.track_geotags import track_geotags_csv

NOON = datetime(2024, 5, 31, 12, tzinfo=UTC).timestamp()
HOME = (47.0, 8.0)


def take(path: Path, shown: str | None = None, *, sub: str = "", zone: str = "", gps_time: str = "") -> Path:
    """A photo with this time in its EXIF: 2024:05:31 and `shown`, such as 12:00:00."""
    exif = Image.Exif()
    camera = exif.get_ifd(IFD.Exif)
    if shown:
        camera[Base.DateTimeOriginal] = f"2024:05:31 {shown}"
    if sub:
        camera[Base.SubsecTimeOriginal] = sub
    if zone:
        camera[Base.OffsetTimeOriginal] = zone
    if gps_time:
        gps = exif.get_ifd(IFD.GPSInfo)
        gps[GPS.GPSDateStamp], gps[GPS.GPSTimeStamp] = "2024:05:31", tuple(map(float, gps_time.split(":")))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(path, exif=exif)
    return path


def east(seconds: int = 60, speed: float = 10.0) -> Track:
    """East from noon (UTC) at this speed, one point a second."""
    times = np.arange(seconds + 1.0)
    return Track(NOON + times, wgs84_from_enu(np.stack([speed * times, 0 * times], axis=1), HOME))


def metres_east(geotag: Geotag) -> float:
    return float(enu_from_wgs84(geotag.latlon, HOME)[0, 0])


@pytest.mark.parametrize(
    ("exif", "timezone", "seconds", "zone"),
    [
        ({"shown": "12:00:10"}, None, 10, "unknown"),
        ({"shown": "12:00:10", "sub": "25"}, None, 10.25, "unknown"),
        ({"shown": "12:00:10", "sub": "025"}, None, 10.025, "unknown"),
        ({"shown": "14:00:10", "zone": "+02:00"}, None, 10, "photo"),
        ({"shown": "14:00:10", "zone": "+02:00"}, "-05:00", 10, "photo"),
        ({"shown": "14:00:10"}, "Europe/Zurich", 10, "given"),
        ({"shown": "08:30:10"}, "-03:30", 10, "given"),
        ({"shown": "14:00:13", "gps_time": "12:00:10"}, None, 10, "gps"),
        ({"shown": "14:00:13", "gps_time": "12:00:10"}, "+02:00", 13, "given"),
        ({"shown": "14:00:13", "gps_time": "12:00:10", "zone": "+02:00"}, None, 13, "photo"),
        ({"gps_time": "12:00:10"}, "+02:00", 10, "gps"),
        ({"shown": "12:00:10", "zone": "+99:99"}, None, 10, "unknown"),
    ],
)
def test_the_time_of_a_photo(
    exif: dict[str, str], timezone: str | None, seconds: float, zone: str, tmp_path: Path
) -> None:
    found = read_exif_time(take(tmp_path / "a.jpg", **exif), None if timezone is None else parse_timezone(timezone))
    assert found is not None
    assert (found.seconds - NOON, found.zone) == (pytest.approx(seconds), zone)
    placed = geotags_from_track([tmp_path / "a.jpg"], east(), timezone=timezone).placed
    assert metres_east(placed[0].geotag) == pytest.approx(10 * seconds, abs=0.01)
    assert placed[0].geotag.time == pytest.approx(NOON + seconds)
    assert placed[0].geotag.heading_deg == pytest.approx(90, abs=0.1)


def test_every_photo_is_placed_kept_or_has_a_reason(tmp_path: Path) -> None:
    track = Track(NOON + np.array([0.0, 10, 100, 110]), wgs84_from_enu([(0, 0), (0, 10), (0, 100), (0, 110)], HOME))
    on = take(tmp_path / "on.jpg", "12:00:04", sub="5")
    photos = [on, take(tmp_path / "gap.jpg", "12:00:50"), take(tmp_path / "none.jpg")]
    photos += [take(tmp_path / "early.jpg", "11:59:58"), take(tmp_path / "late.jpg", "15:01:50")]
    own = take(tmp_path / "own.jpg", "12:00:05")
    write_geotag(own, own, Geotag((1.0, 2.0)))
    listed = take(tmp_path / "listed.jpg", "12:00:05")
    report = geotags_from_track([*photos, own, listed], track, own={str(listed): Geotag((3.0, 4.0))})
    assert list(report.geotags) == [on]
    assert list(report.own) == [own, listed]
    assert {photo.name: reason for photo, reason in report.untagged} == {
        "gap.jpg": "taken in a gap of the track of 90.0 s (--max-gap-s 30)",
        "none.jpg": "no time in its EXIF (DateTimeOriginal)",
        "early.jpg": "taken 2.0 s before the track begins",
        "late.jpg": "taken 3:00:00 after the track ends",
    }
    assert (report.placed[0].nearest_s, report.placed[0].nearest_m) == pytest.approx((4.5, 4.5), abs=0.01)
    assert "4.5 s and 4.5 m from a track point" in str(report.placed[0])
    assert report.summary().startswith("1 photo got a position from the track, 4.5 s and 4.5 m from a track point")
    assert report.summary().endswith("2 have their own, 4 got none")
    assert geotags_from_track(photos, track, max_gap_s=90).placed[1].photo.name == "gap.jpg"


def test_the_clock_offset_is_added_but_not_to_gps_times(tmp_path: Path) -> None:
    clock, gps = take(tmp_path / "a.jpg", "12:00:10"), take(tmp_path / "b.jpg", "14:00:10", gps_time="12:00:10")
    report = geotags_from_track([clock, gps], east(), clock_offset_s=-3.2)
    assert [metres_east(one.geotag) for one in report.placed] == pytest.approx([68, 100], abs=0.01)


def test_a_zone_that_is_unknown_is_noted(tmp_path: Path) -> None:
    photo = take(tmp_path / "a.jpg", "14:00:10")
    report = geotags_from_track([photo], east())
    assert "1 photo (" in report.notes[0]
    assert "read as UTC; give --timezone" in report.notes[0]
    assert "taken from 2024-05-31 14:00:10 to 2024-05-31 14:00:10 UTC, the track has 61 points" in report.notes[1]
    assert geotags_from_track([photo], east(), timezone="Europe/Zurich").notes == ()


def test_an_offset_of_millennia_is_no_traceback(tmp_path: Path) -> None:
    report = geotags_from_track([take(tmp_path / "a.jpg", "12:00:10")], east(), clock_offset_s=1e15)
    assert "after the track ends" in report.untagged[0][1]


def test_headings_can_be_left_out(tmp_path: Path) -> None:
    photo = take(tmp_path / "a.jpg", "12:00:10")
    assert geotags_from_track([photo], east(), heading=False).placed[0].geotag.heading_deg is None


def test_the_offset_is_estimated_by_photos_with_positions(tmp_path: Path) -> None:
    """The clock is an hour and 4 s fast; the phone's photos have positions, 2 m off; one photo has none."""
    track = east(120)
    photos = []
    for i in range(12):
        seconds = 6 * i + 5
        shown = f"13:{(seconds + 4) // 60:02d}:{(seconds + 4) % 60:02d}"
        photos.append(take(tmp_path / f"{i}.jpg", shown, gps_time="11:00:00"))
        latlon = wgs84_from_enu([(10.0 * seconds + (-1) ** i * 2, 1.0)], HOME)[0].tolist()
        write_geotag(photos[-1], photos[-1], Geotag((latlon[0], latlon[1])))
    plain = take(tmp_path / "plain.jpg", "13:00:34")
    report = geotags_from_track([*photos, plain], track, clock_offset_s=None)
    assert report.clock_offset_s == pytest.approx(-3604, abs=0.11)
    assert metres_east(report.geotags[plain]) == pytest.approx(300, abs=1.5)
    assert report.estimate is not None
    assert report.estimate.on_track == 12
    assert "clock offset -360" in report.notes[0]
    with pytest.raises(PositionError, match="at least 3"):
        geotags_from_track([plain], track, clock_offset_s=None)


def test_an_ambiguous_estimate_is_refused(tmp_path: Path) -> None:
    still = Track(NOON + np.arange(600.0), np.tile(HOME, (600, 1)))
    photos = [take(tmp_path / f"{i}.jpg", f"12:05:0{i}") for i in range(5)]
    for photo in photos:
        write_geotag(photo, photo, Geotag(HOME))
    with pytest.raises(PositionError, match=r"every offset from .* give the offset"):
        geotags_from_track(photos, still, clock_offset_s=None)


def test_the_table_is_read_again(tmp_path: Path) -> None:
    photos = [take(tmp_path / "day 1" / f"{i}.jpg", f"12:00:1{i}", sub="5") for i in range(3)]
    report = geotags_from_track(photos, east())
    table = write(tmp_path / "geotags.csv", track_geotags_csv(report.placed, tmp_path))
    read = read_geotag_table(table)
    assert read.problems == ()
    assert list(read.tags) == [f"day 1/{i}.jpg" for i in range(3)]
    for photo, geotag in report.geotags.items():
        again = read.tags[photo.relative_to(tmp_path).as_posix()]
        assert distance_m(again.latlon, geotag.latlon) < 0.02
        assert (again.time, again.heading_deg) == (pytest.approx(geotag.time, abs=1e-5), pytest.approx(90, abs=0.1))


def test_options_check_themselves(tmp_path: Path) -> None:
    track = (write(tmp_path / "a.gpx", gpx(north(3))),)
    for options, why in (
        ({"track": track, "max_gap_s": 0.0}, "max_gap_s"),
        ({"track": track, "timezone": "Mars"}, "unknown time zone"),
        ({"track": track, "clock_offset": "soon"}, "clock offset"),
        ({"track": track, "clock_offset": "2s", "estimate_offset": True}, "either given"),
    ):
        with pytest.raises(ArgumentError, match=why):
            TrackOptions(**options)  # type: ignore[arg-type]
