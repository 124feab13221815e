"""Matching the local features of a query with those of retrieved photos: mutual nearest neighbours.

`match_features` gives the matches of a few photos, `count_matches` the number of matches of the best keypoints of many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from sareloc.arrays import Ints, Vectors
from sareloc.geometry.local_features import LocalFeatures

MIN_COSINE = 0.82
"""Pairs of descriptors with a lower cosine are no match; the value of XFeat's authors."""

PREFILTER_KEYPOINTS = 256
"""The best keypoints of an image, by which many photos are compared with a query."""


def product(a: Vectors, b: Vectors) -> Vectors:
    """The matrix product `a b^T` by torch, with as many threads as torch uses in this thread.

    numpy's library has threads of its own, which wait for each other by spinning: on a machine with other work, or if
    several queries are verified at once, it takes many times as long.
    """
    found: Vectors = torch.mm(torch.from_numpy(a), torch.from_numpy(b).T).numpy()
    return found


def match_features(
    query: LocalFeatures, others: Sequence[LocalFeatures], device: torch.device | None = None
) -> Iterable[Ints]:
    """For each other image, the pairs (M, 2) of rows of the query's and of its keypoints that match.

    A pair matches if each descriptor is the other's nearest neighbour by cosine and the cosine is above 0.82; ties go
    to the first row. The pairs come in the order of the query's keypoints.

    `device`: a GPU that compares the query with all images at once; ties are then broken in any way. Default: the CPU,
    one image when its pairs are asked for.
    """
    if device is not None and device.type != "cpu" and others:
        return match_together(query, others, device)
    mine = _unit(query.descriptors)
    return (_mutual(mine, _unit(other.descriptors)) for other in others)


def count_matches(query: LocalFeatures, others: Sequence[LocalFeatures], device: torch.device | None = None) -> Ints:
    """The number (K,) of matches, as of `match_features`, between the 256 best keypoints of a query and of K images.

    One matrix product compares all of them: a hundred images take as long as the matches of five with all keypoints.

    Args:
        query: the local features of the query.
        others: those of the images; all of their keypoints or the best alone.
        device: see `match_features`.
    """
    best, count = query.best(PREFILTER_KEYPOINTS), len(others)
    some = [other.best(PREFILTER_KEYPOINTS) for other in others]
    if device is not None and device.type != "cpu" and others:
        return np.array([len(pairs) for pairs in match_together(best, some, device)], dtype=np.int64)
    if not len(best) or not count:
        return np.zeros(count, dtype=np.int64)
    theirs = np.zeros((count, PREFILTER_KEYPOINTS, query.descriptors.shape[1]), dtype=np.float32)
    for row, other in enumerate(some):  # rows of zeros have a cosine of 0 with any other
        theirs[row, : len(other)] = _unit(other.descriptors)
    mine = _unit(best.descriptors)
    cosines = product(mine, theirs.reshape(-1, theirs.shape[2])).reshape(len(best), count, -1)  # (N, K, 256)
    nearest = cosines.argmax(axis=2)  # (N, K)
    near = np.take_along_axis(cosines, nearest[..., None], axis=2)[..., 0] > MIN_COSINE
    rows, images = np.nonzero(near)
    back = product(theirs[images, nearest[rows, images]], mine).argmax(axis=1)
    return np.bincount(images[back == rows], minlength=count)


def _mutual(mine: Vectors, theirs: Vectors) -> Ints:
    if not len(mine) or not len(theirs):
        return np.zeros((0, 2), dtype=np.int64)
    cosines = product(mine, theirs)  # (N, M)
    nearest = cosines.argmax(axis=1)
    rows = np.flatnonzero(cosines[np.arange(len(mine)), nearest] > MIN_COSINE)
    # few products are computed again: taking columns of the matrix takes several times as long
    back = product(theirs[nearest[rows]], mine).argmax(axis=1)
    rows = rows[back == rows]
    return np.stack([rows, nearest[rows]], axis=1)


@torch.inference_mode()
def match_together(query: LocalFeatures, others: Sequence[LocalFeatures], device: torch.device) -> list[Ints]:
    """As `match_features`, of one or more images at once."""
    most = max(1, *(len(other) for other in others))
    padded = np.zeros((len(others), most, query.descriptors.shape[1]), dtype=np.int8)  # rows of zeros match nothing
    for row, other in enumerate(others):
        padded[row, : len(other)] = other.descriptors
    if not len(query):
        return [np.zeros((0, 2), dtype=np.int64) for _ in others]
    mine, theirs = (
        F.normalize(torch.from_numpy(one).to(device, non_blocking=True).float(), dim=-1, eps=1e-6)
        for one in (query.descriptors, padded)
    )
    cosines = mine @ theirs.transpose(1, 2)  # (K, N, M)
    best, nearest = cosines.max(dim=2)
    back = cosines.argmax(dim=1).gather(1, nearest)
    matched = (back == torch.arange(len(query), device=device)) & (best > MIN_COSINE)
    found = torch.where(matched, nearest, -1).cpu().numpy()
    return [np.stack([rows := np.flatnonzero(row >= 0), row[rows]], axis=1) for row in found]


def _unit(descriptors: npt.NDArray[np.int8]) -> Vectors:
    vectors = descriptors.astype(np.float32)
    unit: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)
    return unit
