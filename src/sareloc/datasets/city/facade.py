"""The face of a house: windows with frames, sills and shutters, doors, shop windows, bands, bricks.

Everything is a product of soft steps whose width is the pixel's own size in metres, so that a facade is smooth at any
distance; where a pixel holds several windows, their steps turn into their mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sareloc.datasets.city.sky import reflected
from sareloc.datasets.city.surface import Air, Hit, Light, Paint
from sareloc.datasets.city.texture import hashed, mix, smooth, unit


def _within(distance: Tensor, half: Tensor | float, soft: Tensor, period: Tensor, blend: Tensor) -> Tensor:
    """The share of a pixel within `half` of the middle of its cell; the mean over a period where `blend` is 1."""
    inside = ((half - distance.abs()) / soft + 0.5).clamp(0, 1)
    return mix(inside, (2 * half / period).clamp(0, 1), blend)  # type: ignore[union-attr]


def shade_facade(
    air: Air, paint: Paint, hit: Hit, light: Light, u: Tensor, soft_u: Tensor, soft_z: Tensor, facing: Tensor
) -> Tensor:
    """Colours (3, B, n) of facade points `u` metres along their wall; `facing` is the cosine to the ray."""
    z, ground, seed = hit.z, paint.ground, paint.seed.to(torch.int32)
    low = (z < ground).to(u.dtype)
    street = paint.street_floor
    shop = low * (street > 1.5)
    cell = paint.width / mix(paint.bays, paint.cells.clamp(min=1), low)
    column = (u / cell).floor()
    s = u - (column + 0.5) * cell
    floor_m = paint.floor
    storey = ((z - ground) / floor_m).floor()
    r = mix(z - ground - storey * floor_m, z, low)
    room = mix(floor_m, ground, low)
    number = hashed(seed, column, mix(storey, -torch.ones_like(storey), low))
    luck, luck2 = unit(number), unit(hashed(number))
    wanted = unit(hashed(seed)) * paint.bays
    door = low * (1 - shop) * (street > 0.5) * (column == wanted.floor())
    windows = mix((storey < paint.floors).to(u.dtype), (street > 0.5).to(u.dtype), low)

    half = mix(torch.minimum(paint.window, 0.5 * cell - 0.12), 0.5 * cell - 0.2, shop)
    half = mix(half, 0.55 * torch.ones_like(half), door).clamp(min=0.05)
    sill = mix(mix(paint.sill + 0.25 * low, torch.full_like(z, 0.45), shop), torch.full_like(z, 0.06), door)
    head = mix(mix(paint.head + 0.25 * low, ground - 1.2, shop), torch.full_like(z, 2.35), door)
    head = head - paint.arch * (1 - shop) * (s / half).square().clamp(max=1)
    blend_u = smooth(soft_u / cell * 1.4 - 0.35)
    blend_z = smooth(soft_z / room * 1.4 - 0.35)

    def across(reach: Tensor | float) -> Tensor:
        return _within(s, reach, soft_u, cell, blend_u)

    def up(bottom: Tensor, top: Tensor) -> Tensor:
        return _within(r - 0.5 * (bottom + top), 0.5 * (top - bottom), soft_z, room, blend_z)

    opening = across(half) * up(sill, head) * windows
    bars = _bars(s, r, half, sill, head, paint, shop, soft_u, soft_z)
    glass = opening * (1 - bars)

    wall = _wall(air, paint, hit, u, z, soft_u, soft_z)
    trim, accent = paint.colour(1), paint.colour(2)
    wall = mix(wall, trim, (1 - across(0.5 * cell - paint.pilaster)) * (1 - shop))
    band = paint.band
    wall = mix(wall, trim, up(torch.zeros_like(band), band) * (band > 0) * (1 - low))
    wall = wall * (1 - 0.35 * up(room - 0.1, room) * (band > 0.05))
    surround = paint.surround * (1 - shop)
    wall = mix(wall, trim, (across(half + surround) * up(sill - surround, head + surround) * windows).clamp(0, 1))
    shutter = paint.shutter * (1 - low)
    slats = 0.8 + 0.2 * ((r * 16.0) % 1 - 0.5).abs().mul(4).sub(1).clamp(-1, 1) * (1 - smooth(soft_z * 20))
    shut = (across(half + shutter) - across(half)).clamp(min=0) * up(sill, head) * windows
    wall = mix(wall, accent * slats, shut)
    plain = windows * (1 - shop) * (1 - door)
    wall = wall * (1 - 0.45 * across(half + 0.1) * up(sill - 0.28, sill - 0.1) * plain)
    ledge = across(half + 0.14) * up(sill - 0.12, sill) * plain
    wall = mix(wall, mix(trim, torch.ones_like(trim) * 0.85, air.snow), ledge)

    frame = mix(trim, accent, torch.maximum(shop, door))
    solid = mix(wall, frame, opening)
    solid = mix(solid, accent * (0.75 + 0.25 * (bars > 0.5)), opening * door)
    lit = light.rest + light.sun * (
        1 - opening * (1 - _sun_in_reveal(air, paint, s, r, half, sill, head, soft_u, soft_z))
    )
    colour = solid * lit
    pane = _glass(air, hit, light, facing, s, r, half, sill, head, soft_u, luck, luck2, shop, accent)
    colour = mix(colour, pane, glass * (1 - door))
    return _balcony(colour, lit, paint, air, s, r, half, luck2, storey, across, up, soft_u, plain * (1 - low))


def _bars(
    s: Tensor,
    r: Tensor,
    half: Tensor,
    sill: Tensor,
    head: Tensor,
    paint: Paint,
    shop: Tensor,
    soft_u: Tensor,
    soft_z: Tensor,
) -> Tensor:
    """The share of an opening taken by its frame and glazing bars."""
    share = torch.ones_like(s)
    for x, size, soft, panes in (
        (s + half, 2 * half, soft_u, mix(paint.panes_u, torch.full_like(s, 3.0), shop)),
        (r - sill, head - sill, soft_z, mix(paint.panes_v, torch.ones_like(s), shop)),
    ):
        pane = (size / panes.clamp(min=1)).clamp(min=0.05)
        near = ((x / pane) - (x / pane).round()).abs() * pane
        free = ((near - 0.045) / soft + 0.5).clamp(0, 1)
        share = share * mix(free, 1 - (0.09 / pane).clamp(0, 1), smooth(soft / pane * 1.4 - 0.35))
    return 1 - share


def _wall(air: Air, paint: Paint, hit: Hit, u: Tensor, z: Tensor, soft_u: Tensor, soft_z: Tensor) -> Tensor:
    """Bricks, cut stone or plaster, streaked with dirt."""
    page = torch.full_like(u, air.scene.page["wall"], dtype=torch.int32)
    brick, stone, plaster = air.scene.pages.fetch(page, u / 0.9, -z / 0.6, soft_u / 0.9, soft_z / 0.6, (0, 1, 2))
    shade = mix(mix(plaster, stone, paint.ashlar), brick, paint.brick)
    noise = torch.full_like(page, air.scene.page["noise"])
    along = u / 17.0 + paint.seed * 0.37
    broad, middle = air.scene.pages.fetch(noise, along, z / 29.0, soft_u / 17.0, soft_z / 29.0, (0, 2))
    dirt = 0.8 + 0.25 * broad + 0.12 * (middle - 0.5)
    splash = 1 - 0.25 * (1 - z / 0.8).clamp(0, 1)
    return paint.colour(0) * (shade * dirt * splash)


def _sun_in_reveal(
    air: Air,
    paint: Paint,
    s: Tensor,
    r: Tensor,
    half: Tensor,
    sill: Tensor,
    head: Tensor,
    soft_u: Tensor,
    soft_z: Tensor,
) -> Tensor:
    """The share of the sun that reaches a window 15 cm behind its wall: none under the lintel and beside the jamb."""
    sx, sy, sz = air.sun_direction
    nx, ny = paint.normal_x, paint.normal_y
    towards = (sx * nx + sy * ny).clamp(min=0.12)
    aside = 0.15 * (nx * sy - ny * sx) / towards
    above = 0.15 * sz / towards
    over = ((head - r - above) / soft_z + 0.5).clamp(0, 1)
    beside = ((half - (s + aside).abs()) / soft_u + 0.5).clamp(0, 1)
    return over * beside


def _glass(
    air: Air, hit: Hit, light: Light, facing: Tensor, s: Tensor, r: Tensor, half: Tensor, sill: Tensor, head: Tensor,
    soft_u: Tensor, luck: Tensor, luck2: Tensor, shop: Tensor, accent: Tensor,
) -> Tensor:  # fmt: skip
    """What a window pane shows: the room or the goods behind it, curtains, lamplight, and what it mirrors."""
    curtain = ((s.abs() - half * (0.35 + 0.6 * luck2)) / soft_u.clamp(min=0.03) + 0.5).clamp(0, 1)
    blind = ((r - head + (head - sill) * (luck * 7.0 % 1.0) * 0.7) / 0.05).clamp(0, 1) * (luck > 0.55)
    cloth = torch.maximum(curtain * (luck < 0.75), blind) * (1 - shop)
    shelf = _goods(s, r, luck, soft_u)
    inside = air.palette("dark room") * (1 - cloth) + air.palette("curtain") * cloth
    inside = mix(inside, 0.04 + 0.12 * accent * shelf + 0.2 * shelf, shop)
    on = ((luck2 < 0.32 + 0.38 * shop).to(s.dtype) * air.night).clamp(0, 1)
    warm = mix(air.palette("warm room"), air.palette("cold room"), (luck * 5.0 % 1.0).square())
    lamp = warm * on * (0.22 + 0.2 * luck + 0.15 * shop) * (1 - 0.45 * cloth) * (0.6 + 0.4 * (r - sill) / (head - sill))
    lamp = lamp * mix(torch.ones_like(shelf), 0.35 + shelf, shop)
    mirror = 0.09 + 0.75 * (1 - facing).clamp(0, 1).square().square()
    tilt = (luck - 0.5) * 0.06
    return inside * light.rest * 0.8 + lamp + reflected(air, hit, tilt) * mirror


def _goods(s: Tensor, r: Tensor, luck: Tensor, soft: Tensor) -> Tensor:
    """A shop's display: boxes of different heights on two shelves, 0 dark to 1 light; their mean from afar."""
    shelf = (r / 0.75).floor()
    box = (s / 0.28 + 0.5 * shelf).floor()
    h = hashed(box, shelf, (luck * 4096).to(torch.int32))
    tall = 0.15 + 0.5 * unit(h)
    middle = (s / 0.28 + 0.5 * shelf - box - 0.5).abs() * 0.28
    inside = ((0.11 - middle) / soft + 0.5).clamp(0, 1) * ((tall - (r - shelf * 0.75)) / soft + 0.5).clamp(0, 1)
    tone = 0.25 + 0.75 * unit(hashed(h))
    return mix(inside * tone, torch.full_like(s, 0.22), smooth(soft * 5 - 0.5)) * (shelf < 2)


def _balcony(  # noqa: PLR0913
    colour: Tensor, lit: Tensor, paint: Paint, air: Air, s: Tensor, r: Tensor, half: Tensor, luck: Tensor,
    storey: Tensor, across, up, soft_u: Tensor, plain: Tensor,
) -> Tensor:  # fmt: skip
    """Iron rails, or solid balustrades, before the windows of some floors; the same floors all along a house."""
    share = paint.balcony
    floor_luck = unit(hashed(paint.seed.to(torch.int32) + 17, storey))
    here = plain * (floor_luck < share.abs()).to(s.dtype)
    zero = torch.zeros_like(r)
    reach = half + 0.32
    rail = ((0.025 - ((s / 0.13) % 1 - 0.5).abs() * 0.13) / soft_u + 0.5).clamp(0, 1)
    rail = mix(rail, torch.full_like(rail, 0.38), smooth(soft_u * 9))
    bars = torch.maximum(rail * up(zero, zero + 0.95), up(zero + 0.92, zero + 1.02))
    solid = (share < 0).to(s.dtype)
    cover = across(reach) * here * mix(bars, up(zero, zero + 1.0), solid)
    tone = mix(air.palette("iron"), paint.colour(2) * 0.8, solid)
    colour = mix(colour, tone * lit, cover)
    slab = across(reach) * here * up(zero - 0.02, zero + 0.12)
    return mix(colour, paint.colour(1) * lit * 0.85, slab)
