"""Trees, lamps, people: flat drawings that turn to the camera, laid over the town from far to near."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sareloc.datasets.city.lighting import CELL_M
from sareloc.datasets.city.raster import Grid, make_candidates, nearest_pieces, surface_point, tile_lists
from sareloc.datasets.city.streets import MARGIN_M
from sareloc.datasets.city.surface import Air, through_air
from sareloc.datasets.city.texture import field_at, mix

if TYPE_CHECKING:
    from sareloc.datasets.city.render import View

SPRITES_PER_VIEW, SPRITES_PER_TILE = 96, 8
NEAREST_M = 1.6


def lay_sprites(
    air: Air,
    view: View,
    grid: Grid,
    wall: Tensor,
    counts: Tensor,
    colour: Tensor,
    away: Tensor,
    column: Tensor,
    row: Tensor,
) -> Tensor:
    """Colours (3, B, n) with every sprite in front of depth `away` (B, n) laid over; `wall` as of `tile_lists`."""
    scene = air.scene
    b = len(view.eye)
    sprites = torch.cat([scene.fixed_sprites.expand(b, -1, -1), scene.moving_sprites.index_select(0, view.moment)], 1)
    corner, u, v, distance = _turned(sprites, view.eye)
    everything = make_candidates(corner, u, v, view.rays, view.unproject, view.eye)
    everything = replace(everything, seen=everything.seen & (distance > NEAREST_M))
    chosen = nearest_pieces(everything, sprites[..., 4], grid, SPRITES_PER_VIEW)
    candidates = everything.take(chosen)
    sprites = torch.gather(sprites, 1, chosen[..., None].expand(-1, -1, sprites.shape[-1]))
    distance = torch.gather(distance, 1, chosen)
    solid = torch.zeros_like(candidates.seen)
    lists, counts, _ = tile_lists(candidates, solid, grid, SPRITES_PER_TILE, hidden_behind=wall)
    looks = _looks(air, sprites, distance)
    pixels = grid.column.shape[2]
    colour = colour.unflatten(2, (-1, pixels)).clone()
    depth = away.unflatten(1, (-1, pixels))
    for slot in reversed(range(lists.shape[2])):
        use = counts > slot
        if scene.dense:
            colour = _lay(air, view, grid, lists[:, :, slot], use, candidates.coefficients, looks, colour, depth)
        else:
            tiles = use[0].nonzero()[:, 0]
            if len(tiles):
                part = _lay(
                    air, view, grid.take(tiles), lists[:, tiles, slot], use[:, tiles], candidates.coefficients, looks,
                    colour[:, :, tiles], depth[:, tiles],
                )  # fmt: skip
                colour[:, :, tiles] = part
    return colour.flatten(2)


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
    """(B, K, 21) what a pixel needs of its sprite: page, width, height, flip, first colours under the light, glow, depth."""
    tree = sprites[..., 5] != sprites[..., 6]
    bare = (air.bare > 0.5) & tree
    page = torch.where(bare, sprites[..., 6], sprites[..., 5])
    x, y = ((sprites[..., i] + MARGIN_M) / CELL_M for i in (0, 1))
    scene = air.scene
    shadow, _, lamps, sky = field_at(list(scene.fields), scene.field_shape, air.rows[:, None], x, y)
    middle = sprites[..., 4] * 0.6
    sun = ((middle - shadow) * 0.4 + 1).clamp(0, 1)
    light = (
        air.ambient * (0.35 + 0.65 * sky)
        + air.sun * (0.6 * sun)
        + air.palette("lamplight") * (0.16 * lamps * air.night)
    )
    colours = sprites[..., 7:16].unflatten(-1, (3, 3)).permute(3, 0, 1, 2)
    tint = mix(torch.ones_like(air.leaf), air.leaf, sprites[..., 17])
    parts = [
        colours[:, :, :, 0] * light,
        colours[:, :, :, 1] * tint * (light + sprites[..., 16] * air.night),
        colours[:, :, :, 2] * light,
    ]
    white = air.palette("snow") * light
    snow = 0.45 * air.snow * sprites[..., 17]
    parts[:2] = [mix(part, white, snow) for part in parts[:2]]
    flat = torch.stack(parts, -1).permute(1, 2, 3, 0).flatten(2)
    return torch.cat([torch.stack([page, sprites[..., 3], sprites[..., 4], distance], -1), flat], -1)


def _lay(
    air: Air, view: View, grid: Grid, index: Tensor, use: Tensor, coefficients: Tensor, looks: Tensor, colour: Tensor,
    depth: Tensor,
) -> Tensor:  # fmt: skip
    """One more sprite per tile over what is there."""
    rows = torch.cat([coefficients.flatten(2), looks], -1)
    picked = torch.gather(rows, 1, index[..., None].expand(-1, -1, rows.shape[-1]))
    c = [x[..., None] for x in picked.unbind(-1)]
    t, a, b, fa, fb = surface_point(c[:9], grid.column, grid.row)
    page, width, distance = c[9].to(torch.int32), c[10], c[12]
    a = torch.where(width < 0, 1 - a, a)
    x, y = a.clamp(0.004, 0.996), (1 - b).clamp(0.004, 0.996)
    page = page.expand_as(x)
    shade, second, third, opacity = air.scene.pages.fetch(page, x, y, fa, fb)
    inside = ((0.5 - (a - 0.5).abs()) / fa + 0.5).clamp(0, 1) * ((0.5 - (b - 0.5).abs()) / fb + 0.5).clamp(0, 1)
    front = ((depth - t) * 4 + 0.5).clamp(0, 1) * (c[0] + c[1] * grid.column + c[2] * grid.row > 1e-4)
    alpha = opacity * inside * front * use[..., None]
    look = (
        torch.stack([c[13 + i] * (1 - second - third) + c[16 + i] * second + c[19 + i] * third for i in range(3)])
        * shade
    )
    b_, tiles, pixels = t.shape
    seen = through_air(air, look.flatten(2), distance.expand_as(t).flatten(1)).unflatten(2, (tiles, pixels))
    return mix(colour, seen, alpha)
