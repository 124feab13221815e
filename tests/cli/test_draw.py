"""`sareloc data draw` and `draw-drive`: what is typed, what is written."""

from __future__ import annotations

import pytest
from cyclopts import App
from PIL import Image

from sareloc.city import SIZES, Size, make_town
from sareloc.cli.data import draw, drive
from sareloc.errors import ArgumentError
from sareloc.photos import find_photos

pytestmark = pytest.mark.city


@pytest.fixture
def _tiny(monkeypatch):
    monkeypatch.setitem(SIZES, "small", Size(2, 2, (5.0,), 3, (24, 32)))
    make_town.cache_clear()
    yield
    make_town.cache_clear()


def run(*words: object) -> None:
    app = App(result_action="return_value")
    app.command(draw)
    app.command(drive, name="draw-drive")
    app([*map(str, words)])


@pytest.mark.usefixtures("_tiny")
def test_three_towns_are_written(tmp_path, capsys):
    run("draw", tmp_path, "--seed", 4, "--device", "cpu")
    assert "21 photos written to" in capsys.readouterr().out
    for split in ("train", "val", "test"):
        assert len(find_photos(tmp_path / "images" / split / "database")) == 4
        assert len(find_photos(tmp_path / "images" / split / "queries")) == 3


@pytest.mark.usefixtures("_tiny")
def test_one_split_in_another_size_of_photo(tmp_path):
    run("draw", tmp_path, "--split", "val", "--photo", "40x48", "--device", "cpu")
    photos = find_photos(tmp_path)
    assert len(photos) == 7
    with Image.open(photos[0]) as image:
        assert image.size == (48, 40)


@pytest.mark.usefixtures("_tiny")
def test_a_database_of_360_photos(tmp_path, capsys):
    run("draw", tmp_path, "--split", "val", "--panoramas", "--device", "cpu")
    assert "5 photos written to" in capsys.readouterr().out
    with Image.open(find_photos(tmp_path / "images" / "val" / "database")[0]) as image:
        assert image.width == 2 * image.height


def test_an_invalid_photo_size(tmp_path):
    with pytest.raises(ArgumentError, match="--photo"):
        run("draw", tmp_path, "--photo", "480")


@pytest.mark.usefixtures("_tiny")
def test_a_drive(tmp_path, capsys):
    pytest.importorskip("av")
    words = ("--seconds", 1, "--fps", 4, "--frame", "32x48", "--clock-offset", -2.5, "--gps-noise-m", 0)
    run("draw-drive", tmp_path, *words, "--weather", "night", "--device", "cpu")
    assert "4 frames and 61 track points written to" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"drive.mp4", "drive.gpx", "truth.csv", "drive.json"}
    with pytest.raises(ArgumentError, match="--frame"):
        run("draw-drive", tmp_path, "--frame", "32")
