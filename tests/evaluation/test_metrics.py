"""The metrics against slow plain-loop twins and cases on paper."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sareloc.errors import ArgumentError
from sareloc.evaluation import metrics


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@st.composite
def judged_rankings(draw: st.DrawFn) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray], int]:
    """Rankings without repeats, some short (padded with -1), with positives and junk that do not overlap."""
    photos = draw(st.integers(1, 15))
    queries = draw(st.integers(0, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rankings = np.stack(
        [np.where(np.arange(photos) < rng.integers(0, photos + 1), rng.permutation(photos), -1) for _ in range(queries)]
        or [np.zeros(photos, dtype=np.int64)]
    )[:queries]
    kinds = rng.integers(0, 3, (queries, photos))
    positives = [np.flatnonzero(k == 1) for k in kinds]
    junk = [np.flatnonzero(k == 2) for k in kinds]
    return rankings, positives, junk, photos


# recall


def recall_in_loops(rankings: np.ndarray, positives: list[np.ndarray], n: int) -> float:
    hits = 0
    for ranking, right in zip(rankings.tolist(), positives, strict=True):
        for row in ranking[:n]:
            if row != -1 and row in right.tolist():
                hits += 1
                break
    return hits / len(rankings) if len(rankings) else 0.0


@given(judged_rankings())
def test_recall_agrees_with_loops_and_grows_with_n(case: tuple) -> None:
    rankings, positives, _, photos = case
    ns = range(1, photos + 3)
    recall = metrics.recall_at(metrics.right_results(rankings, positives), ns)
    assert recall == pytest.approx({n: recall_in_loops(rankings, positives, n) for n in ns})
    assert all(recall[n] <= recall[n + 1] for n in range(1, photos + 2))


def test_recall_on_paper() -> None:
    rankings = np.array([[4, 2, 0], [1, 3, -1], [0, 1, 2], [2, 1, 0]])
    positives = [ints(2), ints(0), ints(), ints(2, 1)]  # the third query has none, and still counts
    right = metrics.right_results(rankings, positives)
    np.testing.assert_array_equal(right, [[0, 1, 0], [0, 0, 0], [0, 0, 0], [1, 1, 0]])
    assert metrics.recall_at(right, (1, 2, 50)) == {1: 0.25, 2: 0.5, 50: 0.5}


def test_an_absent_result_is_never_right() -> None:
    assert not metrics.right_results(ints(-1, -1).reshape(1, 2), [ints(0, 1)]).any()
    # nor is it another query's last photo when all pairs are searched at once
    assert not metrics.right_results(np.array([[0], [-1]]), [ints(5), ints(5)]).any()


def test_recall_at_zero_is_refused() -> None:
    with pytest.raises(ArgumentError, match="first N >= 1"):
        metrics.recall_at(np.ones((1, 1), dtype=bool), (0, 1))


# rules that take results out of a ranking


def test_one_per_panorama_equals_the_rule_as_written() -> None:
    """Take the first 12 N, keep the first photo of each panorama, then N: for every N apart."""
    rng = np.random.default_rng(5)
    panoramas = np.arange(12 * 40) // 12
    rankings = np.stack([rng.permutation(len(panoramas)) for _ in range(6)])
    rankings[0] = np.argsort(-panoramas, kind="stable")  # twelve photos of one panorama after another
    deepest = 20
    asked = rankings[:, : 12 * deepest]
    kept = metrics.keep_only(asked, metrics.one_per_panorama(asked, panoramas), -1)
    for n in (1, 2, 5, deepest):
        for q in range(len(rankings)):
            seen, expected = set(), []
            for row in rankings[q, : 12 * n].tolist():
                if panoramas[row] not in seen:
                    seen.add(panoramas[row])
                    expected.append(row)
            assert kept[q, :n].tolist() == expected[:n]


def test_one_per_panorama_skips_absent_results() -> None:
    rankings = np.array([[3, 2, 0, -1, -1]])
    np.testing.assert_array_equal(metrics.one_per_panorama(rankings, ints(0, 0, 1, 1)), [[1, 0, 1, 0, 0]])


def test_other_time_drops_the_querys_own_time_stamp() -> None:
    rankings = np.array([[0, 1, 2, -1], [2, 1, 0, 3]])
    database_times = np.array([2010.0, 2011.0, 2012.0, np.nan])
    keep = metrics.other_time(rankings, np.array([2011.0, np.nan]), database_times)
    np.testing.assert_array_equal(keep, [[1, 0, 1, 0], [1, 1, 1, 1]])
    np.testing.assert_array_equal(metrics.keep_only(rankings, keep, -1), [[0, 2, -1, -1], [2, 1, 0, 3]])


@given(judged_rankings())
def test_keep_only_moves_left_in_order(case: tuple) -> None:
    rankings, _, junk, photos = case
    kept = metrics.keep_only(rankings, metrics.not_listed(rankings, junk), -1)
    for before, after, bad in zip(rankings.tolist(), kept.tolist(), junk, strict=True):
        left = [row for row in before if row != -1 and row not in bad.tolist()]
        assert after == left + [-1] * (photos - len(left))


def test_keep_only_fills_distances_with_infinity() -> None:
    distances = metrics.keep_only(np.array([[0.1, 0.2, 0.3]]), np.array([[False, True, False]]), np.inf)
    assert distances.tolist() == [[0.2, np.inf, np.inf]]


# average precision


def oxford_in_loops(ranking: list[int], relevant: list[int], junk: list[int]) -> float:
    area, recall, precision, right, place = 0.0, 0.0, 1.0, 0, 0
    for row in ranking:
        if row == -1 or row in junk:
            continue
        right += row in relevant
        now_recall, now_precision = right / len(relevant), right / (place + 1)
        area += (now_recall - recall) * (precision + now_precision) / 2
        recall, precision, place = now_recall, now_precision, place + 1
    return area


def landmarks_in_loops(ranking: list[int], relevant: list[int], junk: list[int], n: int) -> float:
    total, right, place = 0.0, 0, 0
    for row in ranking:
        if row == -1 or row in junk:
            continue
        place += 1
        if place > n:
            break
        if row in relevant:
            right += 1
            total += right / place
    return total / min(len(relevant), n)


@given(judged_rankings(), st.integers(1, 12))
def test_average_precision_agrees_with_loops(case: tuple, n: int) -> None:
    rankings, positives, junk, _ = case
    for ranking, relevant, bad in zip(rankings, positives, junk, strict=True):
        area, at_n = (
            metrics.average_precision(ranking, relevant, bad),
            metrics.average_precision_at(ranking, relevant, n, bad),
        )
        if not len(relevant):
            assert area == at_n == 0
            continue
        plain = (ranking.tolist(), relevant.tolist(), bad.tolist())
        assert area == pytest.approx(oxford_in_loops(*plain))
        assert at_n == pytest.approx(landmarks_in_loops(*plain, n))


def test_average_precision_on_paper() -> None:
    assert metrics.average_precision(ints(7, 8, 1), ints(7, 8)) == 1
    # right, wrong, right: 1/2 of recall at precision 1, then the trapezoid between 1/2 and 2/3
    assert metrics.average_precision(ints(7, 1, 8), ints(7, 8)) == pytest.approx((1 + (1 / 2 + 2 / 3) / 2) / 2)
    # wrong, right: the curve drops to 0, then rises to 1/2
    assert metrics.average_precision(ints(1, 7), ints(7)) == pytest.approx(1 / 4)


def test_junk_neither_helps_nor_harms() -> None:
    relevant, junk = ints(7, 8), ints(1, 2)
    clean = metrics.average_precision(ints(7, 5, 8), relevant, junk)
    assert metrics.average_precision(ints(1, 7, 2, 5, 8), relevant, junk) == clean
    assert metrics.average_precision_at(ints(1, 2, 7), relevant, 1, junk) == 1


def test_holidays_ignores_the_query_itself() -> None:
    """The query's photo 0 is in the database and comes first: as junk it is neither right nor in the way."""
    assert metrics.average_precision(ints(0, 1, 2, 9), ints(1, 2), ints(0)) == 1


def test_tied_results_count_in_the_order_given() -> None:
    """Two photos with equal distances: the ranking's order alone decides."""
    assert metrics.average_precision(ints(3, 4), ints(3)) == 1
    assert metrics.average_precision(ints(4, 3), ints(3)) == pytest.approx(1 / 4)


def test_landmarks_divides_by_at_most_n() -> None:
    relevant = np.arange(500)
    assert metrics.average_precision_at(np.arange(100), relevant, 100) == 1
    assert metrics.average_precision_at(np.arange(50), relevant, 100) == 0.5
    assert metrics.average_precision_at(ints(9, 0, 9), ints(0), 100) == 0.5


# precision-recall over a confidence threshold


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.3, -np.inf, np.nan]), st.booleans()), max_size=12))
def test_precision_recall_agrees_with_loops(answers: list[tuple[float, bool]]) -> None:
    confidence = np.array([c for c, _ in answers], dtype=np.float64)
    right = np.array([r for _, r in answers], dtype=bool)
    thresholds, precision, recall = metrics.precision_recall(confidence, right)
    assert thresholds.tolist() == sorted({c for c in confidence.tolist() if c > -np.inf}, reverse=True)
    for t, p, r in zip(thresholds, precision, recall, strict=True):
        given_answers = [ok for c, ok in answers if c >= t]
        assert p == pytest.approx(sum(given_answers) / len(given_answers))
        assert r == pytest.approx(sum(given_answers) / len(answers))


def test_precision_recall_without_answers_has_no_points() -> None:
    for empty in metrics.precision_recall(np.array([-np.inf, np.nan]), np.array([False, False])):
        assert empty.size == 0


# position errors and the bootstrap


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=20), st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_quantiles_of_known_errors_are_numpys(errors: list[float], shares: list[float]) -> None:
    assert metrics.quantiles(np.array(errors), shares) == pytest.approx(np.quantile(errors, shares).tolist())


def test_quantiles_with_unanswered_queries() -> None:
    errors = np.array([np.inf, 1.0, 3.0, np.inf])
    assert metrics.quantiles(errors, [0.0, 0.25, 0.5, 1.0]) == [1.0, 2.5, np.inf, np.inf]
    assert np.isnan(metrics.quantiles(np.array([]), [0.5])).all()


def test_the_bootstrap_repeats_with_its_seed_and_holds_the_mean() -> None:
    right = np.arange(200) < 150
    low, high = metrics.bootstrap_interval(right, np.random.default_rng(1))
    assert (low, high) == metrics.bootstrap_interval(right, np.random.default_rng(1))
    # the mean of 200 draws of a coin of 3/4 has a standard deviation of 3.06 %
    assert (low, high) == pytest.approx((0.75 - 1.96 * 0.0306, 0.75 + 1.96 * 0.0306), abs=0.006)


def test_the_bootstrap_agrees_with_resampling_one_by_one() -> None:
    rng = np.random.default_rng(2)
    values = rng.random(30)
    means = [values[rng.integers(0, 30, 30)].mean() for _ in range(20_000)]
    expected = np.quantile(means, [0.05, 0.95])
    found = metrics.bootstrap_interval(values, rng, level=0.9, draws=20_000)
    assert found == pytest.approx(expected.tolist(), abs=0.004)


def test_the_bootstrap_of_certain_and_of_no_values() -> None:
    rng = np.random.default_rng(0)
    assert metrics.bootstrap_interval(np.ones(5), rng) == (1.0, 1.0)
    assert np.isnan(metrics.bootstrap_interval([], rng)).all()
