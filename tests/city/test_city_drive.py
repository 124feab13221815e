"""A drive through the city: lanes and corners, the direction of travel, two clocks, and what the files say."""

from __future__ import annotations

import csv
from datetime import UTC, datetime

import numpy as np
import pytest

from sareloc.city import SIZES, Size, city_places, draw_drive, draw_frames, make_drive, make_town
from sareloc.city.drive import (
    ACCELERATION,
    BRAKING,
    CORNER_SPEED,
    FASTEST_CRUISE,
    TURN_RADIUS_M,
    junctions,
    make_route,
)
from sareloc.errors import ArgumentError
from sareloc.geo import distance_m, enu_from_wgs84


@pytest.fixture(params=[(0, "small"), (1, "medium"), pytest.param((5, "medium"), marks=pytest.mark.slow)])
def route_and_town(request):
    town = make_town(*request.param)
    return make_route(np.random.default_rng(3), town.streets, 240.0), town


def angle_between(a, b):
    return np.abs(np.angle(np.exp(1j * (a - b))))


def test_the_car_looks_where_it_goes(route_and_town):
    route, _ = route_and_town
    step = np.diff(route.xy, axis=0)
    moves = np.hypot(*step.T) > 0
    direction = np.arctan2(step[:, 1], step[:, 0])[moves]
    # a chord of the smallest curve differs from its ends' tangents by half of the step's angle
    limit = 0.06 / TURN_RADIUS_M
    for end in (route.yaw[:-1], route.yaw[1:]):
        assert angle_between(direction, end[moves]).max() < limit
    assert np.abs(np.diff(route.yaw)).max() < 2 * limit


def test_the_car_stays_on_the_road_on_its_right_side(route_and_town):
    route, town = route_and_town
    s, ends = town.streets, 0
    for (x, y), yaw in zip(route.xy[::20], route.yaw[::20], strict=True):
        over = np.abs(y - s.long_y) - s.long_road
        row = int(np.clip(np.searchsorted(s.long_y, y) - 1, 0, len(s.long_y) - 2))
        aside = np.abs(x - s.cross_x[row]) - s.cross_road[row]
        assert min(over.min(), aside.min()) < 0
        if aside.min() > TURN_RADIUS_M + 1:  # between junctions of a long street: right of its middle
            middle = s.long_y[over.argmin()]
            assert np.sign(y - middle) == -np.sign(np.cos(yaw))
            ends += 1
    assert ends > 10


def test_speeds_are_those_of_a_car(route_and_town):
    route, _ = route_and_town
    assert route.time_s[-1] >= 240
    t = np.arange(0, 240, 0.5)
    xy, yaw = route.at(t)
    speed = np.hypot(*np.diff(xy, axis=0).T) / 0.5
    assert speed.max() < FASTEST_CRUISE + 0.01
    assert np.diff(speed).max() < ACCELERATION * 0.5 + 0.1
    assert np.diff(speed).min() > -BRAKING * 0.5 - 0.1
    assert (speed == 0).any()  # stops
    assert np.median(speed[speed > 0]) > CORNER_SPEED
    turning = np.abs(np.diff(yaw)) > 0.1
    assert turning.any()
    assert speed[turning].max() < CORNER_SPEED + 1


def test_junctions_of_a_town_of_one_block():
    graph = junctions(make_town(0, "small").streets)
    assert len(graph) == 4
    assert all(len(ways) == 2 for ways in graph.values())


def test_the_drive_is_in_the_streets_of_the_database():
    drive = make_drive(2, "medium", "val", seconds=20, gps_noise_m=0)
    city = city_places(2, "medium", "val")
    assert drive.town is city.town
    apart = np.linalg.norm(drive.poses.eye[:, None, :2] - city.views.database.eye[None, :, :2], axis=-1)
    assert apart.min(1).max() < 11
    day = 86400
    assert int(drive.moment.time // day) not in {int(m.time // day) for m in city.views.moments}


def test_latitude_longitude_and_heading_are_those_of_the_poses():
    drive = make_drive(2, seconds=30, gps_noise_m=0)
    enu = enu_from_wgs84(drive.latlon, drive.town.origin)
    assert enu == pytest.approx(drive.town.enu(drive.poses.eye), abs=1e-4)
    east, north = np.diff(enu, axis=0).T
    moves = np.hypot(east, north) > 0.2
    heading = np.arctan2(east, north)[moves]
    middle = np.deg2rad(drive.headings_deg[:-1])[moves]
    assert moves.sum() > 100
    assert angle_between(heading, middle).max() < 0.1  # a tenth of a second at 5 m/s on a curve of 6 m


@pytest.mark.parametrize("offset", [-3.2, 41.75, 0.0])
def test_the_offset_is_added_to_the_clock_of_the_camera(offset):
    """The frame that the camera dates at its creation time + time_s is where the track was at that time + offset."""
    drive = make_drive(2, seconds=20, clock_offset_s=offset, gps_noise_m=0)
    assert drive.creation_time == round(drive.creation_time)
    utc = drive.creation_time + drive.times_s + offset
    assert utc[0] >= drive.track_times[0] + 29
    assert utc[-1] <= drive.track_times[-1] - 29
    track = enu_from_wgs84(drive.track_latlon, drive.town.origin)
    here = np.stack([np.interp(utc, drive.track_times, values) for values in track.T], axis=1)
    away = np.linalg.norm(here - enu_from_wgs84(drive.latlon, drive.town.origin), axis=1)
    assert away.max() < 0.7  # straight lines between points of a second cut corners
    if offset:
        wrong = np.stack([np.interp(utc - offset, drive.track_times, values) for values in track.T], axis=1)
        assert np.linalg.norm(wrong - enu_from_wgs84(drive.latlon, drive.town.origin), axis=1).max() > 5


def test_the_offset_changes_neither_route_nor_light_and_a_number_does():
    one, other, next_one = (
        make_drive(2, seconds=5, **options) for options in ({}, {"clock_offset_s": 8.0}, {"number": 1})
    )
    assert np.array_equal(one.poses.eye, other.poses.eye)
    assert one.moment.sun_direction == other.moment.sun_direction
    assert not np.array_equal(one.poses.eye, next_one.poses.eye)
    assert one.moment.sun_direction != next_one.moment.sun_direction


def test_the_noise_of_the_track_has_the_given_size():
    exact, noisy = (make_drive(2, seconds=1500, fps=0.1, gps_noise_m=m) for m in (0, 2.0))
    away = enu_from_wgs84(noisy.track_latlon, exact.town.origin) - enu_from_wgs84(exact.track_latlon, exact.town.origin)
    assert away.std(0) == pytest.approx([2, 2], rel=0.35)
    assert np.abs(np.diff(away, axis=0)).std() < 1  # it changes slowly
    assert np.array_equal(noisy.latlon, exact.latlon)


def test_files_say_what_was_drawn(monkeypatch, tmp_path):
    av, gpxpy = pytest.importorskip("av"), pytest.importorskip("gpxpy")
    monkeypatch.setitem(SIZES, "tiny", Size(3, 2, (5.0,), 5, (24, 32)))
    options = {"seconds": 2.0, "fps": 5.0, "clock_offset_s": -3.2, "gps_noise_m": 0.0}
    drive = make_drive(3, "tiny", **options)
    draw_drive(drive, tmp_path, frame_size=(48, 64))
    with av.open(str(tmp_path / "drive.mp4")) as video:
        stamp = datetime.fromisoformat(video.metadata["creation_time"])
        assert video.streams.video[0].codec_context.name == "h264"
        frames = list(video.decode(video=0))
    assert stamp.timestamp() == drive.creation_time
    assert [frame.time for frame in frames] == pytest.approx(np.arange(10) / 5)
    drawn = list(draw_frames(drive, 48, 64))
    for frame, image in zip(frames, drawn, strict=True):
        assert np.abs(frame.to_ndarray(format="rgb24").astype(int) - image).mean() < 12  # H.264 of noisy small frames

    points = gpxpy.parse((tmp_path / "drive.gpx").read_text()).tracks[0].segments[0].points
    assert [p.time.timestamp() for p in points] == drive.track_times.tolist()
    assert set(np.diff(drive.track_times)) == {1.0}
    assert distance_m([(p.latitude, p.longitude) for p in points], drive.track_latlon).max() < 0.002
    assert points[0].time.tzinfo is not None
    assert points[0].time < datetime.fromtimestamp(drive.creation_time - 3.2 - 29, UTC)

    with (tmp_path / "truth.csv").open() as file:
        truth = list(csv.DictReader(file))
    assert [int(row["frame"]) for row in truth] == list(range(10))
    assert [float(row["time_s"]) for row in truth] == pytest.approx(drive.times_s)
    assert [float(row["heading_deg"]) for row in truth] == pytest.approx(drive.headings_deg, abs=1e-3)
    assert distance_m([(float(row["lat"]), float(row["lon"])) for row in truth], drive.latlon).max() < 0.002

    before = (tmp_path / "drive.mp4").stat().st_mtime_ns
    draw_drive(make_drive(3, "tiny", **options), tmp_path, frame_size=(48, 64))
    assert (tmp_path / "drive.mp4").stat().st_mtime_ns == before
    with pytest.raises(ArgumentError, match=r'another drive \(.*"seed": 3'):
        draw_drive(make_drive(4, "tiny", **options), tmp_path, frame_size=(48, 64))
    assert not list(tmp_path.glob(".*.part"))
    make_town.cache_clear()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"seconds": 0}, "seconds"),
        ({"fps": -1.0}, "fps"),
        ({"clock_offset_s": float("nan")}, "offset"),
        ({"gps_noise_m": -1.0}, "noise"),
        ({"number": -1}, "number"),
        ({"weather": "hail"}, "weather"),
    ],
)
def test_invalid_arguments_are_named(options, word):
    with pytest.raises(ArgumentError, match=word):
        make_drive(**options)


def test_a_frame_of_odd_height_is_refused(tmp_path):
    pytest.importorskip("av")
    with pytest.raises(ArgumentError, match="even"):
        draw_drive(make_drive(seconds=1), tmp_path, frame_size=(47, 64))
    assert not list(tmp_path.iterdir())


def test_a_drive_with_the_gps_of_its_camera(tmp_path):
    """The camera's clock is 3.2 s fast; its GPS, inside the video, is not, and comes up to 0.1 s late."""
    pytest.importorskip("av")
    from tests.photos.telemetry_files import add_track, gps5

    from sareloc.photos import TrackOptions, frames_on_track, read_telemetry, read_video

    drive = make_drive(seconds=6.0, fps=5.0)
    draw_drive(drive, tmp_path, frame_size=(32, 48))
    video = tmp_path / "drive.mp4"
    created = read_video(video).start
    start, rng = created + drive.clock_offset_s, np.random.default_rng(0)

    def at(second):
        return tuple(float(np.interp(second, drive.times_s, column)) for column in drive.latlon.T)

    payloads = [
        (second, gps5([at(second + part / 18) for part in range(18)], start + second + rng.uniform(0, 0.1)))
        for second in range(6)
    ]
    found = read_telemetry(add_track(video, payloads))
    assert found.start == pytest.approx(start, abs=0.2)
    assert found.start - created == pytest.approx(-3.2, abs=0.2)
    report = frames_on_track([video], TrackOptions(every_m=2))
    assert len(report.geotags) > 5
    for frame, geotag in report.geotags.items():
        row = round(float(str(frame).split("t=")[1]) * 5)
        assert distance_m(geotag.latlon, drive.latlon[row]) < 1
        assert geotag.time == pytest.approx(start + drive.times_s[row], abs=0.2)
