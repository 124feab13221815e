"""Queries beside their first matches, with lines between the local features that agree."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.geometry.scenes import texture

from sareloc.datasets import PhotoSet, Places
from sareloc.errors import ArgumentError
from sareloc.figures import (
    QueryMatches,
    draw_inliers,
    inliers_label,
    judge_rankings,
    overlay_inliers,
    query_inliers,
    write_report,
)
from sareloc.geo import Positions
from sareloc.geometry import InlierPairs

SHIFT_PX = 30


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> QueryMatches:
    """Two walls; each query sees its wall 30 px farther to the right; the second query has no match."""
    folder = tmp_path_factory.mktemp("walls")
    roles = {}
    for role, shift in (("database", 0), ("queries", SHIFT_PX)):
        (folder / role).mkdir()
        for place in range(2):
            whole = texture(180, 290, seed=place)
            Image.fromarray(whole[:, shift : shift + 240]).save(folder / role / f"{place}.png")
        positions = Positions.from_local([(100.0 * place, 0.0) for place in range(2)])
        roles[role] = PhotoSet(folder / role, ("0.png", "1.png"), positions)
    places = Places("walls", "test", **roles)
    return judge_rankings(places, np.array([[0, 1], [-1, -1]]), np.array([[0.2, 0.9], [np.inf, np.inf]]))


@pytest.fixture(scope="module")
def pairs(seen: QueryMatches) -> InlierPairs:
    found = query_inliers(seen, [0, 1], device="cpu")
    assert list(found) == [0]  # the other has no match
    return found[0]


def test_lines_are_between_the_same_points_of_both_photos(pairs: InlierPairs) -> None:
    moved = (pairs.photo_xy - pairs.query_xy) * (240, 180)
    np.testing.assert_allclose(np.median(moved, axis=0), (SHIFT_PX, 0), atol=0.5)
    assert len(pairs) > 50


def test_a_line_is_where_its_keypoints_are() -> None:
    """One pair, drawn over black photos of different shapes: 360 px high, 480 and 180 wide, 4 between them."""
    one = InlierPairs(np.array([[0.25, 0.5]]), np.array([[0.5, 0.25]]), (480, 360), (180, 360), False)
    shown = overlay_inliers(np.zeros((120, 160, 3), np.uint8), np.zeros((200, 100, 3), np.uint8), one)
    assert shown.shape == (360, 480 + 4 + 180, 3)
    lit = np.argwhere(shown[..., 2].astype(int) > 128)
    lit = lit[~((lit[:, 1] >= 480) & (lit[:, 1] < 484))]  # the gap is white
    for end in ((180, 120), (90, 484 + 90)):
        assert np.abs(lit - end).max(axis=1).min() <= 1
    assert lit[:, 1].min() == pytest.approx(120, abs=4)
    assert lit[:, 1].max() == pytest.approx(574, abs=4)
    none = replace(one, query_xy=np.zeros((0, 2)), photo_xy=np.zeros((0, 2)))
    assert overlay_inliers(np.zeros((120, 160, 3), np.uint8), np.zeros((200, 100, 3), np.uint8), none).shape[0] == 360


def test_at_most_a_hundred_lines_and_neighbours_differ_in_colour() -> None:
    down = np.column_stack([np.full(300, 0.5), np.linspace(0.02, 0.98, 300)])
    many = InlierPairs(down[::-1], down[::-1], (480, 360), (480, 360), False)
    black = np.zeros((360, 480, 3), np.uint8)
    column = overlay_inliers(black, black, many)[:, 400]  # every line crosses it, at its own height
    peaks = [row for row in range(1, 359) if column[row].sum() > max(200, *(column[row + i].sum() for i in (-1, 1)))]
    assert 80 <= len(peaks) <= 100
    same = sum(np.abs(column[a].astype(int) - column[b]).sum() < 40 for a, b in pairwise(peaks))
    assert same <= 5


def test_the_label_has_the_match_and_the_count(seen: QueryMatches, pairs: InlierPairs) -> None:
    figure = draw_inliers(seen, {0: pairs})
    (axes,) = figure.axes
    assert all(word in axes.get_title() for word in ("query 0", "match 1", "✓", f"{len(pairs)} "))
    assert inliers_label(seen, 0, replace(pairs, planar=True)).endswith("planar inliers")
    assert figure.axes[0].images[0].get_array().shape == (360, 964, 3)


def test_nothing_to_draw_is_an_error(seen: QueryMatches) -> None:
    with pytest.raises(ArgumentError, match="nothing to draw"):
        draw_inliers(seen, query_inliers(seen, [1], device="cpu"))


def test_a_photo_that_is_gone_is_left_out_and_cannot_be_drawn(
    seen: QueryMatches, pairs: InlierPairs, tmp_path: Path
) -> None:
    empty = replace(seen.places, database=replace(seen.places.database, folder=tmp_path))
    gone = replace(seen, places=empty)
    assert query_inliers(gone, [0], device="cpu") == {}
    with pytest.raises(ArgumentError, match="cannot be decoded"):
        draw_inliers(gone, {0: pairs})


def test_a_report_shows_them(seen: QueryMatches, pairs: InlierPairs, tmp_path: Path) -> None:
    page = write_report(tmp_path / "r.html", matches=seen, inliers={0: pairs}, progress=False).read_text()
    assert "<h2>Matched local features</h2>" in page
    (label,) = re.findall(r'<figure class="lines"><img alt="([^"]+)" src="data:image/jpeg', page)
    assert label == inliers_label(seen, 0, pairs)
    bare = write_report(tmp_path / "r.html", matches=seen, progress=False).read_text()
    assert "Matched local features" not in bare
