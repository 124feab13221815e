"""`sareloc localize` and `sareloc map build` with videos, from their arguments to what they print."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import gpxpy
import numpy as np
import pytest
from cyclopts import App
from tests.localize.street import PLACES, SPACING_M, build_street, position, street_model, view
from tests.photos.telemetry_files import add_track, gps5
from tests.photos.video_files import write_video

from sareloc.cli.data import track as data_track
from sareloc.cli.localize import localize_command
from sareloc.cli.map import build
from sareloc.errors import ArgumentError
from sareloc.geo import distance_m
from sareloc.maps import PlaceMap
from sareloc.models import save_checkpoint

pytest.importorskip("av")

CLOCK = {"creation_time": "2024-05-01T10:00:00Z"}
ISO = "%Y-%m-%dT%H:%M:%S.%fZ"
DRIVE = range(8)
"""Places of the street, one a second."""


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """street.gpkg, its model, and drive.mp4: places 0 to 7 of the street, one a second, the fifth of another town."""
    folder = tmp_path_factory.mktemp("town")
    build_street(folder)
    save_checkpoint(street_model(), folder / "model.safetensors")
    images = [view(second, 40, town=5 if second == 4 else 0) for second in DRIVE for _ in range(5)]
    quality = {"crf": "10", "bf": "2"}
    times = [200 * i for i in range(40)]
    write_video(folder / "drive.mp4", times, images=images, metadata=CLOCK, codec_options=quality)
    write_video(folder / "no_clock.mkv", times, images=images, codec_options=quality)
    return folder


def run(*words: str | Path) -> int:
    app = App(name="sareloc")
    app.command(localize_command, name="localize")
    app.command(build, name="build")
    app.command(data_track, name="track")
    return int(app(list(map(str, words)), result_action="return_value", exit_on_error=False) or 0)


def localize(town: Path, *words: str | Path) -> int:
    quick = ("--workers", "0", "--device", "cpu", "--model", town / "model.safetensors")
    return run("localize", town / "street.gpkg", *words, *quick)


def test_a_video_is_answered_as_a_walk(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert localize(town, town / "drive.mp4", "--json", "--walk-step-m", str(2 * SPACING_M)) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [Path(answer["photo"]).name for answer in answers] == [f"drive.mp4#t={second}" for second in DRIVE]
    assert [answer["time"] for answer in answers] == [f"2024-05-01T10:00:0{second}Z" for second in DRIVE]
    for second, answer in enumerate(answers):
        if second != 4:
            assert distance_m(answer["latlon"], position(second)) < 25


def test_every_s_chooses_the_frames(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert localize(town, town / "drive.mp4", "--every-s", "2.5", "--json") == 0
    names = [json.loads(line)["photo"] for line in capsys.readouterr().out.splitlines()]
    assert [name.split("#")[1] for name in names] == ["t=0", "t=2.4", "t=5", "t=7.4"]


def test_a_track_as_gpx_and_csv(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert localize(town, town / "drive.mp4", "--gpx", "--walk-step-m", "200") == 0
    (track,) = gpxpy.parse(capsys.readouterr().out).tracks
    points = track.segments[0].points
    assert len(points) >= 6
    assert points[0].time is not None
    assert points[0].time.isoformat() == "2024-05-01T10:00:00+00:00"
    assert localize(town, town / "no_clock.mkv", "--csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == len(DRIVE)
    assert {row["time"] for row in rows} == {""}
    assert rows[3]["photo"].endswith("no_clock.mkv#t=3")


def test_a_video_that_cannot_be_read_does_not_end_the_run(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (town / "broken.mp4").write_bytes((town / "drive.mp4").read_bytes()[:2000])
    assert localize(town, town / "broken.mp4", town / "drive.mp4", "--every-s", "4", "--json") == 0
    told = capsys.readouterr()
    assert "broken.mp4: not a video" in told.err
    assert len(told.out.splitlines()) == 2
    assert localize(town, town / "broken.mp4") == 1


def write_gpx(path: Path, step_s: float, start: str = "2024-05-01T10:00:00+00:00") -> Path:
    """A track through the places of the drive, one every `step_s` seconds."""
    begin = datetime.fromisoformat(start)
    times = [f"{begin + timedelta(seconds=step_s * number):{ISO}}" for number in DRIVE]
    points = "".join(
        f'<trkpt lat="{lat:.8f}" lon="{lon:.8f}"><time>{time}</time></trkpt>'
        for number, time in zip(DRIVE, times, strict=True)
        for lat, lon in [position(number)]
    )
    path.write_text(
        '<gpx version="1.1" creator="t" xmlns="http://www.topografix.com/GPX/1/1"><trk><trkseg>'
        f"{points}</trkseg></trk></gpx>"
    )
    return path


def test_the_clock_offset_of_a_video_by_the_answers_of_a_map(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The camera's clock is 3.2 s fast; 20 m/s."""
    video, track = town / "slow.mp4", write_gpx(town / "slow.gpx", 4, "2024-05-01T09:59:56.8+00:00")
    images = [view(number, 40) for number in DRIVE]
    write_video(video, [4000 * i for i in DRIVE], images=images, metadata=CLOCK, codec_options={"crf": "10"})
    words = (video, "--every-s", "4", "--track", track)
    assert localize(town, *words, "--estimate-offset", "--csv") == 0
    told = capsys.readouterr()
    found = re.search(r"slow.mp4: clock offset (\S+) s \(from (\S+) to (\S+) s fits as well\)", told.err)
    assert found is not None
    best, low, high = map(float, found.groups())
    assert best == pytest.approx(-3.2, abs=0.3)
    assert low <= -3.2 <= high
    first = datetime.fromisoformat(next(csv.DictReader(io.StringIO(told.out)))["time"])
    assert first.timestamp() == pytest.approx(datetime(2024, 5, 1, 10, tzinfo=UTC).timestamp() + best, abs=0.01)

    assert localize(town, *words, "--clock-offset", "-3.2s") == 0
    right = re.search(r"8 positions are of times on the track, (\S+) m from it", capsys.readouterr().err)
    assert localize(town, *words) == 0
    wrong = re.search(r"7 positions are of times on the track, (\S+) m from it", capsys.readouterr().err)
    assert right is not None
    assert wrong is not None  # the last frame is 3.2 s after the end of the track
    assert float(right[1]) < 10
    assert float(wrong[1]) > 50


def test_a_clock_that_cannot_be_estimated_loses_no_answer(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    track = write_gpx(town / "year.gpx", 1, "2023-05-01T10:00:00+00:00")
    for video, words, said in (
        ("no_clock.mkv", ("--estimate-offset",), "--video-start"),
        ("drive.mp4", ("--estimate-offset",), "cannot be estimated"),
        ("drive.mp4", (), "none of the positions is of a time on the track"),
    ):
        assert localize(town, town / video, "--track", track, *words, "--json") == 0
        told = capsys.readouterr()
        assert said in told.err
        assert len(told.out.splitlines()) == len(DRIVE)
    assert localize(town, town / "no_clock.mkv", "--video-start", "2024-05-01T12:00:00+02:00", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[3])["time"] == "2024-05-01T10:00:03Z"


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (("drive.mp4", "--estimate-offset"), "--track"),
        (("drive.mp4", "--estimate-offset", "--track", "a.gpx", "--clock-offset", "-2s"), "either given"),
        (("drive.mp4", "no_clock.mkv", "--video-start", "2024-05-01T12:00:00Z"), "one video"),
        (("photo.jpg", "--clock-offset", "-2s"), "options of videos"),
    ],
)
def test_options_of_the_clock_that_do_not_fit(town: Path, words: tuple[str, ...], word: str) -> None:
    with pytest.raises(ArgumentError, match=word):
        localize(town, *(town / one if "." in one and "2s" not in one else one for one in words))


@pytest.mark.slow
@pytest.mark.city
def test_the_clock_offset_of_a_drawn_drive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from sareloc.city import draw_drive, draw_places, make_drive

    draw_places(tmp_path / "town", 0, "small", splits=("test",))
    draw_drive(make_drive(seconds=40.0, fps=2.0, weather="overcast"), tmp_path / "drive", frame_size=(180, 320))
    quick = ("--workers", "0", "--device", "cpu")
    town = tmp_path / "town.gpkg"
    assert (
        run("build", tmp_path / "town" / "images" / "test" / "database", "--out", town, "--model", "fast", *quick) == 0
    )
    video = tmp_path / "drive" / "drive.mp4"
    track = ("--track", tmp_path / "drive" / "drive.gpx", "--estimate-offset")
    assert run("localize", town, video, *track, "--csv", *quick) == 0
    found = re.search(r"clock offset (\S+) s \(from (\S+) to (\S+) s", capsys.readouterr().err)
    assert found is not None
    best, low, high = map(float, found.groups())
    assert best == pytest.approx(-3.2, abs=0.5)
    assert low <= -3.2 <= high


def test_a_map_of_a_video(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_gpx(town / "drive.gpx", 1)
    words = ["--model", town / "model.safetensors", "--track", town / "drive.gpx"]
    words += ["--keypoints", "0", "--workers", "0", "--device", "cpu"]
    drive = ["build", town / "drive.mp4", "--out", town / "drive.gpkg"]
    assert run(*drive, *words, "--every-m", "79", "--clock-offset", "-0.1s") == 0
    assert "8 frames" in capsys.readouterr().out
    assert len(PlaceMap(town / "drive.gpkg")) == len(DRIVE) < PLACES
    assert run("build", town / "no_clock.mkv", "--out", town / "other.gpkg", *words) == 1
    assert "--video-start" in capsys.readouterr().out


def write_gopro(path: Path, step_s: float, start: datetime) -> Path:
    """A video through the places of the drive, one every `step_s` seconds, with the GPS of its camera inside."""
    images = [view(number, 40) for number in DRIVE]
    times = [round(1000 * step_s * number) for number in DRIVE]
    write_video(path, times, images=images, metadata=CLOCK, codec_options={"crf": "10"})
    places = np.array([position(number) for number in DRIVE])

    def at(second: float) -> tuple[float, float]:
        lat, lon = (float(np.interp(second / step_s, DRIVE, column)) for column in places.T)
        return lat, lon

    seconds = range(round(step_s * len(DRIVE)))
    payloads = [
        (second, gps5([at(second + part / 5) for part in range(5)], start.timestamp() + second)) for second in seconds
    ]
    return add_track(path, payloads)


def test_a_video_with_its_own_track(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No --track and no --clock-offset, although the camera's clock is 70 s slow."""
    start = datetime(2024, 5, 1, 10, 1, 10, tzinfo=UTC)
    video = write_gopro(town / "gopro.mp4", 4, start)
    quick = ("--model", town / "model.safetensors", "--workers", "0", "--device", "cpu")
    assert run("build", video, "--out", town / "gopro.gpkg", "--every-m", "78", "--keypoints", "0", *quick) == 0
    told = capsys.readouterr().out
    assert "160 positions inside the video, GoPro (GPMF, GPS5), DOP 1.6" in told
    assert "no clock offset is needed" in told
    for file, latlon in zip(*_rows(town / "gopro.gpkg"), strict=True):
        second = float(file.split("#t=")[1])
        assert distance_m(latlon, position(round(second / 4))) < 5

    assert localize(town, video, "--every-s", "4", "--estimate-offset", "--csv") == 0
    told = capsys.readouterr()
    found = re.search(r"gopro.mp4: clock offset (\S+) s \(from (\S+) to (\S+) s fits as well\)", told.err)
    assert found is not None
    assert float(found[1]) == pytest.approx(0, abs=0.2)
    first = datetime.fromisoformat(next(csv.DictReader(io.StringIO(told.out)))["time"])
    assert (first - start).total_seconds() == pytest.approx(float(found[1]), abs=0.2)


def _rows(town: Path) -> tuple[list[str], list[tuple[float, float]]]:
    from sareloc.maps import open_map_file

    with open_map_file(town) as file:
        pages = [(names, latlon) for _, latlon, names in file.pages()]
    return [name for names, _ in pages for name in names], [tuple(row) for _, rows in pages for row in rows]


def test_the_track_inside_a_video_as_gpx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video = write_gopro(tmp_path / "gopro.mp4", 1, datetime(2024, 5, 1, 10, 1, 10, tzinfo=UTC))
    out = tmp_path / "gopro.gpx"
    assert run("track", video, "--out", out) == 0
    told = capsys.readouterr().out
    assert "GoPro (GPMF, GPS5)" in told
    assert "40 points, 2024-05-01 10:01:10 to 2024-05-01 10:01:18 UTC" in told
    (segment,) = gpxpy.parse(out.read_text()).tracks[0].segments
    assert distance_m((segment.points[0].latitude, segment.points[0].longitude), position(0)) < 0.1
    with pytest.raises(ArgumentError, match="exists"):
        run("track", video, "--out", out)
    assert run("track", video, "--out", out, "--replace", "--video-start", "2024-05-01T12:00:00Z", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["points"] == 40
    assert report["start"] == datetime(2024, 5, 1, 12, tzinfo=UTC).timestamp()
    with pytest.raises(ArgumentError, match="gpx"):
        run("track", video, "--out", tmp_path / "table.csv")
    with pytest.raises(ArgumentError, match="photos or videos"):
        run("track", video, tmp_path / "photo.jpg", "--out", out, "--replace")
