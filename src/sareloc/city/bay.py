"""The grid of a facade: the window, door or shop window of each pixel, its measures and its random numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sareloc.city.atlas import hashed, less, mix, smooth, thirds, unit
from sareloc.city.scene import Air, Paint


@dataclass(frozen=True, eq=False)
class Bay:
    """The cell of the facade's grid at a pixel: one window, door or shop window; lengths in metres."""

    s: Tensor
    """Horizontal position from the centre of the opening."""
    aside: Tensor
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
    number: Tensor
    """A hash of the cell; of `luck` and `chance` alike."""
    luck: tuple[Tensor, Tensor, Tensor]
    chance: tuple[Tensor, Tensor, Tensor]
    """Random numbers in [0, 1) of the cell."""
    today: tuple[Tensor, Tensor, Tensor]
    """Random numbers in [0, 1) of the cell at this moment."""

    def across(self, reach: Tensor) -> Tensor:
        """The fraction of the pixel within `reach` of the centre of its opening."""
        return within(self.s, reach, self.soft_u, self.cell)

    def up(self, bottom: Tensor, top: Tensor) -> Tensor:
        """The fraction of the pixel between two heights above its floor."""
        return within(self.r - 0.5 * (bottom + top), 0.5 * (top - bottom), self.soft_z, self.room)

    @property
    def plain(self) -> Tensor:
        """1 if the opening is a window (not a shop window or a door)."""
        return self.windows * (1 - self.shop) * (1 - self.door)


def within(distance: Tensor, half: Tensor, soft: Tensor, period: Tensor) -> Tensor:
    """The fraction of a pixel nearer than `half`; that of all pixels where it covers several periods."""
    return mix(less(distance.abs(), half, soft), (2 * half / period).clamp(0, 1), several(soft, period))


def several(soft: Tensor, period: Tensor) -> Tensor:
    """0 if a pixel is small against the period of a pattern, 1 if it covers more than one period."""
    return smooth(soft / period * 1.4 - 0.35)


def make_bay(air: Air, paint: Paint, z: Tensor, u: Tensor, soft_u: Tensor, soft_z: Tensor) -> Bay:
    """The cells at points `u` metres along their wall and `z` metres above the ground."""
    ground, floor, seed, street = paint.ground, paint.floor, paint.seed.to(torch.int32), paint.street_floor
    one = torch.ones_like(z)
    low = (z < ground).to(z.dtype)
    shop = low * (street > 1.5)
    cell = paint.width / mix(paint.bays, paint.cells.clamp(min=1), low)
    column = (u / cell).floor()
    aside = u - (column + 0.5) * cell
    storey = mix(((z - ground) / floor).floor(), -one, low)
    number = hashed(seed, column, storey)
    second = hashed(number)
    luck, chance, upright = thirds(number), thirds(second), thirds(hashed(seed + 5, column))
    entrance = (unit(hashed(seed)) * paint.bays).floor()
    door = low * (1 - shop) * (street > 0.5) * (column == entrance)
    jitter = paint.jitter * (1 - torch.maximum(shop, door))
    wide = paint.window * (1 + 0.5 * (upright[0] < paint.wide)) + jitter * (luck[0] - 0.5)
    half = mix(torch.minimum(wide, 0.5 * cell - 0.12), 0.5 * cell - 0.12 - 0.3 * luck[1], shop)
    half = mix(half, 0.48 * one + 0.2 * luck[1], door).clamp(min=0.05)
    room = (0.5 * cell - half - 0.08).clamp(min=0)
    s = aside - torch.minimum(torch.maximum(jitter * (2 * luck[1] - 1), -room), room)
    last = (storey > paint.floors - 1.5) * (paint.floors > 1.5)
    sill = mix(paint.sill + 0.25 * low, 0.2 + 0.6 * chance[0] * one, shop) + jitter * (luck[2] - 0.5)
    sill = mix(sill, 0.06 * one, door)
    head = mix(paint.head + 0.25 * low, ground - 1.2, shop) + jitter * (chance[1] - 0.5) - paint.attic * last
    head = torch.maximum(mix(head, 2.15 + 0.5 * chance[1], door), sill + 0.4)
    blind = (chance[2] < paint.blind) * (1 - low)
    return Bay(
        s=s,
        aside=aside,
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
        windows=mix((storey < paint.floors).to(z.dtype) * (1 - blind), (street > 0.5).to(z.dtype), low),
        number=number,
        luck=luck,
        chance=chance,
        today=thirds(hashed(second, air.habits.expand_as(z))),
    )
