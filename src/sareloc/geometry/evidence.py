"""Evidence: what two-view geometry says of the photos retrieved for a query, and the score that ranks them by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats, Ints
from sareloc.geometry.two_view import TwoView

AFFINITY_SCORE, INLIER_SCORE, PLANAR_SCORE = 0.5, 0.9, 1.6
"""Weights of a verified match's score, see `match_scores`: fitted on training towns, rounded."""
CHANCE_INLIERS, CHANCE_PLANAR = 7, 4
"""Inliers of two unrelated photos that do not count: as many as the geometry is fitted to, less one."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """What local features say of K matches; NaN: a match was not verified."""

    inliers: Floats
    """(K,) matches of local features that agree on one epipolar geometry."""
    planar: Floats
    """(K,) those that agree on one homography."""

    def take(self, rows: Ints) -> Evidence:
        """The evidence of these matches."""
        return Evidence(self.inliers[rows], self.planar[rows])

    @property
    def beyond_chance(self) -> tuple[Floats, Floats]:
        """Logarithms (K,) of inliers, and of planar inliers, beyond what chance gives; 0 if not verified."""
        inliers, planar = np.nan_to_num(self.inliers), np.nan_to_num(self.planar)
        return np.log1p(np.maximum(inliers - CHANCE_INLIERS, 0)), np.log1p(np.maximum(planar - CHANCE_PLANAR, 0))


def count_inliers(views: Sequence[TwoView | None]) -> Evidence:
    """The evidence of K two-view geometries; of None, NaN."""
    inliers, planar = (
        np.array([np.nan if view is None else int(getattr(view, mask).sum()) for view in views])
        for mask in ("inlier", "planar")
    )
    return Evidence(inliers, planar)


def match_scores(distances: npt.ArrayLike, temperature: float, evidence: Evidence | None = None) -> Floats:
    """Scores (K,) of the matches of one query from their descriptor distances: `-d^2 / temperature`, at most 0.

    Of verified matches: `-0.5 d^2 / temperature + 0.9 log(1 + inliers beyond chance) + 1.6 log(1 + planar inliers
    beyond chance)`. The softmax of the scores is the probability that a match is the right one. All scores are shifted
    so that the highest is 0.
    """
    scores = -(np.asarray(distances, dtype=np.float64) ** 2) / temperature
    if evidence is not None:
        inliers, planar = evidence.beyond_chance
        scores = AFFINITY_SCORE * scores + INLIER_SCORE * inliers + PLANAR_SCORE * planar
    return np.asarray(scores - scores.max(initial=-np.inf))
