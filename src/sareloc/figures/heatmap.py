"""What in a photo mattered to the model: the occlusion heat map (Gruen et al. 2016)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image as Pillow

from sareloc.arrays import Image
from sareloc.errors import ArgumentError, need
from sareloc.figures.style import drawn, new_figure, plain_image
from sareloc.models.place_model import PlaceModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Heat = npt.NDArray[np.float32]

BOXES_ACROSS = 5  # by default a box is this part of the photo's side
SMOOTHING = 30  # for the eye, a heat map is smoothed by this part of its shorter side


def occlusion_map(
    model: PlaceModel, image: Image, box: int | None = None, stride: int | None = None, batch: int = 16
) -> Heat:
    """How much the descriptor depends on each pixel: (H, W) in 0..1, the maximum being 1.

    A square of `box` pixels (about 1/25 of the area) in the model's mean colour slides over the image (H, W, 3)
    by `stride` pixels (half a box); the last in each direction touches the edge. How far it moves the descriptor,
    |f(x) - f(x_occluded)|, counts for the pixels that it covers; a pixel has the mean over the squares that covered
    it, divided by the largest such mean. All zeros where nothing moves the descriptor. The image is taken at the size
    it has: smaller is faster.
    """
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
        raise ArgumentError(f"an image is a uint8 array (H, W, 3): found {image.dtype} {image.shape}")
    height, width = image.shape[:2]
    box = max(1, min(height, width, int(math.sqrt(height * width)) // BOXES_ACROSS)) if box is None else box
    stride = max(1, box // 2) if stride is None else stride
    if not 1 <= stride <= box <= min(height, width):
        raise ArgumentError(
            f"box and stride must satisfy 1 <= stride <= box <= the shorter side, so that every pixel is covered: "
            f"found stride {stride}, box {box}, image {height} x {width} px"
        )
    corners = [(top, left) for top in _starts(height, box, stride) for left in _starts(width, box, stride)]
    moved = _how_far_moved(model, image, corners, box, batch)
    return _spread(moved, corners, box, (height, width))


def _starts(length: int, box: int, stride: int) -> list[int]:
    return sorted({*range(0, length - box, stride), length - box})


def _how_far_moved(
    model: PlaceModel, image: Image, corners: list[tuple[int, int]], box: int, batch: int
) -> npt.NDArray[np.float64]:
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    rule = model.preprocess
    fill = (torch.tensor(rule.mean) / rule.scale * 255).round().clamp(0, 255).to(torch.uint8)[:, None, None]
    whole = model.encode(pixels[None])
    moved: list[torch.Tensor] = []
    for start in range(0, len(corners), batch):
        part = corners[start : start + batch]
        occluded = pixels.repeat(len(part), 1, 1, 1)  # (b, 3, H, W)
        for copy, (top, left) in zip(occluded, part, strict=True):
            copy[:, top : top + box, left : left + box] = fill
        moved.append((model.encode(occluded, batch=batch) - whole).norm(dim=1))
    distances = torch.cat(moved).double().numpy()
    if not np.isfinite(distances).all():
        raise ArgumentError(f"the model {model.name} gives descriptors that are not numbers: there is no heat map")
    return distances


def _spread(moved: npt.NDArray[np.float64], corners: list[tuple[int, int]], box: int, size: tuple[int, int]) -> Heat:
    total, covered = np.zeros(size), np.zeros(size)
    for distance, (top, left) in zip(moved, corners, strict=True):
        total[top : top + box, left : left + box] += distance
        covered[top : top + box, left : left + box] += 1
    mean = total / covered
    return (mean / mean.max() if mean.max() > 0 else mean).astype(np.float32)


def overlay(image: Image, heat: Heat) -> Image:
    """The photo in grey, what mattered most glowing in it (H, W, 3): brighter also where colours cannot be seen.

    For the eye alone: the heat is brought to the image's size, smoothed, and stretched from its least to its most.
    """
    if not heat.size or not np.isfinite(heat).all():
        raise ArgumentError(f"a heat map is an array of finite numbers: found {heat.shape} with others among them")
    from scipy.ndimage import gaussian_filter

    height, width = image.shape[:2]
    smooth = np.asarray(Pillow.fromarray(heat.astype(np.float32)).resize((width, height), Pillow.Resampling.BILINEAR))
    smooth = gaussian_filter(smooth, min(height, width) / SMOOTHING)
    stretched = ((smooth - smooth.min()) / max(np.ptp(smooth), 1e-9))[..., None]
    grey = (image @ np.array([0.299, 0.587, 0.114]))[..., None] / 255
    return np.asarray((255 * _glowing(grey, stretched)).clip(0, 255).round(), dtype=np.uint8)


def _glowing(grey: npt.NDArray[np.floating[Any]], heat: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """Grey (..., 1) and heat (..., 1), both in 0..1, as colours (..., 3)."""
    colours = need("matplotlib", "plot").colormaps["inferno"](0.25 + 0.7 * heat[..., 0])[..., :3]
    share = 0.65 * heat
    mixed: npt.NDArray[np.float64] = (1 - share) * grey * (0.7 + 0.3 * heat) + share * colours
    return mixed


@drawn
def draw_heatmaps(image: Image, heats: Mapping[str, Heat]) -> Figure:
    """A photo and beside it what mattered in it to one or several models, by the names shown."""
    if not heats:
        raise ArgumentError("there is nothing to draw: no heat maps were given")
    height, width = image.shape[:2]
    each = 3.2 * min(1.0, width / height)
    figure = new_figure((each + 0.15) * (1 + len(heats)) + 0.7, each * height / width + 0.45)
    panels = figure.subplots(1, 1 + len(heats))
    plain_image(panels[0], image)
    panels[0].set_title("photo")
    for axes, (name, heat) in zip(panels[1:], heats.items(), strict=True):
        plain_image(axes, overlay(image, heat))
        axes.set_title(name)
    shades = np.linspace(0, 1, 256)[:, None]
    glow = need("matplotlib.colors", "plot").ListedColormap(_glowing(np.full_like(shades, 0.5), shades))
    scale = need("matplotlib.cm", "plot").ScalarMappable(cmap=glow)
    scale.set_clim(0, 1)
    bar = figure.colorbar(scale, ax=panels[-1], shrink=0.85, aspect=16, pad=0.03, ticks=[0, 1])
    bar.ax.set_yticklabels(["little", "most"])
    bar.outline.set_visible(False)
    return figure
