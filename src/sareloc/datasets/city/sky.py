"""The sky: a gradient, clouds, the glow of the sun or of the town; and what of it a pane of glass mirrors."""

from __future__ import annotations

import torch
from torch import Tensor

from sareloc.datasets.city.surface import Air, Hit, Vector, length
from sareloc.datasets.city.texture import mix, smooth


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
