"""What in a photo mattered, as a picture to lay over it: coloured where it did, transparent where it did not."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow
from scipy.ndimage import gaussian_filter

from sareloc.figures.heatmap import occlusion_map
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import MIN_SIDE_PX

Image = npt.NDArray[np.uint8]

LOOKED_AT_PX = 224
SHOWN_PX = 512
SMOOTHING = 30  # of the shorter side, for the eye
OPAQUE = 0.85
LITTLE, MOST = np.array([200.0, 30.0, 60.0]), np.array([255.0, 225.0, 90.0])  # brighter also where colours are not seen


def heat_size(height: int, width: int) -> tuple[int, int]:
    """The size that a photo is looked at: its longer side 224 px, as some eighty copies of it go through the model."""
    scale = LOOKED_AT_PX / max(height, width)
    return max(MIN_SIDE_PX, round(height * scale)), max(MIN_SIDE_PX, round(width * scale))


def draw_heat(model: PlaceModel, image: Image) -> bytes:
    """A PNG with transparency, of the shape of the image (H, W, 3), its longer side 512 px."""
    return png_of_heat(occlusion_map(model, image))


def png_of_heat(heat: npt.NDArray[np.float32]) -> bytes:
    """Heat (H, W) as a PNG: stretched from its least (transparent) to its most, smoothed."""
    height, width = heat.shape
    scale = SHOWN_PX / max(height, width)
    size = (round(width * scale), round(height * scale))
    large = np.asarray(Pillow.fromarray(heat).resize(size, Pillow.Resampling.BILINEAR))
    smooth = gaussian_filter(large, min(size) / SMOOTHING)
    shares = ((smooth - smooth.min()) / max(float(np.ptp(smooth)), 1e-9))[..., None]
    pixels = np.concatenate([LITTLE + (MOST - LITTLE) * shares, 255 * OPAQUE * shares], axis=2)
    png = io.BytesIO()
    Pillow.fromarray(pixels.round().astype(np.uint8), "RGBA").save(png, "PNG")
    return png.getvalue()
