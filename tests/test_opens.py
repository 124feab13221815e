"""A photo is read once: how often its file is opened and decoded, counted in a fresh process by an audit hook."""

from __future__ import annotations

import json
from typing import Any

import pytest
from benchmarks.house import ROOT, child
from PIL import ExifTags, Image
from tests.maps.small_town import build_map, tiny_model, write_photo, write_town
from tests.photos.test_tracks import gpx, north, write

from sareloc.models import save_checkpoint

PHOTOS = 4
COUNT = """
import json, sys
from pathlib import Path
from benchmarks.house import count_reads
for name, (below, words) in json.loads(sys.argv[1]).items():
    print("reads", json.dumps([name, count_reads(Path(below), words)]))
"""


@pytest.fixture(scope="module")
def reads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """For each command the most opens of one JPEG below its folder, and decodes of each on average."""
    town = tmp_path_factory.mktemp("town")
    write_town(town / "photos", PHOTOS)
    query = write_photo(town / "query" / "0009.jpg", 9, tagged=False)
    save_checkpoint(tiny_model(), town / "model.safetensors")
    write(town / "walk.gpx", gpx(north(60)))
    for second in range(PHOTOS):
        photo = write_photo(town / "walk" / f"{second:04d}.jpg", second, tagged=False)
        exif = Image.Exif()
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = f"2024:05:31 12:00:{second:02d}"
        with Image.open(photo) as image:
            image.save(photo, exif=exif)
    write_town(town / "known", 24)
    for number in range(12):
        write_photo(town / "true" / f"{number:04d}.jpg", 3 * number + 100)
    build_map(town / "known", town / "known.gpkg", tiny_model(), keypoints=None, progress=False)

    asked = ("localize", town / "town.gpkg", query)
    on_track = ("--track", town / "walk.gpx", "--out", town / "walk.gpkg")
    commands = {
        "map": ("photos", "map", "build", town / "photos", "--out", town / "town.gpkg"),
        "position": ("query", *asked),
        "position and time": ("query", *asked, "--csv"),
        "map by a track": ("walk", "map", "build", town / "walk", *on_track),
        "calibration": ("true", "map", "calibrate", town / "known.gpkg", town / "true"),
    }
    model = ("--model", town / "model.safetensors", "--workers", "0", "--device", "cpu")
    given = {name: (str(town / below), [*map(str, (*words, *model))]) for name, (below, *words) in commands.items()}
    said = child(ROOT / "src", "-c", COUNT, json.dumps(given))
    return dict(json.loads(line.removeprefix("reads")) for line in said.splitlines() if line.startswith("reads"))


def test_a_photo_is_opened_at_most_twice_for_a_map(reads: dict[str, dict[str, Any]]) -> None:
    assert reads["map"]["photos"] == PHOTOS
    assert reads["map"]["opens"] <= 2
    assert reads["map"]["decodes"] == 1


@pytest.mark.parametrize(("asked", "opens"), [("position", 1), ("position and time", 2)])
def test_a_query_is_opened_once_and_once_more_for_its_time(
    reads: dict[str, dict[str, Any]], asked: str, opens: int
) -> None:
    assert reads[asked] == {"photos": 1, "opens": opens, "decodes": 1}


def test_a_photo_on_a_track_is_opened_at_most_three_times_for_a_map(reads: dict[str, dict[str, Any]]) -> None:
    """Once for its time, which the clock offset may be estimated by, then as any other."""
    assert reads["map by a track"] == {"photos": PHOTOS, "opens": 3, "decodes": 1}


def test_a_photo_is_opened_at_most_twice_for_a_calibration(reads: dict[str, dict[str, Any]]) -> None:
    """Once for its position, and once for its pixels and to see whether the map has it."""
    assert reads["calibration"] == {"photos": 12, "opens": 2, "decodes": 1}
