"""Fixes judged against known positions: a case solved on paper, a slow twin, and what is absent."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sareloc.errors import ArgumentError, PhotoError
from sareloc.evaluation import FixReport, judge_fixes
from sareloc.evaluation.metrics import bootstrap_interval
from sareloc.geo import wgs84_from_enu
from sareloc.localize import Fix

TRUTH = (48.0, 11.0)
MISSING = PhotoError("lost.jpg", "no such file")


def fix(
    error_m: float, confidence: float, radius_m: float = 30.0, heading_deg: float | None = None, *, guess: bool = False
) -> Fix:
    """A fix so far east of the truth; guess: without a position."""
    latitude, longitude = (float(degrees) for degrees in wgs84_from_enu([(error_m, 0.0)], TRUTH)[0])
    if guess:
        return Fix(None, None, confidence, (), "not in this map", (latitude, longitude), radius_m)
    return Fix((latitude, longitude), radius_m, confidence, (), heading_deg=heading_deg)


QUERIES = (fix(3, 0.9, 10, 350), fix(40, 0.6, 30, 100), fix(20, 0.4, 10, guess=True), MISSING)
HEADINGS = (10, 90, 0, 0)
OUT_OF_MAP = (fix(5, 0.7), fix(5000, 0.2))


def judged(min_confidence: float = 0.5) -> FixReport:
    return judge_fixes(QUERIES, [TRUTH] * 4, HEADINGS, OUT_OF_MAP, min_confidence=min_confidence)


def test_four_queries_and_two_out_of_map_photos_solved_on_paper() -> None:
    report = judged()
    assert (report.queries, report.strangers, report.min_confidence) == (4, 2, 0.5)
    assert report.correct == 50  # the first by its position, the third by its low-confidence position
    assert report.answered == 50  # the first two
    assert report.answers_correct == 50
    assert report.correct_and_answered == 25
    assert report.answers_in_radius == 50
    assert report.median_error_m == pytest.approx((3 + 40) / 2, abs=0.01)
    assert report.error_90_m == pytest.approx(3 + 0.9 * 37, abs=0.01)
    assert (report.headings, report.median_heading_error_deg) == (2, 15)  # 20 degrees across north, and 10
    assert report.strangers_rejected == 50
    queries, strangers = 0.75 / 3, 0.25 / 2  # the query without a fix states no confidence
    assert report.calibration_error == pytest.approx(queries * (0.1 + 0.6 + 0.6) + strangers * (0.7 + 0.2))
    assert report.failures == {"queries": (("lost.jpg", "no such file"),), "strangers": ()}


def test_the_threshold_is_applied_to_the_confidence_alone() -> None:
    report = judged(0.4)
    assert (report.answered, report.correct_and_answered, report.correct) == (75, 50, 50)
    assert report.answers_in_radius == pytest.approx(100 / 3)  # the guess has its own radius of 10 m
    assert report.calibration_error == judged(1.0).calibration_error
    assert judged(0.7).strangers_rejected == 50  # the threshold itself is an answer
    assert judged(0.71).strangers_rejected == 100


def test_the_intervals_are_those_of_the_bootstrap() -> None:
    report = judged()
    for right, interval in (
        ([1, 0, 1, 0], report.correct_interval),
        ([1, 0, 0, 0], report.correct_and_answered_interval),
    ):
        expected = bootstrap_interval(right, np.random.default_rng(0))
        assert interval == pytest.approx([100 * bound for bound in expected])


def test_without_anything_to_count_the_measure_is_none() -> None:
    report = judge_fixes([fix(1, 0.1)], [TRUTH])
    assert (report.answered, report.correct, report.correct_and_answered) == (0, 100, 0)
    assert report.answers_correct is None
    assert report.answers_in_radius is None
    assert (report.median_error_m, report.error_90_m) == (None, None)
    assert (report.headings, report.median_heading_error_deg) == (0, None)
    assert (report.strangers, report.strangers_rejected) == (0, None)
    assert report.calibration_error == pytest.approx(0.9)  # of the queries alone
    empty = judge_fixes([], [])
    assert (empty.queries, empty.correct, empty.correct_interval, empty.calibration_error) == (0, None, None, None)


def test_a_fix_without_matches_is_missed_and_no_answer_at_any_threshold() -> None:
    nowhere = Fix(None, None, 0.0, ())
    report = judge_fixes([nowhere], [TRUTH], out_of_map=[nowhere], min_confidence=0)
    assert (report.correct, report.answered, report.strangers_rejected) == (0, 0, 100)


def test_the_former_name_of_out_of_map_photos_still_works_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="out_of_map"):
        report = judge_fixes(QUERIES, [TRUTH] * 4, HEADINGS, strangers=OUT_OF_MAP)
    assert report == judged()


def test_an_out_of_map_photo_that_cannot_be_decoded_is_not_counted_as_rejected() -> None:
    report = judge_fixes([fix(1, 0.9)], [TRUTH], out_of_map=[fix(9, 0.9), MISSING])
    assert (report.strangers, report.strangers_rejected) == (1, 0)
    assert report.failures["strangers"] == (("lost.jpg", "no such file"),)


def test_unknown_headings_and_those_of_fixes_that_are_no_answers_are_not_counted() -> None:
    fixes = [fix(1, 0.9, heading_deg=90), fix(1, 0.9, heading_deg=90), fix(1, 0.1, heading_deg=90), fix(1, 0.9)]
    report = judge_fixes(fixes, [TRUTH] * 4, [80, math.nan, 0, 0])
    assert (report.headings, report.median_heading_error_deg) == (1, 10)


@pytest.mark.parametrize(
    ("latlon", "headings", "least", "said"),
    [([TRUTH], [0, 0], 0.5, "1 and 2"), ([TRUTH] * 2, [0], 0.5, "2 and 1"), ([TRUTH] * 2, None, 1.5, "found 1.5")],
)
def test_other_numbers_of_positions_or_a_wrong_threshold_are_reported(
    latlon: list[tuple[float, float]], headings: list[float] | None, least: float, said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        judge_fixes(QUERIES[:2], latlon, headings, min_confidence=least)


def test_the_report_is_json() -> None:
    told = json.loads(json.dumps(judged().to_json(), allow_nan=False))
    assert told["correct"] == 50
    assert len(told["correct_interval"]) == 2
    assert told["failures"]["queries"] == [["lost.jpg", "no such file"]]


drawn = st.tuples(st.one_of(st.floats(0, 24), st.floats(31, 100)), st.floats(0, 1), st.booleans())
"""Error in metres, confidence, whether it is a guess."""


@given(st.lists(drawn, max_size=12), st.lists(drawn, max_size=6), st.floats(0, 1), st.integers(0, 2))
def test_shares_agree_with_counting_one_by_one(
    queries: list[tuple[float, float, bool]],
    others: list[tuple[float, float, bool]],
    least: float,
    missing: int,
) -> None:
    fixes = [*(fix(metres, sure, guess=guess) for metres, sure, guess in queries), *[MISSING] * missing]
    strangers = [fix(metres, sure, guess=guess) for metres, sure, guess in others]
    report = judge_fixes(fixes, [TRUTH] * len(fixes), out_of_map=strangers, min_confidence=least)
    answered = [metres for metres, sure, _ in queries if sure >= least]

    def percent(count: int, of: int) -> float | None:
        return None if of == 0 else pytest.approx(100 * count / of)

    within = sum(metres <= 25 for metres in answered)
    assert report.answered == percent(len(answered), len(fixes))
    assert report.correct == percent(sum(metres <= 25 for metres, *_ in queries), len(fixes))
    assert report.answers_correct == percent(within, len(answered))
    assert report.correct_and_answered == percent(within, len(fixes))
    assert report.answers_in_radius == percent(sum(metres <= 30 for metres in answered), len(answered))
    assert report.strangers_rejected == percent(sum(sure < least for _, sure, _ in others), len(others))
