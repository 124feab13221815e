"""The surface of walls: masonry, plaster, stains, streaks, repairs, pipes and cables; no two houses have the same.

Bricks and stones are cells of a grid, their brightness a hash of the house and the cell. It fades to the mean over the
pixel at the edge of a cell, so that rounding does not decide on which side of a joint a pixel lies. Stains are a part
of the page of noise that is the house's own, by offset and size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sareloc.city.atlas import from_multiple, hashed, less, mix, smooth, unit
from sareloc.city.scene import Air, Paint

STREAK_M = 0.11
"""Distance between streaks of rain."""


@dataclass(frozen=True, eq=False)
class Wall:
    """The surface at pixels."""

    colour: Tensor
    """(3, B, n)"""
    uneven: Tensor
    """Noise of the house in [0, 1], for plants and dirt."""
    run: Tensor
    """How much rain has run down here, 0 to 1; streaks begin below sills."""


def shade_wall(air: Air, paint: Paint, z: Tensor, u: Tensor, soft_u: Tensor, soft_z: Tensor) -> Wall:
    """The wall without windows, `u` metres from its left edge and `z` metres above the ground."""
    size = paint.stain_m
    at_u, at_v = u / size + paint.stain_u, z / size + paint.stain_v
    broad, other, middle = air.noise(at_u, at_v, soft_u / size, soft_z / size, (0, 1, 2))

    fallen = smooth((other + 0.25 * middle - paint.patch - 0.1) * 24)
    masonry = torch.maximum(paint.masonry, fallen)
    shade, odd = _blocks(paint, z, u, soft_u, soft_z, (middle - 0.5) * paint.rough)
    plaster = 0.92 + 0.16 * (middle - 0.5)
    colour = mix(paint.colour(0), paint.colour(1), odd * paint.masonry)
    # plaster falls off brick; masonry is mended with plaster
    mended = mix(
        air.palette("bare brick").expand_as(colour), air.palette("fresh plaster").expand_as(colour), paint.masonry
    )
    colour = mix(colour, mended * (0.8 + 0.4 * broad), fallen)
    bare = mix(plaster, shade, masonry * (1 - fallen * paint.masonry))
    plinth = less(z, paint.plinth, soft_z)
    colour = mix(colour, paint.colour(1) * (0.55 + 0.5 * broad), plinth * (paint.masonry < 0.5))

    run = _streaks(paint, u + 0.2 * (other - 0.5), soft_u)
    stained = smooth((broad + 0.45 * middle - 0.72) * 4.5)
    age = (1 - 0.55 * paint.grime * stained) * (1 - 0.3 * (1 - z / 0.9).clamp(0, 1) * (0.5 + middle))
    top = (1 - (paint.height - z) / 2.2).clamp(0, 1)
    age = age * (1 - paint.streak * run * (0.12 + 0.6 * top)) * (0.86 + 0.3 * (broad - 0.5) + 0.22 * (middle - 0.5))
    tint = (other - 0.5) * 0.22
    colour = colour * torch.stack([1 + tint, torch.ones_like(tint), 1 - tint]) * (bare * age)
    return Wall(_lines(air, paint, colour, z, u, soft_u, soft_z), middle, run)


def _streaks(paint: Paint, u: Tensor, soft_u: Tensor) -> Tensor:
    """How much rain runs down the wall at u: upright streaks of different strength, their mean from afar."""
    at = u / STREAK_M
    left = at.floor()
    seed = paint.seed.to(torch.int32) + 29
    rain = mix(unit(hashed(seed, left)), unit(hashed(seed, left + 1)), smooth(at - left))
    return mix(smooth((rain - 0.45) * 3), torch.full_like(u, 0.5), smooth(soft_u / STREAK_M - 0.5))


def _blocks(paint: Paint, z: Tensor, u: Tensor, soft_u: Tensor, soft_z: Tensor, warp: Tensor) -> tuple[Tensor, Tensor]:
    """The brightness of bricks or stones with their joints, and the coverage by blocks of another colour."""
    high, wide = paint.course, paint.block
    over = (z + warp) / high
    row = over.floor()
    along = (u + warp) / wide + paint.bond * row
    column = along.floor()
    edge_u, edge_z = (0.5 - (along - column - 0.5).abs()) * wide, (0.5 - (over - row - 0.5).abs()) * high
    clear = 1 - smooth(soft_z / high * 1.6 - 0.4)
    inner = torch.minimum(edge_u / soft_u, edge_z / soft_z).clamp(0, 1) * clear
    luck = unit(hashed(paint.seed.to(torch.int32), row, column))
    gap = torch.maximum(less(edge_u, paint.joint, soft_u), less(edge_z, paint.joint, soft_z))
    # from afar joints are a share of the wall
    gap = mix(2 * paint.joint * (1 / high + 1 / wide), gap, clear)
    shade = mix(1 + (luck - 0.5) * paint.tone * inner, paint.mortar, gap)
    return shade, (luck < paint.odd) * inner


def _lines(air: Air, paint: Paint, colour: Tensor, z: Tensor, u: Tensor, soft_u: Tensor, soft_z: Tensor) -> Tensor:
    """A downpipe with its shadow, and a cable that sags."""
    aside = u - paint.pipe
    pipe = less(aside.abs(), 0.055, soft_u)
    shadow = less((aside - 0.1).abs(), 0.06, soft_u)
    rings = less(from_multiple(z, 1.9), 0.05, soft_z)
    round_shade = 0.5 + 5 * (0.08 - (aside + 0.02).abs()).clamp(0, 0.08) + 0.3 * rings
    metal = mix(air.palette("metal").expand_as(colour), paint.colour(2), paint.bond) * round_shade
    colour = mix(colour * (1 - 0.35 * shadow), metal, pipe)
    share = (u / paint.width).clamp(0, 1)
    low = paint.cable - 0.5 * share * (1 - share)
    cable = less((z - low).abs(), 0.014, soft_z)
    return mix(colour, air.palette("iron").expand_as(colour), 0.85 * cable)
