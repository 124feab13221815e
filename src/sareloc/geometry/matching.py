"""Matching the local features of a query with those of retrieved photos: mutual nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from sareloc.arrays import Ints
from sareloc.geometry.local_features import LocalFeatures

MIN_COSINE = 0.82
"""Pairs of descriptors with a lower cosine are no match; the value of XFeat's authors."""


def match_features(query: LocalFeatures, others: Sequence[LocalFeatures]) -> list[Ints]:
    """For each other image, the pairs (M, 2) of rows of the query's and of its keypoints that match.

    A pair matches if each descriptor is the other's nearest neighbour by cosine and the cosine is above 0.82; ties go
    to the first row. The pairs come in the order of the query's keypoints.
    """
    if not len(others):
        return []
    counts = [len(other) for other in others]
    mine = _unit(query.descriptors)
    theirs = _unit(np.concatenate([other.descriptors for other in others]))
    pairs = []
    for cosines in torch.split(mine @ theirs.T, counts, dim=1):  # (N, M) for each of the others
        if not cosines.numel():
            pairs.append(np.zeros((0, 2), dtype=np.int64))
            continue
        best, nearest = cosines.max(dim=1)
        rows = torch.arange(len(nearest))
        kept = (cosines.argmax(dim=0)[nearest] == rows) & (best > MIN_COSINE)
        pairs.append(torch.stack([rows[kept], nearest[kept]], dim=1).numpy())
    return pairs


def _unit(descriptors: np.ndarray[tuple[int, int], np.dtype[np.int8]]) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.from_numpy(np.array(descriptors)).float(), dim=1)
