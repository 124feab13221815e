"""The camera: distortion and blur of its lens, exposure, white balance, tone curve, vignette and noise."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from sareloc.city.atlas import hashed, thirds
from sareloc.city.scene import Air

TAPS = 2
"""Reach of the blur in pixels."""


def through_lens(light: Tensor, bend: Tensor, blur: Tensor) -> Tensor:
    """Images (B, 3, H, W) of light, blurred and distorted; `bend`, `blur` (B, 1): see `Moment`."""
    height, width = light.shape[2:]
    steps = torch.arange(-TAPS, TAPS + 1, device=light.device, dtype=light.dtype)
    weights = torch.exp(-0.5 * (steps / (blur * width).clamp(min=1e-3)).square())
    weights = (weights / weights.sum(1, keepdim=True))[..., None, None, None]  # (B, taps, 1, 1, 1)
    for axis in (2, 3):
        size = light.shape[axis]
        wide = pad(light, (TAPS, TAPS, 0, 0) if axis == 3 else (0, 0, TAPS, TAPS), mode="replicate")
        light = sum((weights[:, i] * wide.narrow(axis, i, size) for i in range(1, 2 * TAPS + 1)),
                    start=weights[:, 0] * wide.narrow(axis, 0, size))  # fmt: skip
    x = (torch.arange(width, device=light.device) + 0.5) * (2 / width) - 1
    y = ((torch.arange(height, device=light.device) + 0.5) * (2 / height) - 1)[:, None]
    scale = 1 + bend[..., None] * (x.square() + (y * (height / width)).square())  # (B, H, W)
    return grid_sample(light, torch.stack([x * scale, y * scale], -1), padding_mode="border", align_corners=False)


def expose(air: Air, seed: Tensor, light: Tensor) -> Tensor:
    """Camera values 0..255 of images (B, 3, H, W) of light; `seed` (B,) is that of the noise."""
    height, width = light.shape[2:]
    row, column = (
        torch.arange(size, device=light.device, dtype=torch.int32).view(shape)
        for size, shape in ((height, (1, height, 1)), (width, (1, 1, width)))
    )
    x, y = (column + 0.5) / width - 0.5, (row + 0.5) / height - 0.5
    fall = 1 - air.vignette[..., None] * (x * x + y * y) * 1.4  # (B, H, W)
    gain = air.balance.permute(1, 0, 2)[..., None] * air.exposure[..., None, None]  # (B, 3, 1, 1)
    light = (light * gain * fall[:, None]).clamp(min=0)
    # A filmic tone curve: nearly linear in the dark, a soft shoulder at white.
    value = (light * (light * 2.51 + 0.03)) / (light * (light * 2.43 + 0.59) + 0.14)
    value = value.clamp(0, 1) ** (1 / 2.2)
    place = (column + row * width).expand_as(fall)
    first = hashed(seed[:, None, None].expand_as(place), place)
    # The sum of two uniform numbers for each channel: 16 bits are enough for 8-bit pixels.
    noise = torch.stack(thirds(first), 1) + torch.stack(thirds(hashed(first)), 1)
    grain = (noise - 255 / 256) * (2.45 * air.grain[..., None, None])
    return ((value + grain) * 255 + 0.5).clamp(0, 255).floor()
