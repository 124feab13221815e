"""Matching the local features of a query with those of retrieved photos: mutual nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Ints, Vectors
from sareloc.geometry.local_features import LocalFeatures

MIN_COSINE = 0.82
"""Pairs of descriptors with a lower cosine are no match; the value of XFeat's authors."""


def match_features(query: LocalFeatures, others: Sequence[LocalFeatures]) -> list[Ints]:
    """For each other image, the pairs (M, 2) of rows of the query's and of its keypoints that match.

    A pair matches if each descriptor is the other's nearest neighbour by cosine and the cosine is above 0.82; ties go
    to the first row. The pairs come in the order of the query's keypoints.
    """
    mine = _unit(query.descriptors)
    return [_mutual(mine, _unit(other.descriptors)) for other in others]


def _mutual(mine: Vectors, theirs: Vectors) -> Ints:
    if not len(mine) or not len(theirs):
        return np.zeros((0, 2), dtype=np.int64)
    cosines = mine @ theirs.T  # (N, M)
    nearest = cosines.argmax(axis=1)
    rows = np.flatnonzero(cosines[np.arange(len(mine)), nearest] > MIN_COSINE)
    rows = rows[cosines[:, nearest[rows]].argmax(axis=0) == rows]  # of few columns: searching all takes twice as long
    return np.stack([rows, nearest[rows]], axis=1)


def _unit(descriptors: npt.NDArray[np.int8]) -> Vectors:
    vectors = descriptors.astype(np.float32)
    unit: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)
    return unit
