"""Two-view geometry on scenes whose cameras are known, and the evidence made of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sareloc.arrays import Floats
from sareloc.geometry import (
    Evidence,
    LocalFeatures,
    TwoView,
    count_inliers,
    inlier_pairs,
    match_scores,
    turn_deg,
    two_view,
    verify,
)

SIZE, FOCAL_PX = (480, 360), 420.0


def project(points: Floats, turn: float, shift: tuple[float, float, float]) -> Floats:
    """Pixels (N, 2) of points (N, 3) in a camera turned about its vertical axis by `turn` rad and moved by `shift`."""
    cos, sin = np.cos(turn), np.sin(turn)
    seen = (points - shift) @ np.array([[cos, 0, sin], [0, 1, 0], [-sin, 0, cos]])
    return FOCAL_PX * seen[:, :2] / seen[:, 2:] + np.array(SIZE) / 2


def views(points: Floats, turn: float, shift: tuple[float, float, float], outliers: int) -> tuple[LocalFeatures, ...]:
    """Two images of the points; each keypoint matches that of the same row, the last `outliers` wrongly."""
    rng = np.random.default_rng(0)
    descriptors = rng.integers(-60, 61, (len(points), 64)).astype(np.int8)
    a, b = project(points, 0.0, (0, 0, 0)), project(points, turn, shift)
    b[len(b) - outliers :] = rng.random((outliers, 2)) * SIZE
    noise = rng.normal(0, 0.3, (2, len(points), 2))
    return tuple(
        LocalFeatures((xy + n).astype(np.float32), descriptors, SIZE) for xy, n in zip((a, b), noise, strict=True)
    )


def scene(flat: bool, count: int = 120) -> Floats:
    rng = np.random.default_rng(1)
    depth = np.full(count, 8.0) if flat else rng.uniform(4, 20, count)
    return np.column_stack([rng.uniform(-0.4, 0.4, count) * depth, rng.uniform(-0.3, 0.3, count) * depth, depth])


def test_true_matches_are_inliers_and_wrong_ones_are_not() -> None:
    query, other = views(scene(flat=False), 0.1, (1.0, 0.1, 0.3), outliers=40)
    (found,) = verify(query, [other])
    assert found.pairs[:, 0].tolist() == list(range(120))
    assert found.inlier[:80].mean() > 0.95
    assert found.inlier[80:].mean() < 0.25  # a wrong match can lie on its epipolar line
    assert found.planar.sum() < 60  # no homography explains a deep scene seen from two places
    assert found.cells > 20


@pytest.mark.parametrize(("turn", "shift"), [(0.2, (0.0, 0.0, 0.0)), (0.1, (1.0, 0.0, 0.5))])
def test_a_turned_camera_or_a_flat_scene_is_a_homography(turn: float, shift: tuple[float, float, float]) -> None:
    query, other = views(scene(flat=any(shift)), turn, shift, outliers=40)
    (found,) = verify(query, [other])
    assert found.planar[:80].mean() > 0.95
    assert found.planar[80:].mean() < 0.1


def test_inlier_pairs_are_fractions_of_their_own_images() -> None:
    """By hand: three keypoints, the last of which is no inlier; the other photo has half the size."""
    xy = np.array([[0, 0], [239.5, 89.5], [100, 100]], dtype=np.float32)
    query = LocalFeatures(xy, np.zeros((3, 64), dtype=np.int8), (480, 360))
    other = LocalFeatures(xy[::-1] / 2, query.descriptors, (240, 180))
    pairs = np.array([[0, 2], [1, 1], [2, 0]])
    inlier, planar = np.array([True, True, False]), np.array([True, False, False])
    found = inlier_pairs(query, other, TwoView(pairs, inlier, planar, 2))
    assert found.query_xy == pytest.approx(np.array([[0.5 / 480, 0.5 / 360], [0.5, 0.25]]))
    assert found.photo_xy == pytest.approx(np.array([[0.5 / 240, 0.5 / 180], [120.25 / 240, 45.25 / 180]]))
    assert (found.query_size, found.photo_size, found.planar) == ((480, 360), (240, 180), False)
    flat = inlier_pairs(query, other, TwoView(pairs, planar, inlier, 1))
    assert (len(flat), flat.planar) == (2, True)  # the larger set
    assert len(inlier_pairs(query, other, TwoView(pairs, planar, planar, 1))) == 1


def test_inlier_pairs_are_the_true_matches() -> None:
    query, other = views(scene(flat=False), 0.1, (1.0, 0.1, 0.3), outliers=40)
    (view,) = verify(query, [other])
    assert view is not None
    found = inlier_pairs(query, other, view)
    assert not found.planar
    true = (query.xy[:80] + 0.5) / SIZE
    nearest = np.abs(found.query_xy[:, None] - true).max(axis=2).min(axis=1)
    assert (nearest < 1e-6).mean() > 0.9


@pytest.mark.parametrize(("most", "expected"), [(200, 120), (120, 120), (100, 100), (40, 40), (1, 1)])
def test_a_sample_of_inlier_pairs_is_spread_over_all(most: int, expected: int) -> None:
    xy = np.linspace(0, 470, 120, dtype=np.float32)[:, None].repeat(2, axis=1)
    one = LocalFeatures(xy, np.zeros((120, 64), dtype=np.int8), (480, 480))
    rows = np.arange(120)
    every = np.ones(120, dtype=np.bool_)
    found = inlier_pairs(one, one, TwoView(np.stack([rows, rows], axis=1), every, ~every, 8)).sample(most)
    assert len(found) == len(found.photo_xy) == expected
    np.testing.assert_array_equal(found.query_xy, found.photo_xy)
    if expected > 1:
        assert found.query_xy.max() > 0.95


def test_the_same_images_give_the_same_inliers() -> None:
    query, other = views(scene(flat=False), 0.1, (1.0, 0.1, 0.3), outliers=60)
    first, second = (verify(query, [other])[0] for _ in range(2))
    np.testing.assert_array_equal(first.inlier, second.inlier)


def test_few_matches_are_no_geometry() -> None:
    query, other = views(scene(flat=False, count=7), 0.1, (1.0, 0.0, 0.0), outliers=0)
    (found,) = verify(query, [other])
    assert (len(found.pairs), found.inliers, found.cells) == (7, 0, 0)


def test_inliers_in_one_corner_fill_few_cells() -> None:
    rng = np.random.default_rng(2)
    xy = (rng.random((60, 2)) * 40).astype(np.float32)
    one = LocalFeatures(xy, rng.integers(-60, 61, (60, 64)).astype(np.int8), SIZE)
    pairs = np.repeat(np.arange(60)[:, None], 2, axis=1)
    assert 1 <= two_view(one, one, pairs).cells <= 2


def test_a_photo_without_features_has_no_evidence() -> None:
    query, other = views(scene(flat=True), 0.1, (1.0, 0.0, 0.5), outliers=0)
    found = count_inliers(verify(query, [None, other]))
    assert np.isnan(found.inliers).tolist() == [True, False]
    assert found.planar[1] > 100
    assert [part.tolist()[0] for part in found.beyond_chance] == [0.0, 0.0]


@pytest.mark.parametrize("turn", [-0.3, 0.0, 0.25])
@pytest.mark.parametrize("shift", [(1.0, 0.0, 0.4), (0.0, 0.0, -1.5)])
def test_the_turn_between_two_cameras(turn: float, shift: tuple[float, float, float]) -> None:
    """The second camera is turned to the right by `turn`, so that the first is turned to the left against it."""
    query, other = (replace(one, focal_px=FOCAL_PX) for one in views(scene(flat=False), turn, shift, outliers=20))
    (view,) = verify(query, [other])
    assert view is not None
    assert turn_deg(query, other, view) == pytest.approx(-np.degrees(turn), abs=1.5)


def test_the_focal_length_matters_for_the_turn() -> None:
    query, other = views(scene(flat=False), 0.25, (1.0, 0.0, 0.4), outliers=0)
    (view,) = verify(query, [other])
    assert view is not None
    right, wide = (
        turn_deg(replace(query, focal_px=f), replace(other, focal_px=f), view) for f in (FOCAL_PX, FOCAL_PX / 2)
    )
    assert right == pytest.approx(-np.degrees(0.25), abs=1.5)
    assert wide is not None
    assert abs(wide - right) > 3


def test_few_inliers_tell_no_turn() -> None:
    query, other = views(scene(flat=False, count=7), 0.1, (1.0, 0.0, 0.0), outliers=0)
    (view,) = verify(query, [other])
    assert view is not None
    assert turn_deg(query, other, view) is None


def test_scores_by_hand() -> None:
    evidence = Evidence(np.array([7.0, 27.0]), np.array([4.0, 3.0]))
    expected = np.array([-0.5 * 0.25 / 0.1, -0.5 * 0.36 / 0.1 + 0.9 * np.log(21)])
    assert match_scores([0.5, 0.6], 0.1, evidence) == pytest.approx(expected - expected.max())
    assert match_scores([0.5, 0.6], 0.1) == pytest.approx([0.0, -1.1])
    assert match_scores([], 0.1).shape == (0,)
