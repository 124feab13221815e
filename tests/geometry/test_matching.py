"""Matches of local features against a plain loop."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import given
from hypothesis import strategies as st

from sareloc.geometry import LocalFeatures, count_matches, match_features
from sareloc.geometry.two_view import MIN_COSINE, PREFILTER_KEYPOINTS, match_together


def features(steps: npt.NDArray[np.int8]) -> LocalFeatures:
    return LocalFeatures(np.zeros((len(steps), 2), np.float32), steps, (10, 10))


def slow_matches(a: npt.NDArray[np.int8], b: npt.NDArray[np.int8]) -> list[tuple[int, int]]:
    found = []
    cosine = [[float(x @ y / np.linalg.norm(x) / np.linalg.norm(y)) for y in b.astype(float)] for x in a.astype(float)]
    for i in range(len(a)):
        j = max(range(len(b)), key=lambda j: cosine[i][j])
        if max(range(len(a)), key=lambda k: cosine[k][j]) == i and cosine[i][j] > MIN_COSINE:
            found.append((i, j))
    return found


@given(counts=st.lists(st.integers(1, 8), min_size=1, max_size=3), mine=st.integers(1, 8), seed=st.integers(0, 999))
def test_matches_are_mutual_nearest_neighbours_that_are_similar(counts: list[int], mine: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    base = rng.integers(-60, 61, (8, 64))
    noisy = [
        np.clip(base[rng.permutation(8)[:n]] + rng.integers(-25, 26, (n, 64)), -127, 127).astype(np.int8)
        for n in (mine, *counts)
    ]
    found = list(match_features(features(noisy[0]), [features(other) for other in noisy[1:]]))
    together = match_together(features(noisy[0]), [features(other) for other in noisy[1:]], torch.device("cpu"))
    for pairs, same, other in zip(found, together, noisy[1:], strict=True):
        assert [tuple(pair) for pair in pairs.tolist()] == slow_matches(noisy[0], other)
        assert same.tolist() == pairs.tolist()


def test_the_largest_numbers_are_multiplied_exactly() -> None:
    """Sums of products of 127 and -127 are clipped by instructions that add two of them in 16 bits."""
    signs = np.where(np.random.default_rng(0).random((70, 64)) < 0.5, -1, 1)
    mine = (127 * signs).astype(np.int8)
    other = mine[::-1].copy()
    other[:, :4] = np.where(np.arange(70)[:, None] % 3 == 0, -other[:, :4], other[:, :4])
    (pairs,) = match_features(features(mine), [features(other)])
    assert len(pairs) > 60
    assert [tuple(pair) for pair in pairs.tolist()] == slow_matches(mine, other)


def test_nothing_to_match_gives_no_pairs() -> None:
    some, none = features(np.ones((3, 64), np.int8)), features(np.zeros((0, 64), np.int8))
    assert list(match_features(some, [])) == []
    assert [pairs.shape for pairs in match_features(some, [none])] == [(0, 2)]
    assert [pairs.shape for pairs in match_features(none, [some])] == [(0, 2)]
    for one, other in ((some, none), (none, some), (none, none)):
        assert [pairs.shape for pairs in match_together(one, [other, other], torch.device("cpu"))] == [(0, 2)] * 2


def test_matches_of_the_best_keypoints_are_counted() -> None:
    rng = np.random.default_rng(3)
    base = rng.integers(-60, 61, (400, 64))
    sets = [
        np.clip(base[rng.permutation(400)[:n]] + rng.integers(-15, 16, (n, 64)), -127, 127).astype(np.int8)
        for n in (300, 300, 12, 0)
    ]
    query, *others = map(features, sets)
    best = [one.best(PREFILTER_KEYPOINTS) for one in others]
    expected = [len(pairs) for pairs in match_features(query.best(PREFILTER_KEYPOINTS), best)]
    assert expected[0] > 100
    assert count_matches(query, others).tolist() == expected
    assert count_matches(query, best).tolist() == expected
    assert count_matches(features(sets[3]), others).tolist() == [0, 0, 0]
    assert count_matches(query, []).tolist() == []
