"""Occlusion maps drawn over photos."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sareloc.errors import ArgumentError
from sareloc.figures import draw_heatmaps, overlay_heatmap

IMAGE = np.random.default_rng(0).integers(0, 256, (80, 100, 3), dtype=np.uint8)


def test_the_glow_is_brightest_where_it_is_hottest() -> None:
    heat = np.zeros((40, 50), np.float32)
    heat[:20, :25] = 1
    grey = np.full((80, 100, 3), 90, np.uint8)
    glowing = overlay_heatmap(grey, heat)
    assert glowing.shape == grey.shape
    brightness = glowing.mean(axis=2)
    assert brightness[10, 10] > 1.5 * brightness[70, 90]
    assert glowing[10, 10, 0] > glowing[10, 10, 2] + 50  # glows yellow, not blue


def test_no_heat_at_all_leaves_a_grey_photo() -> None:
    glowing = overlay_heatmap(np.full((80, 100, 3), 90, np.uint8), np.zeros((80, 100), np.float32))
    assert np.ptp(glowing) == 0


def test_the_figure_shows_the_photo_and_each_model_by_name(tmp_path: Path) -> None:
    heats = {"ours": np.eye(80, 100, dtype=np.float32), "theirs": np.ones((80, 100), np.float32)}
    figure = draw_heatmaps(IMAGE, heats)
    titles = [axes.get_title(loc="left") for axes in figure.axes[:3]]
    assert titles == ["photo", "ours", "theirs"]
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), IMAGE)
    np.testing.assert_array_equal(figure.axes[1].images[0].get_array(), overlay_heatmap(IMAGE, heats["ours"]))


@pytest.mark.parametrize(
    "heats", [{}, {"a": np.full((80, 100), np.nan, np.float32)}, {"a": np.zeros((0, 0), np.float32)}]
)
def test_nothing_to_draw_is_an_error(heats: dict) -> None:
    with pytest.raises(ArgumentError, match=r"no heat maps were given|must be finite"):
        draw_heatmaps(IMAGE, heats)
