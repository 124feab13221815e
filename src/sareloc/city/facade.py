"""The facade shader: the wall, its ornaments, windows with frames, sills and shutters, doors, shop windows, balconies.

Shapes are products of soft steps as wide as the pixel's footprint in metres, which antialiases facades at any distance;
where a pixel covers several windows, the steps turn into their mean. No two windows of a house are copies: position,
size, glazing bars, shutters, flower boxes and what is behind the glass come from a hash of house, column and floor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sareloc.city.atlas import from_multiple, hashed, less, mix, smooth, thirds, unit
from sareloc.city.bay import Bay, make_bay, several, within
from sareloc.city.pane import shade_pane
from sareloc.city.scene import Air, Hit, Light, Paint
from sareloc.city.wall import Wall, shade_wall

REVEAL_M = 0.15
"""Depth of the glass behind the wall."""


def shade_facade(
    air: Air, paint: Paint, hit: Hit, light: Light, u: Tensor, soft_u: Tensor, soft_z: Tensor, facing: Tensor
) -> Tensor:
    """Colours (3, B, n) of facade points `u` metres along their wall; `facing`: cosine between normal and ray."""
    bay = make_bay(air, paint, hit.z, u, soft_u, soft_z)
    opening = bay.across(bay.half) * bay.up(bay.sill, bay.head) * bay.windows
    bars = _bars(bay, paint)
    accent, trim = paint.colour(2), paint.colour(1)
    surface = shade_wall(air, paint, hit.z, u, soft_u, soft_z)
    wall = _shutters(_ornament(surface.colour, trim * (1 - 0.3 * surface.run), paint, bay), accent, paint, bay)
    wall = _sills(wall, mix(trim, air.palette("snow").expand_as(trim), air.snow), paint, bay, surface)
    frames = mix(mix(trim, accent, paint.painted), accent, torch.maximum(bay.shop, bay.door))
    solid = mix(wall, frames * (0.85 + 0.3 * bay.luck[2]), opening)
    solid = mix(solid, _door(accent, bay) * (0.75 + 0.25 * bars), opening * bay.door)
    solid = mix(solid, accent * _slats(bay, 16.0) * (0.7 + 0.5 * bay.luck[0]), opening * _closed(paint, bay))
    lit = light.rest + light.sun * (1 - opening * (1 - _sun_in_reveal(air, paint, bay)))
    colour = solid * lit
    glass = opening * (1 - bars) * (1 - bay.door) * (1 - _closed(paint, bay))
    colour = mix(colour, shade_pane(air, hit, light, facing, paint, bay, accent), glass)
    colour = _boxes(air, colour, lit, paint, bay, surface)
    return _balcony(air, colour, lit, paint, bay, surface)


def _ornament(wall: Tensor, trim: Tensor, paint: Paint, bay: Bay) -> Tensor:
    """Pilasters between the bays, a band with its shadow on every floor, a surround around each window."""
    band, pilaster, surround = paint.band, paint.pilaster, paint.surround * (1 - bay.shop)
    between = 1 - within(bay.aside, 0.5 * bay.cell - pilaster, bay.soft_u, bay.cell)
    wall = mix(wall, trim, between * (1 - bay.shop) * (pilaster > 0))
    wall = mix(wall, trim, bay.up(torch.zeros_like(band), band) * (1 - bay.low) * (band > 0))
    wall = wall * (1 - 0.35 * bay.up(bay.room - 0.1, bay.room) * (band > 0.05))
    around = bay.across(bay.half + surround) * bay.up(bay.sill - surround, bay.head + surround)
    return mix(wall, trim * (0.9 + 0.2 * bay.chance[0]), around * bay.windows)


def _slats(bay: Bay, per_m: float) -> Tensor:
    wave = ((bay.r * per_m) % 1 - 0.5).abs() * 4 - 1
    return 0.8 + 0.2 * wave * (1 - smooth(bay.soft_z * 20))


def _closed(paint: Paint, bay: Bay) -> Tensor:
    """1 where a window is behind a closed shutter or roller blind; most are the same at all moments."""
    luck = torch.where(bay.luck[2] < 0.3, bay.today[0], bay.chance[0])
    shut = (luck < paint.closed) * bay.plain
    down = bay.sill + (bay.head - bay.sill) * (bay.luck[0] < 0.5) * bay.chance[1] * 0.8
    return shut * less(down, bay.r, bay.soft_z)


def _shutters(wall: Tensor, accent: Tensor, paint: Paint, bay: Bay) -> Tensor:
    """Open shutters beside windows: both, one or none of them."""
    reach = paint.shutter * (1 - bay.low) * (0.75 + 0.25 * bay.luck[1])
    sides = torch.where(bay.s < 0, bay.chance[1] > 0.12, bay.chance[2] > 0.12)
    beside = (bay.across(bay.half + reach) - bay.across(bay.half)) * sides
    colour = accent * (_slats(bay, 16.0) * (0.8 + 0.4 * bay.luck[0]))
    return mix(wall, colour, beside.clamp(min=0) * bay.up(bay.sill, bay.head) * bay.windows)


def _sills(wall: Tensor, ledge: Tensor, paint: Paint, bay: Bay, surface: Wall) -> Tensor:
    """A sill under each window, its shadow, and streaks of rain below it."""
    over = 0.06 + 0.12 * bay.luck[0]
    under = bay.across(bay.half + over) * bay.plain
    shadow = under * bay.up(bay.sill - 0.28, bay.sill - 0.1)
    fade = (1 - (bay.sill - bay.r) / (0.5 + 1.2 * bay.chance[0])).clamp(0, 1) * (bay.r < bay.sill)
    wet = under * fade * surface.run * paint.streak
    thick = 0.06 + 0.08 * bay.chance[2]
    wall = wall * ((1 - 0.45 * shadow) * (1 - 0.7 * wet))
    return mix(wall, ledge * (0.8 + 0.3 * bay.luck[1]), under * bay.up(bay.sill - thick, bay.sill))


def _bars(bay: Bay, paint: Paint) -> Tensor:
    """The coverage of an opening by its frame and glazing bars."""
    free, one = torch.ones_like(bay.s), torch.ones_like(bay.s)
    renewed = (bay.chance[0] < paint.renewed).to(free.dtype) * (1 - bay.door)
    display = 1 + (bay.luck[0] * 4).floor()
    half = paint.frame * (0.7 + 0.6 * bay.luck[2])
    for x, size, soft, panes in (
        (bay.s + bay.half, 2 * bay.half, bay.soft_u, mix(mix(paint.panes_u, one, renewed), display, bay.shop)),
        (bay.r - bay.sill, bay.head - bay.sill, bay.soft_z, mix(mix(paint.panes_v, one, renewed), one, bay.shop)),
    ):
        pane = (size / panes.clamp(min=1)).clamp(min=0.05)
        clear = less(half, from_multiple(x, pane), soft)
        free = free * mix(clear, 1 - (2 * half / pane).clamp(0, 1), several(soft, pane))
    # a fanlight or a lower rail of its own
    rail = bay.sill + (bay.head - bay.sill) * (0.3 + 0.5 * bay.luck[1])
    crossing = less((bay.r - rail).abs(), half, bay.soft_z) * (bay.luck[0] < 0.4)
    return 1 - free * (1 - crossing * (1 - bay.door))


def _door(accent: Tensor, bay: Bay) -> Tensor:
    """A door with panels of its own, and a window above it."""
    rows = 1 + (bay.luck[0] * 4).floor()
    across, over = (bay.s / bay.half).abs(), ((bay.r - bay.sill) / (bay.head - bay.sill) * rows) % 1
    panel = ((across - 0.15) * 6).clamp(0, 1) * ((0.85 - across) * 6).clamp(0, 1)
    panel = panel * ((over - 0.12) * 8).clamp(0, 1) * ((0.88 - over) * 8).clamp(0, 1)
    return accent * (1 - 0.35 * panel) * (0.7 + 0.6 * bay.chance[0])


def _sun_in_reveal(air: Air, paint: Paint, bay: Bay) -> Tensor:
    """The fraction of sunlight that reaches the glass; lintel and jamb cast shadows."""
    sx, sy, sz = air.sun_direction
    nx, ny = paint.normal_x, paint.normal_y
    towards = (sx * nx + sy * ny).clamp(min=0.12)
    aside, above = REVEAL_M * (nx * sy - ny * sx) / towards, REVEAL_M * sz / towards
    return less(above, bay.head - bay.r, bay.soft_z) * less((bay.s + aside).abs(), bay.half, bay.soft_u)


def _boxes(air: Air, colour: Tensor, lit: Tensor, paint: Paint, bay: Bay, surface: Wall) -> Tensor:
    """Flower boxes on some sills, air conditioners below others."""
    third = thirds(hashed(bay.number + 3))
    wide = bay.half * (0.6 + 0.5 * third[1])
    here = bay.plain * (third[0] < paint.flowers)
    top = bay.sill + 0.1 + 0.5 * (surface.uneven - 0.3).clamp(min=0) * (0.4 + third[2])
    leaves = here * bay.across(wide) * bay.up(bay.sill - 0.05, top)
    bloom = smooth((surface.uneven + 0.4 * third[1] - 0.72) * 20)
    petals = torch.stack([0.35 + 0.5 * third[2], 0.1 + 0.6 * third[1], 0.5 - 0.4 * third[2]])
    green = air.palette("leaves") * (1 - 0.5 * air.bare) + 0.08 * air.bare
    colour = mix(
        colour, mix(green.expand_as(petals) * (0.5 + surface.uneven), petals, bloom * (1 - air.bare)) * lit, leaves
    )
    colour = mix(
        colour, paint.colour(2) * 0.7 * lit, here * bay.across(wide) * bay.up(bay.sill - 0.12, bay.sill + 0.03)
    )
    side = bay.s - bay.half * (third[1] - 0.5)
    case = less(side.abs(), 0.38, bay.soft_u) * bay.up(bay.sill - 0.78, bay.sill - 0.22)
    case = case * bay.plain * (1 - bay.low) * (third[2] < paint.cooler)
    away = (side + 0.08).square() + (bay.r - bay.sill + 0.5).square()
    fan = 1 - 0.6 * less(away, 0.042, 0.4 * bay.soft_u)
    return mix(colour, air.palette("metal") * lit * (fan * (0.7 + 0.5 * third[0])), case)


def _balcony(air: Air, colour: Tensor, lit: Tensor, paint: Paint, bay: Bay, surface: Wall) -> Tensor:
    """Iron rails or solid balustrades at the windows of some floors; some have plants, cloths or screens."""
    share, zero = paint.balcony, torch.zeros_like(bay.r)
    floor = unit(hashed(paint.seed.to(torch.int32) + 17, bay.storey)) < share.abs()
    third = thirds(hashed(bay.number + 11))
    here = bay.plain * (1 - bay.low) * floor * (third[0] < 0.85)
    high, gap = 0.85 + 0.25 * third[1], paint.rail
    rail = less(((bay.s / gap) % 1 - 0.5).abs() * gap, 0.16 * gap, bay.soft_u)
    rail = mix(rail, torch.full_like(rail, 0.34), smooth(bay.soft_u / gap * 1.2))
    bars = torch.maximum(rail * bay.up(zero, high), bay.up(high - 0.06, high + 0.02))
    screen = (third[2] < 0.25).to(zero.dtype)
    solid = torch.maximum((share < 0).to(share.dtype), screen)
    wide = bay.across(bay.half + 0.12 + 0.25 * third[1]) * here
    cloth = torch.stack([0.2 + 0.4 * third[0], 0.15 + 0.4 * third[1], 0.12 + 1.2 * third[2]])
    tone = mix(air.palette("iron").expand_as(cloth), mix(paint.colour(2) * 0.8, cloth, screen), solid)
    colour = mix(colour, tone * lit, wide * mix(bars, bay.up(zero, high), solid))
    plants = bay.up(high - 0.2, high + 0.5 * (surface.uneven - 0.2).clamp(min=0)) * (third[1] > 0.7)
    green = air.palette("leaves") * (0.5 + 1.5 * surface.uneven) * (1 - 0.6 * air.bare)
    colour = mix(colour, green * lit, wide * plants * smooth((surface.uneven - 0.35) * 12))
    return mix(colour, paint.colour(1) * lit * 0.85, wide * bay.up(zero - 0.02, zero + 0.12))
