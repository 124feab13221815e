"""Pieces papered with a page of the atlas: roofs, cornices, signs, posters, awnings, cars; and what stands as a sprite."""

from __future__ import annotations

import torch
from torch import Tensor

from sareloc.datasets.city.sky import reflected
from sareloc.datasets.city.surface import Air, Hit, Light, Paint
from sareloc.datasets.city.texture import mix, smooth


def shade_panel(
    air: Air, paint: Paint, hit: Hit, light: Light, a: Tensor, b: Tensor, soft_a: Tensor, soft_b: Tensor, facing: Tensor
) -> Tensor:
    """Colours (3, B, n) of points a, b of their piece; `soft_a`, `soft_b` are the pixel's size in shares of it."""
    repeat_a, repeat_b = paint.ground, paint.floor
    x, y = _keep_in(a, repeat_a), _keep_in(1 - b, repeat_b)
    shade, second, third, glass = air.scene.pages.fetch(
        paint.bays.to(torch.int32), x, y, soft_a * repeat_a, soft_b * repeat_b
    )
    rest = 1 - second - third - glass
    colour = (paint.colour(0) * rest + paint.colour(1) * second + paint.colour(2) * third) * shade
    snow = air.snow * smooth((paint.normal_z - 0.25) * 3)
    colour = mix(colour, air.palette("snow"), snow)
    lit = colour * light.total
    mirror = 0.12 + 0.6 * (1 - facing).clamp(0, 1) ** 4
    pane = air.palette("car window") + reflected(air, hit, torch.zeros_like(a)) * mirror
    glow = paint.floors * air.night
    return mix(lit, pane, glass * (1 - snow)) + colour * (0.5 * glow)


def _keep_in(x: Tensor, repeat: Tensor) -> Tensor:
    """Coordinates in pages; a page that does not repeat stops half a texel short of its edge."""
    return torch.where(repeat > 1.5, x * repeat, x.clamp(0.01, 0.99))
