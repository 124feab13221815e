"""The pose of a query from photos of known position and heading, on scenes whose poses are known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from sareloc.geometry import LocalFeatures, Reference, TwoView, estimate_camera_pose
from sareloc.geometry.camera_pose import UNEXPLAINED_M, PoseProblem, angles_of, rotation

SIZE, FOCAL = (480, 360), 400.0
SEEN_AT = (((-4.0, 1.0), -8.0), ((5.0, -3.0), 6.0), ((0.5, -9.0), 2.0))
"""Position and heading of the references; the query is 1 m up, at (1.2, -2.5), and looks to the north."""
QUERY, HEADING, PITCH, ROLL = (1.2, -2.5), 5.0, 0.08, 0.01


def points(seed: int = 0, count: int = 60) -> np.ndarray:
    """Points (N, 3) east, down, north of a street to the north: not on one plane."""
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.uniform(-12, 12, count), rng.uniform(-8, 1, count), rng.uniform(12, 40, count)])


def photo(scene: np.ndarray, at: tuple[float, float], up_m: float, *angles: float) -> LocalFeatures:
    """What a camera at metres east and north sees, by heading, pitch and roll in radians."""
    x, y, z = rotation(*angles) @ (scene - (at[0], -up_m, at[1])).T
    xy = np.column_stack([FOCAL * x / z + SIZE[0] / 2, FOCAL * y / z + SIZE[1] / 2])
    return LocalFeatures(xy.astype(np.float32), np.zeros((len(xy), 64), np.int8), SIZE, FOCAL)


def street(
    *, noise_px: float = 0.0, outliers: int = 0, pitch: float = 0.05, seed: int = 0
) -> tuple[LocalFeatures, list[Reference]]:
    """A query and its references; `outliers` of each reference's matches are wrong."""
    rng, scene = np.random.default_rng(seed), points(seed)
    query = photo(scene, QUERY, 1.0, math.radians(HEADING), PITCH, ROLL)
    pairs = np.stack([np.arange(len(scene))] * 2, axis=1)
    yes = np.ones(len(pairs), dtype=np.bool_)
    references = []
    for at, heading in SEEN_AT:
        seen = photo(scene, at, 1.0, math.radians(heading), pitch, 0.0)
        xy = seen.xy + rng.normal(0, noise_px, seen.xy.shape) if noise_px else seen.xy.copy()
        wrong = rng.permutation(len(xy))[:outliers]
        xy[wrong] = rng.uniform((0, 0), SIZE, (outliers, 2))
        features = replace(seen, xy=xy.astype(np.float32))
        references.append(Reference(features, TwoView(pairs, yes, yes, 20), *at, heading))
    return query, references


def off_m(found: object) -> float:
    assert found is not None
    return math.hypot(found.east_m - QUERY[0], found.north_m - QUERY[1])  # type: ignore[attr-defined]


def turned(found: object) -> float:
    return abs((found.heading_deg - HEADING + 180) % 360 - 180)  # type: ignore[attr-defined]


@pytest.mark.parametrize("pitch", [-0.05, 0.0, 0.07])
def test_exact_matches_give_the_position_in_metres_whatever_the_pitch_of_the_references(pitch: float) -> None:
    found = estimate_camera_pose(*street(pitch=pitch))
    assert found is not None
    assert off_m(found) < 0.15  # the priors of upright cameras pull a little
    assert turned(found) < 0.3
    assert found.agreement > 0.95
    assert found.radius_m < 1.5


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_outliers_are_borne(seed: int) -> None:
    found = estimate_camera_pose(*street(noise_px=0.5, outliers=8, seed=seed))
    assert off_m(found) < 1.0
    assert turned(found) < 1.0


def test_two_references_at_two_positions_suffice() -> None:
    query, references = street()
    assert off_m(estimate_camera_pose(query, references[:2])) < 0.5


def test_references_at_one_position_do_not_tell_how_far_the_query_is() -> None:
    query, references = street()
    here = references[0]
    again = replace(here, heading_deg=here.heading_deg)
    assert estimate_camera_pose(query, [here, again]) is None
    assert estimate_camera_pose(query, [here]) is None
    assert estimate_camera_pose(query, []) is None


def test_wrong_headings_give_no_pose_or_a_wide_radius() -> None:
    query, references = street()
    lying = [
        replace(one, heading_deg=one.heading_deg + turn) for one, turn in zip(references, (40, -60, 90), strict=True)
    ]
    found = estimate_camera_pose(query, lying)
    assert found is None or off_m(found) <= found.radius_m


def test_random_matches_give_no_pose() -> None:
    query, references = street(outliers=60)
    assert estimate_camera_pose(query, references) is None


def test_a_pose_far_from_the_likeliest_place_is_not_plausible() -> None:
    query, references = street()
    moved = [replace(one, east_m=one.east_m + 60) for one in references]
    assert estimate_camera_pose(query, moved) is None


def test_the_radius_grows_with_what_is_not_explained_and_with_an_assumed_focal_length() -> None:
    query, references = street(noise_px=0.5)
    _, doubtful = street(noise_px=0.5, outliers=25)
    known, unsure = estimate_camera_pose(query, references), estimate_camera_pose(query, doubtful)
    assumed = estimate_camera_pose(replace(query, focal_px=None), references)
    assert known is not None
    assert unsure is not None
    assert assumed is not None
    assert unsure.agreement < known.agreement
    assert unsure.radius_m > known.radius_m
    assert assumed.radius_m > known.radius_m
    assert unsure.radius_m > 2 * UNEXPLAINED_M * (1 - unsure.agreement)
    assert np.linalg.eigvalsh(unsure.covariance_m2).min() > 0


def test_it_is_deterministic() -> None:
    first, second = (estimate_camera_pose(*street(noise_px=0.5, outliers=10)) for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first.east_m, first.north_m, first.heading_deg) == (second.east_m, second.north_m, second.heading_deg)


def test_angles_undo_rotations() -> None:
    rng = np.random.default_rng(0)
    for heading, pitch, roll in rng.uniform((-3, -1.2, -1), (3, 1.2, 1), (50, 3)):
        turned_by = rotation(heading, pitch, roll)
        assert np.allclose(turned_by @ turned_by.T, np.eye(3))
        assert np.allclose(angles_of(turned_by), (heading, pitch, roll))


def test_a_camera_turned_to_the_east_and_up_sees_the_east_in_the_middle_below() -> None:
    x, y, z = rotation(math.pi / 2, 0.1, 0.0) @ (1.0, 0.0, 0.0)
    assert z > 0
    assert abs(x) < 1e-12
    assert y > 0


def test_distances_are_those_of_sampson_one_by_one() -> None:
    """A slow twin: the epipolar constraint and its gradient, match by match, in pixels."""
    query, references = street(noise_px=2.0)
    problem = PoseProblem(query, references)
    pose = np.array([0.5, -2.0, -0.8, 0.1, 0.05, 0.02, 0.01, 0.03, 0.06])
    found = problem.distances(pose[None])[0]
    here = rotation(*pose[3:6])
    for k, one in enumerate(references):
        there = rotation(math.radians(one.heading_deg), pose[6 + k], 0.0)
        x, y, z = there @ (np.array([pose[0], pose[2], pose[1]]) - (one.east_m, 0, one.north_m))
        fundamental = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ there @ here.T
        for m in range(0, 60, 7):
            a = np.append((query.xy[m] - (240, 180)) / FOCAL, 1.0)
            b = np.append((one.features.xy[m] - (240, 180)) / FOCAL, 1.0)
            line, back = fundamental @ a, b @ fundamental
            twin = FOCAL * (b @ line) / math.sqrt(line[0] ** 2 + line[1] ** 2 + back[0] ** 2 + back[1] ** 2)
            assert found[k, m] == pytest.approx(twin, rel=1e-6, abs=1e-6)


def test_refinement_ends_at_a_minimum() -> None:
    query, references = street(noise_px=0.5)
    problem = PoseProblem(query, references)
    start = np.array([2.5, -1.0, 0.0, 0.15, 0.0, 0.0, 0.0, 0.0, 0.0])
    pose, normal, cost = problem.refine(start)
    assert cost < problem.cost(start)
    assert np.linalg.eigvalsh(normal).min() > 0
    for width in np.diag([0.3, 0.3, 0.3, *[0.02] * 6]):
        assert problem.cost(pose + width) > cost - 1e-3
        assert problem.cost(pose - width) > cost - 1e-3
