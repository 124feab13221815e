"""`sareloc data track`, and `--track` of the commands that build maps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.ExifTags import IFD, Base
from tests.maps.small_town import tiny_model, write_photo
from tests.photos.test_tracks import gpx, north, write

from sareloc.cli import main
from sareloc.maps import PlaceMap
from sareloc.models import save_checkpoint
from sareloc.photos import read_geotag_table

QUICK = ("--device", "cpu", "--workers", "0")


@pytest.fixture
def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six photos a second apart by a clock 3.5 s fast, one of them taken later, one with a position; and a track."""
    for i in range(6):
        pixels = np.random.default_rng(i).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        exif = Image.Exif()
        exif.get_ifd(IFD.Exif).update(
            {Base.DateTimeOriginal: f"2024:05:31 14:{5 * (i == 5):02d}:1{i}", Base.SubsecTimeOriginal: "5"}
        )
        path = tmp_path / "photos" / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).resize((72, 64)).save(path, quality=90, exif=exif)
    write_photo(tmp_path / "photos" / "own.jpg", 9)
    write(tmp_path / "walk.gpx", gpx(north(60)))
    save_checkpoint(tiny_model(), tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


CLOCK = ("--timezone", "Europe/Zurich", "--clock-offset", "-3.5s")


def latitudes(path: str) -> dict[str, float]:
    found = PlaceMap(path)
    return dict(zip(found.files, found.positions.latlon()[:, 0].tolist(), strict=True))


def test_a_table_of_positions_and_how_far_each_photo_was(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("data", "track", "photos", "--track", "walk.gpx", *CLOCK, "--out", "photos/geotags.csv") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "photos/2.jpg: 47.000900, 8.000000, heading 0°, 0.0 s and 0.0 m from a track point"
    assert "photos/5.jpg: no position, taken 0:04:13 after the track ends" in lines
    assert lines[-1].startswith("5 photos got a position from the track, 0.0 s")
    assert lines[-1].endswith("1 has its own, 1 got none; written to photos/geotags.csv")
    tags = read_geotag_table("photos/geotags.csv").tags
    assert [tag.latlon[0] for tag in tags.values()] == pytest.approx([47 + (7 + i) * 1e-4 for i in range(5)], abs=1e-6)
    model = ("--model", "model", "--keypoints", "0")
    assert run("map", "build", "photos", "--out", "town.gpkg", *model, *QUICK) == 0
    assert latitudes("town.gpkg")["photos/2.jpg"] == pytest.approx(47.0009, abs=1e-6)


def test_a_table_is_replaced_on_request_and_placed_again(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("data", "track", "photos", "--track", "walk.gpx", "--timezone", "+02:00", "--out", "photos/geotags.csv")
    assert run(*words) == 0
    assert run(*words, "--clock-offset=-00:00:03.5") == 1
    assert "exists" in capsys.readouterr().err
    assert run(*words, "--clock-offset", "-3.5", "--replace", "--json") == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["clock_offset_s"] == -3.5
    assert [one["lat"] for one in told["placed"]] == pytest.approx([47 + (7 + i) * 1e-4 for i in range(5)])
    assert [one["reason"] for one in told["untagged"]] == ["taken 0:04:13 after the track ends"]
    assert told["own"] == ["photos/own.jpg"]


def test_maps_are_built_added_to_and_synchronized_with_a_track(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ("--model", "model")
    given = ("photos", "--out", "a.gpkg", "--track", "walk.gpx", *CLOCK, "--keypoints", "0")
    assert run("map", "build", *given, *model, *QUICK) == 0
    told = capsys.readouterr().out
    assert "added 6 photos" in told
    assert "5 photos got a position from the track" in told
    assert "photos/5.jpg: no position from the track, taken 0:04:13 after the track ends" in told
    assert latitudes("a.gpkg") == pytest.approx(
        {f"photos/{i}.jpg": 47 + (7 + i) * 1e-4 for i in range(5)} | {"photos/own.jpg": 48.8593}, abs=1e-6
    )
    wrong = ("--track", "walk.gpx", "--timezone", "+02:00")
    assert run("map", "sync", "a.gpkg", "photos", *wrong, *model, *QUICK) == 0
    assert "updated 5" in capsys.readouterr().out
    assert latitudes("a.gpkg")["photos/0.jpg"] == pytest.approx(47.00105, abs=1e-6)
    (town / "photos" / "0.jpg").rename(town / "new.jpg")
    assert run("map", "add", "a.gpkg", "new.jpg", "--track", "walk.gpx", *CLOCK, *model, *QUICK) == 0
    assert latitudes("a.gpkg")["new.jpg"] == pytest.approx(47.0007, abs=1e-6)


def test_tables_win_over_the_track(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(town / "photos" / "geotags.csv", "file,lat,lon\n1.jpg,10,20\n")
    words = ("map", "build", "photos", "--track", "walk.gpx", *CLOCK, "--keypoints", "0", "--model", "model", *QUICK)
    assert run(*words, "--out", "a.gpkg") == 0
    assert "2 have their own" in capsys.readouterr().out
    assert latitudes("a.gpkg")["photos/1.jpg"] == pytest.approx(10)
    assert latitudes("a.gpkg")["photos/2.jpg"] == pytest.approx(47.0009, abs=1e-6)
    write(town / "table.csv", "file,lat,lon\nphotos/2.jpg,30,40\n")
    assert run(*words, "--geotags", "table.csv", "--out", "b.gpkg") == 0
    assert latitudes("b.gpkg")["photos/2.jpg"] == pytest.approx(30)
    assert latitudes("b.gpkg")["photos/1.jpg"] == pytest.approx(47.0008, abs=1e-6)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--track", "walk.gpx", "--clock-offset", "-soon"), "such as -3.2s"),
        (("--track", "walk.gpx", "--timezone", "Zurich"), "unknown time zone 'Zurich'"),
        (("--timezone", "+02:00"), "--track FILE"),
        ((), "--track FILE"),
        (("--track", "cut.gpx"), "before the first complete track point"),
        (("--track", "walk.gpx", "other.gpx"), "walk.gpx and other.gpx overlap"),
        (("--track", "walk.gpx", "--estimate-offset"), "cannot be estimated"),
        (("--track", "walk.gpx", "--max-gap-s", "-1"), "max_gap_s must be greater than 0"),
    ],
)
def test_mistakes_are_one_sentence_and_nothing_is_written(
    words: tuple[str, ...], why: str, town: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(town / "cut.gpx", gpx(north(5))[:170])
    write(town / "other.gpx", gpx(north(60, longitude=8.1)))
    assert run("data", "track", "photos", *words, "--out", "table.csv") == 1
    told = capsys.readouterr()
    assert why in " ".join((told.err + told.out).replace("│", " ").split())
    assert "Traceback" not in told.err
    assert not (town / "table.csv").exists()


def test_without_a_photo_on_the_track_nothing_is_written(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("data", "track", "photos", "--track", "walk.gpx", "--out", "table.csv") == 1
    told = capsys.readouterr().out
    assert "no photo was placed: they were taken from 2024-05-31 14:00:10" in told
    assert "give --timezone" in told
    assert not (town / "table.csv").exists()
