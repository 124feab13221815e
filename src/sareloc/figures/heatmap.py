"""Occlusion maps (`sareloc.describe.occlusion_map`) drawn over photos."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow

from sareloc.arrays import Image
from sareloc.errors import ArgumentError, need
from sareloc.figures.style import drawn, new_figure, plain_image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Heat = npt.NDArray[np.float32]

SMOOTHING = 30  # for the eye, a heat map is smoothed by this part of its shorter side


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
