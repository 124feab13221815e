"""A photo is read once: how often its file is opened and decoded, counted in fresh processes by an audit hook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.house import ROOT, child
from tests.maps.small_town import tiny_model, write_photo, write_town

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


def test_a_photo_is_opened_at_most_twice_for_a_map_and_once_as_a_query(town: Path) -> None:
    built = count_reads(town, "photos", "map", "build", town / "photos", "--out", town / "town.gpkg")
    assert built["photos"] == PHOTOS
    assert built["opens"] <= 2
    assert built["decodes"] == 1
    asked = count_reads(town, "query", "localize", town / "town.gpkg", town / "query" / "0009.jpg")
    assert asked == {"photos": 1, "opens": 1, "decodes": 1}
