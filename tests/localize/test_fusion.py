"""Matches that stand together count together; one that stands apart drags nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sareloc.errors import ArgumentError
from sareloc.geo import distance_m, wgs84_from_enu
from sareloc.localize.estimate import KERNEL_M, PLACE_M, fuse, weigh

HERE = (48.8584, 2.2945)


def around(metres: list[tuple[float, float]], origin: tuple[float, float] = HERE) -> np.ndarray:
    """Degrees of points so many metres east and north of the origin."""
    return wgs84_from_enu(metres, origin)


def slow_mode(metres: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The highest point of the density by looking everywhere around the highest match, to 5 cm: a plain-loop twin."""

    def density(x: float, y: float) -> float:
        return sum(
            w * math.exp(-((x - px) ** 2 + (y - py) ** 2) / (2 * KERNEL_M**2))
            for (px, py), w in zip(metres, weights, strict=True)
        )

    best = max(metres.tolist(), key=lambda p: density(*p))
    for step in (4.0, 1.0, 0.25, 0.05):
        grid = [(best[0] + i * step, best[1] + j * step) for i in range(-8, 9) for j in range(-8, 9)]
        best = list(max(grid, key=lambda p: density(*p)))
    return np.array(best)


def test_one_match_is_its_position() -> None:
    place = fuse([HERE], [0.9])
    assert place.latlon == pytest.approx(HERE, abs=1e-9)
    assert (place.scatter_m, place.share) == (pytest.approx(0, abs=1e-6), 1.0)
    assert place.nearest == place.other == 0.9


def test_two_equal_matches_meet_in_the_middle() -> None:
    place = fuse(around([(0, 0), (10, 0)]), [0.9, 0.9])
    assert distance_m(place.latlon, around([(5, 0)])[0]) < 0.01
    assert place.scatter_m == pytest.approx(5, abs=0.01)


def test_neighbours_that_agree_beat_a_single_better_match() -> None:
    latlon = around([(500, 0), (0, 0), (4, 0), (0, 4)])
    place = fuse(latlon, [0.90, 0.91, 0.91, 0.91])
    assert distance_m(place.latlon, HERE) < 5
    assert place.nearest == 0.91
    assert place.other == 0.90


def test_a_much_better_match_beats_neighbours_that_agree() -> None:
    place = fuse(around([(500, 0), (0, 0), (4, 0), (0, 4)]), [0.5, 1.0, 1.0, 1.0])
    assert distance_m(place.latlon, around([(500, 0)])[0]) < 0.01


@pytest.mark.parametrize("far", [(300.0, 0.0), (0.0, -5000.0), (2e5, 2e5)])
def test_an_outlier_does_not_drag(far: tuple[float, float]) -> None:
    near = [(0.0, 0.0), (6.0, 2.0), (-3.0, 5.0)]
    alone = fuse(around(near), [1.0, 1.01, 1.02])
    joined = fuse(around([*near, far]), [1.0, 1.01, 1.02, 1.0])
    assert distance_m(alone.latlon, joined.latlon) < 1e-3
    assert joined.share < 0.8 < alone.share == pytest.approx(1)


def test_the_other_place_is_the_nearest_elsewhere_or_else_the_end_of_the_list() -> None:
    assert fuse(around([(0, 0), (5, 0), (200, 0)]), [0.8, 0.9, 1.1]).other == 1.1
    assert fuse(around([(0, 0), (5, 0), (8, 0)]), [0.8, 0.9, 1.0]).other == 1.0


def test_the_whole_earth_may_match() -> None:
    """Local metres have no image of the antipodes; the place must not care."""
    place = fuse([HERE, (-48.8584, -177.7055), (0.0, 0.0)], [0.8, 1.2, 1.2])
    assert place.latlon == pytest.approx(HERE, abs=1e-9)


@pytest.mark.parametrize("origin", [(-16.5, 180.0), (-16.5, -180.0), (89.9999, 30.0)])
def test_the_antimeridian_and_the_pole_are_places_like_others(origin: tuple[float, float]) -> None:
    metres = [(-6.0, 0.0), (6.0, 0.0), (0.0, 3.0)]
    place = fuse(around(metres, origin), [1.0, 1.0, 1.0])
    assert distance_m(place.latlon, around([(0.0, 1.0)], origin)[0]) < 0.5
    assert place.share == pytest.approx(1)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-60, 60), st.floats(-60, 60), st.floats(0.5, 1.4)), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_the_order_of_matches_does_not_matter(rows: list[tuple[float, float, float]], rng: object) -> None:
    shuffled = rows.copy()
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = (fuse(around([(x, y) for x, y, _ in some]), [d for *_, d in some]) for some in (rows, shuffled))
    assert first == second


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(-40, 40), st.floats(-40, 40), st.floats(0.8, 1.2)), min_size=1, max_size=6))
def test_the_place_is_the_mode_that_a_plain_search_finds(rows: list[tuple[float, float, float]]) -> None:
    metres, distances = np.array([(x, y) for x, y, _ in rows]), [d for *_, d in rows]
    place, weights = fuse(around(metres.tolist()), distances), weigh(distances)

    def density(point: np.ndarray) -> float:
        return float(weights @ np.exp(-((metres - point) ** 2).sum(axis=1) / (2 * KERNEL_M**2)))

    from sareloc.geo import enu_from_wgs84

    ours = enu_from_wgs84([place.latlon], HERE)[0]
    assert density(ours) >= density(slow_mode(metres, weights)) - 1e-5


@settings(max_examples=25, deadline=None)
@given(st.floats(-0.5, 0.5), st.floats(-0.5, 0.5))
def test_moving_all_matches_moves_the_place_along(north: float, east: float) -> None:
    there = (HERE[0] + north, HERE[1] + east)
    metres = [(0.0, 0.0), (8.0, 3.0), (-4.0, 9.0), (120.0, 0.0)]
    distances = [1.0, 1.02, 1.05, 1.01]
    moved = fuse(around(metres, there), distances)
    expected = fuse(around(metres), distances)
    from sareloc.geo import enu_from_wgs84

    assert enu_from_wgs84([moved.latlon], there)[0] == pytest.approx(
        enu_from_wgs84([expected.latlon], HERE)[0], abs=0.01
    )


def test_equal_places_are_decided_by_position_not_by_order() -> None:
    latlon = around([(0, 0), (0, 300)])
    assert fuse(latlon, [1.0, 1.0]).latlon == fuse(latlon[::-1], [1.0, 1.0]).latlon == pytest.approx(HERE, abs=1e-9)


def test_weights_are_a_softmax_of_squared_distances() -> None:
    distances = np.array([0.9, 1.0, 1.3])
    plain = [math.exp(-(d**2) / 0.05) for d in distances]
    assert weigh(distances, 0.05) == pytest.approx(np.array(plain) / sum(plain))
    assert len(weigh([])) == 0


def test_given_weights_take_the_place_of_distances() -> None:
    place = fuse(around([(0, 0), (500, 0)]), [0.5, 1.0], [0.1, 0.9])
    assert distance_m(place.latlon, around([(500, 0)])[0]) < 0.01
    assert place.share == pytest.approx(0.9)


def test_the_share_counts_within_the_radius_of_a_place() -> None:
    latlon = around([(0, 0), (0, 0), (0, 0), (PLACE_M + 5, 0)])
    assert fuse(latlon, [1.0, 1.0, 1.0, 1.0], [10, 10, 10, 1]).share == pytest.approx(30 / 31)


def test_no_matches_are_no_place() -> None:
    with pytest.raises(ArgumentError, match="0 positions"):
        fuse(np.zeros((0, 2)), [])
    with pytest.raises(ArgumentError, match="2 distances"):
        fuse([HERE], [1.0, 1.0])


def test_the_scatter_is_of_the_place_alone() -> None:
    """Two matches of equal weight, 6 m apart, are 3 m from their middle, however much weight stands elsewhere."""
    latlon = wgs84_from_enu([(-3.0, 0.0), (3.0, 0.0), (4000.0, 0.0)], HERE)
    for elsewhere in (0.0, 0.2, 0.6):
        assert fuse(latlon, [1.0, 1.0, 1.1], [1.0, 1.0, elsewhere]).scatter_m == pytest.approx(3.0, abs=1e-6)
