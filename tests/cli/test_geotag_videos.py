"""`sareloc geotag` of videos: the position of the start, by exiftool or in a sidecar, and never truth for a map."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from cyclopts import App
from tests.localize.street import PLACES, build_street, position, street_model, view, write_view
from tests.photos.video_files import write_video

from sareloc.cli.geotag import geotag_command
from sareloc.cli.map import build
from sareloc.geo import distance_m
from sareloc.maps import PlaceMap
from sareloc.models import save_checkpoint
from sareloc.photos import read_sidecar_geotag, read_telemetry

pytest.importorskip("av")
STREET_PHOTOS = 3 * PLACES
EXIFTOOL = shutil.which("exiftool")
FRAMES = {"codec_options": {"crf": "10"}, "metadata": {"creation_time": "2024-05-01T10:00:00Z"}}


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """street.gpkg, its model, and two videos of place 5."""
    folder = tmp_path_factory.mktemp("town")
    build_street(folder)
    save_checkpoint(street_model(), folder / "model.safetensors")
    for name in ("drive.mp4", "drive.mkv"):
        write_video(folder / name, [0, 200, 400], images=[view(5, 40)] * 3, **FRAMES)
    return folder


def run(*words: str | Path) -> int:
    app = App(name="sareloc")
    app.command(geotag_command, name="geotag")
    app.command(build, name="build")
    return int(app(list(map(str, words)), result_action="return_value", exit_on_error=False) or 0)


def geotag(town: Path, *words: str | Path) -> int:
    named = ("--map", town / "street.gpkg", "--model", town / "model.safetensors", "--workers", "0", "--device", "cpu")
    return run("geotag", *words, *named, "--min-confidence", "0")


def build_map(town: Path, given: Sequence[Path], out: Path, *words: str) -> int:
    quick = ("--model", town / "model.safetensors", "--keypoints", "0", "--workers", "0", "--device", "cpu")
    return run("build", *given, "--out", out, *quick, *words)


def check_estimate(town: Path, video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The video has its position, and a map takes it only if it may."""
    found = read_telemetry(video)
    assert found.estimated
    assert distance_m(found.track.latlon[0], position(5)) < 25
    named, archive = tmp_path / "named.gpkg", tmp_path / "archive.gpkg"
    for given, out, status, photos in (
        ([video], named, 1, 0),
        ([town / "photos", video.parent], archive, 0, STREET_PHOTOS),
    ):
        capsys.readouterr()
        assert build_map(town, given, out) == status
        assert "estimated by sareloc: left out; --trust-estimates" in capsys.readouterr().out
        assert out.exists() == (photos > 0)
    assert {Path(file).suffix for file in PlaceMap(archive).files} == {".jpg"}
    assert len(PlaceMap(archive)) == STREET_PHOTOS
    assert build_map(town, [video], named, "--trust-estimates") == 0
    assert distance_m(PlaceMap(named).latlon[0], position(5)) < 25
    assert geotag(town, video, "--out", tmp_path / "again") == 0
    assert "already" in capsys.readouterr().out
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("name", ["drive.mp4", "drive.mkv"])
def test_a_video_gets_a_sidecar(town: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert geotag(town, town / name, "--out", out) == 0
    assert f"-> {out / name}, {out / name}.xmp\n" in capsys.readouterr().out
    assert (out / name).read_bytes() == (town / name).read_bytes()
    assert read_sidecar_geotag(out / name).estimated
    check_estimate(town, out / name, tmp_path, capsys)


@pytest.mark.skipif(EXIFTOOL is None, reason="exiftool is not installed")
def test_exiftool_writes_into_a_video(town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert geotag(town, town / "drive.mp4", town / "drive.mkv", "--out", out, "--exiftool", "--json") == 0
    answers = {Path(one["photo"]).name: one for one in map(json.loads, capsys.readouterr().out.splitlines())}
    assert answers["drive.mp4"]["written"] == [str(out / "drive.mp4")]
    assert answers["drive.mkv"]["written"] == [str(out / "drive.mkv"), str(out / "drive.mkv.xmp")]  # cannot be written
    words = [EXIFTOOL, "-validate", "-warning", "-error", "-GPSCoordinates", "-LocationAccuracyHorizontal", "-n", "-s3"]
    written = subprocess.run([*words, out / "drive.mp4"], capture_output=True, text=True, check=True).stdout.split("\n")
    assert written[0] == "0 0 0"
    assert distance_m(tuple(map(float, written[1].split())), position(5)) < 25
    assert float(written[2]) == pytest.approx(answers["drive.mp4"]["radius_m"], abs=0.01)
    check_estimate(town, out / "drive.mp4", tmp_path, capsys)


def test_a_row_of_a_table_is_not_truth_either(town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video = shutil.copy(town / "drive.mp4", tmp_path)
    assert geotag(town, video, "--out", tmp_path, "--sidecar", "csv") == 0
    assert "\ndrive.mp4#t=0," in (tmp_path / "geotags.csv").read_text()
    assert build_map(town, [tmp_path], tmp_path / "map.gpkg") == 1
    assert "drive.mp4) not used: it holds no positions" in capsys.readouterr().out


def test_videos_of_folders_are_named_and_damaged_ones_too(
    town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    write_view(folder / "a.jpg", view(5, 99), None)
    (folder / "cut.mp4").write_bytes((town / "drive.mp4").read_bytes()[:500])
    assert geotag(town, folder, "--out", tmp_path / "out") == 0
    assert "1 video (" in capsys.readouterr().err
    assert geotag(town, folder / "cut.mp4", "--out", tmp_path / "out") == 1
    told = capsys.readouterr().err
    assert "cut.mp4" in told
    assert "JPEG" not in told
