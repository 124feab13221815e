"""A town at several moments as tensors on a device, and what shaders share: light on surfaces, haze, sky, reflections.

Values of pixels are (B, n), colours (3, B, n); values of a view are (B, 1) and (3, B, 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from sareloc.arrays import Floats
from sareloc.city.atlas import Pages, field_at, make_atlas, mix, pick, smooth
from sareloc.city.furnish import make_traffic
from sareloc.city.geometry import COLUMN, NOWHERE, Quads, Sprites
from sareloc.city.moment import CELL_M, Moment, ground_shade, shadow_height, splat
from sareloc.city.plan import MARGIN_M, ground_tables
from sareloc.city.styles import PALETTE
from sareloc.city.town import Town
from sareloc.models.preprocess import TORCH_DEVICES, find_device

Vector = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Scene:
    """V moments of one town: static quads and sprites, and those of each moment, padded to equal numbers."""

    device: torch.device
    pages: Pages
    page: dict[str, int]
    fixed_pieces: Tensor
    """(N, 14) corner, U, V, leans, longest side, centre of the car (far away except for cars)."""
    moving_pieces: Tensor
    """(V, M, 14)"""
    columns: Tensor
    """(columns, N + V * M) material parameters of each quad."""
    fixed_sprites: Tensor
    """(S, 19) foot, size, pages, colours, glow, leafy, seed."""
    moving_sprites: Tensor
    """(V, Q, 19)"""
    fields: tuple[Tensor, ...]
    """Shadow height, shade of trees, lamp light, visible fraction of the sky: each (V * rows * columns,)."""
    field_shape: tuple[int, ...]
    """Rows and columns."""
    moments: dict[str, Tensor]
    """(V,) or (V, 3) each: the values of `Moment` that shaders use."""
    by_y: Tensor
    """(4, Y) and (4, R * X): see `plan.ground_tables`."""
    by_xy: Tensor
    rows: int
    """Number of rows of blocks."""
    palette: dict[str, Tensor]
    """(3, 1, 1) each."""
    dense: bool
    """Render a batch of views at once with every shader on every pixel (GPU), instead of each view separately with each
    shader on the pixels that need it (CPU)."""

    def moment(self, name: str, rows: Tensor) -> Tensor:
        """A value of the moments `rows` (B,): (B, 1), or (3, B, 1) for a colour."""
        return self.moments[name].index_select(0, rows).t()[..., None]


def make_scene(
    town: Town, moments: Sequence[Moment], device: torch.device | str = "cpu", *, dense: bool | None = None
) -> Scene:
    """A scene of a town at some moments.

    Args:
        town: the town.
        moments: time, weather and light of each.
        device: where it is rendered.
        dense: see `Scene`; default: True unless on a CPU.
    """
    device = find_device(device, TORCH_DEVICES)
    atlas = make_atlas()
    traffic = [
        make_traffic(np.random.default_rng([41, m.seed]), list(town.kerbs), m.cars, m.people, atlas) for m in moments
    ]
    pieces = _pad([_piece_rows(quads, centres) for quads, centres, _ in traffic])
    columns = _pad([quads.columns for quads, _, _ in traffic])
    walkers = _pad([_sprite_rows(sprites) for _, _, sprites in traffic])
    maps = [_fields(town, m, centres) for m, (_, centres, _) in zip(moments, traffic, strict=True)]
    by_y, by_xy = ground_tables(town.streets)
    shown = [field.name for field in fields(Moment) if field.name not in ("seed", "time")]

    def put(array: Floats) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).to(device)

    return Scene(
        device=device,
        pages=Pages.on(atlas, device),
        page=atlas.names,
        fixed_pieces=put(_piece_rows(town.quads, np.full((len(town.quads), 2), NOWHERE))),
        moving_pieces=put(pieces),
        columns=put(np.concatenate([town.quads.columns, columns.reshape(-1, columns.shape[-1])]).T),
        fixed_sprites=put(_sprite_rows(town.sprites)),
        moving_sprites=put(walkers),
        fields=tuple(put(np.stack(field).reshape(-1)) for field in zip(*maps, strict=True)),
        field_shape=town.heights.shape,
        moments={name: put(np.array([getattr(m, name) for m in moments])) for name in shown},
        by_y=put(by_y.T),
        by_xy=put(by_xy.reshape(-1, 4).T),
        rows=len(by_xy),
        palette={name: put(np.array(colour)[:, None, None]) for name, colour in PALETTE.items()},
        dense=device.type != "cpu" if dense is None else dense,
    )


def _piece_rows(quads: Quads, centres: Floats) -> Floats:
    longest = np.maximum(np.linalg.norm(quads.u, axis=1), np.linalg.norm(quads.v, axis=1))
    return np.column_stack([quads.corner, quads.u, quads.v, quads.lean, longest, centres])


def _sprite_rows(sprites: Sprites) -> Floats:
    looks = (sprites.colours, sprites.glow, sprites.leafy, sprites.seed)
    return np.column_stack([sprites.foot, sprites.size, sprites.page, *looks])


def _pad(parts: list[Floats]) -> Floats:
    """Stack tables of different lengths, padded with a copy of the first row at a far position."""
    longest = max(len(p) for p in parts)
    padded = []
    for part in parts:
        extra = np.repeat(part[:1], longest - len(part), axis=0)
        extra[:, :2] = NOWHERE
        padded.append(np.concatenate([part, extra]))
    return np.stack(padded)


def _fields(town: Town, moment: Moment, cars: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    shape = town.heights.shape
    sunny = max(moment.sun) > 0.2
    shadow = shadow_height(town.heights, moment.sun_direction) if sunny else np.zeros(shape)
    under = np.minimum(1, splat(shape, np.unique(cars, axis=0), 1.5, 4.0))
    shade = ground_shade(shape, moment, town.trees[:, :2], town.trees[:, 2]) if sunny else np.zeros(shape)
    return shadow, shade, town.lamp_light, town.sky_share * (1 - 0.8 * under)


@dataclass(frozen=True, eq=False)
class Air:
    """The moments of B views: every field of `Moment` is an attribute."""

    scene: Scene
    rows: Tensor
    """(B,) indices of the scene's moments."""

    def __getattr__(self, name: str) -> Tensor:
        return self.scene.moment(name, self.rows)

    def palette(self, name: str) -> Tensor:
        """(3, 1, 1) a constant colour."""
        return self.scene.palette[name]

    def noise(self, x: Tensor, y: Tensor, soft_x: Tensor, soft_y: Tensor, channels: tuple[int, ...]) -> list[Tensor]:
        """Channels of the page of noise, see `Pages.fetch`."""
        page = torch.full_like(x, self.scene.page["noise"], dtype=torch.int32)
        return self.scene.pages.fetch(page, x, y, soft_x, soft_y, channels)


@dataclass(frozen=True, eq=False)
class Hit:
    """The visible points of pixels: position, ray, and distance from the camera in metres."""

    x: Tensor
    y: Tensor
    z: Tensor
    ray: Vector
    away: Tensor


@dataclass(frozen=True, eq=False)
class Paint:
    """The material parameters of the visible quads: every name of `COLUMNS` is an attribute."""

    table: Tensor
    piece: Tensor

    def __getattr__(self, name: str) -> Tensor:
        return pick(self.table[COLUMN[name]], self.piece)

    def colour(self, which: int) -> Tensor:
        """The first, second or third colour."""
        return torch.stack([pick(self.table[COLUMN[f"{channel}{which}"]], self.piece) for channel in "rgb"])


@dataclass(frozen=True, eq=False)
class Light:
    """Light on a surface: from the sun (with the cosine; 0 in shadow), and from all other sources."""

    sun: Tensor
    rest: Tensor

    @property
    def total(self) -> Tensor:
        """The sum of both."""
        return self.sun + self.rest


def dot(v: Vector, w: Vector | Tensor) -> Tensor:
    """The dot product of two vectors."""
    return v[0] * w[0] + v[1] * w[1] + v[2] * w[2]


def length(v: Vector) -> Tensor:
    """The length of a vector."""
    return dot(v, v).sqrt()


def fields_at(air: Air, x: Tensor, y: Tensor) -> list[Tensor]:
    """The scene's fields (shadow height, shade of trees, lamp light, visible sky) at points of the plan."""
    scene = air.scene
    column, row = (x + MARGIN_M) / CELL_M, (y + MARGIN_M) / CELL_M
    return field_at(list(scene.fields), scene.field_shape, air.rows[:, None], column, row)


def light_on(air: Air, hit: Hit, normal: Vector) -> Light:
    """Light on surfaces with these normals; the shadows of houses have soft edges of about a metre."""
    nx, ny, nz = normal
    # Walls sample the fields in front of them, so that a house does not shade its own facade.
    shadow, trees, lamps, open_sky = fields_at(air, hit.x + 1.6 * nx, hit.y + 1.6 * ny)
    facing = dot(normal, air.sun_direction).clamp(min=0)
    seen = ((hit.z - shadow) * 1.1 + 1).clamp(0, 1)
    under_crowns = (2 - hit.z / 4).clamp(0, 1)
    sky = mix(open_sky, torch.ones_like(open_sky), (hit.z / 18.0).clamp(0, 1)) * (0.72 + 0.28 * nz)
    bounce = (air.ambient + 0.5 * air.sun) * (0.1 - 0.05 * nz)
    glow = torch.exp(-(hit.z * hit.z) / 40.0) * lamps * air.night * (0.6 + 0.4 * nz)
    rest = air.ambient * sky + bounce + air.palette("lamplight") * (0.22 * glow)
    return Light(air.sun * (facing * seen * (1 - trees * under_crowns)), rest)


def through_air(air: Air, colour: Tensor, away: Tensor) -> Tensor:
    """A colour after `away` metres of haze."""
    return mix(air.horizon, colour, torch.exp(-away * air.fog_per_m))


def shade_sky(air: Air, ray: Vector, soft: Tensor) -> Tensor:
    """Colours (3, B, n) of rays above the horizon; `soft`: angle of a pixel in radians."""
    size = length(ray)
    x, y, z = (part / size for part in ray)
    up = z.clamp(min=0)
    colour = mix(air.horizon, air.zenith, smooth(up * 1.5).sqrt())
    # Clouds are on a horizontal plane: the lower a ray, the farther its intersection.
    far = 0.055 / (up + 0.12)
    drift = air.sun_direction[0] * 3.7 + air.cloud * 11.0
    spread = soft * far * far * 20.0
    broad, other, middle = air.noise(x * far + drift, y * far, spread, spread, (0, 1, 2))
    cover = smooth((0.55 * broad + 0.3 * other + 0.25 * middle - 0.83 + 0.75 * air.cloud) * 3.2)
    white = air.horizon * 0.55 + 0.35 * air.sun + air.ambient * 0.35
    white = white * (0.72 + 0.5 * middle - 0.35 * other * air.cloud)
    colour = mix(colour, white, cover * (0.85 - 0.25 * smooth(1 - up * 5)))
    glow = dot((x, y, z), air.sun_direction).clamp(0, 1).square().square()
    disc = glow.square().square().square().square()
    sun: Tensor = air.sun * ((0.9 * disc + 0.18 * glow) * (1 - 0.8 * cover))
    return colour + sun


def reflected(air: Air, ray: Vector, tilt: float = 0.0) -> Tensor:
    """The reflection in a vertical pane: the sky, and below the roofs the houses opposite."""
    up = ray[2] / length(ray) + tilt
    sky = mix(air.horizon, air.zenith, up.clamp(0, 1))
    houses = air.ambient * 0.2 + air.sun * 0.09
    return mix(houses, sky, smooth((up - 0.22) * 5.0))
