"""One look for every figure, and files that are whole or not there."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from sareloc.errors import ArgumentError
from sareloc.figures import PredictedPositions, draw_gradients, draw_map, png_bytes, save_figure, svg_bytes
from sareloc.figures.style import RIGHT, SERIES_STYLES, WRONG, new_figure, require_finite, styled
from sareloc.geo import Positions

HERE = Positions.from_local([(0, 0)])


@styled
def a_figure():
    figure = new_figure(2, 1)
    figure.subplots().plot([0, 1], [0, 1], label="a line")
    return figure


def test_the_suffix_decides_the_format(tmp_path: Path) -> None:
    png, svg = save_figure(a_figure(), tmp_path / "new" / "a.PNG"), save_figure(a_figure(), tmp_path / "a.svg")
    with Image.open(png) as image:
        assert image.format == "PNG"
        assert image.size == (300, 150)  # 2 x 1 inches at 150 dots
    assert svg.read_text().lstrip().startswith("<?xml")
    assert sorted(p.name for p in tmp_path.rglob("*.*")) == ["a.PNG", "a.svg"]  # nothing half-written is left


def test_an_unknown_suffix_is_refused_and_names_the_known(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"\.jpg.*\.svg"):
        save_figure(a_figure(), tmp_path / "a.jpg")


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_figure(a_figure(), tmp_path / "a.svg")
    before = path.read_bytes()

    def half(self: Path, content: bytes) -> None:
        with self.open("wb") as file:
            file.write(content[:100])
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match="disk full"):
        save_figure(a_figure(), path)
    assert path.read_bytes() == before


def test_the_same_figure_gives_the_same_bytes() -> None:
    assert svg_bytes(a_figure()) == svg_bytes(a_figure())
    assert png_bytes(a_figure()) == png_bytes(a_figure())


def test_the_readers_own_settings_neither_matter_nor_change() -> None:
    import matplotlib

    plain = png_bytes(a_figure())
    with matplotlib.rc_context({"lines.linewidth": 9.0, "axes.facecolor": "black", "svg.fonttype": "path"}):
        assert png_bytes(a_figure()) == plain
        assert matplotlib.rcParams["lines.linewidth"] == 9.0


def test_no_figure_needs_pyplot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it is now an ImportError
    save_figure(a_figure(), tmp_path / "a.png")
    save_figure(draw_gradients(), tmp_path / "b.svg")
    save_figure(draw_map(PredictedPositions(HERE, HERE, np.array([True]), ("a",))), tmp_path / "c.png")


def luminance(colour: str) -> float:
    red, green, blue = ImageColor.getrgb(colour)
    return (0.299 * red + 0.587 * green + 0.114 * blue) / 255


def test_every_series_differs_in_more_than_colour() -> None:
    assert (
        len({str(look.line) for look in SERIES_STYLES})
        == len({look.marker for look in SERIES_STYLES})
        == len(SERIES_STYLES)
    )
    assert len({look.colour for look in SERIES_STYLES}) == len(SERIES_STYLES)


def test_every_colour_can_be_seen_on_white() -> None:
    assert all(luminance(colour) < 0.7 for colour in [RIGHT, WRONG, *(look.colour for look in SERIES_STYLES)])


@pytest.mark.parametrize(
    ("values", "complaint"),
    [([], "curve has no values"), ([1.0, np.nan], r"curve has nan at \[1\]"), ([[np.inf]], r"has inf at \[0, 0\]")],
)
def test_what_cannot_be_drawn_is_named(values: list[float], complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        require_finite(values, "curve")
