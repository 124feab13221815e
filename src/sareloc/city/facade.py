"""The facade shader: windows with frames, sills and shutters, doors, shop windows, bands, bricks.

Shapes are products of soft steps as wide as the pixel's footprint in metres, which antialiases facades at any distance;
where a pixel covers several windows, the steps turn into their mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sareloc.city.atlas import hashed, mix, smooth, unit
from sareloc.city.scene import Air, Hit, Light, Paint, reflected

REVEAL_M = 0.15
"""Depth of the glass behind the wall."""


@dataclass(frozen=True, eq=False)
class Bay:
    """The cell of the facade's grid at a pixel: one window, door or shop window; lengths in metres."""

    s: Tensor
    """Horizontal position from the centre of the cell."""
    r: Tensor
    """Height above the floor."""
    cell: Tensor
    room: Tensor
    """Width and height of the cell."""
    half: Tensor
    """Half width of the opening."""
    sill: Tensor
    head: Tensor
    soft_u: Tensor
    soft_z: Tensor
    """The pixel's footprint."""
    storey: Tensor
    low: Tensor
    """1 on the ground floor."""
    shop: Tensor
    door: Tensor
    windows: Tensor
    """1 if the cell has an opening."""
    luck: Tensor
    luck2: Tensor
    """Two random numbers in [0, 1) of the cell."""

    def across(self, reach: Tensor) -> Tensor:
        """The fraction of the pixel within `reach` of the centre of its cell."""
        return _within(self.s, reach, self.soft_u, self.cell)

    def up(self, bottom: Tensor, top: Tensor) -> Tensor:
        """The fraction of the pixel between two heights above its floor."""
        return _within(self.r - 0.5 * (bottom + top), 0.5 * (top - bottom), self.soft_z, self.room)

    @property
    def plain(self) -> Tensor:
        """1 if the opening is a window (not a shop window or a door)."""
        return self.windows * (1 - self.shop) * (1 - self.door)


def _within(distance: Tensor, half: Tensor, soft: Tensor, period: Tensor) -> Tensor:
    inside = ((half - distance.abs()) / soft + 0.5).clamp(0, 1)
    return mix(inside, (2 * half / period).clamp(0, 1), _several(soft, period))


def _several(soft: Tensor, period: Tensor) -> Tensor:
    """0 if a pixel is small against the period of a pattern, 1 if it covers more than one period."""
    return smooth(soft / period * 1.4 - 0.35)


def shade_facade(
    air: Air, paint: Paint, hit: Hit, light: Light, u: Tensor, soft_u: Tensor, soft_z: Tensor, facing: Tensor
) -> Tensor:
    """Colours (3, B, n) of facade points `u` metres along their wall; `facing`: cosine between normal and ray."""
    bay = _bay(paint, hit.z, u, soft_u, soft_z)
    opening = bay.across(bay.half) * bay.up(bay.sill, bay.head) * bay.windows
    bars = _bars(bay, paint)
    accent, trim = paint.colour(2), paint.colour(1)
    wall = _shutters(_ornament(_wall(air, paint, hit.z, u, soft_u, soft_z), trim, paint, bay), accent, paint, bay)
    wall = _sills(wall, mix(trim, air.palette("snow").expand_as(trim), air.snow), bay)
    solid = mix(wall, mix(trim, accent, torch.maximum(bay.shop, bay.door)), opening)
    solid = mix(solid, accent * (0.75 + 0.25 * bars), opening * bay.door)
    lit = light.rest + light.sun * (1 - opening * (1 - _sun_in_reveal(air, paint, bay)))
    colour = solid * lit
    colour = mix(colour, _pane(air, hit, light, facing, bay, accent), opening * (1 - bars) * (1 - bay.door))
    return _balcony(air, colour, lit, paint, bay)


def _bay(paint: Paint, z: Tensor, u: Tensor, soft_u: Tensor, soft_z: Tensor) -> Bay:
    ground, floor, seed, street = paint.ground, paint.floor, paint.seed.to(torch.int32), paint.street_floor
    one = torch.ones_like(z)
    low = (z < ground).to(z.dtype)
    shop = low * (street > 1.5)
    cell = paint.width / mix(paint.bays, paint.cells.clamp(min=1), low)
    column = (u / cell).floor()
    s = u - (column + 0.5) * cell
    storey = mix(((z - ground) / floor).floor(), -one, low)
    number = hashed(seed, column, storey)
    entrance = (unit(hashed(seed)) * paint.bays).floor()
    door = low * (1 - shop) * (street > 0.5) * (column == entrance)
    half = mix(torch.minimum(paint.window, 0.5 * cell - 0.12), 0.5 * cell - 0.2, shop)
    half = mix(half, 0.55 * one, door).clamp(min=0.05)
    sill = mix(mix(paint.sill + 0.25 * low, 0.45 * one, shop), 0.06 * one, door)
    head = mix(mix(paint.head + 0.25 * low, ground - 1.2, shop), 2.35 * one, door)
    return Bay(
        s=s,
        r=mix(z - ground - storey * floor, z, low),
        cell=cell,
        room=mix(floor, ground, low),
        half=half,
        sill=sill,
        head=head - paint.arch * (1 - shop) * (s / half).square().clamp(max=1),
        soft_u=soft_u,
        soft_z=soft_z,
        storey=storey,
        low=low,
        shop=shop,
        door=door,
        windows=mix((storey < paint.floors).to(z.dtype), (street > 0.5).to(z.dtype), low),
        luck=unit(number),
        luck2=unit(hashed(number)),
    )


def _wall(air: Air, paint: Paint, z: Tensor, u: Tensor, soft_u: Tensor, soft_z: Tensor) -> Tensor:
    """Brick, cut stone or plaster with dirt."""
    pages = air.scene.pages
    page = torch.full_like(u, air.scene.page["wall"], dtype=torch.int32)
    brick, stone, plaster = pages.fetch(page, u / 0.9, -z / 0.6, soft_u / 0.9, soft_z / 0.6, (0, 1, 2))
    shade = mix(mix(plaster, stone, paint.ashlar), brick, paint.brick)
    noise = torch.full_like(page, air.scene.page["noise"])
    along = u / 17.0 + paint.seed * 0.37
    broad, middle = pages.fetch(noise, along, z / 29.0, soft_u / 17.0, soft_z / 29.0, (0, 2))
    splash = 1 - 0.25 * (1 - z / 0.8).clamp(0, 1)
    return paint.colour(0) * (shade * splash * (0.74 + 0.25 * broad + 0.12 * middle))


def _ornament(wall: Tensor, trim: Tensor, paint: Paint, bay: Bay) -> Tensor:
    """Pilasters between the bays, a band with its shadow on every floor, a surround around each window."""
    band, pilaster, surround = paint.band, paint.pilaster, paint.surround * (1 - bay.shop)
    wall = mix(wall, trim, (1 - bay.across(0.5 * bay.cell - pilaster)) * (1 - bay.shop) * (pilaster > 0))
    wall = mix(wall, trim, bay.up(torch.zeros_like(band), band) * (1 - bay.low) * (band > 0))
    wall = wall * (1 - 0.35 * bay.up(bay.room - 0.1, bay.room) * (band > 0.05))
    around = bay.across(bay.half + surround) * bay.up(bay.sill - surround, bay.head + surround)
    return mix(wall, trim, around * bay.windows)


def _shutters(wall: Tensor, accent: Tensor, paint: Paint, bay: Bay) -> Tensor:
    wave = ((bay.r * 16.0) % 1 - 0.5).abs() * 4 - 1
    slats = 0.8 + 0.2 * wave * (1 - smooth(bay.soft_z * 20))
    beside = bay.across(bay.half + paint.shutter * (1 - bay.low)) - bay.across(bay.half)
    return mix(wall, accent * slats, beside.clamp(min=0) * bay.up(bay.sill, bay.head) * bay.windows)


def _sills(wall: Tensor, ledge: Tensor, bay: Bay) -> Tensor:
    """A sill under each window, and its shadow."""
    shadow = bay.across(bay.half + 0.1) * bay.up(bay.sill - 0.28, bay.sill - 0.1) * bay.plain
    return mix(
        wall * (1 - 0.45 * shadow), ledge, bay.across(bay.half + 0.14) * bay.up(bay.sill - 0.12, bay.sill) * bay.plain
    )


def _bars(bay: Bay, paint: Paint) -> Tensor:
    """The coverage of an opening by its frame and glazing bars."""
    free = torch.ones_like(bay.s)
    for x, size, soft, panes in (
        (bay.s + bay.half, 2 * bay.half, bay.soft_u, mix(paint.panes_u, torch.full_like(bay.s, 3.0), bay.shop)),
        (bay.r - bay.sill, bay.head - bay.sill, bay.soft_z, mix(paint.panes_v, torch.ones_like(bay.s), bay.shop)),
    ):
        pane = (size / panes.clamp(min=1)).clamp(min=0.05)
        near = ((x / pane) - (x / pane).round()).abs() * pane
        clear = ((near - 0.045) / soft + 0.5).clamp(0, 1)
        free = free * mix(clear, 1 - (0.09 / pane).clamp(0, 1), _several(soft, pane))
    return 1 - free


def _sun_in_reveal(air: Air, paint: Paint, bay: Bay) -> Tensor:
    """The fraction of sunlight that reaches the glass; lintel and jamb cast shadows."""
    sx, sy, sz = air.sun_direction
    nx, ny = paint.normal_x, paint.normal_y
    towards = (sx * nx + sy * ny).clamp(min=0.12)
    aside, above = REVEAL_M * (nx * sy - ny * sx) / towards, REVEAL_M * sz / towards
    over: Tensor = ((bay.head - bay.r - above) / bay.soft_z + 0.5).clamp(0, 1)
    beside: Tensor = ((bay.half - (bay.s + aside).abs()) / bay.soft_u + 0.5).clamp(0, 1)
    return over * beside


def _pane(air: Air, hit: Hit, light: Light, facing: Tensor, bay: Bay, accent: Tensor) -> Tensor:
    """The colour of a window pane: room or goods behind it, curtains, interior light, and reflection."""
    tall = (bay.head - bay.sill).clamp(min=0.1)
    open_share = bay.half * (0.35 + 0.6 * bay.luck2)
    curtain = ((bay.s.abs() - open_share) / bay.soft_u.clamp(min=0.03) + 0.5).clamp(0, 1) * (bay.luck < 0.75)
    blind = ((bay.r - bay.head + tall * (bay.luck * 7.0 % 1.0) * 0.7) / 0.05).clamp(0, 1) * (bay.luck > 0.55)
    cloth = torch.maximum(curtain, blind) * (1 - bay.shop)
    shelf = _goods(bay)
    inside = mix(air.palette("dark room"), air.palette("curtain"), cloth)
    inside = mix(inside, 0.04 + 0.12 * accent * shelf + 0.2 * shelf, bay.shop)
    on = (bay.luck2 < 0.32 + 0.38 * bay.shop) * air.night
    warm = mix(air.palette("warm room"), air.palette("cold room"), (bay.luck * 5.0 % 1.0).square())
    strength = (0.22 + 0.2 * bay.luck + 0.15 * bay.shop) * (1 - 0.45 * cloth) * (0.6 + 0.4 * (bay.r - bay.sill) / tall)
    lamp = warm * (on * strength * mix(torch.ones_like(shelf), 0.35 + shelf, bay.shop))
    mirror = 0.09 + 0.75 * (1 - facing).clamp(0, 1).square().square()
    shine: Tensor = reflected(air, hit, (bay.luck - 0.5) * 0.06) * mirror
    return inside * light.rest * 0.8 + lamp + shine


def _goods(bay: Bay) -> Tensor:
    """A shop display: boxes of different heights on two shelves, 0 dark to 1 light; their mean at a distance."""
    shelf = (bay.r / 0.75).floor()
    along = bay.s / 0.28 + 0.5 * shelf
    box = along.floor()
    h = hashed(box, shelf, bay.luck * 4096)
    tall = 0.15 + 0.5 * unit(h)
    inside = ((0.11 - (along - box - 0.5).abs() * 0.28) / bay.soft_u + 0.5).clamp(0, 1)
    inside = inside * ((tall - (bay.r - shelf * 0.75)) / bay.soft_u + 0.5).clamp(0, 1)
    tone = 0.25 + 0.75 * unit(hashed(h))
    return mix(inside * tone, torch.full_like(tone, 0.22), smooth(bay.soft_u * 5 - 0.5)) * (shelf < 2)


def _balcony(air: Air, colour: Tensor, lit: Tensor, paint: Paint, bay: Bay) -> Tensor:
    """Iron rails or solid balustrades at the windows of some floors, the same for all windows of a floor."""
    share, zero = paint.balcony, torch.zeros_like(bay.r)
    here = bay.plain * (1 - bay.low) * (unit(hashed(paint.seed + 17, bay.storey)) < share.abs())
    rail = ((0.025 - ((bay.s / 0.13) % 1 - 0.5).abs() * 0.13) / bay.soft_u + 0.5).clamp(0, 1)
    rail = mix(rail, torch.full_like(rail, 0.38), smooth(bay.soft_u * 9))
    bars = torch.maximum(rail * bay.up(zero, zero + 0.95), bay.up(zero + 0.92, zero + 1.02))
    solid = (share < 0).to(share.dtype)
    wide = bay.across(bay.half + 0.32) * here
    tone = mix(air.palette("iron"), paint.colour(2) * 0.8, solid)
    colour = mix(colour, tone * lit, wide * mix(bars, bay.up(zero, zero + 1.0), solid))
    return mix(colour, paint.colour(1) * lit * 0.85, wide * bay.up(zero - 0.02, zero + 0.12))
