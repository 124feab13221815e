"""Which piece of the town does a pixel see? Homogeneous rasterisation in tiles, two layers deep.

For the piece corner + a U + b V and the ray eye + t d, with w = corner - eye and n = U x V (Cramer's rule):

    1 / t = d.n / w.n        a = t d.(V x w) / w.n        b = t d.(w x U) / w.n

d is affine in the pixel's column and row, hence so are the three numerators: a piece in a view is nine numbers, and its
extremes over a tile lie at the tile's corners. The share of a pixel that a piece covers follows from how a and b change
from pixel to pixel, so that edges are smooth and nothing jumps where two machines round differently.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sareloc.datasets.city.grid import Grid

FAR = 1e9
NEAR_M = 0.25


def cross(p: Tensor, q: Tensor) -> Tensor:
    """Cross product along the last axis, written out so that every device rounds alike."""
    px, py, pz = p.unbind(-1)
    qx, qy, qz = q.unbind(-1)
    return torch.stack([py * qz - pz * qy, pz * qx - px * qz, px * qy - py * qx], dim=-1)


def piece_coefficients(corner: Tensor, u: Tensor, v: Tensor, view: Tensor, eye: Tensor) -> tuple[Tensor, Tensor]:
    """The nine numbers (B, N, 3, 3) of each piece in each view, and whether its front is seen (B, N).

    The three rows are 1/t, a/t and b/t; the three columns their constant, and their change per column and per row of
    pixels. `view` (B, 3, 3) has d = view[0] + column view[1] + row view[2].

    In double precision: the planes of some walls pass the eye by a millimetre, hundreds of metres from the origin, and
    whether their fronts are seen must not hang on rounding.
    """
    given = corner.dtype
    corner, u, v, view, eye = (x.double() for x in (corner, u, v, view, eye))
    w = corner - eye[:, None]
    n = cross(u, v)
    wn = (w * n).sum(-1, keepdim=True)
    seen = wn[..., 0] < -1e-3 * n.square().sum(-1).sqrt()
    numerators = torch.stack([n, cross(v, w), cross(w, u)], dim=-2)
    numerators = numerators / torch.where(seen[..., None], wn, torch.full_like(wn, -1.0))[..., None]
    turned = (numerators[..., None, :] * view[:, None, None]).sum(-1)
    return turned.to(given), seen


def _range(c: Tensor, column: Tensor | float, row: Tensor | float, half: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Middle and reach of an affine function (..., 3) over boxes of pixels."""
    middle = c[..., 0] + c[..., 1] * column + c[..., 2] * row
    return middle, c[..., 1].abs() * half[0] + c[..., 2].abs() * half[1]


def _edges(c: Tensor) -> list[Tensor]:
    """Five affine functions that are all positive where the piece is seen: in front, and within its four sides."""
    inverse, a, b = c.unbind(-2)
    return [inverse, a, inverse - a, b, inverse - b]


@dataclass(frozen=True, eq=False)
class Candidates:
    """Pieces that may be seen in B views: their numbers, and what bounds them on the screen."""

    coefficients: Tensor
    """(B, K, 3, 3)"""
    seen: Tensor
    """(B, K)"""
    nearest: Tensor
    """(B, K) 1/t of the nearest corner, which no point of the piece exceeds; at most 4 (25 cm)."""
    box: Tensor
    """(B, K, 4) first and last column, first and last row of the part before the camera."""

    def take(self, chosen: Tensor) -> Candidates:
        """The pieces `chosen` (B, k) of each view."""
        rows = chosen[..., None]
        flat = torch.gather(self.coefficients.flatten(2), 1, rows.expand(-1, -1, 9))
        return Candidates(
            flat.view(*chosen.shape, 3, 3),
            torch.gather(self.seen, 1, chosen),
            torch.gather(self.nearest, 1, chosen),
            torch.gather(self.box, 1, rows.expand(-1, -1, 4)),
        )


def make_candidates(corner: Tensor, u: Tensor, v: Tensor, rays: Tensor, unproject: Tensor, eye: Tensor) -> Candidates:
    """All pieces in all views; `unproject` (B, 3, 3) takes an offset from the eye to column t, row t and t."""
    coefficients, seen = piece_coefficients(corner, u, v, rays, eye)
    first, along, over = ((x[..., None, :] * unproject[:, None]).sum(-1) for x in (corner - eye[:, None], u, v))
    corners = torch.stack([first, first + along, first + along + over, first + over], dim=2)
    column, row, depth = _clipped(corners, corners.roll(-1, 2)).unbind(-1)
    front = depth >= NEAR_M
    inverse = 1 / depth.clamp(min=NEAR_M)
    box = torch.stack(
        [
            torch.where(front, column * inverse, FAR).amin(-1),
            torch.where(front, column * inverse, -FAR).amax(-1),
            torch.where(front, row * inverse, FAR).amin(-1),
            torch.where(front, row * inverse, -FAR).amax(-1),
        ],
        dim=-1,
    )
    return Candidates(coefficients, seen, torch.where(front, inverse, 0.0).amax(-1), box)


def _clipped(start: Tensor, end: Tensor) -> Tensor:
    """(B, N, 8, 3) both ends of four edges, moved along them to NEAR_M before the camera where they lie behind that."""
    ds, de = start[..., 2:], end[..., 2:]
    crosses = (ds < NEAR_M) != (de < NEAR_M)
    share = (1.0001 * NEAR_M - ds) / torch.where(crosses, de - ds, 1.0)
    cut = start + (end - start) * share
    moved = [torch.where(crosses & (depth < NEAR_M), cut, point) for point, depth in ((start, ds), (end, de))]
    return torch.cat(moved, 2)


def nearest_pieces(candidates: Candidates, reach_m: Tensor, grid: Grid, keep: int) -> Tensor:
    """(B, keep) the nearest pieces that may show in the image, in rising order: numbered so, they are ranked alike by
    every machine where their depths are equal. `reach_m` (B or 1, N) is their longest side."""
    half = (grid.width / 2 + 1.0, grid.height / 2 + 1.0)
    shows, _, nearness, _ = _overlap(candidates, half[0] - 1.0, half[1] - 1.0, half)
    # What is smaller than a pixel at its nearest is left out.
    shows = shows & (nearness * reach_m * grid.width > 1.0)
    order = torch.where(shows, nearness, -1.0)
    return torch.topk(order, min(keep, order.shape[1]), dim=1).indices.sort(dim=1).values


def _overlap(
    pieces: Candidates, column: Tensor | float, row: Tensor | float, half: tuple[float, float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Whether pieces show in boxes of pixels (given by middle and half size), whether they fill them, and the largest
    and smallest 1/t there."""
    left, right, top, low = pieces.box.unbind(-1)
    shows = pieces.seen & (left < column + half[0]) & (right > column - half[0])
    shows = shows & (top < row + half[1]) & (low > row - half[1])
    fills = pieces.seen
    for edge in _edges(pieces.coefficients):
        middle, reach = _range(edge, column, row, half)
        shows = shows & (middle + reach > 0)
        fills = fills & (middle - reach > 0)
    middle, reach = _range(pieces.coefficients[..., 0, :], column, row, half)
    return shows, fills, torch.minimum(middle + reach, pieces.nearest), middle - reach


def tile_lists(
    pieces: Candidates, solid: Tensor, grid: Grid, keep: int, hidden_behind: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """For every tile the pieces that may show in it, nearest first: (B, T, keep) indices, (B, T) counts, and (B, T) the
    largest 1/t that everything behind a piece covering the whole tile falls short of.

    `solid` (B, K) says which pieces hide what is behind them; `hidden_behind` (B, T) comes from an earlier call.
    """
    half = grid.tile / 2
    column = (grid.column[:, :, 0] - 0.5 + half)[:, None]
    row = (grid.row[:, :, 0] - 0.5 + half)[:, None]
    each = Candidates(
        pieces.coefficients[:, :, None], pieces.seen[..., None], pieces.nearest[..., None], pieces.box[:, :, None]
    )
    shows, fills, nearness, farthest = _overlap(each, column, row, (half + 1.0, half + 1.0))
    wall = torch.where(fills & solid[..., None], farthest, 0.0).amax(1)
    if hidden_behind is not None:
        wall = torch.maximum(wall, hidden_behind)
    shows = shows & (nearness >= wall[:, None])
    order = torch.where(shows, _ranked(nearness), -1).transpose(1, 2)
    best = torch.topk(order, min(keep, order.shape[2]), dim=2)
    return best.indices, (best.values >= 0).sum(-1), wall


def _ranked(nearness: Tensor) -> Tensor:
    """(B, K, T) int32, no two of a tile alike: by nearness to a two-thousandth, then by number, the smaller first.

    Pieces that share a corner are equally near; which of them a full list leaves out must not hang on rounding.
    """
    numbers = torch.arange(nearness.shape[1] - 1, -1, -1, device=nearness.device, dtype=torch.int32)
    rough = nearness.clamp(min=0.0).view(torch.int32) >> 12  # the exponent and 11 bits of a float32
    return (rough << 10) + numbers[:, None]
