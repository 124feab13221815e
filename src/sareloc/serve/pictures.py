"""The pictures that the service draws: thumbnails of photos, and heat maps."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow

from sareloc.models.preprocess import MIN_SIDE_PX
from sareloc.photos import MAX_PIXELS, ImageRecord, decode, file_of, longest_side

HEATMAP_INPUT_PX = 224
HEATMAP_OUTPUT_PX = 512
OPACITY = 0.85
LOW, HIGH = np.array([200.0, 30.0, 60.0]), np.array([255.0, 225.0, 90.0])  # also differ in brightness


def etag_of(path: Path, size: int) -> str:
    """The ETag of a thumbnail of this size; it changes with the file. Raises OSError if there is no such file."""
    status = file_of(path).stat()
    stamp = f"{path} {status.st_size} {status.st_mtime_ns} {size}"
    return f'"{hashlib.sha256(os.fsencode(stamp)).hexdigest()[:24]}"'


def draw_thumbnail(photo: Path | ImageRecord, size: int, max_pixels: int = MAX_PIXELS) -> bytes:
    """A JPEG of a photo whose longer side has at most `size` px. Raises PhotoError if it cannot be decoded.

    max_pixels: larger photos are refused before they are decoded.
    """
    content = io.BytesIO()
    image = decode(photo, size=longest_side(size), max_pixels=max_pixels)
    Pillow.fromarray(image).save(content, "JPEG", quality=85)
    return content.getvalue()


def heatmap_size(height: int, width: int) -> tuple[int, int]:
    """The size of a photo for its heat map, the longer side 224 px: about eighty copies of it are described."""
    scale = HEATMAP_INPUT_PX / max(height, width)
    return max(MIN_SIDE_PX, round(height * scale)), max(MIN_SIDE_PX, round(width * scale))


def heatmap_png(heat: npt.NDArray[np.float32]) -> bytes:
    """An occlusion map (H, W) as PNG, the longer side 512 px: smoothed; the minimum is transparent."""
    from sareloc.encode.occlusion import smooth_heat  # few services draw heat maps

    height, width = heat.shape
    scale = HEATMAP_OUTPUT_PX / max(height, width)
    shares = smooth_heat(heat, round(height * scale), round(width * scale))[..., None]
    pixels = np.concatenate([LOW + (HIGH - LOW) * shares, 255 * OPACITY * shares], axis=2)
    png = io.BytesIO()
    Pillow.fromarray(pixels.round().astype(np.uint8), "RGBA").save(png, "PNG")
    return png.getvalue()
