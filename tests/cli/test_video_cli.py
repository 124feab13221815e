"""`sareloc localize` and `sareloc map build` with videos, from their arguments to what they print."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import gpxpy
import pytest
from cyclopts import App
from tests.localize.street import PLACES, SPACING_M, build_street, position, street_model, view
from tests.photos.video_files import write_video

from sareloc.cli.localize import localize_command
from sareloc.cli.map import build
from sareloc.geo import distance_m
from sareloc.maps import PlaceMap
from sareloc.models import save_checkpoint

pytest.importorskip("av")

CLOCK = {"creation_time": "2024-05-01T10:00:00Z"}
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
    assert localize(town, town / "drive.mp4", "--every-s", "2.5") == 0
    names = [line.split(": ")[0] for line in capsys.readouterr().out.splitlines()]
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
    assert localize(town, town / "broken.mp4", town / "drive.mp4", "--every-s", "4") == 0
    told = capsys.readouterr()
    assert "broken.mp4: not a video" in told.err
    assert len(told.out.splitlines()) == 2
    assert localize(town, town / "broken.mp4") == 1


def test_a_map_of_a_video(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points = "".join(
        f'<trkpt lat="{lat:.8f}" lon="{lon:.8f}"><time>2024-05-01T10:00:{second:02d}Z</time></trkpt>'
        for second in DRIVE
        for lat, lon in [position(second)]
    )
    (town / "drive.gpx").write_text(
        '<gpx version="1.1" creator="t" xmlns="http://www.topografix.com/GPX/1/1"><trk><trkseg>'
        f"{points}</trkseg></trk></gpx>"
    )
    words = ["--model", town / "model.safetensors", "--track", town / "drive.gpx"]
    words += ["--keypoints", "0", "--workers", "0", "--device", "cpu"]
    drive = ["build", town / "drive.mp4", "--out", town / "drive.gpkg"]
    assert run(*drive, *words, "--every-m", "79", "--clock-offset", "-0.1s") == 0
    assert "8 frames" in capsys.readouterr().out
    assert len(PlaceMap(town / "drive.gpkg")) == len(DRIVE) < PLACES
    assert run("build", town / "no_clock.mkv", "--out", town / "other.gpkg", *words) == 1
    assert "--video-start" in capsys.readouterr().out
