"""From poses to images: find what each pixel sees, shade it, lay the sprites over it, expose it.

The same code runs two ways. On a CPU each view is drawn by itself and every shader runs on just the pixels that need it;
on a GPU a batch is drawn at once and every shader runs everywhere, fused by the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sareloc.datasets.city.facade import shade_facade
from sareloc.datasets.city.ground import shade_ground
from sareloc.datasets.city.panel import shade_panel
from sareloc.datasets.city.quads import COLUMN, FACADE
from sareloc.datasets.city.raster import (
    Grid,
    assemble,
    covered,
    make_candidates,
    nearest_pieces,
    surface_point,
    tile_lists,
    two_nearest,
)
from sareloc.datasets.city.scene import Scene
from sareloc.datasets.city.sky import reflected, shade_sky
from sareloc.datasets.city.surface import Air, Hit, Paint, light_on, through_air
from sareloc.datasets.city.texture import hashed, mix, pick, unit
from sareloc.datasets.city.billboards import lay_sprites

PIECES_PER_VIEW, PIECES_PER_TILE = 384, 16


@dataclass(frozen=True, eq=False)
class View:
    """B cameras on the device."""

    eye: Tensor
    """(B, 3)"""
    rays: Tensor
    """(B, 3, 3): the ray of a pixel is rays[0] + column rays[1] + row rays[2]; its forward part is 1."""
    unproject: Tensor
    """(B, 3, 3) its inverse: takes an offset from the eye to column t, row t and t."""
    moment: Tensor
    """(B,)"""
    seed: Tensor
    """(B,)"""
    pixel: Tensor
    """(B,) angle of a pixel in the middle of the image, radians."""


Shader = Callable[..., Tensor]


def _where(dense: bool, mask: Tensor, shader: Shader, *pixels: Tensor) -> Tensor:
    """Colours (3, B, n) of `shader` where `mask` holds, 0 elsewhere; only those pixels are visited unless `dense`."""
    if dense:
        return torch.where(mask, shader(*pixels), 0.0)
    index = mask[0].nonzero()[:, 0]
    out = torch.zeros(3, 1, mask.shape[1])
    if len(index):
        out[:, 0].index_copy_(1, index, shader(*(p.index_select(1, index) for p in pixels))[:, 0])
    return out


def draw_views(scene: Scene, view: View, grid: Grid) -> Tensor:
    """uint8 (B, 3, height, width)."""
    air = Air(scene, view.moment)
    fixed, moving = scene.fixed_pieces, scene.moving_pieces.index_select(0, view.moment)
    pieces = torch.cat([fixed.expand(len(view.eye), -1, -1), moving], 1)
    everything = make_candidates(
        pieces[..., 0:3], pieces[..., 3:6], pieces[..., 6:9], view.rays, view.unproject, view.eye
    )
    apart = (pieces[..., 12:14] - view.eye[:, None, :2]).square().sum(-1)
    everything = replace(everything, seen=everything.seen & (apart > 4.5**2))
    chosen = nearest_pieces(everything, pieces[..., 11], grid, PIECES_PER_VIEW)
    candidates = everything.take(chosen)
    coefficients = candidates.coefficients
    lean = torch.gather(pieces[..., 9:11], 1, chosen[..., None].expand(-1, -1, 2))
    lists, counts, wall = tile_lists(candidates, (lean == 0).all(-1), grid, PIECES_PER_TILE)
    order = None
    if not scene.dense:
        order = torch.argsort(counts[0], descending=True, stable=True)
        grid, lists, counts, wall = grid.take(order), lists[:, order], counts[:, order], wall[:, order]
    first, second = two_nearest(coefficients, lean, lists, counts, grid, scene.dense)

    b = len(view.eye)
    column, row = (x.expand(b, -1, -1).reshape(b, -1) for x in (grid.column, grid.row))
    ids = _piece_numbers(scene, view.moment, chosen)
    none = torch.zeros_like(ids[:, :1])
    ids = torch.cat([ids, none], 1)
    table = torch.cat([torch.cat([coefficients.flatten(2), lean], -1), _nothing(coefficients)], 1)
    painter = _Painter(air, view, grid, table, ids)
    colour, alpha, away = painter.pieces(first.reshape(b, -1), column, row)
    rest = 1 - alpha
    behind, alpha2, _ = painter.pieces(second.reshape(b, -1), column, row, wanted=rest > 0)
    colour = colour * alpha + behind * (rest * alpha2)
    rest = rest * (1 - alpha2)
    colour = colour + painter.backdrop(column, row, wanted=rest > 0) * rest
    colour = lay_sprites(air, view, grid, wall, counts, colour, away, column, row)
    image = expose(air, view, colour, column, row, grid)
    if order is not None:
        back = torch.argsort(order)
        image = image.unflatten(2, (len(order), -1))[:, :, back].flatten(2)
    return assemble(image, grid).to(torch.uint8)


def _piece_numbers(scene: Scene, moment: Tensor, chosen: Tensor) -> Tensor:
    """Rows of the scene's columns of the chosen pieces (B, K)."""
    fixed, moving = scene.fixed_pieces.shape[0], scene.moving_pieces.shape[1]
    return torch.where(chosen < fixed, chosen, chosen + (moment * moving)[:, None])


def _nothing(coefficients: Tensor) -> Tensor:
    """A row of numbers (B, 1, 11) of a piece that covers nothing."""
    row = coefficients.new_tensor([1.0, 0, 0, -9.0, 1e-3, 1e-3, -9.0, 1e-3, 1e-3, 0, 0])
    return row.expand(len(coefficients), 1, 11)


@dataclass(frozen=True, eq=False)
class _Painter:
    """Shades pixels of B views, once it is known which piece each sees."""

    air: Air
    view: View
    grid: Grid
    table: Tensor
    """(B, K + 1, 11) numbers and leans of the pieces; the last is none."""
    ids: Tensor
    """(B, K + 1) their rows in the scene's columns."""

    def ray(self, column: Tensor, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The ray through each pixel."""
        r = self.view.rays
        x, y, z = (r[:, 0, i, None] + column * r[:, 1, i, None] + row * r[:, 2, i, None] for i in range(3))
        return x, y, z

    def hit(self, t: Tensor, column: Tensor, row: Tensor) -> Hit:
        """The point at depth t on each pixel's ray."""
        ray = self.ray(column, row)
        x, y, z = (self.view.eye[:, i, None] + t * ray[i] for i in range(3))
        away = t * (ray[0] ** 2 + ray[1] ** 2 + ray[2] ** 2).sqrt()
        return Hit(x, y, z, ray, away)

    def pieces(
        self, seen: Tensor, column: Tensor, row: Tensor, wanted: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Colour, covered share and depth of the pieces `seen` (B, n) in each pixel."""
        k = self.table.shape[1]
        some = seen < k - 1
        if wanted is not None:
            some = some & wanted
        at = seen + torch.arange(len(seen), device=seen.device)[:, None] * k
        flat = self.table.reshape(-1, 11)
        c = [pick(flat[:, i].contiguous(), at) for i in range(11)]
        t, a, b, fa, fb = surface_point(c[:9], column, row)
        alpha = covered(a, b, fa, fb, c[9], c[10]) * some
        piece = pick(self.ids.reshape(-1), at)
        kind = pick(self.air.scene.columns[COLUMN["kind"]], piece)
        facade, dense = some & (kind == FACADE), self.air.scene.dense
        colour = _where(dense, facade, self._facade, piece, t, a, fa, fb, column, row)
        colour = colour + _where(dense, some & ~facade, self._panel, piece, t, a, b, fa, fb, column, row)
        return colour, alpha, torch.where(some & (alpha > 0.5), t, 1e6)

    def _lit(self, piece: Tensor, t: Tensor, column: Tensor, row: Tensor):
        paint = Paint(self.air.scene.columns, piece)
        hit = self.hit(t, column, row)
        normal = (paint.normal_x, paint.normal_y, paint.normal_z)
        x, y, z = hit.ray
        facing = (normal[0] * x + normal[1] * y + normal[2] * z).abs() * t / hit.away.clamp(min=1e-3)
        return paint, hit, light_on(self.air, hit, normal), facing

    def _facade(
        self, piece: Tensor, t: Tensor, a: Tensor, fa: Tensor, fb: Tensor, column: Tensor, row: Tensor
    ) -> Tensor:
        paint, hit, light, facing = self._lit(piece, t, column, row)
        width, height = paint.width, paint.height
        u = (a * width).clamp(min=0.0).minimum(width * 0.9999)
        soft_u, soft_z = (fa * width).clamp(min=1e-3), (fb * height).clamp(min=1e-3)
        colour = shade_facade(self.air, paint, hit, light, u, soft_u, soft_z, facing)
        return through_air(self.air, colour, hit.away)

    def _panel(
        self, piece: Tensor, t: Tensor, a: Tensor, b: Tensor, fa: Tensor, fb: Tensor, column: Tensor, row: Tensor
    ) -> Tensor:
        paint, hit, light, facing = self._lit(piece, t, column, row)
        colour = shade_panel(self.air, paint, hit, light, a, b, fa, fb, facing)
        return through_air(self.air, colour, hit.away)

    def backdrop(self, column: Tensor, row: Tensor, wanted: Tensor) -> Tensor:
        """Ground below the horizon, sky above it."""
        z = self.ray(column, row)[2]
        below = z < -1e-4
        colour = _where(self.air.scene.dense, wanted & below, self._ground, column, row)
        return colour + _where(self.air.scene.dense, wanted & ~below, self._sky, column, row)

    def _ground(self, column: Tensor, row: Tensor) -> Tensor:
        z = self.ray(column, row)[2]
        t = (-self.view.eye[:, 2, None] / z.clamp(max=-1e-4)).clamp(max=2000.0)
        hit = self.hit(t, column, row)
        zero = torch.zeros_like(t)
        light = light_on(self.air, hit, (zero, zero, zero + 1))
        down = (-z * t / hit.away).clamp(min=1e-3)
        # A pixel on the ground is longer than it is wide: somewhat more than its geometric mean keeps lines without noise.
        soft = (hit.away * self.view.pixel[:, None] / down.sqrt() * 1.3).clamp(min=2e-3)
        mirror = reflected(self.air, replace(hit, ray=(hit.ray[0], hit.ray[1], -z)), zero)
        return through_air(self.air, shade_ground(self.air, hit, light, soft, mirror), hit.away)

    def _sky(self, column: Tensor, row: Tensor) -> Tensor:
        ray = self.ray(column, row)
        colour = shade_sky(self.air, ray, self.view.pixel[:, None])
        z = ray[2] / (ray[0] ** 2 + ray[1] ** 2 + ray[2] ** 2).sqrt()
        return through_air(self.air, colour, 120.0 / (z.clamp(min=0) + 0.08))


def expose(air: Air, view: View, colour: Tensor, column: Tensor, row: Tensor, grid: Grid) -> Tensor:
    """From light (3, B, n) to the camera's values 0..255: exposure, white balance, tone curve, vignette, noise."""
    x, y = column / grid.width - 0.5, row / grid.height - 0.5
    fall = 1 - air.vignette * (x * x + y * y) * 1.4
    light = (colour * air.balance * (air.exposure * fall)).clamp(min=0)
    # A film-like curve: nearly straight in the dark, a soft shoulder at white.
    value = (light * (light * 2.51 + 0.03)) / (light * (light * 2.43 + 0.59) + 0.14)
    value = value.clamp(0, 1) ** (1 / 2.2)
    place = column.to(torch.int32) + row.to(torch.int32) * grid.width
    noise = torch.stack(
        [unit(hashed(view.seed[:, None] + 0 * place, place, torch.full_like(place, i))) for i in range(6)]
    )
    grain = (noise[:3] + noise[3:] - 1) * 2.45 * air.grain
    return ((value + grain) * 255 + 0.5).clamp(0, 255).floor()
