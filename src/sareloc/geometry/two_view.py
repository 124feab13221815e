"""Two-view geometry: the matches of local features between a query and photos, and what they say of the photos.

In this order: `match_features` finds mutual nearest neighbours (`count_matches` counts those of the best keypoints of
many photos); `two_view` finds which of them agree on how the camera moved, by PoseLib's LO-RANSAC: a fundamental
matrix, and a homography where the scene is flat or the camera only turned, which the former does not describe;
`Evidence` and `match_scores` rank the photos by it; `turn_deg` is how the query's camera is turned against another.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from sareloc.arrays import Bools, Floats, Ints, Vectors
from sareloc.geometry.local_features import LocalFeatures, focal_px_of
from sareloc.models.preprocess import cpu_has_any, isa_limit

MIN_COSINE = 0.82
"""Pairs of descriptors with a lower cosine are no match; the value of XFeat's authors."""

PREFILTER_KEYPOINTS = 256
"""The best keypoints of an image, by which many photos are compared with a query."""
BLOCK, COMPARED_AT_ONCE = 512, 8  # descriptors, and photos of 256: what is multiplied at once stays in a core's cache
PADDED_TO = 64  # descriptors
INTEGER_INSTRUCTIONS = ("avx512_vnni", "avx_vnni")  # of x86, for exact products of 8-bit integers


def match_features(
    query: LocalFeatures, others: Sequence[LocalFeatures], device: torch.device | None = None
) -> Iterable[Ints]:
    """For each other image, the pairs (M, 2) of rows of the query's and of its keypoints that match.

    A pair matches if each descriptor is the other's nearest neighbour by cosine and the cosine is above 0.82; ties go
    to the first row. The pairs come in the order of the query's keypoints.

    Args:
        query: the query's local features.
        others: those of the other images.
        device: a GPU that compares the query with all images at once; ties are then broken in any way. Default: the
            CPU, one image when its pairs are asked for.
    """
    if device is not None and device.type != "cpu" and others:
        return match_together(query, others, device)
    mine = _Descriptors(query.descriptors)
    return (_mutual(mine, _Descriptors(other.descriptors)) for other in others)


def count_matches(query: LocalFeatures, others: Sequence[LocalFeatures], device: torch.device | None = None) -> Ints:
    """The number (K,) of matches (see `match_features`) between the 256 best keypoints of a query and of K images.

    A hundred images take as long as the matches of six with all keypoints.

    Args:
        query: the local features of the query.
        others: those of the images; all of their keypoints or the best alone.
        device: see `match_features`.
    """
    best, count = query.best(PREFILTER_KEYPOINTS), len(others)
    some = [other.best(PREFILTER_KEYPOINTS) for other in others]
    if device is not None and device.type != "cpu" and others:
        return np.array([len(pairs) for pairs in match_together(best, some, device)], dtype=np.int64)
    mine, found = _Descriptors(best.descriptors), np.zeros(count, dtype=np.int64)
    for first in range(0, count, COMPARED_AT_ONCE):
        part = some[first : first + COMPARED_AT_ONCE]
        padded = np.zeros((len(part), PREFILTER_KEYPOINTS, query.descriptors.shape[1]), dtype=np.int8)
        for row, other in enumerate(part):
            padded[row, : len(other)] = other.descriptors
        pairs = _mutual(mine, _Descriptors(padded.reshape(-1, padded.shape[2])), images=len(part))
        found[first : first + len(part)] = np.bincount(pairs[:, 1] // PREFILTER_KEYPOINTS, minlength=len(part))
    return found


class _Descriptors:
    """Descriptors (N, D) as they are held, 8-bit integers, and what scales them to unit length (N,).

    Rows of zeros, which have a cosine of 0 with any other, complete N to a multiple of 64: for each new shape of a
    product, oneDNN takes as long as for some products.
    """

    def __init__(self, integers: npt.NDArray[np.int8]) -> None:
        more = -len(integers) % PADDED_TO
        if more:
            integers = np.concatenate([integers, np.zeros((more, integers.shape[1]), np.int8)])
        self.integers = torch.from_numpy(integers)
        floats = self.integers.float()
        self.factors = 1 / floats.norm(dim=1).clamp_min(1e-6)
        self.multiplied = self.integers if _multiplies_integers() else floats

    def nearest(self, others: _Descriptors, images: int = 1) -> tuple[Ints, Vectors]:
        """The rows (N, images) of the nearest descriptor of each image, and the cosines with them.

        512 descriptors are compared at once, so that the products stay in the cache. They are exact as integers and as
        floats: the same descriptors match on every processor.

        Args:
            others: descriptors of the images, one after another, as many of each.
            images: how many.
        """
        theirs, parts = others.multiplied.T, []
        for mine in self.multiplied.split(BLOCK):
            products = mine @ theirs if mine.is_floating_point() else torch._int_mm(mine, theirs).float()
            cosines = products.mul_(others.factors).numpy().reshape(len(mine) * images, -1)
            rows = cosines.argmax(axis=1)
            parts.append((rows, cosines[np.arange(len(rows)), rows]))
        rows, best = (np.concatenate(part).reshape(-1, images) for part in zip(*parts, strict=True))
        per_image = len(others.integers) // images
        return rows + per_image * np.arange(images), best * self.factors.numpy()[:, None]


@cache
def _multiplies_integers() -> bool:
    """Whether oneDNN may use instructions for 8-bit integers. With others it is slower, and clips large sums."""
    return isa_limit() is None and cpu_has_any(INTEGER_INSTRUCTIONS)


def _mutual(mine: _Descriptors, theirs: _Descriptors, images: int = 1) -> Ints:
    """The pairs (P, 2) of rows of mine and of theirs that match, if theirs are of so many images, one after another."""
    if not len(mine.integers) or not len(theirs.integers):
        return np.zeros((0, 2), dtype=np.int64)
    nearest, cosines = mine.nearest(theirs, images)
    rows, image = np.nonzero(cosines > MIN_COSINE)
    columns = nearest[rows, image]
    if len(rows):  # few products are computed again: taking columns of a matrix takes several times as long
        back, _ = _Descriptors(theirs.integers.numpy()[columns]).nearest(mine)
        mutual = back[: len(rows), 0] == rows
        rows, columns = rows[mutual], columns[mutual]
    return np.stack([rows, columns], axis=1)


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

    Args:
        query: the query's local features.
        other: those of the other image.
        view: their geometry, from `two_view` or `verify`.
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

    The geometry of one photo is estimated, in a thread, while others are matched.

    Args:
        query: the query's local features.
        others: those of the other photos; None where a photo has none.
        device: as for `match_features`.
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
    """The geometry that explains most of the given matches; with fewer than 8, none is an inlier.

    Args:
        query: the query's local features.
        other: those of the other image.
        pairs: (M, 2) rows of their keypoints, from `match_features`.
    """
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
    """The evidence of K two-view geometries; NaN where there is none."""
    inliers, planar = (
        np.array([np.nan if view is None else int(getattr(view, mask).sum()) for view in views])
        for mask in ("inlier", "planar")
    )
    return Evidence(inliers, planar)


def match_scores(distances: npt.ArrayLike, temperature: float, evidence: Evidence | None = None) -> Floats:
    """Scores (K,) of the matches of one query: `-d^2 / temperature`, at most 0.

    Of verified matches: `-0.5 d^2 / temperature + 0.9 log(1 + inliers beyond chance) + 1.6 log(1 + planar inliers
    beyond chance)`. The softmax of the scores is the probability that a match is the right one. All scores are shifted
    so that the highest is 0.

    Args:
        distances: (K,) descriptor distances.
        temperature: temperature of the softmax.
        evidence: the inliers of verified matches; default: matches are not verified.
    """
    scores = -(np.asarray(distances, dtype=np.float64) ** 2) / temperature
    if evidence is not None:
        inliers, planar = evidence.beyond_chance
        scores = AFFINITY_SCORE * scores + INLIER_SCORE * inliers + PLANAR_SCORE * planar
    return np.asarray(scores - scores.max(initial=-np.inf))


USUAL_FOCAL_35MM = 28.0
"""Of photos whose EXIF has no focal length: the main camera of most phones, in mm."""


def turn_deg(query: LocalFeatures, other: LocalFeatures, view: TwoView) -> float | None:
    """The query's heading minus that of the other photo, in degrees, -180 to 180; None if fewer than 8 inliers agree.

    From the essential matrix of their inliers (PoseLib), with the focal lengths of the photos, 28 mm equivalent if
    unknown. With `x_other = R x_query + t` the query's optical axis is `R (0, 0, 1)` in the other camera, whose x axis
    points to the right and z axis ahead: the angle is `atan2(x, z)`. Cameras are assumed to be held upright.

    Args:
        query: the query's local features.
        other: those of the other photo.
        view: their geometry, from `two_view` or `verify`.
    """
    import poselib

    pairs = view.pairs[view.inlier]
    if len(pairs) < 8:
        return None
    a, b = query.xy[pairs[:, 0]].astype(np.float64), other.xy[pairs[:, 1]].astype(np.float64)
    options = {**RANSAC, "max_epipolar_error": EPIPOLAR_PX}
    pose, found = poselib.estimate_relative_pose(a, b, camera_of(query), camera_of(other), options, {})
    if found["num_inliers"] < 8:
        return None
    x, _, z = pose.R[:, 2]
    return math.degrees(math.atan2(x, z))


def camera_of(features: LocalFeatures) -> dict[str, Any]:
    """A camera of PoseLib: the principal point is the middle of the image."""
    width, height = features.size
    focal_px = features.focal_px or focal_px_of(USUAL_FOCAL_35MM, features.size)
    return {
        "model": "SIMPLE_PINHOLE",
        "width": width,
        "height": height,
        "params": [focal_px, width / 2, height / 2],
    }
