"""The sky: a gradient, clouds, the glow of the sun or of the town; and what of it a pane of glass mirrors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sareloc.city.atlas import field_at, mix, pick, smooth
from sareloc.city.geometry import COLUMN
from sareloc.city.moment import CELL_M
from sareloc.city.plan import MARGIN_M
from sareloc.city.scene import Scene

# What a shader knows about its pixels: where they are, how they are painted and lit, and what the moment is.
#
# Numbers of pixels are (B, n), colours (3, B, n); numbers of a view are (B, 1) and (3, B, 1).

Vector = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Air:
    """The moments of B views: every number of `Moment` is an attribute."""

    scene: Scene
    rows: Tensor
    """(B,) which of the scene's moments."""

    def __getattr__(self, name: str) -> Tensor:
        return self.scene.moment(name, self.rows)

    def palette(self, name: str) -> Tensor:
        """(3, 1, 1) a colour that never changes."""
        return self.scene.palette[name]


@dataclass(frozen=True, eq=False)
class Hit:
    """Points that pixels see: where they are, along which ray, and how far from the eye in metres."""

    x: Tensor
    y: Tensor
    z: Tensor
    ray: Vector
    away: Tensor


@dataclass(frozen=True, eq=False)
class Paint:
    """The columns of the pieces that pixels see: every name of `COLUMNS` is an attribute."""

    table: Tensor
    piece: Tensor

    def __getattr__(self, name: str) -> Tensor:
        return pick(self.table[COLUMN[name]], self.piece)

    def colour(self, which: int) -> Tensor:
        """The first, second or third colour."""
        return torch.stack([pick(self.table[COLUMN[f"{channel}{which}"]], self.piece) for channel in "rgb"])


@dataclass(frozen=True, eq=False)
class Light:
    """Light on a surface: from the sun (times the cosine, 0 in the shade), and from everywhere else."""

    sun: Tensor
    rest: Tensor

    @property
    def total(self) -> Tensor:
        """All of it."""
        return self.sun + self.rest


def length(v: Vector) -> Tensor:
    """Of a vector."""
    return (v[0] * v[0] + v[1] * v[1] + v[2] * v[2]).sqrt()


def fields_at(air: Air, x: Tensor, y: Tensor) -> list[Tensor]:
    """The scene's fields (shadow height, shade of trees, lamp light, share of the sky) over points of the plan."""
    scene = air.scene
    column, row = (x + MARGIN_M) / CELL_M, (y + MARGIN_M) / CELL_M
    return field_at(list(scene.fields), scene.field_shape, air.rows[:, None], column, row)


def light_on(air: Air, hit: Hit, normal: Vector) -> Light:
    """Light at points of surfaces with these normals; shadows of houses are soft by a metre or so."""
    nx, ny, nz = normal
    # Walls ask a little in front of themselves, so that a house does not shade its own facade.
    shadow, trees, lamps, open_sky = fields_at(air, hit.x + 1.6 * nx, hit.y + 1.6 * ny)
    sx, sy, sz = air.sun_direction
    facing = (nx * sx + ny * sy + nz * sz).clamp(min=0)
    seen = ((hit.z - shadow) * 1.1 + 1).clamp(0, 1)
    under_crowns = (2 - hit.z / 4).clamp(0, 1)
    sky = mix(open_sky, torch.ones_like(open_sky), (hit.z / 18.0).clamp(0, 1)) * (0.72 + 0.28 * nz)
    bounce = (air.ambient + 0.5 * air.sun) * (0.1 - 0.05 * nz)
    glow = torch.exp(-(hit.z * hit.z) / 40.0) * lamps * air.night * (0.6 + 0.4 * nz)
    rest = air.ambient * sky + bounce + air.palette("lamplight") * (0.22 * glow)
    return Light(air.sun * (facing * seen * (1 - trees * under_crowns)), rest)


def through_air(air: Air, colour: Tensor, away: Tensor) -> Tensor:
    """A colour seen through so many metres of haze."""
    return mix(air.horizon, colour, torch.exp(-away * air.fog_per_m))


def shade_sky(air: Air, ray: Vector, soft: Tensor) -> Tensor:
    """Colours (3, B, n) of rays above the horizon; `soft` is the angle of a pixel in radians."""
    x, y, z = (part / length(ray) for part in ray)
    up = z.clamp(min=0)
    colour = mix(air.horizon, air.zenith, smooth(up * 1.5).sqrt())
    # Clouds lie on a plane overhead: a ray meets it the further away the lower it points.
    far = 0.055 / (up + 0.12)
    drift = air.sun_direction[0] * 3.7 + air.cloud * 11.0
    page = torch.full_like(x, air.scene.page["noise"], dtype=torch.int32)
    spread = soft * far * far * 20.0
    broad, other, middle = air.scene.pages.fetch(page, x * far + drift, y * far, spread, spread, (0, 1, 2))
    cover = smooth((0.55 * broad + 0.3 * other + 0.25 * middle - 0.83 + 0.75 * air.cloud) * 3.2)
    white = air.horizon * 0.55 + 0.35 * air.sun + air.ambient * 0.35
    white = white * (0.72 + 0.5 * middle - 0.35 * other * air.cloud)
    colour = mix(colour, white, cover * (0.85 - 0.25 * smooth(1 - up * 5)))
    sx, sy, sz = air.sun_direction
    towards = (x * sx + y * sy + z * sz).clamp(0, 1)
    glow = towards.square().square()
    disc = glow.square().square().square().square()
    sun: Tensor = air.sun * ((0.9 * disc + 0.18 * glow) * (1 - 0.8 * cover))
    return colour + sun


def reflected(air: Air, hit: Hit, tilt: Tensor) -> Tensor:
    """What an upright pane mirrors: the sky above the roofs opposite, those houses below."""
    up = hit.ray[2] / length(hit.ray) + tilt
    sky = mix(air.horizon, air.zenith, up.clamp(0, 1))
    houses = air.ambient * 0.2 + air.sun * 0.09
    return mix(houses, sky, smooth((up - 0.22) * 5.0))
