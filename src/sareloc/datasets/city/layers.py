"""Per pixel: where its ray meets a piece, how much of the pixel the piece covers, and which two pieces come first."""

from __future__ import annotations

import torch
from torch import Tensor

from sareloc.datasets.city.fused import fused
from sareloc.datasets.city.grid import Grid
from sareloc.datasets.city.raster import FAR

NUMBERS = 11
"""Of a piece in a view: nine coefficients (see `raster`) and two leans."""
TIE = 2e-5
"""Of the depth. Row houses share a plane: depths nearer than this are equal, and the piece of the smaller number comes
first. Which of two equal depths is smaller would be for each machine's rounding to say."""


def surface_point(c: list[Tensor], column: Tensor, row: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """t, a, b of pixels on pieces and how much a and b change over one pixel; `c` holds the nine numbers."""
    inverse = c[0] + c[1] * column + c[2] * row
    t = 1 / inverse.clamp(min=1e-6)
    a = (c[3] + c[4] * column + c[5] * row) * t
    b = (c[6] + c[7] * column + c[8] * row) * t
    fa = ((c[4] - a * c[1]).abs() + (c[5] - a * c[2]).abs()) * t
    fb = ((c[7] - b * c[1]).abs() + (c[8] - b * c[2]).abs()) * t
    return t, a, b, fa, fb


def covered(a: Tensor, b: Tensor, fa: Tensor, fb: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The share of each pixel that lies on its piece, 0 to 1."""
    along = torch.minimum(a + 0.5 * fa, 1 - right * b) - torch.maximum(a - 0.5 * fa, left * b)
    over = (b + 0.5 * fb).clamp(max=1.0) - (b - 0.5 * fb).clamp(min=0.0)
    return (along / fa.clamp(min=1e-9)).clamp(0, 1) * (over / fb.clamp(min=1e-9)).clamp(0, 1)


def two_nearest(numbers: Tensor, lists: Tensor, counts: Tensor, grid: Grid, dense: bool) -> tuple[Tensor, Tensor]:
    """For every pixel the nearest piece and the next behind it: two (B, T, P) int32, K where there is none.

    `numbers` (B, K, 11) are the pieces', `lists` and `counts` the tiles' (see `tile_lists`). Unless `dense`, the tiles
    come sorted by `counts`, most first, and each further slot visits only those that use it.
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
        rows = torch.gather(numbers, 1, index[..., None].expand(-1, -1, NUMBERS))
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
    """Let one more piece per tile compete for its pixels."""
    c = [x[..., None] for x in rows.unbind(-1)]
    t, a, b, fa, fb = surface_point(c[:9], column, row)
    along = torch.minimum(a - c[9] * b, 1 - a - c[10] * b) + 0.5 * fa
    inside = torch.minimum(along, 0.5 - (b - 0.5).abs() + 0.5 * fb)
    ahead = c[0] + c[1] * column + c[2] * row > 1e-6
    hit = (inside > 0) & ahead & used[..., None]
    t = torch.where(hit, t, FAR)
    this = index[..., None]
    # a list's unused slots name any piece, and at FAR it would tie with nobody
    before_first, before_second = (hit & _before(t, this, *other) for other in ((near, first), (next_near, second)))
    return (
        torch.where(before_first, t, near),
        torch.where(before_first, near, torch.where(before_second, t, next_near)),
        torch.where(before_first, this, first),
        torch.where(before_first, first, torch.where(before_second, this, second)),
    )


def _before(t: Tensor, piece: Tensor, other_t: Tensor, other: Tensor) -> Tensor:
    """Whether a piece at depth t comes before another one."""
    apart = t - other_t
    tie = TIE * other_t
    return (apart < -tie) | ((apart <= tie) & (piece < other))
