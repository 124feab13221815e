"""Random crops, light and mirrors for training images, on whatever device they are on. Off in the paper's recipes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# What happens at strength 1 of crops,
CROPPED = 0.3  # a crop keeps at least 1 - this of each side, of each by itself: an image is stretched a little
TURNED = 0.1  # radians that it is turned, at most, either way
# and of light.
COLOUR = 0.4  # brightness, contrast and saturation are scaled by a factor in 1 ± this
TINT = 0.15  # each colour channel, likewise
GAMMA = 0.7  # of the logarithm of the exponent: dusk and glare
LAMPS = 0.5  # deviation of the logarithm of light from place to place: at night a street is lit in patches
PATCHES = (4, 6)  # of the image, each lit by itself, with smooth passages between them
NOISE = 0.04  # of the range of a pixel, at most


def augment(
    images: Tensor, generator: torch.Generator, *, crop: float, light: float, alike: Tensor | None = None
) -> Tensor:
    """Crop, turn and relight each image by itself with these strengths, and mirror half of the tuples.

    `images` uint8 (B, 3, H, W) -> floats in [0, 1] of the same shape. `generator` is a CPU generator. `alike`: how many
    images in a row belong together, summing to B; all of them are mirrored or none, for a mirrored street is another
    place. Without it nothing is mirrored.
    """
    draws = torch.rand(len(images), 13, generator=generator)
    noise = torch.Generator(images.device).manual_seed(int(torch.randint(2**62, (), generator=generator)))
    mirrored = torch.zeros(len(images), dtype=torch.bool)
    if alike is not None:
        mirrored = (torch.rand(len(alike), generator=generator) < 0.5).repeat_interleave(alike)
    signed = (2 * draws - 1).to(images.device)
    floats = _crop(images.float() / 255, draws[:, :5].to(images.device), crop, mirrored.to(images.device))
    return _relight(floats, signed[:, 5:], light, noise)


def _crop(images: Tensor, draws: Tensor, strength: float, mirrored: Tensor) -> Tensor:
    """A part of each side, anywhere in the image, brought back to full size, turned a little, perhaps mirrored."""
    scale = 1 - CROPPED * strength * draws[:, :2]  # of width and height
    shift = (1 - scale) * (2 * draws[:, 2:4] - 1)  # before it is turned the crop stays inside: |shift| + scale <= 1
    angle = TURNED * strength * (2 * draws[:, 4] - 1)
    aspect = images.shape[2] / images.shape[3]  # the grid runs from -1 to 1 along both sides, however long they are
    across = torch.stack([scale[:, 0] * angle.cos(), -scale[:, 1] * angle.sin() * aspect, shift[:, 0]], 1)
    down = torch.stack([scale[:, 0] * angle.sin() / aspect, scale[:, 1] * angle.cos(), shift[:, 1]], 1)
    maps = torch.stack([across, down], 1)  # (B, 2, 3): where in the image a point (x, y, 1) of the crop lies
    maps[mirrored, :, 0] *= -1
    grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def _relight(images: Tensor, draws: Tensor, strength: float, noise: torch.Generator) -> Tensor:
    """Saturation, gamma, tint, brightness and contrast by `draws` (B, 8) in ±1, lamps, and the noise of a camera."""
    brightness, contrast, saturation, gamma, grain = draws[:, :5].T[:, :, None, None, None]
    grey = images.mean(dim=1, keepdim=True)
    images = (grey + (images - grey) * (1 + COLOUR * strength * saturation)).clamp(0, 1)
    images = images ** torch.exp(GAMMA * strength * gamma)
    images = images * (1 + COLOUR * strength * brightness) * (1 + TINT * strength * draws[:, 5:, None, None])
    lamps = torch.randn(len(images), 1, *PATCHES, generator=noise, device=images.device)
    smooth = F.interpolate(lamps, size=images.shape[2:], mode="bicubic", align_corners=False)
    images = images * torch.exp(LAMPS * strength * smooth)
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    images = mean + (images - mean) * (1 + COLOUR * strength * contrast)
    grains = torch.randn(images.shape, generator=noise, device=images.device)
    return torch.clamp(images + 0.5 * NOISE * strength * (1 + grain) * grains, 0, 1)
