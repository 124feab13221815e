"""Six people at the command line, each step with what it prints: a newcomer, an archivist, a driver with a dashcam, a
researcher, an operator and a GIS user.

Ctrl-C in training and tuples without a violating negative are in tests/cli/test_train_cli.py and tests/training, the
page is in tests/serve/page, the container and the systemd unit in tests/serve/test_deploy.py, several maps in
tests/localize/test_several.py.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import gpxpy
import pytest
from PIL import Image
from tests.contracts.recording import DEADLINE_S, QUICK, get, serving
from tests.localize.street import PLACES, build_street, position, street_model, view, write_view
from tests.localize.town import wall, write_town
from tests.maps.test_edits import ELSEWHERE, SPATIALITE, assert_indexed, blob, delete, edit, move, positions, touch
from tests.maps.test_frames import stream
from tests.photos.raw_files import make_dng
from tests.photos.telemetry_files import add_track

from sareloc.cli import main
from sareloc.geo import distance_m
from sareloc.maps import MapConfig, build_map
from sareloc.models import save_checkpoint
from sareloc.photos import read_geotag

TAKEN_NS = 1_400_000_000 * 10**9
Run = Callable[..., tuple[str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """A command with this exit status: what it prints to standard output and to standard error."""

    def run(*words: str | Path, status: int = 0) -> tuple[str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(map(str, words)))
        told = capsys.readouterr()
        assert (ended.value.code or 0) == status, told.err or told.out
        return told.out, told.err

    return run


@pytest.fixture(scope="module")
def first_town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/ of a street, street.gpkg of them, model.safetensors."""
    folder = tmp_path_factory.mktemp("town")
    build_street(folder)
    save_checkpoint(street_model(), folder / "model.safetensors")
    return folder


@pytest.fixture
def town(first_town: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first_town, tmp_path / "town"))


def quick(town: Path, *more: str) -> tuple[str | Path, ...]:
    return ("--model", town / "model.safetensors", *QUICK, *more)


def test_a_newcomer(town: Path, run: Run) -> None:
    """The heading needs verified matches: a town whose photos have local features."""
    write_town(town / "walls", keypoints=200)
    found, lost = (write_view(town / f"{place}.jpg", wall(place, 20), None) for place in (7, 70))
    out, _ = run("localize", town / "walls" / "town.gpkg", found, lost, *quick(town))
    first, second, total = out.split("\n\n")
    said = re.search(r"^  position +(\S+), (\S+)  https://www.openstreetmap.org/", first, re.MULTILINE)
    assert said is not None
    assert distance_m((float(said[1]), float(said[2])), position(7)) < 25
    assert re.search(r"^  heading +looks north, 35\d°$", first, re.MULTILINE)
    assert re.search(r"^  radius +9 of 10 such answers are within \d+ m$", first, re.MULTILINE)
    assert re.search(r"^  confidence +(more than )?\d+ % sure that it is within 25 m$", first, re.MULTILINE)
    assert re.search(r"not in this map; low-confidence position  \S+, \S+  https://", second)
    assert total == "1 of 2 photos found\n"


def test_an_archivist(town: Path, tmp_path: Path, run: Run) -> None:
    pytest.importorskip("rawpy")
    archive, out, preview = tmp_path / "archive", tmp_path / "out", io.BytesIO()
    for place in (5, 6, 7):
        photo = write_view(archive / f"{place}.jpg", view(place, 99), None)
        os.utime(photo, ns=(TAKEN_NS, TAKEN_NS + place))
    Image.fromarray(view(8, 99)).resize((400, 300)).save(preview, "JPEG", quality=95)
    (archive / "8.NEF").write_bytes(make_dng(preview.getvalue()))  # read
    (archive / "7.NEF").write_bytes(make_dng(preview.getvalue()))  # beside its JPEG: one photo
    geotag = ("geotag", archive, "--map", town / "street.gpkg", "--out", out, "--min-confidence", "0", *quick(town))
    planned, noted = run(*geotag, "--dry-run")
    assert "1 RAW file (" in noted
    assert "7.NEF) not used: the photo of its name beside it is" in noted
    assert "4 of 4 photos would be geotagged" in planned
    assert not out.exists()
    told, _ = run(*geotag)
    assert told.replace(" geotagged", " would be geotagged") == planned
    for name in ("5.jpg", "6.jpg", "7.jpg", "8.NEF"):
        (line,) = [line for line in told.splitlines() if line.startswith(f"{archive / name}: ")]
        assert re.search(r"; radius \d+ m, confidence (?:more than )?\d\.\d\d; most like photos/0\d_\d\.jpg -> ", line)
        assert str(out / name) in line
        assert read_geotag(out / name).estimated
    assert all((out / f"{place}.jpg").stat().st_mtime_ns == TAKEN_NS + place for place in (5, 6, 7))
    nothing, _ = run("geotag", out, "--map", town / "street.gpkg", "--out", tmp_path / "again", *quick(town))
    assert "4 photos already have a position" in nothing
    assert not (tmp_path / "again").exists()

    build = ("map", "build", town / "photos", out, "--out", tmp_path / "new.gpkg", "--keypoints", "0")
    told, _ = run(*build, *quick(town))
    assert f"added {3 * PLACES} photos" in told
    assert "4 photos hold positions estimated by sareloc: left out; --trust-estimates takes" in told
    assert str(out / "5.jpg") in told
    shutil.copy(town / "photos" / "05_1.jpg", town / "photos" / "twin.jpg")
    told, _ = run("map", "sync", town / "street.gpkg", town / "photos", *quick(town))
    assert re.search(r"^1 duplicate:\n  .*twin\.jpg.*05_1\.jpg", told, re.MULTILINE)


def test_a_driver_with_a_dashcam(town: Path, tmp_path: Path, run: Run) -> None:
    pytest.importorskip("av")
    from tests.cli.test_video_cli import DRIVE, write_gopro
    from tests.photos.video_files import write_video

    video = write_gopro(tmp_path / "gopro.mp4", 4, datetime(2024, 5, 1, 10, tzinfo=UTC))
    out = tmp_path / "gopro.gpkg"
    told, _ = run("map", "build", video, "--out", out, "--every-m", "78", "--keypoints", "0", *quick(town))
    assert "160 positions inside the video, GoPro (GPMF, GPS5)" in told
    for address, latlon in positions(out).items():
        assert distance_m(latlon, position(round(float(address.split("#t=")[1]) / 4))) < 5
    assert len(positions(out)) == len(DRIVE)
    told, _ = run("data", "track", video, "--out", tmp_path / "gopro.gpx")
    assert "160 points, 2024-05-01 10:00:00 to 2024-05-01 10:00:32 UTC written to" in told
    assert len(gpxpy.parse((tmp_path / "gopro.gpx").read_text()).tracks[0].segments[0].points) == 160

    write_video(tmp_path / "dji.mp4", [0, 1000], images=[view(1, 40), view(2, 40)])
    add_track(tmp_path / "dji.mp4", [(0, bytes(64))], b"djmd")
    told, _ = run("map", "build", tmp_path / "dji.mp4", "--out", tmp_path / "dji.gpkg", *quick(town), status=1)
    assert "telemetry track of type" in told
    assert "exiftool -ee -p gpx.fmt dji.mp4 > dji.gpx" in told
    report = build_map(stream(4), tmp_path / "robot.gpkg", street_model(), config=MapConfig(progress=False))
    assert (report.added, report.features) == (4, 4)


def test_a_researcher(town: Path, tmp_path: Path, run: Run) -> None:
    table = tmp_path / "meta.csv"
    table.write_text("file,lat,lon,role\n" + "".join(f"{row}.jpg,north,2,database\n" for row in range(80)))
    _, error = run("evaluate", table, *quick(town), status=1)
    assert "80 bad rows" in error
    assert error.splitlines()[-1].endswith("and 70 more")
    assert len(error.splitlines()) == 12
    places = range(4)
    roles = ("database", "query")
    rows = "".join(f"photos/0{i}_{j}.jpg,48.1,{2 + i},val,{role}\n" for i in places for j, role in enumerate(roles))
    (town / "meta.csv").write_text("file,lat,lon,split,role\n" + rows)
    told, noted = run("evaluate", town / "meta.csv", *quick(town))
    assert "no test split: its val split is evaluated" in noted
    assert "val: 4 database photos, 4 queries" in told
    config = tmp_path / "train.toml"
    config.write_text('loss = "sare"\n')
    _, error = run("train", table, "--config", config, "--out", tmp_path / "run", status=1)
    for name in ("contrastive", "geo-classification", "sare-ind", "sare-joint", "triplet"):
        assert name in error


def test_an_operator(town: Path, tmp_path: Path) -> None:
    """The map is not beside its photos, so that it has their absolute paths."""
    pytest.importorskip("fastapi")
    config = MapConfig(keypoints=0, progress=False)
    build_map(town / "photos", tmp_path / "served" / "map.gpkg", town / "model.safetensors", config=config)
    query = write_view(tmp_path / "query.jpg", view(5, 99), None).read_bytes()
    words = (tmp_path / "served" / "map.gpkg", "--model", town / "model.safetensors", "--min-confidence", "0")
    with serving(*map(str, words), "--token", "t") as address:
        answers = [get(f"{address}/map"), get(f"{address}/localize", query)]
        asked = urllib.request.Request(f"{address}/map", headers={"Authorization": "Bearer t"})
        with urllib.request.urlopen(asked, timeout=DEADLINE_S) as answer:
            allowed = answer.read().decode()
    assert json.loads(answers[1])["matches"][0]["photo"].startswith("05_")
    assert not [answer for answer in answers if str(tmp_path) in answer]
    assert str(town / "photos" / "05_0.jpg") in allowed


def test_a_gis_user(town: Path, run: Run) -> None:
    place_map = town / "street.gpkg"
    sync = ("map", "sync", place_map, town / "photos", *quick(town))
    assert_indexed(place_map)  # the R-tree
    told, _ = run("map", "remove", place_map, "07_*.jpg", "--dry-run")
    assert "would remove 3 photos" in told
    assert len(positions(place_map)) == 3 * PLACES
    move(place_map, "05_0.jpg", ELSEWHERE)
    delete(place_map, "06_0.jpg")
    touch(town / "photos")  # copied: other file times, the same content
    told, _ = run(*sync)
    assert "added 0 photos" in told
    for name in ("05_0.jpg", "06_0.jpg"):
        assert name in told
    found = positions(place_map)
    assert (found["05_0.jpg"], len(found)) == (ELSEWHERE, 3 * PLACES - 1)
    assert "06_0.jpg" not in found

    edit(place_map, "UPDATE photos SET geom = ? WHERE file = 'photos/08_0.jpg'", SPATIALITE)
    query = write_view(town / "q05.jpg", view(5, 99), None)
    run("localize", place_map, query, *quick(town))  # one row is bad: one photo is left out
    assert positions(place_map).keys() == found.keys() - {"08_0.jpg"}
    told, _ = run("map", "verify", place_map, status=1)
    assert "photos/08_0.jpg" in told
    edit(place_map, "UPDATE photos SET geom = ? WHERE file = 'photos/08_1.jpg'", blob(4326, 2.5, 95.0))
    told, _ = run(*sync)
    assert "08_0.jpg: not valid: its geometry of 60 bytes is not GeoPackage binary" in told
    assert "08_1.jpg: not valid: latitude 95" in told
    told, _ = run(*sync, "--restore")
    assert "4 photos are again as their files say" in told
    assert len(positions(place_map)) == 3 * PLACES
    assert distance_m(positions(place_map)["05_0.jpg"], position(5)) < 1
