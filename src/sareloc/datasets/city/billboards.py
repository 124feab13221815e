"""Trees, lamps, people: flat drawings that turn to the camera, laid over the town from far to near."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sareloc.datasets.city.fused import fused
from sareloc.datasets.city.grid import Grid
from sareloc.datasets.city.layers import surface_point
from sareloc.datasets.city.raster import make_candidates, nearest_pieces, tile_lists
from sareloc.datasets.city.shaders import View
from sareloc.datasets.city.surface import Air, fields_at, through_air
from sareloc.datasets.city.texture import mix

SPRITES_PER_VIEW, SPRITES_PER_TILE = 96, 8
NEAREST_M = 1.6


def lay_sprites(air: Air, view: View, grid: Grid, wall: Tensor, colour: Tensor, depth: Tensor) -> Tensor:
    """Colours (3, B, T * P) with every sprite nearer than `depth` (B, T * P) laid over; `wall` as of `tile_lists`."""
    rows, lists, counts = _candidates(air, view, grid, wall)
    tiled = (lists.shape[1], grid.column.shape[2])
    colour = colour.view(*colour.shape[:2], *tiled).clone()
    depth = depth.view(len(depth), *tiled)
    for slot in reversed(range(lists.shape[2])):
        used, index = counts > slot, lists[:, :, slot]
        if air.scene.dense:
            colour = fused(_lay)(air, _rows_at(rows, index), used, grid.column, grid.row, colour, depth)
            continue
        tiles = used[0].nonzero()[:, 0]
        if len(tiles):
            pixels = (grid.column[:, tiles], grid.row[:, tiles], colour[:, :, tiles], depth[:, tiles])
            colour[:, :, tiles] = _lay(air, _rows_at(rows, index[:, tiles]), used[:, tiles], *pixels)
    return colour.flatten(2)


def _rows_at(rows: Tensor, index: Tensor) -> Tensor:
    return torch.gather(rows, 1, index[..., None].expand(-1, -1, rows.shape[-1]))


def _candidates(air: Air, view: View, grid: Grid, wall: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sprites that may be seen (B, K, 22): nine coefficients, width, page, distance, three colours under their
    light, and 1 for a mirrored drawing; and the tiles' lists of them."""
    scene = air.scene
    moving = scene.moving_sprites.index_select(0, view.moment)
    sprites = torch.cat([scene.fixed_sprites.expand(len(view.eye), -1, -1), moving], 1)
    corner, u, v, distance = _turned(sprites, view.eye)
    everything = make_candidates(corner, u, v, view.rays, view.unproject, view.eye)
    everything = replace(everything, seen=everything.seen & (distance > NEAREST_M))
    chosen = nearest_pieces(everything, sprites[..., 4], grid, SPRITES_PER_VIEW)
    candidates = everything.take(chosen)
    lists, counts, _ = tile_lists(
        candidates, torch.zeros_like(candidates.seen), grid, SPRITES_PER_TILE, hidden_behind=wall
    )
    looks = _looks(air, _rows_at(sprites, chosen), torch.gather(distance, 1, chosen))
    return torch.cat([candidates.coefficients.flatten(2), looks], -1), lists, counts


def _turned(sprites: Tensor, eye: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Corner and edges of each sprite turned to each eye, and its distance on the plan."""
    foot, size = sprites[..., 0:3], sprites[..., 3:5]
    off = foot[..., :2] - eye[:, None, :2]
    distance = off.square().sum(-1).sqrt().clamp(min=1e-3)
    side = torch.stack([off[..., 1], -off[..., 0]], -1) / distance[..., None]
    u = torch.cat([side * size[..., :1].abs(), torch.zeros_like(size[..., :1])], -1)
    v = torch.cat([torch.zeros_like(side), size[..., 1:]], -1)
    return foot - 0.5 * u, u, v, distance


def _looks(air: Air, sprites: Tensor, distance: Tensor) -> Tensor:
    """(B, K, 12) page, mirrored, distance, and the three colours under the light where each sprite stands."""
    size, page, glow, leafy = sprites[..., 3:5], sprites[..., 5:7], sprites[..., 16], sprites[..., 17]
    shown = mix(page[..., 0], page[..., 1], air.bare)
    shadow, _, lamps, sky = fields_at(air, sprites[..., 0], sprites[..., 1])
    sun = ((size[..., 1] * 0.6 - shadow) * 0.4 + 1).clamp(0, 1)
    lamplight = air.palette("lamplight") * (0.16 * lamps * air.night)
    light = air.ambient * (0.35 + 0.65 * sky) + air.sun * (0.6 * sun) + lamplight
    first, second, third = (sprites[..., i : i + 3].permute(2, 0, 1) for i in (7, 10, 13))
    second = second * mix(torch.ones_like(air.leaf), air.leaf, leafy)
    white, snow = air.palette("snow") * light, 0.45 * air.snow * leafy
    colours = [mix(first * light, white, snow), mix(second * (light + glow * air.night), white, snow), third * light]
    numbers = torch.stack([shown, (size[..., 0] < 0).to(shown.dtype), distance])
    return torch.cat([numbers, *colours]).permute(1, 2, 0)


def _lay(air: Air, rows: Tensor, used: Tensor, column: Tensor, row: Tensor, colour: Tensor, depth: Tensor) -> Tensor:
    """One more sprite per tile over what is there."""
    c = [x[..., None] for x in rows.unbind(-1)]
    page, mirrored, distance = c[9].to(torch.int32), c[10], c[11]
    t, a, b, fa, fb = surface_point(c[:9], column, row)
    a = mix(a, 1 - a, mirrored)
    x, y = a.clamp(0.004, 0.996), (1 - b).clamp(0.004, 0.996)
    shade, second, third, opacity = air.scene.pages.fetch(page.expand_as(x), x, y, fa, fb)
    inside = ((0.5 - (a - 0.5).abs()) / fa + 0.5).clamp(0, 1) * ((0.5 - (b - 0.5).abs()) / fb + 0.5).clamp(0, 1)
    ahead = c[0] + c[1] * column + c[2] * row > 1e-4
    alpha = opacity * inside * ((depth - t) * 4 + 0.5).clamp(0, 1) * ahead * used[..., None]
    first, rest = shade * (1 - second - third), (shade * second, shade * third)
    look = torch.stack([c[12 + i] * first + c[15 + i] * rest[0] + c[18 + i] * rest[1] for i in range(3)])
    seen = through_air(air, look.flatten(2), distance.expand_as(t).flatten(1)).view(look.shape)
    return mix(colour, seen, alpha)
