"""The sky: a gradient, clouds, the glow of the sun or of the town; and what of it a window mirrors."""

from __future__ import annotations

import torch
from torch import Tensor

from sareloc.datasets.city.surface import Air, Hit
from sareloc.datasets.city.texture import mix, smooth


def shade_sky(air: Air, ray: tuple[Tensor, Tensor, Tensor], soft: Tensor) -> Tensor:
    """Colours (3, B, n) of rays above the horizon; `soft` is the angle of a pixel in radians."""
    x, y, z = ray
    length = (x * x + y * y + z * z).sqrt()
    up = (z / length).clamp(min=0)
    colour = mix(air.horizon, air.zenith, smooth(up * 1.5).sqrt())
    flat = 1 / (up + 0.12)
    drift = air.sun_direction[0] * 3.7 + air.cloud * 11.0
    page = torch.full_like(x, air.scene.page["noise"], dtype=torch.int32)
    spread = soft * flat * flat * 0.06
    at = (x / length * flat * 0.055 + drift, y / length * flat * 0.055)
    broad, other, middle = air.scene.pages.fetch(page, *at, spread, spread, (0, 1, 2))
    puff = 0.55 * broad + 0.3 * other + 0.25 * middle
    heavy = air.cloud
    cover = smooth((puff - 0.83 + 0.75 * heavy) * 3.2)
    sx, sy, sz = air.sun_direction
    towards = ((x * sx + y * sy + z * sz) / length).clamp(0, 1)
    white = (air.horizon * 0.55 + 0.35 * air.sun + air.ambient * 0.35) * (0.72 + 0.5 * middle - 0.35 * other * heavy)
    colour = mix(colour, white, cover * (0.85 - 0.25 * smooth(1 - up * 5)))
    return colour + air.sun * (0.9 * towards**64 + 0.18 * towards**6) * (1 - 0.8 * cover)


def reflected(air: Air, hit: Hit, tilt: Tensor) -> Tensor:
    """What an upright pane mirrors: the sky above the roofs opposite, those houses below."""
    x, y, z = hit.ray
    up = z / (x * x + y * y + z * z).sqrt() + tilt
    sky = mix(air.horizon, air.zenith, up.clamp(0, 1))
    houses = air.ambient * 0.2 + air.sun * 0.09
    return mix(houses.expand_as(sky), sky, smooth((up - 0.22) * 5.0))
