"""Pieces papered with a page of the atlas: roofs, cornices, signs, posters, awnings, cars."""

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
    across, up = paint.repeat_u, paint.repeat_v
    shade, second, third, glass = air.scene.pages.fetch(
        paint.page.to(torch.int32), _within(a, across), _within(1 - b, up), soft_a * across, soft_b * up
    )
    colour = paint.colour(0) * (1 - second - third - glass) + paint.colour(1) * second + paint.colour(2) * third
    snow = air.snow * smooth((paint.normal_z - 0.25) * 3)
    colour = mix(colour * shade, air.palette("snow"), snow)
    mirror = 0.12 + 0.6 * (1 - facing).clamp(0, 1).square().square()
    pane = air.palette("car window") + reflected(air, hit, torch.zeros_like(a)) * mirror
    return mix(colour * light.total, pane, glass * (1 - snow)) + colour * (0.5 * paint.glow * air.night)


def _within(x: Tensor, repeat: Tensor) -> Tensor:
    """Coordinates in pages; a page that does not repeat stops short of its edge, where it would meet itself."""
    return torch.where(repeat > 1.5, x * repeat, x.clamp(0.01, 0.99))
