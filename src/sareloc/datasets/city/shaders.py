"""The pixel functions: from what a pixel sees to its colour, and from light to the camera's values.

Each takes the air, the view and numbers of pixels (B, n), and nothing depends on any pixel but its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sareloc.datasets.city.facade import shade_facade
from sareloc.datasets.city.ground import shade_ground
from sareloc.datasets.city.panel import shade_panel
from sareloc.datasets.city.sky import reflected, shade_sky
from sareloc.datasets.city.surface import Air, Hit, Light, Paint, Vector, length, light_on, through_air
from sareloc.datasets.city.texture import hashed, unit


@dataclass(frozen=True, eq=False)
class View:
    """B cameras on the device."""

    eye: Tensor
    """(B, 3)"""
    rays: Tensor
    """(B, 3, 3): the ray of a pixel is rays[0] + column rays[1] + row rays[2]; its forward part is 1."""
    unproject: Tensor
    """(B, 3, 3) its inverse: takes an offset from the eye to column t, row t and t."""
    moment: Tensor
    """(B,)"""
    seed: Tensor
    """(B,)"""
    pixel: Tensor
    """(B,) angle of a pixel in the middle of the image, radians."""


def ray_through(view: View, column: Tensor, row: Tensor) -> Vector:
    """The ray through each pixel."""
    r = view.rays
    x, y, z = (r[:, 0, i, None] + column * r[:, 1, i, None] + row * r[:, 2, i, None] for i in range(3))
    return x, y, z


def _hit(view: View, t: Tensor, column: Tensor, row: Tensor) -> Hit:
    ray = ray_through(view, column, row)
    x, y, z = (view.eye[:, i, None] + t * part for i, part in enumerate(ray))
    return Hit(x, y, z, ray, t * length(ray))


def _painted(
    air: Air, view: View, piece: Tensor, t: Tensor, column: Tensor, row: Tensor
) -> tuple[Paint, Hit, Light, Tensor]:
    """How points on pieces are painted and lit, and the cosine between their normal and the ray."""
    paint, hit = Paint(air.scene.columns, piece), _hit(view, t, column, row)
    normal = (paint.normal_x, paint.normal_y, paint.normal_z)
    along = sum(n * r for n, r in zip(normal, hit.ray, strict=True))
    assert isinstance(along, Tensor)
    return paint, hit, light_on(air, hit, normal), along.abs() / length(hit.ray)


def facade_pixels(
    air: Air, view: View, piece: Tensor, t: Tensor, a: Tensor, fa: Tensor, fb: Tensor, column: Tensor, row: Tensor
) -> Tensor:
    """Colours of points at depth t on facades, `a` of the way along; `fa`, `fb` are the pixel's size in shares."""
    paint, hit, light, facing = _painted(air, view, piece, t, column, row)
    width, height = paint.width, paint.height
    u = torch.minimum((a * width).clamp(min=0.0), width * 0.9999)
    soft_u, soft_z = (fa * width).clamp(min=1e-3), (fb * height).clamp(min=1e-3)
    return through_air(air, shade_facade(air, paint, hit, light, u, soft_u, soft_z, facing), hit.away)


def panel_pixels(
    air: Air,
    view: View,
    piece: Tensor,
    t: Tensor,
    a: Tensor,
    b: Tensor,
    fa: Tensor,
    fb: Tensor,
    column: Tensor,
    row: Tensor,
) -> Tensor:
    """Colours of points a, b at depth t on panels."""
    paint, hit, light, facing = _painted(air, view, piece, t, column, row)
    return through_air(air, shade_panel(air, paint, hit, light, a, b, fa, fb, facing), hit.away)


def ground_pixels(air: Air, view: View, column: Tensor, row: Tensor) -> Tensor:
    """Colours of the ground below the horizon."""
    z = ray_through(view, column, row)[2].clamp(max=-1e-4)
    t = (-view.eye[:, 2, None] / z).clamp(max=2000.0)
    hit, zero = _hit(view, t, column, row), torch.zeros_like(t)
    light = light_on(air, hit, (zero, zero, zero + 1))
    down = (-z * t / hit.away).clamp(min=1e-3)
    # A pixel on the ground is longer than it is wide; somewhat more than the geometric mean keeps lines without noise.
    soft = (hit.away * view.pixel[:, None] / down.sqrt() * 1.3).clamp(min=2e-3)
    # Wet streets mirror the sky that they lead to, lower than a window would.
    mirror = reflected(air, replace(hit, ray=(hit.ray[0], hit.ray[1], -z)), zero + 0.15)
    return through_air(air, shade_ground(air, hit, light, soft, mirror), hit.away)


def sky_pixels(air: Air, view: View, column: Tensor, row: Tensor) -> Tensor:
    """Colours of the sky above the horizon, hazy near it."""
    ray = ray_through(view, column, row)
    up = (ray[2] / length(ray)).clamp(min=0)
    return through_air(air, shade_sky(air, ray, view.pixel[:, None]), 120.0 / (up + 0.08))


def expose(air: Air, view: View, colour: Tensor, column: Tensor, row: Tensor, height: int, width: int) -> Tensor:
    """From light (3, B, n) to the camera's values 0..255: exposure, white balance, tone curve, vignette, noise."""
    x, y = column / width - 0.5, row / height - 0.5
    fall = 1 - air.vignette * (x * x + y * y) * 1.4
    light = (colour * air.balance * (air.exposure * fall)).clamp(min=0)
    # A film-like curve: nearly straight in the dark, a soft shoulder at white.
    value = (light * (light * 2.51 + 0.03)) / (light * (light * 2.43 + 0.59) + 0.14)
    value = value.clamp(0, 1) ** (1 / 2.2)
    place = column.to(torch.int32) + row.to(torch.int32) * width
    first = hashed(view.seed[:, None].expand_as(place), place)
    noise = [unit(hashed(first + i)) for i in range(6)]
    grain = torch.stack([noise[i] + noise[i + 3] - 1 for i in range(3)]) * (2.45 * air.grain)
    return ((value + grain) * 255 + 0.5).clamp(0, 255).floor()
