"""Whether two photos agree in detail: their local features match, and the matches lie alike. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

SCALES = tuple(2.0 ** (step / 4) for step in range(-4, 5))  # from half to double size, by fourths of an octave
TOLERANCE = 1.5
FEWEST_FOR_AFFINE = 6


@dataclass(frozen=True, eq=False)
class LocalFeatures:
    """The locations of a feature map: what is seen there, and where that is."""

    vectors: Tensor
    """(S, C) unit rows, float16: half the memory, and a cosine is right to three digits."""
    cells: Floats
    """(S, 2) column and row, in cells of the feature map."""


def local_features(feature_map: Tensor) -> LocalFeatures:
    """The S = h w locations of one feature map (C, h, w)."""
    _, height, width = feature_map.shape
    rows, columns = np.divmod(np.arange(height * width), width)
    vectors = F.normalize(feature_map.float().flatten(1).T, dim=1).half()
    return LocalFeatures(vectors, np.stack([columns, rows], axis=1).astype(np.float64))


def agreement(query: LocalFeatures, other: LocalFeatures) -> float:
    """The share of the query's locations that find themselves again in the other photo, all moved alike; 0 to 1.

    Two locations are a pair where each is the other's nearest (cosine). Pairs count that one affine map explains.
    """
    mine, theirs = mutual_pairs(query.vectors, other.vectors)
    return float(moved_alike(query.cells[mine], other.cells[theirs]).sum()) / len(query.cells)


def mutual_pairs(a: Tensor, b: Tensor) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows of a (S, C) and of b (T, C), unit vectors, that are each other's nearest; ties go to the first."""
    cosines = a.float() @ b.float().T
    nearest_b, nearest_a = cosines.argmax(dim=1), cosines.argmax(dim=0)
    mine = torch.arange(len(a), device=a.device)
    mutual = nearest_a[nearest_b] == mine
    return mine[mutual].cpu().numpy(), nearest_b[mutual].cpu().numpy()


def moved_alike(a: Floats, b: Floats) -> Bools:
    """Which pairs of cells a (M, 2), b (M, 2) follow the most common movement: mask (M,).

    Every pair proposes, with each of nine scales, the map `b = scale a + shift` that fits it: what RANSAC draws at
    random is tried in full. A pair agrees where it lands within 1.5 cells. The winner (of equals the scale nearest to
    1, then the first pair) is refined to an affine map by least squares on those that agree, and that one counts if it
    finds more.
    """
    if not len(a):
        return np.zeros(0, dtype=np.bool_)
    best = np.zeros(len(a), dtype=np.bool_)
    for scale in sorted(SCALES, key=lambda s: abs(np.log(s))):
        alike = _close((b - scale * a).astype(np.float32))
        counts = alike.sum(axis=1)
        if counts.max() > best.sum():
            best = alike[int(counts.argmax())]
    if best.sum() >= FEWEST_FOR_AFFINE:
        flat = np.column_stack([a, np.ones(len(a))])
        affine, *_ = np.linalg.lstsq(flat[best], b[best], rcond=None)
        fits = ((flat @ affine - b) ** 2).sum(axis=1) <= TOLERANCE**2
        best = fits if fits.sum() > best.sum() else best
    return best


def _close(points: npt.NDArray[np.float32]) -> Bools:
    """Which of M points (M, 2) lie within 1.5 of each other: (M, M). Column by column, which is many times faster."""
    x, y = (np.subtract.outer(column, column) for column in points.T)
    np.square(x, out=x)
    np.square(y, out=y)
    x += y
    return np.asarray(x <= TOLERANCE**2)
