"""Camera pose: where a query was taken and where it looks, from photos of known position and heading that it matches.

The photos are treated as one rigid camera rig: matches with at least two of them, at different positions, determine
where the query was taken, in metres (generalized relative pose, PoseLib); the relative pose to one photo leaves the
distance unknown. The pitch of the photos is unknown as well and is estimated with the pose.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats
from sareloc.geometry.local_features import LocalFeatures
from sareloc.geometry.two_view import TwoView, camera_of

MOST_REFERENCES = 5
DISTINCT_M = 1.0
"""Photos nearer to each other, such as views of one panorama, count as taken at one position."""
LEAST_AGREEMENT = 0.3
"""A pose that explains a smaller share of the matches is not given."""
POSITION_M, HEIGHT_M = 4.0, 0.7
PITCH, ROLL, REFERENCE_PITCH = 0.14, 0.03, 0.08  # radians
"""Standard deviations of the query from the place where its matches agree, of its height, pitch and roll, and of the
pitch of the other photos: cameras are held upright. A pose beyond 3.5 of them together is not given."""
IMPLAUSIBLE = 12.0
INLIER_PX = 1.5
RANSAC_PX = 2.0
RANSAC = {"max_iterations": 100, "min_iterations": 30, "success_prob": 0.9999, "max_epipolar_error": RANSAC_PX}
TRIED_PITCHES = (-0.05, 0.03, 0.1)  # radians, of all other photos
FEWER = 3  # references of every second hypothesis: the best ones are more often right
REFINED = 2  # hypotheses
MOST_MATCHES = 60  # of one reference
STEPS = 8
UNEXPLAINED_M = 8.0
"""Standard deviation of a pose that explains none of the matches, along each axis; fitted on a drawn town."""
ASSUMED_FOCAL_M = 3.0
"""Standard deviation that an assumed focal length adds, along each axis; fitted on a drawn town."""


@dataclass(frozen=True, eq=False)
class Reference:
    """A photo of known position and heading, and its matches with the query."""

    features: LocalFeatures
    view: TwoView
    """Of the query and this photo, in this order."""
    east_m: float
    north_m: float
    heading_deg: float


@dataclass(frozen=True, eq=False)
class CameraPose:
    """Where a query was taken and where it looks."""

    east_m: float
    north_m: float
    heading_deg: float
    """Of the optical axis, clockwise from north, 0 to 360."""
    covariance_m2: Floats
    """(2, 2) of east and north, in square metres."""
    agreement: float
    """Share of the matches that the pose explains, 0 to 1."""

    @property
    def radius_m(self) -> float:
        """The distance that contains the truth with a probability of 0.9: `sqrt(-2 log 0.1)` times the largest
        standard deviation along any direction."""
        return math.sqrt(-2 * math.log(0.1) * float(np.linalg.eigvalsh(self.covariance_m2)[-1]))


def estimate_camera_pose(query: LocalFeatures, references: Sequence[Reference]) -> CameraPose | None:
    """The pose of the query by the first five references, the best first; their metres are from the likeliest place.

    Hypotheses by RANSAC (generalized relative pose, PoseLib) with three pitches of the references, of the first three
    and of all. The two that explain most matches are refined: with the robust Sampson distances e of the matches in
    pixels and the deviations z of the parameters from an upright camera at the likeliest place, in standard deviations,
    `1.5^2 sum log(1 + (e / 1.5)^2) + sum z^2` is minimised over the query's position, height, heading, pitch and
    roll and the references' pitches (Levenberg-Marquardt).

    The covariance is the inverse of the normal matrix at the minimum, plus `(8 m (1 - agreement))^2` along each axis,
    and `(3 m)^2` if a focal length is assumed.

    None if the references were taken at one position, or if no hypothesis is plausible and explains 0.3 of the matches:
    one façade, wrong matches, or wrong headings.
    """
    chosen = references[:MOST_REFERENCES]
    if not _at_two_positions(chosen):
        return None
    problem = PoseProblem(query, chosen)
    starts = [start for start in _hypotheses(query, chosen) if problem.implausibility(start) < 5 * IMPLAUSIBLE]
    starts.sort(key=lambda start: problem.implausibility(start) - problem.explained(start))
    refined = [problem.refine(start) for start in starts[:REFINED]]
    plausible = [one for one in refined if problem.implausibility(one[0]) <= IMPLAUSIBLE]
    if not plausible:
        return None
    pose, normal, _ = min(plausible, key=lambda one: one[2])
    agreement = problem.explained(pose) / problem.matches
    if agreement < LEAST_AGREEMENT:
        return None
    assumed = any(features.focal_px is None for features in (query, *(one.features for one in chosen)))
    more = (UNEXPLAINED_M * (1 - agreement)) ** 2 + (ASSUMED_FOCAL_M**2 if assumed else 0.0)
    covariance = np.linalg.inv(normal)[:2, :2] + more * np.eye(2)
    return CameraPose(float(pose[0]), float(pose[1]), math.degrees(pose[3]) % 360, covariance, agreement)


def rotation(heading: npt.ArrayLike, pitch: npt.ArrayLike, roll: npt.ArrayLike) -> Floats:
    """Rotations (..., 3, 3) from the world (east, down, north) to a camera (right, down, ahead); angles in radians.

    heading: clockwise from north. pitch: upwards. roll: clockwise as the photographer sees it.
    """
    h, p, r = (np.asarray(angle, dtype=np.float64) for angle in (heading, pitch, roll))
    sh, ch, sp, cp, sr, cr = np.sin(h), np.cos(h), np.sin(p), np.cos(p), np.sin(r), np.cos(r)
    out = np.empty((*np.broadcast_shapes(h.shape, p.shape, r.shape), 3, 3))
    out[..., 0, 0], out[..., 0, 1], out[..., 0, 2] = cr * ch + sr * sp * sh, sr * cp, sr * sp * ch - cr * sh
    out[..., 1, 0], out[..., 1, 1], out[..., 1, 2] = cr * sp * sh - sr * ch, cr * cp, cr * sp * ch + sr * sh
    out[..., 2, 0], out[..., 2, 1], out[..., 2, 2] = sh * cp, -sp, ch * cp
    return out


def _at_two_positions(references: Sequence[Reference]) -> bool:
    at = np.array([(one.east_m, one.north_m) for one in references]).reshape(-1, 2)
    return len(at) > 1 and bool((np.linalg.norm(at - at[0], axis=1) > DISTINCT_M).any())


def _hypotheses(query: LocalFeatures, references: Sequence[Reference]) -> Iterator[Floats]:
    """Parameters, as of `PoseProblem`, that explain some matches."""
    import poselib

    matches = []
    for row, one in enumerate(references):
        pairs = one.view.pairs[one.view.inlier]
        pair = poselib.PairwiseMatches()
        pair.cam_id1, pair.cam_id2 = row, 0
        pair.x1 = list(one.features.xy[pairs[:, 1]].astype(np.float64))
        pair.x2 = list(query.xy[pairs[:, 0]].astype(np.float64))
        matches.append(pair)
    cameras = [camera_of(one.features) for one in references]
    for pitch in TRIED_PITCHES:
        placed = []
        for one in references:
            there = poselib.CameraPose()
            there.R = rotation(math.radians(one.heading_deg), pitch, 0.0)
            there.t = -there.R @ (one.east_m, 0.0, one.north_m)
            placed.append(there)
        for count in sorted({min(FEWER, len(references)), len(references)}):
            if not _at_two_positions(references[:count]):
                continue
            pose, _ = poselib.estimate_generalized_relative_pose(
                matches[:count], placed[:count], cameras[:count], [poselib.CameraPose()], [camera_of(query)], RANSAC, {}
            )
            east, down, north = -pose.R.T @ pose.t
            if math.isfinite(east + down + north):
                yield np.array([east, north, down, *angles_of(pose.R), *[pitch] * len(references)])


def angles_of(rotated: Floats) -> tuple[float, float, float]:
    """Heading, pitch and roll in radians of a rotation, see `rotation`."""
    right, _, ahead = rotated
    heading = math.atan2(ahead[0], ahead[2])
    level = np.array([math.cos(heading), 0.0, -math.sin(heading)])
    roll = math.atan2(right @ np.cross(ahead, level), right @ level)
    return heading, -math.asin(min(max(float(ahead[1]), -1.0), 1.0)), roll


class PoseProblem:
    """Sampson distances of matches as a function of the query's pose and the references' pitches.

    Parameters (6 + K,): metres east, north and down; heading, pitch, roll; the pitch of each reference, in radians.
    """

    def __init__(self, query: LocalFeatures, references: Sequence[Reference]) -> None:
        count = len(references)
        self.eyes = np.array([(one.east_m, 0.0, one.north_m) for one in references])
        self.headings = np.radians([one.heading_deg for one in references])
        kept = [one.view.pairs[one.view.inlier][:MOST_MATCHES] for one in references]
        most = max(len(pairs) for pairs in kept)
        self.mine, self.theirs = np.zeros((count, 3, most)), np.zeros((count, 3, most))
        self.given = np.zeros((count, most))
        for row, (one, pairs) in enumerate(zip(references, kept, strict=True)):
            self.mine[row, :, : len(pairs)] = _rays(query, pairs[:, 0]).T
            self.theirs[row, :, : len(pairs)] = _rays(one.features, pairs[:, 1]).T
            self.given[row, : len(pairs)] = 1.0
        self.focal_px = camera_of(query)["params"][0]
        self.std = np.array([POSITION_M, POSITION_M, HEIGHT_M, np.inf, PITCH, ROLL, *[REFERENCE_PITCH] * count])
        self.matches = float(self.given.sum())

    def distances(self, poses: Floats) -> Floats:
        """Sampson distances (B, K, M) in pixels of the matches, for parameters (B, 6 + K); signed."""
        here = rotation(*poses[:, 3:6].T)  # (B, 3, 3)
        there = rotation(self.headings, poses[:, 6:], 0.0)  # (B, K, 3, 3)
        moved = poses[:, None, [0, 2, 1]] - self.eyes  # (B, K, 3)
        x, y, z = np.moveaxis((there @ moved[..., None])[..., 0], -1, 0)
        cross = np.zeros((*x.shape, 3, 3))
        cross[..., 0, 1], cross[..., 0, 2], cross[..., 1, 2] = -z, y, -x
        cross[..., 1, 0], cross[..., 2, 0], cross[..., 2, 1] = z, -y, x
        essential = cross @ there @ np.swapaxes(here, 1, 2)[:, None]
        lines = essential @ self.mine  # (B, K, 3, M)
        back = np.swapaxes(essential, 2, 3)[:, :, :2] @ self.theirs
        slopes = lines[:, :, 0] ** 2 + lines[:, :, 1] ** 2 + back[:, :, 0] ** 2 + back[:, :, 1] ** 2
        distances = (self.theirs * lines).sum(axis=2) / np.sqrt(slopes + 1e-12)
        return np.asarray(self.focal_px * distances)

    def explained(self, pose: Floats) -> float:
        """How many matches the pose explains; one at a distance of e px counts as `1 - (e / 1.5)^2`, at least 0."""
        near = np.maximum(1 - (self.distances(pose[None])[0] / INLIER_PX) ** 2, 0)
        return float((near * self.given).sum())

    def implausibility(self, pose: Floats) -> float:
        """The sum of squares of the query's deviations, in standard deviations."""
        return float(((pose / self.std)[:6] ** 2).sum())

    def refine(self, pose: Floats) -> tuple[Floats, Floats, float]:
        """The parameters at the minimum nearby, the normal matrix (6 + K, 6 + K) there, and the minimum."""
        damping, widths = 1e-2, np.array([0.02] * 3 + [1e-4] * (len(pose) - 3))  # metres, radians
        cost = self.cost(pose)
        for _ in range(STEPS):
            normal, gradient = self._normal_equations(pose, widths)
            before = cost
            while damping < 1e4:
                moved = pose - np.linalg.solve(normal + damping * np.diag(normal.diagonal()), gradient)
                reached = self.cost(moved)
                if reached < cost:
                    pose, cost, damping = moved, reached, damping / 5
                    break
                damping *= 8
            if before - cost < 1e-3 * before:
                break
        return pose, self._normal_equations(pose, widths)[0], cost

    def _normal_equations(self, pose: Floats, widths: Floats) -> tuple[Floats, Floats]:
        """The normal matrix and the gradient at these parameters, by finite differences of these widths."""
        distances, *moved = self.distances(np.stack([pose, *(pose + np.diag(widths))]))
        slopes = ((np.array(moved) - distances) / widths[:, None, None]).reshape(len(pose), -1)
        weighted = slopes * (self.given / (1 + (distances / INLIER_PX) ** 2)).ravel()
        normal = weighted @ slopes.T + np.diag(self.std**-2)
        return normal, weighted @ distances.ravel() + pose / self.std**2

    def cost(self, pose: Floats) -> float:
        """What `refine` minimizes: a robust sum over the matches, and the squared deviations of the parameters."""
        distances = self.distances(pose[None])[0]
        robust = INLIER_PX**2 * np.log1p((distances / INLIER_PX) ** 2)
        return float((self.given * robust).sum() + ((pose / self.std) ** 2).sum())


def _rays(features: LocalFeatures, rows: npt.ArrayLike) -> Floats:
    """Directions (M, 3) of keypoints in the camera: x to the right, y down, 1 ahead."""
    focal_px, x, y = camera_of(features)["params"]
    xy = (features.xy[np.asarray(rows)].astype(np.float64) - (x, y)) / focal_px
    return np.column_stack([xy, np.ones(len(xy))])
