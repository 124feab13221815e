"""A walk's photos support one another: forward-backward against all paths, and what it does to lone mistakes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from sareloc.errors import ArgumentError
from sareloc.localize.sequence import JUMP, LOST, TRUST, Belief, support


def belief(points: list[float], chances: list[float]) -> Belief:
    """Candidates on a line."""
    return Belief(np.array([[x, 0.0, 0.0] for x in points]).reshape(-1, 3), np.array(chances, dtype=np.float64))


def all_paths(beliefs: list[Belief], reach: list[float], chance: float) -> list[np.ndarray]:
    """Every way of choosing a state for each photo, weighed and summed: the slow twin."""

    def fit(a: Belief, i: int, b: Belief, j: int, reach_m: float) -> float:
        if i == len(a.chances) or j == len(b.chances):
            return 1.0 if i == len(a.chances) and j == len(b.chances) else LOST
        beyond = max(0.0, float(abs(a.points_m[i, 0] - b.points_m[j, 0])) - reach_m)
        return max(JUMP, chance**-TRUST * float(np.exp(-(beyond**2) / (2 * 25.0**2))))

    found = [np.zeros(len(b.chances) + 1) for b in beliefs]
    for path in product(*(range(len(b.chances) + 1) for b in beliefs)):
        weight = 1.0
        for b, state in zip(beliefs, path, strict=True):
            weight *= b.none if state == len(b.chances) else b.chances[state]
        for t in range(len(beliefs) - 1):
            weight *= fit(beliefs[t], path[t], beliefs[t + 1], path[t + 1], reach[t])
        for t, state in enumerate(path):
            found[t][state] += weight
    return [(row / row.sum())[:-1] for row in found]


def test_agrees_with_summing_over_all_paths() -> None:
    rng = np.random.default_rng(0)
    beliefs = [
        belief(rng.uniform(0, 300, count).tolist(), (rng.dirichlet(np.ones(count + 1))[:-1]).tolist())
        for count in (3, 4, 1, 2, 3)
    ]
    reach = [10.0, 80.0, 0.0, 40.0]
    for ours, slow in zip(support(beliefs, reach, chance=0.03), all_paths(beliefs, reach, 0.03), strict=True):
        assert ours == pytest.approx(slow, rel=1e-9)


def test_one_photo_keeps_its_chances() -> None:
    assert support([belief([0, 100], [0.5, 0.3])], 10)[0] == pytest.approx([0.5, 0.3])
    assert support([], 10) == []


def test_neighbours_put_a_mistaken_photo_right() -> None:
    """The middle photo prefers a place 5 km off; those before and after are sure of the street."""
    walk = [belief([0, 5000], [0.8, 0.1]), belief([5000, 12], [0.6, 0.2]), belief([25, 9000], [0.8, 0.1])]
    middle = support(walk, 20)[1]
    assert middle[1] > 0.9
    assert support(walk, 1e6)[1][0] > 0.5  # where anything is in reach, it keeps its mistake


def test_a_walk_outside_of_the_map_stays_outside() -> None:
    """Weak candidates that do not go together do not talk each other into a position."""
    walk = [belief([1000.0 * t, 1000.0 * t + 500], [0.1, 0.05]) for t in range(6)]
    assert all(chances.sum() < 0.05 for chances in support(walk, 10))


def test_a_photo_that_shows_nothing_does_not_stop_the_others() -> None:
    walk = [belief([0], [0.9]), belief([], []), belief([20], [0.9])]
    first, nothing, last = support(walk, 20)
    assert len(nothing) == 0
    assert first[0] == pytest.approx(last[0])


def test_a_photo_that_is_sure_of_two_far_places_does_not_break_it() -> None:
    (a,), (b,) = support([belief([0], [1.0]), belief([1e6], [1.0])], 5)
    assert (a, b) == (pytest.approx(1), pytest.approx(1))


def test_steps_must_be_metres() -> None:
    with pytest.raises(ArgumentError, match="0 m or more"):
        support([belief([0], [1.0])] * 2, -1)
    with pytest.raises(ArgumentError, match="3 photos has 2 steps"):
        support([belief([0], [1.0])] * 3, [1.0, 2.0, 3.0])
    with pytest.raises(ArgumentError, match="0 < chance <= 1: found 0"):
        support([belief([0], [1.0])], 5, chance=0)


def test_standing_together_means_more_where_it_is_rare() -> None:
    walk = [belief([0, 900], [0.2, 0.1]), belief([10, 4000], [0.2, 0.1])]
    rare, common = (support(walk, 20, chance=chance)[0][0] for chance in (0.001, 1.0))
    assert rare > 0.5 > common
