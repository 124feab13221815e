"""Two-view geometry: which matches between two images of one place agree on how the camera moved.

Epipolar geometry by PoseLib's LO-RANSAC: the fundamental matrix, and a homography where the scene is flat or the camera
only turned, which a fundamental matrix does not describe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sareloc.arrays import Bools, Floats, Ints
from sareloc.geometry.local_features import LocalFeatures
from sareloc.geometry.matching import match_features

EPIPOLAR_PX = 1.5
"""Largest distance of an inlier from its epipolar line, in an image of 480 px."""
TRANSFER_PX = 4.0
"""Largest distance of an inlier from where a homography moves it: houses are only nearly flat."""
FEWEST = 8
"""Matches that a fundamental matrix needs to be more than fitted to them."""
RANSAC = {"max_iterations": 250, "min_iterations": 50, "success_prob": 0.99}
CELLS = 8  # of the grid by which the spread of inliers is measured, along each side


@dataclass(frozen=True, eq=False)
class TwoView:
    """The matches between a query and another photo, and which of them two-view geometry explains."""

    pairs: Ints
    """(M, 2) rows of matched keypoints, the query's and the other photo's."""
    inlier: Bools
    """(M,) whether the epipolar geometry explains a match."""
    planar: Bools
    """(M,) whether one homography explains it."""
    cells: int
    """In how many of 8 x 8 parts of the query there are inliers: few, if a single object matches."""

    @property
    def inliers(self) -> int:
        """The number of matches that the epipolar geometry explains."""
        return int(self.inlier.sum())


def verify(query: LocalFeatures, others: Sequence[LocalFeatures | None]) -> list[TwoView | None]:
    """The two-view geometry of a query and each other photo; None for None. Deterministic."""
    known = [other for other in others if other is not None]
    found = (two_view(query, other, pairs) for other, pairs in zip(known, match_features(query, known), strict=True))
    return [None if other is None else next(found) for other in others]


def two_view(query: LocalFeatures, other: LocalFeatures, pairs: Ints) -> TwoView:
    """The geometry that explains most of these matches (M, 2); with fewer than 8, none is an inlier."""
    import poselib

    none = np.zeros(len(pairs), dtype=np.bool_)
    if len(pairs) < FEWEST:
        return TwoView(pairs, none, none, 0)
    a, b = query.xy[pairs[:, 0]].astype(np.float64), other.xy[pairs[:, 1]].astype(np.float64)
    _, epipolar = poselib.estimate_fundamental(a, b, {**RANSAC, "max_epipolar_error": EPIPOLAR_PX}, {})
    _, transfer = poselib.estimate_homography(a, b, {**RANSAC, "max_reproj_error": TRANSFER_PX}, {})
    inlier, planar = (np.asarray(found["inliers"], dtype=np.bool_) for found in (epipolar, transfer))
    return TwoView(pairs, inlier, planar, _occupied(a[inlier], query.size))


def _occupied(xy: Floats, size: tuple[int, int]) -> int:
    """How many cells of a grid of 8 x 8 over the image hold one of these points (n, 2)."""
    cells = np.clip((xy / size * CELLS).astype(int), 0, CELLS - 1)
    return len(np.unique(cells @ (1, CELLS)))
