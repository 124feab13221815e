"""Occlusion maps: which pixels of a photo its descriptor depends on (Gruen et al. 2016)."""

from __future__ import annotations

import math

import numpy as np
import torch
from PIL import Image as Pillow
from scipy.ndimage import gaussian_filter

from sareloc import arrays
from sareloc.arrays import Floats, Vectors
from sareloc.errors import ArgumentError
from sareloc.models.place_model import PlaceModel
from sareloc.photos import Image, ImageRecord, decode

SMOOTHING = 30  # standard deviation of the Gaussian filter: the shorter side divided by this
BOXES_ACROSS = 5  # default: a box is this part of the geometric mean of the photo's sides


def occlusion_map(
    model: PlaceModel, image: Image | ImageRecord, box: int | None = None, stride: int | None = None, batch: int = 16
) -> Vectors:
    """How much the descriptor depends on each pixel: (H, W) float32 in 0..1, the maximum being 1.

    A square in the model's mean colour slides over the image; the last in each direction touches the edge. The change
    of the descriptor, |f(x) - f(x_occluded)|, counts for the pixels that the square covers; a pixel gets the mean over
    the squares that covered it, divided by the largest such mean. All zeros if no square changes the descriptor.

    Args:
        model: the model.
        image: see `read_image`, of H x W pixels; it is not resized: smaller is faster.
        box: side of the square, in pixels; default: about 1/25 of the area.
        stride: pixels between neighbouring squares; default: half a box.
        batch: images encoded at once.

    Raises:
        ArgumentError: if a pixel would not be covered.
        PhotoError: if the image cannot be read.
    """
    pixels = decode(image)
    height, width = pixels.shape[:2]
    box = max(1, min(height, width, int(math.sqrt(height * width)) // BOXES_ACROSS)) if box is None else box
    stride = max(1, box // 2) if stride is None else stride
    if not 1 <= stride <= box <= min(height, width):
        raise ArgumentError(
            f"box and stride must satisfy 1 <= stride <= box <= the shorter side, so that every pixel is covered: "
            f"found stride {stride}, box {box}, image {height} x {width} px"
        )
    corners = [(top, left) for top in _starts(height, box, stride) for left in _starts(width, box, stride)]
    changes = _descriptor_changes(model, pixels, corners, box, batch)
    return _mean_over_boxes(changes, corners, box, (height, width))


def smooth_heat(heat: Vectors, height: int, width: int) -> Vectors:
    """An occlusion map (h, w) for drawing: resized to (height, width), smoothed, stretched to 0..1."""
    large = np.asarray(Pillow.fromarray(heat).resize((width, height), Pillow.Resampling.BILINEAR))
    smooth = gaussian_filter(large, min(height, width) / SMOOTHING)
    return np.asarray((smooth - smooth.min()) / max(float(np.ptp(smooth)), 1e-9))


def _starts(length: int, box: int, stride: int) -> list[int]:
    return sorted({*range(0, length - box, stride), length - box})


def _descriptor_changes(
    model: PlaceModel, image: arrays.Image, corners: list[tuple[int, int]], box: int, batch: int
) -> Floats:
    """|f(x) - f(x_occluded)| (n,) for a box at each of n corners (top, left)."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    rule = model.preprocess
    fill = (torch.tensor(rule.mean) / rule.scale * 255).round().clamp(0, 255).to(torch.uint8)[:, None, None]
    original = model.encode(pixels[None])
    changes: list[torch.Tensor] = []
    for start in range(0, len(corners), batch):
        part = corners[start : start + batch]
        occluded = pixels.repeat(len(part), 1, 1, 1)  # (b, 3, H, W)
        for copy, (top, left) in zip(occluded, part, strict=True):
            copy[:, top : top + box, left : left + box] = fill
        changes.append((model.encode(occluded, batch=batch) - original).norm(dim=1))
    distances = torch.cat(changes).double().numpy()
    if not np.isfinite(distances).all():
        raise ArgumentError(f"the model {model.name} gives descriptors that are not finite: there is no heat map")
    return np.asarray(distances)


def _mean_over_boxes(changes: Floats, corners: list[tuple[int, int]], box: int, size: tuple[int, int]) -> Vectors:
    total, covered = np.zeros(size), np.zeros(size)
    for distance, (top, left) in zip(changes, corners, strict=True):
        total[top : top + box, left : left + box] += distance
        covered[top : top + box, left : left + box] += 1
    mean = total / covered
    return (mean / mean.max() if mean.max() > 0 else mean).astype(np.float32)
