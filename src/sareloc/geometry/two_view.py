"""Two-view geometry: which matches between two images of one place agree on how the camera moved.

Epipolar geometry by PoseLib's LO-RANSAC: the fundamental matrix, and a homography where the scene is flat or the camera
only turned, which a fundamental matrix does not describe.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

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
REFINING = {"max_iterations": 1}  # of the model after RANSAC, of which the inliers alone are used
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


@dataclass(frozen=True, eq=False)
class InlierPairs:
    """The n matched keypoints of a query and another photo that agree on one two-view geometry, for drawing.

    Coordinates are fractions of width and height, 0 to 1 from the top left corner, for images of any size. Pairs come
    in the order of the query's keypoints, the best first.
    """

    query_xy: Floats
    """(n, 2) in the query."""
    photo_xy: Floats
    """(n, 2) in the other photo."""
    query_size: tuple[int, int]
    """Width and height in pixels of the image that the query's local features were extracted from."""
    photo_size: tuple[int, int]
    """Those of the other photo."""
    planar: bool
    """Whether a homography explains the pairs; else an epipolar geometry does."""

    def __len__(self) -> int:
        return len(self.query_xy)

    def sample(self, most: int) -> InlierPairs:
        """`most` pairs, evenly spread over all, or all if there are fewer."""
        count = min(most, len(self))
        rows = np.arange(count) * len(self) // max(count, 1)
        return replace(self, query_xy=self.query_xy[rows], photo_xy=self.photo_xy[rows])


def inlier_pairs(query: LocalFeatures, other: LocalFeatures, view: TwoView) -> InlierPairs:
    """The inliers of the epipolar geometry or, if the homography has more, of the homography.

    The latter is so where the scene is nearly flat or the camera only turned.
    """
    planar = bool(view.planar.sum() > view.inlier.sum())
    pairs = view.pairs[view.planar if planar else view.inlier]
    query_xy, photo_xy = (
        np.clip((one.xy[rows].astype(np.float64) + 0.5) / one.size, 0, 1)  # pixel 0 spans 0 to 1: its middle is 0.5
        for one, rows in ((query, pairs[:, 0]), (other, pairs[:, 1]))
    )
    return InlierPairs(query_xy, photo_xy, query.size, other.size, planar)


def verify(
    query: LocalFeatures, others: Sequence[LocalFeatures | None], device: torch.device | None = None
) -> list[TwoView | None]:
    """The two-view geometry of a query and each other photo; None for None. Deterministic on a CPU.

    The geometry of one photo is estimated, in a thread, while others are matched. `device`: as for `match_features`.
    """
    known = [other for other in others if other is not None]
    matched = zip(known, match_features(query, known, device), strict=True)
    found = iter([_threads().submit(two_view, query, other, pairs) for other, pairs in matched])
    return [None if other is None else next(found).result() for other in others]


@cache
def _threads() -> ThreadPoolExecutor:
    """PoseLib computes without Python's lock."""
    return ThreadPoolExecutor(os.cpu_count(), "two-view")


def two_view(query: LocalFeatures, other: LocalFeatures, pairs: Ints) -> TwoView:
    """The geometry that explains most of these matches (M, 2); with fewer than 8, none is an inlier."""
    import poselib

    none = np.zeros(len(pairs), dtype=np.bool_)
    if len(pairs) < FEWEST:
        return TwoView(pairs, none, none, 0)
    a, b = query.xy[pairs[:, 0]].astype(np.float64), other.xy[pairs[:, 1]].astype(np.float64)
    _, epipolar = poselib.estimate_fundamental(a, b, {**RANSAC, "max_epipolar_error": EPIPOLAR_PX}, REFINING)
    _, transfer = poselib.estimate_homography(a, b, {**RANSAC, "max_reproj_error": TRANSFER_PX}, REFINING)
    inlier, planar = (np.asarray(found["inliers"], dtype=np.bool_) for found in (epipolar, transfer))
    return TwoView(pairs, inlier, planar, _occupied(a[inlier], query.size))


def _occupied(xy: Floats, size: tuple[int, int]) -> int:
    """How many cells of a grid of 8 x 8 over the image hold one of these points (n, 2)."""
    cells = np.clip((xy / size * CELLS).astype(int), 0, CELLS - 1)
    return len(np.unique(cells @ (1, CELLS)))
