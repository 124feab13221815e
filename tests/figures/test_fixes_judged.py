"""Fixes held against the truth: on the map, and over their confidence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.figures.little_town import photos

from sareloc.datasets import PhotoSet
from sareloc.errors import ArgumentError, PhotoError
from sareloc.figures import confidence_curve, draw_map, draw_precision_recall, predicted_by_fixes
from sareloc.localize import Fix

FIXES = [
    Fix((52.2001, 0.1), 20.0, 0.9, ()),  # 11 m north of where it was taken
    Fix(None, None, 0.1, (), reason="not in this map"),
    PhotoError("2.png", "empty"),
    Fix((52.2, 0.1), 20.0, 0.6, ()),  # 300 m south
]


@pytest.fixture
def queries(tmp_path: Path) -> PhotoSet:
    return photos(tmp_path / "queries", [0, 1, 2, 3])


def test_fixes_put_queries_where_they_say(queries: PhotoSet) -> None:
    predicted = predicted_by_fixes(FIXES, queries)
    assert predicted.names == ("0_of_0.png", "3_of_3.png")
    assert predicted.right.tolist() == [True, False]
    (axes,) = draw_map(predicted).axes
    assert [line.get_label() for line in axes.lines if "predicted" in line.get_label()] == [
        "correct: predicted, median error 11.1 m",
        "wrong: predicted, median error 300.4 m",
    ]


def test_the_less_sure_are_left_out(queries: PhotoSet) -> None:
    assert predicted_by_fixes(FIXES, queries, min_confidence=0.6).names == ("0_of_0.png", "3_of_3.png")
    assert predicted_by_fixes(FIXES, queries, min_confidence=0.61).names == ("0_of_0.png",)


def test_right_means_within_the_radius(queries: PhotoSet) -> None:
    assert predicted_by_fixes(FIXES, queries, hit_radius_m=11.0).right.tolist() == [False, False]
    assert confidence_curve(FIXES, queries, hit_radius_m=11.0).precision.tolist() == [0, 0]


def test_the_curve_counts_every_query_and_answers_the_surest_first(queries: PhotoSet) -> None:
    curve = confidence_curve(FIXES, queries)
    assert curve.score == "confidence"
    assert curve.thresholds.tolist() == [0.9, 0.6]
    assert curve.precision.tolist() == [100, 50]
    assert curve.recall.tolist() == [25, 25]
    (axes,) = draw_precision_recall({"town": curve}, at=0.5).axes
    assert "≥ 0.5" in axes.get_legend().get_title().get_text()
    assert all(share in axes.get_legend().get_texts()[0].get_text() for share in ("50.0 %", "25.0 %"))


@pytest.mark.parametrize("judge", [predicted_by_fixes, confidence_curve])
def test_what_cannot_be_judged_is_refused(judge, queries: PhotoSet) -> None:
    with pytest.raises(ArgumentError, match="a fix for each query"):
        judge(FIXES[:3], queries)
    with pytest.raises(ArgumentError, match="the queries have no positions"):
        judge(FIXES, replace(queries, positions=None))


def test_no_fix_at_all_is_nothing_to_draw(queries: PhotoSet) -> None:
    with pytest.raises(ArgumentError, match="no query"):
        predicted_by_fixes([FIXES[1]] * 4, queries)
    with pytest.raises(ArgumentError, match="curve of 'town' has no values"):
        draw_precision_recall({"town": confidence_curve([FIXES[1]] * 4, queries)})
