"""`sareloc data draw`: what is typed, what is written."""

from __future__ import annotations

import pytest
from cyclopts import App
from PIL import Image

from sareloc.city import SIZES, Size, make_town
from sareloc.cli.data import draw
from sareloc.errors import ArgumentError
from sareloc.photos import find_photos


@pytest.fixture
def _tiny(monkeypatch):
    monkeypatch.setitem(SIZES, "small", Size(2, 2, (5.0,), 3, (24, 32)))
    make_town.cache_clear()
    yield
    make_town.cache_clear()


def run(*words: object) -> None:
    app = App(result_action="return_value")
    app.command(draw)
    app(["draw", *map(str, words)])


@pytest.mark.usefixtures("_tiny")
def test_three_towns_are_written(tmp_path, capsys):
    run(tmp_path, "--seed", 4, "--device", "cpu")
    assert "21 photos written to" in capsys.readouterr().out
    for split in ("train", "val", "test"):
        assert len(find_photos(tmp_path / "images" / split / "database")) == 4
        assert len(find_photos(tmp_path / "images" / split / "queries")) == 3


@pytest.mark.usefixtures("_tiny")
def test_one_split_in_another_size_of_photo(tmp_path):
    run(tmp_path, "--split", "val", "--photo", "40x48", "--device", "cpu")
    photos = find_photos(tmp_path)
    assert len(photos) == 7
    with Image.open(photos[0]) as image:
        assert image.size == (48, 40)


@pytest.mark.usefixtures("_tiny")
def test_a_database_of_360_photos(tmp_path, capsys):
    run(tmp_path, "--split", "val", "--panoramas", "--device", "cpu")
    assert "5 photos written to" in capsys.readouterr().out
    with Image.open(find_photos(tmp_path / "images" / "val" / "database")[0]) as image:
        assert image.width == 2 * image.height


def test_a_size_of_photo_that_is_none(tmp_path):
    with pytest.raises(ArgumentError, match="--photo"):
        run(tmp_path, "--photo", "480")
