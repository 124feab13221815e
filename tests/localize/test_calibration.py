"""Confidence: the regression against the plain loss, the calibration error on paper, and what a fit must do."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from sareloc.errors import ArgumentError, MapError
from sareloc.localize import Calibration
from sareloc.localize.calibration import (
    LARGEST_SCALE,
    PRIOR_STD,
    Outcome,
    expected_calibration_error,
    fit_calibration,
    fit_logistic,
    fit_radius,
)
from sareloc.localize.estimate import GRAIN_M, PRIOR, VERIFIED_PRIOR, Place, features, sigmoid


def place(nearest: float = 1.0, other: float = 1.2, share: float = 0.8, scatter_m: float = 5.0) -> Place:
    return Place((0.0, 0.0), scatter_m, share, nearest, other)


def drawn_outcomes(rng: np.random.Generator, count: int) -> list[Outcome]:
    """Photos whose chance of being right is a known function of their matches; absent ones look like wrong ones."""
    outcomes = []
    for _ in range(count):
        nearest, lead, share = rng.uniform(0.8, 1.3), rng.uniform(0, 0.2), rng.uniform(0.3, 1)
        shown = place(nearest, nearest / (1 - lead), share)
        chance = sigmoid(4.0 - 6 * nearest + 20 * lead + 3 * share)
        right = rng.random() < chance
        outcomes.append(Outcome(shown, rng.uniform(0, 20) if right else rng.choice([300.0, math.inf])))
    return outcomes


def test_features_on_paper() -> None:
    assert features(place(0.9, 1.2, 0.7)) == pytest.approx([1, 0.9, 0.25, 0.7])
    assert features(place(1.2, 0.9, 0.7))[2] == pytest.approx(1 - 1.2 / 0.9)
    assert features(place(0.0, 0.0))[2] == 0  # two photos equal to the query: nothing tells them apart
    assert features(place(0.5, 0.0))[2] == -1
    assert features(place(2.0, 0.1))[2] == -1


def test_right_is_within_25_m_and_on_the_line() -> None:
    assert [Outcome(place(), error).right for error in (0.0, 25.0, 25.001, math.inf)] == [True, True, False, False]


def test_outcomes_that_are_worth_less_stay_nearer_to_the_prior() -> None:
    outcomes = drawn_outcomes(np.random.default_rng(0), 200)
    full, fifth = (np.array(fit_calibration(outcomes, "map", sample_weight=weight).weights) for weight in (1.0, 0.2))
    away = [np.linalg.norm((weights - PRIOR) / PRIOR_STD) for weights in (full, fifth)]
    assert 0 < away[1] < away[0]
    repeated = fit_calibration(outcomes * 2, "map", sample_weight=0.5).weights
    assert repeated == pytest.approx(full, rel=1e-6)


@pytest.mark.parametrize("separable", [False, True])
def test_the_regression_ends_where_the_plain_loss_has_no_slope(separable: bool) -> None:
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(200), rng.uniform(0.8, 1.3, 200), rng.uniform(0, 0.3, 200), rng.uniform(0, 1, 200)])
    margins = x @ np.array([2.0, -4.0, 10.0, 2.0])
    right = margins > 0 if separable else rng.random(200) < sigmoid(margins)
    counts = rng.uniform(0.2, 2, 200)
    fitted = fit_logistic(x, right, counts)
    slope = [(fitted[j] - PRIOR[j]) / PRIOR_STD[j] ** 2 for j in range(4)]
    for row, truth, count in zip(x, right, counts, strict=True):
        for j in range(4):
            slope[j] += count * row[j] * (1 / (1 + math.exp(-float(row @ fitted))) - truth)
    assert slope == pytest.approx([0, 0, 0, 0], abs=1e-7)  # strictly convex: there is one such point


@pytest.mark.parametrize("right", [True, False])
def test_outcomes_that_all_agree_have_a_finite_fit(right: bool) -> None:
    x = np.tile(features(place()), (50, 1))
    weights = fit_logistic(x, np.full(50, right), np.ones(50))
    assert np.isfinite(weights).all()
    assert (sigmoid(x[0] @ weights) > 0.9) == right


def test_nothing_to_fit_gives_the_numbers_to_start_from() -> None:
    assert fit_calibration([], "map") == Calibration()
    assert Calibration().origin == "nothing"


def test_without_a_calibration_a_lone_photo_is_not_believed_unless_it_is_the_same() -> None:
    """A map of one photo: nothing to compare with, so that only near identity is a place."""
    assert Calibration().confidence(place(1.1, 1.1, 1.0)) < 0.5 < Calibration().confidence(place(0.0, 0.0, 1.0))


def test_fitting_lowers_the_calibration_error_on_other_photos() -> None:
    rng = np.random.default_rng(1)
    taught, asked = drawn_outcomes(rng, 400), drawn_outcomes(rng, 2000)
    absent = np.mean([math.isinf(outcome.error_m) for outcome in taught])
    fitted = fit_calibration(taught, "photos", absent_share=float(absent))
    errors = [
        expected_calibration_error([c.confidence(o.place) for o in asked], [o.right for o in asked])
        for c in (Calibration(), fitted)
    ]
    assert errors[1] < 0.05 < errors[0]


def test_absent_photos_count_for_their_share_however_many_were_tried() -> None:
    rng = np.random.default_rng(2)
    taught = drawn_outcomes(rng, 300)
    absent = [outcome for outcome in taught if math.isinf(outcome.error_m)]
    once, often = fit_calibration(taught, "map"), fit_calibration(taught + 9 * absent, "map")
    cautious = fit_calibration(taught, "map", absent_share=0.9)
    assert once.confidence(place()) == pytest.approx(often.confidence(place()), abs=0.02)
    assert cautious.confidence(place()) < once.confidence(place())
    with pytest.raises(ArgumentError, match="0 <= share < 1"):
        fit_calibration(taught, "map", absent_share=1)


def test_the_radius_holds_nine_of_ten_answers_right_or_wrong() -> None:
    """One answer in twenty is 40 m off; fixes without an answer and absent photos do not count."""
    rng = np.random.default_rng(3)

    def drawn(count: int) -> list[Outcome]:
        scatters = rng.uniform(0, 12, count)
        errors = np.minimum(25, np.abs(rng.normal(0, 0.8, count)) * np.hypot(scatters, GRAIN_M))
        errors[::20] = 40.0
        return [Outcome(place(0.7, 1.2, 1.0, s), e) for s, e in zip(scatters, errors, strict=True)]

    doubtful = [Outcome(place(1.3, 1.3, 0.1), 4000.0), Outcome(place(1.3, 1.3, 0.1), math.inf)] * 100
    fitted = fit_calibration([*drawn(400), *doubtful], "photos")
    assert fitted.confidence(doubtful[0].place) < 0.5
    answers = drawn(2000)
    assert all(fitted.confidence(answer.place) >= 0.5 for answer in answers)
    held = np.mean([answer.error_m <= fitted.radius_m(answer.place) for answer in answers])
    assert held == pytest.approx(0.9, abs=0.025)


def test_the_radius_on_paper() -> None:
    def of(*errors: float) -> list[Outcome]:
        return [Outcome(place(scatter_m=0.0), error) for error in errors]

    assert fit_radius(of(*range(1, 20)), 0.9) == pytest.approx(18 / GRAIN_M)  # the 18th of 19: 0.9 * (19 + 1)
    assert fit_radius(of(*range(1, 10)), 0.9) == pytest.approx(9 / GRAIN_M)
    assert fit_radius(of(1, 2, 3)) == Calibration().radius_scale  # too few to know
    assert fit_radius(of(1, 2, 40)) == pytest.approx(40 / GRAIN_M)
    assert fit_radius([]) == Calibration().radius_scale
    assert fit_radius(of(*[3.0] * 16, *[5000.0] * 4)) == LARGEST_SCALE  # one in five is at another place


def test_calibration_error_on_paper() -> None:
    # two bins: (0.9, 0.9 | one right) off by |1.8 - 1| = 0.8, (0.1 | wrong) off by 0.1; over 3 answers
    assert expected_calibration_error([0.9, 0.9, 0.1], [True, False, False]) == pytest.approx(0.3)
    assert expected_calibration_error([1.0, 0.0], [True, False]) == 0
    assert expected_calibration_error([1.0], [False]) == 1
    assert expected_calibration_error([], []) == 0
    # |2 (0.9 - 1) + 1 (0.9 - 0)| + 1 * 0.1, over 4
    assert expected_calibration_error([0.9, 0.9, 0.1], [True, False, False], counts=[2, 1, 1]) == pytest.approx(0.2)


def test_json_brings_back_every_bit() -> None:
    verified = (0.1, -7.3, 1 / 3, 2.0, 1 / 7, 5.0, 6.0, 7.0, 8.0)
    calibration = Calibration((0.1, -7.3, 1 / 3, 2.0), verified, 2.7, 0.041, 55, "photos")
    assert Calibration.from_json(calibration.to_json()) == calibration


def test_a_calibration_from_before_verification_has_the_default_weights_of_verified_matches() -> None:
    old = '{"format": 1, "weights": [1, 2, 3, 4], "radius_scale": 3.0}'
    assert Calibration.from_json(old) == Calibration((1.0, 2.0, 3.0, 4.0), radius_scale=3.0)


def test_the_map_own_calibration_follows_the_weights_of_this_version() -> None:
    """Verified matches are not part of it: a map stores the weights of the version that wrote it."""
    earlier = Calibration((1.0, 2.0, 3.0, 4.0), (9.0,) * 9, origin="map")
    assert Calibration.from_json(earlier.to_json()) == replace(earlier, verified_weights=VERIFIED_PRIOR)


@pytest.mark.parametrize(
    "text",
    [
        '{"format": 1, "weights": [1, 2, 3, 4], "verified_weights": [1, 2]}',
        *("", "[]", "{}", '{"format": 9}', '{"format": 1, "weights": [1, 2]}', '{"format": 1, "weights": [1,2,3,"x"]}'),
        *(f'{{"format": 1, "weights": [1, 2, 3, {odd}]}}' for odd in ("NaN", "Infinity", "1e999", "null", "[1]")),
        *(
            f'{{"format": 1, "weights": [1, 2, 3, 4], "{name}": {odd}}}'
            for name, odds in {
                "radius_scale": ('"4"', "NaN", "Infinity", "-1", "null", "1" + "0" * 400),
                "temperature": ("0", "-1", "NaN", "[]", '"0.1"'),
                "photos": ('"many"', "-1", "1.5", "null"),
                "origin": ("7", "null"),
                "other": ("1",),
            }.items()
            for odd in odds
        ),
        "[" * 100_000,
    ],
    ids=lambda text: text[:60],
)
def test_a_damaged_calibration_says_what_to_do(text: str) -> None:
    with pytest.raises(MapError, match="sareloc map calibrate"):
        Calibration.from_json(text)
