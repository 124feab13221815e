"""The rasterizer: homogeneous rasterization of quads in tiles, with the two nearest quads of each pixel.

For the quad corner + a U + b V and the ray eye + t d, with w = corner - eye and n = U x V (Cramer's rule):

    1 / t = d.n / w.n        a = t d.(V x w) / w.n        b = t d.(w x U) / w.n

d is affine in the pixel's column and row, hence so are the three numerators: a quad in a view is nine numbers, and its
extremes over a tile are at the tile's corners. The coverage of a pixel follows from the derivatives of a and b, which
antialiases edges and avoids discontinuities where machines round differently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

FAR = 1e9
NEAR_M = 0.25
TIE = 2e-5
"""Relative depth difference below which depths are equal, as those of row houses in one plane; then the quad of the
smaller number comes first, so that the order does not depend on rounding."""

OCCLUDED = 1e-4
"""Relative depth difference from which a quad is hidden behind another one. A wall that faces the camera squarely has
one depth, computed in two ways: rounding must not hide it behind itself."""


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, compiled for calls with CUDA tensors; not on a CPU, which may have no compiler and gains little."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        on_gpu = any(isinstance(arg, torch.Tensor) and arg.is_cuda for arg in args)
        return (_compiled(function) if on_gpu else function)(*args, **kwargs)

    return call


@cache
def _compiled(function: Callable[P, R]) -> Callable[P, R]:
    # Not fullgraph: after many towns of different shapes torch stops recompiling and runs eagerly.
    return torch.compile(function)


@dataclass(frozen=True, eq=False)
class Grid:
    """The pixels of B views in square tiles: `column`, `row` (B or 1, T, P) are pixel centres; tiles in any order."""

    column: Tensor
    row: Tensor
    height: int
    width: int
    tile: int

    @property
    def across(self) -> int:
        """Number of tiles in a row."""
        return -(-self.width // self.tile)

    @property
    def down(self) -> int:
        """Number of rows of tiles."""
        return -(-self.height // self.tile)

    def take(self, order: Tensor) -> Grid:
        """The same pixels with the tiles in another order."""
        return Grid(self.column[:, order], self.row[:, order], self.height, self.width, self.tile)


def make_grid(height: int, width: int, device: torch.device) -> Grid:
    """All pixels of an image; the side of a tile is a twentieth of the width, at least 8 pixels."""
    tile = max(8, -(-width // 20))
    down, across = -(-height // tile), -(-width // tile)
    local = torch.arange(tile, device=device, dtype=torch.float32) + 0.5
    left = torch.arange(across, device=device, dtype=torch.float32) * tile
    top = torch.arange(down, device=device, dtype=torch.float32) * tile
    column = (left[None, :, None, None] + local[None, None, None, :]).expand(down, across, tile, tile)
    row = (top[:, None, None, None] + local[None, None, :, None]).expand(down, across, tile, tile)
    flat = (1, down * across, tile * tile)
    return Grid(column.reshape(flat), row.reshape(flat), height, width, tile)


def assemble(pixels: Tensor, grid: Grid) -> Tensor:
    """(C, B, T * P) in the original order of tiles -> (B, C, height, width)."""
    c, b = pixels.shape[:2]
    t = grid.tile
    image = pixels.reshape(c, b, grid.down, grid.across, t, t).permute(1, 0, 2, 4, 3, 5)
    return image.reshape(b, c, grid.down * t, grid.across * t)[:, :, : grid.height, : grid.width]


def cross(p: Tensor, q: Tensor) -> Tensor:
    """Cross product along the last axis, written out so that all devices round equally."""
    px, py, pz = p.unbind(-1)
    qx, qy, qz = q.unbind(-1)
    return torch.stack([py * qz - pz * qy, pz * qx - px * qz, px * qy - py * qx], dim=-1)


def piece_coefficients(corner: Tensor, u: Tensor, v: Tensor, view: Tensor, eye: Tensor) -> tuple[Tensor, Tensor]:
    """The nine coefficients (B, N, 3, 3) of each quad in each view, and whether its front faces the camera (B, N).

    The rows are 1/t, a/t and b/t; the columns are their constant, and their derivatives by pixel column and row.
    `view` (B, 3, 3): d = view[0] + column view[1] + row view[2].

    In double precision: the planes of some walls pass the camera within a millimetre, hundreds of metres from the
    origin, and their visibility must not depend on rounding.
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
    """Centre and half range of an affine function (..., 3) over boxes of pixels."""
    middle = c[..., 0] + c[..., 1] * column + c[..., 2] * row
    return middle, c[..., 1].abs() * half[0] + c[..., 2].abs() * half[1]


def _edges(c: Tensor) -> list[Tensor]:
    """Five affine functions that are positive where the quad is visible: in front, and within its four edges."""
    inverse, a, b = c.unbind(-2)
    return [inverse, a, inverse - a, b, inverse - b]


def rows_at(table: Tensor, index: Tensor) -> Tensor:
    """The rows `index` (B, k) of tables (B, n, columns)."""
    return torch.gather(table, 1, index[..., None].expand(-1, -1, table.shape[-1]))


@dataclass(frozen=True, eq=False)
class Candidates:
    """Potentially visible quads of B views: their coefficients and screen bounds."""

    coefficients: Tensor
    """(B, K, 3, 3)"""
    seen: Tensor
    """(B, K)"""
    nearest: Tensor
    """(B, K) 1/t of the nearest corner, an upper bound for the quad; at most 4 (25 cm)."""
    box: Tensor
    """(B, K, 4) first and last column, first and last row of the part in front of the camera."""

    def take(self, chosen: Tensor) -> Candidates:
        """The quads `chosen` (B, k) of each view."""
        return Candidates(
            rows_at(self.coefficients.flatten(2), chosen).view(*chosen.shape, 3, 3),
            torch.gather(self.seen, 1, chosen),
            torch.gather(self.nearest, 1, chosen),
            rows_at(self.box, chosen),
        )


def make_candidates(corner: Tensor, u: Tensor, v: Tensor, rays: Tensor, unproject: Tensor, eye: Tensor) -> Candidates:
    """All quads in all views; `unproject` (B, 3, 3) maps an offset from the camera to column t, row t and t."""
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
    """(B, N, 8, 3) both ends of four edges, clipped to the near plane at NEAR_M."""
    ds, de = start[..., 2:], end[..., 2:]
    crosses = (ds < NEAR_M) != (de < NEAR_M)
    share = (1.0001 * NEAR_M - ds) / torch.where(crosses, de - ds, 1.0)
    cut = start + (end - start) * share
    moved = [torch.where(crosses & (depth < NEAR_M), cut, point) for point, depth in ((start, ds), (end, de))]
    return torch.cat(moved, 2)


def nearest_pieces(candidates: Candidates, reach_m: Tensor, grid: Grid, keep: int) -> Tensor:
    """(B, keep) the nearest quads in the image, in ascending order, which makes ties in depth deterministic. `reach_m`
    (B or 1, N): their longest side."""
    half = (grid.width / 2 + 1.0, grid.height / 2 + 1.0)
    shows, _, nearness, _ = _overlap(candidates, half[0] - 1.0, half[1] - 1.0, half)
    # Quads smaller than a pixel are left out.
    shows = shows & (nearness * reach_m * grid.width > 1.0)
    order = torch.where(shows, nearness, -1.0)
    return torch.topk(order, min(keep, order.shape[1]), dim=1).indices.sort(dim=1).values


def _overlap(
    pieces: Candidates, column: Tensor | float, row: Tensor | float, half: tuple[float, float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Whether quads overlap boxes of pixels (centre and half size), whether they fill them, and the largest and
    smallest 1/t there."""
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
    """The quads that overlap each tile, nearest first: (B, T, keep) indices, (B, T) counts, and (B, T) the occlusion
    limit: 1/t below which everything is hidden behind a quad that fills the tile.

    `solid` (B, K): which quads occlude; `hidden_behind` (B, T): the occlusion limit of an earlier call.
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
    shows = shows & (nearness >= wall[:, None] * (1 - OCCLUDED))
    order = torch.where(shows, _ranked(nearness), -1).transpose(1, 2)
    best = torch.topk(order, min(keep, order.shape[2]), dim=2)
    return best.indices, (best.values >= 0).sum(-1), wall


def _ranked(nearness: Tensor) -> Tensor:
    """(B, K, T) int32 sort keys, unique within a tile: by nearness with a relative precision of 1/2048, then by number.

    Quads that share a corner are equally near; which of them a full list drops must not depend on rounding.
    """
    numbers = torch.arange(nearness.shape[1] - 1, -1, -1, device=nearness.device, dtype=torch.int32)
    rough = nearness.clamp(min=0.0).view(torch.int32) >> 12  # the exponent and 11 bits of a float32
    return (rough << 10) + numbers[:, None]


def surface_point(c: list[Tensor], column: Tensor, row: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """t, a, b of pixels on quads, and the change of a and b over one pixel; `c`: the nine coefficients."""
    inverse = c[0] + c[1] * column + c[2] * row
    t = 1 / inverse.clamp(min=1e-6)
    a = (c[3] + c[4] * column + c[5] * row) * t
    b = (c[6] + c[7] * column + c[8] * row) * t
    fa = ((c[4] - a * c[1]).abs() + (c[5] - a * c[2]).abs()) * t
    fb = ((c[7] - b * c[1]).abs() + (c[8] - b * c[2]).abs()) * t
    return t, a, b, fa, fb


def covered(a: Tensor, b: Tensor, fa: Tensor, fb: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The fraction of each pixel that its quad covers, 0 to 1."""
    along = torch.minimum(a + 0.5 * fa, 1 - right * b) - torch.maximum(a - 0.5 * fa, left * b)
    over = (b + 0.5 * fb).clamp(max=1.0) - (b - 0.5 * fb).clamp(min=0.0)
    return (along / fa.clamp(min=1e-9)).clamp(0, 1) * (over / fb.clamp(min=1e-9)).clamp(0, 1)


def two_nearest(numbers: Tensor, lists: Tensor, counts: Tensor, grid: Grid, dense: bool) -> tuple[Tensor, Tensor]:
    """The nearest and second nearest quad of every pixel: two (B, T, P) int32; K: none.

    `numbers` (B, K, 11) of the quads: nine coefficients and two leans; `lists` and `counts` of the tiles (see
    `tile_lists`). Unless `dense`, the tiles must be sorted by `counts`, largest first, and each slot processes only the
    tiles that use it.
    """
    b, tiles, keep = lists.shape
    shape = (b, tiles, grid.column.shape[2])
    near = torch.full(shape, FAR, device=lists.device)
    nobody = torch.full(shape, numbers.shape[1], device=lists.device, dtype=torch.int32)
    state = (near, near.clone(), nobody, nobody.clone())
    for slot in range(keep):
        n = tiles if dense else int((counts > slot).sum())
        if n == 0:
            break
        index = lists[:, :n, slot]
        rows = rows_at(numbers, index)
        used = counts[:, :n] > slot
        before = tuple(part[:, :n] for part in state)
        after = fused(_one_more)(rows, index.to(torch.int32), used, grid.column[:, :n], grid.row[:, :n], *before)
        if n == tiles:
            state = after
        else:
            for part, new in zip(state, after, strict=True):
                part[:, :n] = new
    return state[2], state[3]


def _one_more(
    rows: Tensor, index: Tensor, used: Tensor, column: Tensor, row: Tensor,
    near: Tensor, next_near: Tensor, first: Tensor, second: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Depth test of one more quad per tile."""
    c = [x[..., None] for x in rows.unbind(-1)]
    t, a, b, fa, fb = surface_point(c[:9], column, row)
    along = torch.minimum(a - c[9] * b, 1 - a - c[10] * b) + 0.5 * fa
    inside = torch.minimum(along, 0.5 - (b - 0.5).abs() + 0.5 * fb)
    ahead = c[0] + c[1] * column + c[2] * row > 1e-6
    hit = (inside > 0) & ahead & used[..., None]
    t = torch.where(hit, t, FAR)
    this = index[..., None]
    # unused slots of a list contain arbitrary quads, which at FAR would tie with the empty pixel
    before_first, before_second = (hit & _before(t, this, *other) for other in ((near, first), (next_near, second)))
    return (
        torch.where(before_first, t, near),
        torch.where(before_first, near, torch.where(before_second, t, next_near)),
        torch.where(before_first, this, first),
        torch.where(before_first, first, torch.where(before_second, this, second)),
    )


def _before(t: Tensor, piece: Tensor, other_t: Tensor, other: Tensor) -> Tensor:
    """Whether a quad at depth t is in front of another one."""
    apart = t - other_t
    tie = TIE * other_t
    return (apart < -tie) | ((apart <= tie) & (piece < other))
