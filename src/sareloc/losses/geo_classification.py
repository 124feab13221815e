"""Geo-classification, a baseline of the paper (Vo 2017): a photo is classified into square geographic cells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sareloc.arrays import Ints
from sareloc.errors import ArgumentError, PositionError


@dataclass(frozen=True, eq=False)
class GeoCells:
    """The square cells that hold at least one photo; cell number c is the c-th class."""

    side_m: float
    squares: Ints
    """(C, 2) column and row of each cell: it covers [squares * side_m, (squares + 1) * side_m)."""

    def __len__(self) -> int:
        return len(self.squares)

    def labels(self, metres: npt.ArrayLike) -> Ints:
        """(P,) the cell of each planar position (P, 2) in metres; -1 if it is in no cell."""
        number = {tuple(square): cell for cell, square in enumerate(self.squares.tolist())}
        return np.array([number.get(tuple(s), -1) for s in _squares(metres, self.side_m).tolist()], dtype=np.int64)


def make_cells(metres: npt.ArrayLike, side_m: float = 25.0) -> GeoCells:
    """The cells of this side that contain planar positions (P, 2) in metres.

    Cells are at multiples of the side, so the cell of a photo does not depend on the other photos.
    """
    if not (np.isfinite(side_m) and side_m > 0):
        raise ArgumentError(f"side_m must be a positive number of metres, found {side_m!r}")
    return GeoCells(float(side_m), np.unique(_squares(metres, side_m), axis=0))


def make_classifier(dim: int, cells: int, *, rng: torch.Generator) -> nn.Linear:
    """A linear layer from descriptors (B, dim) to one score per cell (B, cells): weights 0.01 randn, bias 0.

    Args:
        dim: of the descriptors.
        cells: number of cells.
        rng: the source of random weights.
    """
    if dim < 1 or cells < 1:
        raise ArgumentError(f"a classifier needs at least 1 dimension and 1 cell, found dim={dim}, cells={cells}")
    # without storage first: the initialization of nn.Linear would draw from the global generator
    layer = nn.Linear(dim, cells, device="meta").to_empty(device=rng.device)
    nn.init.normal_(layer.weight, std=0.01, generator=rng)
    nn.init.zeros_(layer.bias)
    return layer


def geo_classification(scores: Tensor, labels: Tensor) -> Tensor:
    """Softmax cross-entropy of the photo's cell, one value per photo.

    `scores` (B, C), `labels` (B,) int64 cell numbers -> (B,). Half-precision scores are widened to float32.
    """
    if scores.dim() != 2 or labels.shape != scores.shape[:1] or labels.dtype != torch.int64:
        raise ArgumentError(
            "geo-classification takes scores (B, C) and int64 labels (B,); "
            f"found scores {tuple(scores.shape)} and {labels.dtype} labels {tuple(labels.shape)}"
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < scores.shape[1]:
        raise ArgumentError(
            f"labels must be cell numbers in 0..{scores.shape[1] - 1}, found {int(labels.min())}..{int(labels.max())}: "
            "leave out photos whose label is -1, they are in no cell"
        )
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return F.cross_entropy(wide, labels, reduction="none")


def _squares(metres: npt.ArrayLike, side_m: float) -> Ints:
    positions = np.asarray(metres, dtype=np.float64)
    if positions.ndim != 2 or positions.shape[1] != 2:
        raise PositionError(
            f"cells need planar positions (P, 2), east and north in metres; found {positions.shape}: "
            "bring ECEF positions to one plane first (geo.enu_from_wgs84 or geo.utm_from_wgs84)"
        )
    if not np.isfinite(positions).all():
        raise PositionError("cells need finite positions, found NaN or infinite ones: leave those photos out")
    return np.floor(positions / side_m).astype(np.int64)
