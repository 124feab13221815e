"""What a shader knows about its pixels: where they are, how large, how lit, and what the moment is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sareloc.datasets.city.lighting import CELL_M
from sareloc.datasets.city.quads import COLUMN
from sareloc.datasets.city.scene import Scene
from sareloc.datasets.city.streets import MARGIN_M
from sareloc.datasets.city.texture import field_at, mix, pick


@dataclass(frozen=True, eq=False)
class Air:
    """The moments of B views, and what every shader asks of them; rows (B,) are their numbers in the scene."""

    scene: Scene
    rows: Tensor

    def __getattr__(self, name: str) -> Tensor:
        return self.scene.moment(name, self.rows)

    def palette(self, name: str) -> Tensor:
        """(3, 1, 1) a colour that never changes."""
        return self.scene.palette[name]


@dataclass(frozen=True, eq=False)
class Hit:
    """Points that pixels see: world position x, y, z (B, n), ray d (three of (B, n)), metres per pixel at that distance."""

    x: Tensor
    y: Tensor
    z: Tensor
    ray: tuple[Tensor, Tensor, Tensor]
    away: Tensor
    """Distance from the eye."""


@dataclass(frozen=True, eq=False)
class Paint:
    """The columns of the pieces that pixels see."""

    table: Tensor
    piece: Tensor

    def __getattr__(self, name: str) -> Tensor:
        return pick(self.table[COLUMN[name]], self.piece)

    def colour(self, which: int) -> Tensor:
        """(3, B, n) the first, second or third colour."""
        return torch.stack([pick(self.table[COLUMN[f"{c}{which}"]], self.piece) for c in "rgb"])


@dataclass(frozen=True, eq=False)
class Light:
    """Light on a surface: from the sun (already times the cosine), from everywhere else, and the share of sun seen."""

    sun: Tensor
    rest: Tensor

    @property
    def total(self) -> Tensor:
        """All of it."""
        return self.sun + self.rest


def light_on(air: Air, hit: Hit, normal: tuple[Tensor, Tensor, Tensor]) -> Light:
    """Light at points of surfaces with these normals; shadows of houses are soft by a metre or so."""
    nx, ny, nz = normal
    scene = air.scene
    # Walls ask a little in front of themselves, so that a house does not shade its own facade.
    x = (hit.x + 1.6 * nx + MARGIN_M) / CELL_M
    y = (hit.y + 1.6 * ny + MARGIN_M) / CELL_M
    shadow, trees, lamps, open_sky = field_at(list(scene.fields), scene.field_shape, air.rows[:, None], x, y)
    sx, sy, sz = air.sun_direction
    facing = (nx * sx + ny * sy + nz * sz).clamp(min=0)
    seen = ((hit.z - shadow) * 1.1 + 1).clamp(0, 1)
    low = (1 - (hit.z - 4.0) / 4.0).clamp(0, 1)
    sun = air.sun * (facing * seen * (1 - trees * low))
    high = (hit.z / 18.0).clamp(0, 1)
    sky = mix(open_sky, torch.ones_like(open_sky), high) * (0.72 + 0.28 * nz)
    bounce = (air.ambient + 0.5 * air.sun) * 0.1
    glow = torch.exp(-(hit.z * hit.z) / 40.0) * lamps * air.night * (0.6 + 0.4 * nz)
    return Light(sun, air.ambient * sky + bounce * (1 - 0.5 * nz) + air.palette("lamplight") * (0.22 * glow))


def through_air(air: Air, colour: Tensor, away: Tensor) -> Tensor:
    """A colour seen through so many metres of haze."""
    clear = torch.exp(-away * air.fog_per_m)
    return mix(air.horizon, colour, clear)
