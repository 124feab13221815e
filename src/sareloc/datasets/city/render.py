"""From poses to images: find what each pixel sees, shade it, lay the sprites over it, expose it.

The same code runs two ways (`Scene.dense`). On a CPU each view is drawn by itself and every shader visits just the
pixels that need it; on a GPU a batch is drawn at once and every shader visits every pixel, as a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sareloc.datasets.city.billboards import lay_sprites
from sareloc.datasets.city.fused import fused
from sareloc.datasets.city.grid import Grid, assemble
from sareloc.datasets.city.layers import covered, surface_point, two_nearest
from sareloc.datasets.city.quads import COLUMN, FACADE
from sareloc.datasets.city.raster import make_candidates, nearest_pieces, tile_lists
from sareloc.datasets.city.scene import Scene
from sareloc.datasets.city.shaders import (
    View,
    expose,
    facade_pixels,
    ground_pixels,
    panel_pixels,
    ray_through,
    sky_pixels,
)
from sareloc.datasets.city.surface import Air
from sareloc.datasets.city.texture import pick

PIECES_PER_VIEW, PIECES_PER_TILE = 512, 16
CLEAR_OF_CARS_M = 4.5
"""Nobody parks where a photographer stands."""


def draw_views(scene: Scene, view: View, grid: Grid) -> Tensor:
    """uint8 (B, 3, height, width)."""
    air, b = Air(scene, view.moment), len(view.eye)
    ids, numbers, lists, counts, wall = _candidates(scene, view, grid)
    order = None if scene.dense else torch.argsort(counts[0], descending=True, stable=True)
    here = grid if order is None else grid.take(order)
    if order is not None:
        lists, counts, wall = lists[:, order], counts[:, order], wall[:, order]
    first, second = (x.reshape(b, -1) for x in two_nearest(numbers, lists, counts, here, scene.dense))
    column, row = (x.expand(b, -1, -1).reshape(b, -1) for x in (here.column, here.row))
    pixels = _Pixels(air, view, column, row)
    table = _Table.of(ids, numbers)
    colour, alpha, depth = pixels.pieces(table, first, first < numbers.shape[1])
    rest = 1 - alpha
    behind, alpha2, _ = pixels.pieces(table, second, (second < numbers.shape[1]) & (rest > 0))
    # What abuts fills the rest of the pixel, and so does what is behind.
    filled = torch.minimum(rest, alpha2)
    left = rest - filled
    colour = colour * alpha + behind * filled + pixels.backdrop(left > 0) * left
    colour = lay_sprites(air, view, here, wall, colour, depth)
    values = fused(expose)(air, view, colour, column, row, grid.height, grid.width)
    if order is not None:
        values = values.view(3, b, len(order), -1)[:, :, torch.argsort(order)].flatten(2)
    return assemble(values, grid).to(torch.uint8)


def _candidates(scene: Scene, view: View, grid: Grid) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The pieces that may be seen: their rows in the scene's columns (B, K), their numbers (B, K, 11), and the tiles'
    lists of them (see `tile_lists`)."""
    fixed, moving = scene.fixed_pieces, scene.moving_pieces.index_select(0, view.moment)
    pieces = torch.cat([fixed.expand(len(view.eye), -1, -1), moving], 1)
    edges = (pieces[..., 0:3], pieces[..., 3:6], pieces[..., 6:9])
    everything = make_candidates(*edges, view.rays, view.unproject, view.eye)
    apart = (pieces[..., 12:14] - view.eye[:, None, :2]).square().sum(-1)
    everything = replace(everything, seen=everything.seen & (apart > CLEAR_OF_CARS_M**2))
    chosen = nearest_pieces(everything, pieces[..., 11], grid, PIECES_PER_VIEW)
    candidates = everything.take(chosen)
    lean = torch.gather(pieces[..., 9:11], 1, chosen[..., None].expand(-1, -1, 2))
    lists, counts, wall = tile_lists(candidates, (lean == 0).all(-1), grid, PIECES_PER_TILE)
    shift = (view.moment * moving.shape[1])[:, None]
    ids = torch.where(chosen < len(fixed), chosen, chosen + shift)
    return ids, torch.cat([candidates.coefficients.flatten(2), lean], -1), lists, counts, wall


@dataclass(frozen=True, eq=False)
class _Table:
    """The candidates of B views, as pixels read them; after those of each view comes one that covers nothing."""

    ids: Tensor
    """(B * (K + 1),) their rows in the scene's columns."""
    numbers: Tensor
    """(11, B * (K + 1))"""
    size: int
    """K + 1."""

    @staticmethod
    def of(ids: Tensor, numbers: Tensor) -> _Table:
        """From (B, K) and (B, K, 11)."""
        b, k, _ = numbers.shape
        nothing = numbers.new_tensor([1.0, 0, 0, -9.0, 1e-3, 1e-3, -9.0, 1e-3, 1e-3, 0, 0]).expand(b, 1, -1)
        flat = torch.cat([numbers, nothing], 1).reshape(b * (k + 1), -1).t().contiguous()
        return _Table(torch.cat([ids, torch.zeros_like(ids[:, :1])], 1).reshape(-1).to(torch.int32), flat, k + 1)


def _resolve(table: _Table, piece: Tensor, column: Tensor, row: Tensor) -> tuple[Tensor, ...]:
    """Of candidates `piece` (B, n) in pixels: their rows in the scene's columns, t, a, b, the pixel's size in a and b,
    and the share of it that they cover."""
    views = torch.arange(len(piece), device=piece.device, dtype=torch.int32)[:, None]
    at = piece + views * table.size
    c = [pick(numbers, at) for numbers in table.numbers]
    t, a, b, fa, fb = surface_point(c[:9], column, row)
    return pick(table.ids, at), t, a, b, fa, fb, covered(a, b, fa, fb, c[9], c[10])


@dataclass(frozen=True, eq=False)
class _Pixels:
    """All pixels of B views, by tiles."""

    air: Air
    view: View
    column: Tensor
    row: Tensor

    def shade(self, mask: Tensor, shader: Callable[..., Tensor], *numbers: Tensor) -> Tensor:
        """Colours (3, B, n) of `shader` where `mask` holds, 0 elsewhere."""
        inputs = (*numbers, self.column, self.row)
        if self.air.scene.dense:
            return torch.where(mask, fused(shader)(self.air, self.view, *inputs), 0.0)
        index = mask[0].nonzero()[:, 0]
        out = torch.zeros(3, *mask.shape)
        if len(index):
            colour = shader(self.air, self.view, *(x.index_select(1, index) for x in inputs))
            out[:, 0].index_copy_(1, index, colour[:, 0])
        return out

    def pieces(self, table: _Table, piece: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Colour, covered share and depth of candidates `piece` (B, n) where they are wanted."""
        number, t, a, b, fa, fb, share = fused(_resolve)(table, piece, self.column, self.row)
        alpha = share * wanted
        facade = pick(self.air.scene.columns[COLUMN["kind"]], number) == FACADE
        colour = self.shade(wanted & facade, facade_pixels, number, t, a, fa, fb)
        colour = colour + self.shade(wanted & ~facade, panel_pixels, number, t, a, b, fa, fb)
        return colour, alpha, torch.where(wanted & (alpha > 0.5), t, 1e6)

    def backdrop(self, wanted: Tensor) -> Tensor:
        """Ground below the horizon, sky above it."""
        below = ray_through(self.view, self.column, self.row)[2] < -1e-4
        return self.shade(wanted & below, ground_pixels) + self.shade(wanted & ~below, sky_pixels)
