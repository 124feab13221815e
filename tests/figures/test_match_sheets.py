"""Match sheets show the right photos in the right borders."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from tests.figures.little_town import colour

from sareloc.errors import ArgumentError
from sareloc.figures import QueryMatches, draw_matches, match_label, query_heatmap
from sareloc.figures.style import RIGHT, WRONG
from sareloc.models import PlaceModel


def border(axes) -> Rectangle | None:
    return next((p for p in axes.patches if isinstance(p, Rectangle) and p.get_gid()), None)


def test_each_row_shows_its_query_and_its_matches(matches: QueryMatches) -> None:
    figure = draw_matches(matches, [1, 0], top=2)
    tiles = np.array(figure.axes).reshape(2, 3)
    shown = [[tuple(axes.images[0].get_array()[30, 30].tolist()) for axes in row] for row in tiles]
    assert shown == [[colour(1), colour(3), colour(1)], [colour(0), colour(0), colour(1)]]


def test_borders_and_words_tell_right_from_wrong(matches: QueryMatches) -> None:
    tiles = np.array(draw_matches(matches, [1], top=2).axes)
    query, wrong, right = map(border, tiles)
    assert query is None
    assert (wrong.get_gid(), right.get_gid()) == ("wrong match", "right match")
    assert (to_hex(wrong.get_edgecolor()), to_hex(right.get_edgecolor())) == (WRONG, RIGHT)
    assert (wrong.get_linestyle() != "-", right.get_linestyle()) == (True, "-")  # told apart in grey
    assert ["✗" in axes.get_title() for axes in tiles[1:]] == [True, False]
    assert "200 m" in tiles[1].get_title()


def test_the_heat_map_stands_beside_the_query(matches: QueryMatches, little_model: PlaceModel) -> None:
    picture = query_heatmap(little_model, matches, 0)
    assert picture.shape == (72, 96, 3)
    tiles = draw_matches(matches, [0], top=1, heatmaps={0: picture}).axes
    np.testing.assert_array_equal(tiles[1].images[0].get_array(), picture)


def test_a_photo_that_cannot_be_read_leaves_an_empty_tile(matches: QueryMatches, little_model: PlaceModel) -> None:
    matches.places.queries.path(0).write_bytes(b"")
    matches.places.database.path(0).unlink()
    tiles = draw_matches(matches, [0], top=1).axes
    assert [text.get_text() for axes in tiles for text in axes.texts] == ["no photo", "no photo"]
    assert query_heatmap(little_model, matches, 0) is None


def test_a_missing_match_says_so(matches: QueryMatches) -> None:
    short = replace(matches, rankings=np.where(matches.rankings == 3, -1, matches.rankings))
    tiles = draw_matches(short, [1], top=1).axes
    assert "no match" in tiles[1].get_title()


def test_without_positions_there_are_no_metres(matches: QueryMatches) -> None:
    nowhere = replace(matches.places, queries=replace(matches.places.queries, positions=None))
    assert match_label(replace(matches, places=nowhere), 1, 1) == "2 ✓"


def test_no_queries_are_an_error(matches: QueryMatches) -> None:
    with pytest.raises(ArgumentError, match="no queries were chosen"):
        draw_matches(matches, [])
