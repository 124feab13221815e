"""Random crops and colours for training images, on whatever device they are on. Off in the paper's recipes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SMALLEST_CROP = 0.7  # of each side
COLOUR = 0.4  # brightness, contrast and saturation are scaled by a factor in 1 ± this


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Crop, mirror never (a mirrored street is another place), and recolour each image by itself.

    `images` uint8 (B, 3, H, W) -> floats in [0, 1] of the same shape. `generator` is a CPU generator.
    """
    floats = images.float() / 255
    draws = torch.rand(len(images), 6, generator=generator).to(images.device)
    return _recolour(_crop(floats, draws[:, :3]), draws[:, 3:])


def _crop(images: Tensor, draws: Tensor) -> Tensor:
    """A part of SMALLEST_CROP to 1 of each side, anywhere in the image, brought back to full size."""
    scale = SMALLEST_CROP + (1 - SMALLEST_CROP) * draws[:, 0]
    shift = (1 - scale)[:, None] * (2 * draws[:, 1:] - 1)  # the crop stays inside: |shift| + scale <= 1
    zero = torch.zeros_like(scale)
    rows = [torch.stack([scale, zero, shift[:, 0]], 1), torch.stack([zero, scale, shift[:, 1]], 1)]
    grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def _recolour(images: Tensor, draws: Tensor) -> Tensor:
    brightness, contrast, saturation = (1 + COLOUR * (2 * draws - 1)).T[:, :, None, None, None]
    images = images * brightness
    grey = images.mean(dim=1, keepdim=True)
    images = grey + (images - grey) * saturation
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    return torch.clamp(mean + (images - mean) * contrast, 0, 1)
