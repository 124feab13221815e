"""Occlusion heat maps (`sareloc.encode.occlusion_map`) drawn over photos."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow

from sareloc.arrays import Floats, Image
from sareloc.errors import ArgumentError, need
from sareloc.figures.style import new_figure, show_image, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Heat = npt.NDArray[np.float32]

SMOOTHING = 30  # sigma of the Gaussian filter: the shorter side divided by this


def overlay_heatmap(image: Image, heat: Heat) -> Image:
    """The photo in grey with the heat map as colour (H, W, 3); hotter pixels are also brighter.

    The heat map is resized to the image, smoothed, and stretched to its minimum and maximum. Raises ArgumentError if it
    is empty or has values that are not finite.
    """
    if not heat.size or not np.isfinite(heat).all():
        raise ArgumentError(f"a heat map must be finite and not empty: found an array of shape {heat.shape}")
    from scipy.ndimage import gaussian_filter

    height, width = image.shape[:2]
    smooth = np.asarray(Pillow.fromarray(heat.astype(np.float32)).resize((width, height), Pillow.Resampling.BILINEAR))
    smooth = gaussian_filter(smooth, min(height, width) / SMOOTHING)
    stretched = ((smooth - smooth.min()) / max(np.ptp(smooth), 1e-9))[..., None]
    grey = (image @ np.array([0.299, 0.587, 0.114]))[..., None] / 255
    return np.asarray((255 * _blend(grey, stretched)).clip(0, 255).round(), dtype=np.uint8)


def _blend(grey: npt.NDArray[np.floating[Any]], heat: npt.NDArray[np.floating[Any]]) -> Floats:
    """RGB colours (..., 3) of grey (..., 1) and heat (..., 1), all in 0..1."""
    colours = need("matplotlib", "plot").colormaps["inferno"](0.25 + 0.7 * heat[..., 0])[..., :3]
    share = 0.65 * heat
    mixed: Floats = (1 - share) * grey * (0.7 + 0.3 * heat) + share * colours
    return mixed


@styled
def draw_heatmaps(image: Image, heats: Mapping[str, Heat]) -> Figure:
    """A photo and its heat maps, one for each model, keyed by the title."""
    if not heats:
        raise ArgumentError("nothing to draw: no heat maps were given")
    height, width = image.shape[:2]
    each = 3.2 * min(1.0, width / height)
    figure = new_figure((each + 0.15) * (1 + len(heats)) + 0.7, each * height / width + 0.45)
    panels = figure.subplots(1, 1 + len(heats))
    show_image(panels[0], image)
    panels[0].set_title("photo")
    for axes, (name, heat) in zip(panels[1:], heats.items(), strict=True):
        show_image(axes, overlay_heatmap(image, heat))
        axes.set_title(name)
    shades = np.linspace(0, 1, 256)[:, None]
    colormap = need("matplotlib.colors", "plot").ListedColormap(_blend(np.full_like(shades, 0.5), shades))
    scale = need("matplotlib.cm", "plot").ScalarMappable(cmap=colormap)
    scale.set_clim(0, 1)
    bar = figure.colorbar(scale, ax=panels[-1], shrink=0.85, aspect=16, pad=0.03, ticks=[0, 1])
    bar.ax.set_yticklabels(["min", "max"])
    bar.outline.set_visible(False)
    return figure
