"""A photo is read once: how often its file is opened and decoded, counted in fresh processes by an audit hook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.house import ROOT, child
from PIL import ExifTags, Image
from tests.maps.small_town import tiny_model, write_photo, write_town
from tests.photos.test_tracks import gpx, north, write

from sareloc.maps import MapConfig, build_map
from sareloc.models import save_checkpoint

PHOTOS = 4


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: model.safetensors, photos/, query/0009.jpg."""
    folder = tmp_path_factory.mktemp("town")
    write_town(folder / "photos", PHOTOS)
    write_photo(folder / "query" / "0009.jpg", 9, tagged=False)
    save_checkpoint(tiny_model(), folder / "model.safetensors")
    return folder


def count_reads(town: Path, below: str, *words: str | Path) -> dict[str, Any]:
    """The most opens of one JPEG below a folder, and decodes of each on average, while a command runs."""
    report = town / "reads.json"
    model = ("--model", town / "model.safetensors", "--workers", "0", "--device", "cpu")
    child(ROOT / "src", "-m", "benchmarks.house", "--reads", *map(str, (report, town / below, *words, *model)))
    found: dict[str, Any] = json.loads(report.read_text())
    return found


@pytest.fixture(scope="module")
def built(town: Path) -> dict[str, Any]:
    """What building town.gpkg, the map of the photos, reads."""
    return count_reads(town, "photos", "map", "build", town / "photos", "--out", town / "town.gpkg")


def test_a_photo_is_opened_at_most_twice_for_a_map(built: dict[str, Any]) -> None:
    assert built["photos"] == PHOTOS
    assert built["opens"] <= 2
    assert built["decodes"] == 1


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(("words", "opens"), [((), 1), (("--csv",), 2)], ids=["position", "position and time"])
def test_a_query_is_opened_once_and_once_more_for_its_time(town: Path, words: tuple[str, ...], opens: int) -> None:
    asked = count_reads(town, "query", "localize", town / "town.gpkg", town / "query" / "0009.jpg", *words)
    assert asked == {"photos": 1, "opens": opens, "decodes": 1}


def test_a_photo_on_a_track_is_opened_at_most_three_times_for_a_map(town: Path) -> None:
    """Once for its time, which the clock offset may be estimated by, then as any other."""
    write(town / "walk.gpx", gpx(north(60)))
    for second in range(PHOTOS):
        photo = write_photo(town / "walk" / f"{second:04d}.jpg", second, tagged=False)
        exif = Image.Exif()
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = f"2024:05:31 12:00:{second:02d}"
        with Image.open(photo) as image:
            image.save(photo, exif=exif)
    words = ("map", "build", town / "walk", "--track", town / "walk.gpx", "--out", town / "walk.gpkg")
    assert count_reads(town, "walk", *words) == {"photos": PHOTOS, "opens": 3, "decodes": 1}


def test_a_photo_is_opened_at_most_twice_for_a_calibration(town: Path) -> None:
    """Once for its position, and once for its pixels and to see whether the map has it."""
    write_town(town / "known", 24)
    for number in range(12):
        write_photo(town / "true" / f"{number:04d}.jpg", 3 * number + 100)
    build_map(town / "known", town / "known.gpkg", tiny_model(), config=MapConfig(progress=False))
    found = count_reads(town, "true", "map", "calibrate", town / "known.gpkg", town / "true")
    assert found == {"photos": 12, "opens": 2, "decodes": 1}
