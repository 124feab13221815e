"""Photos small enough to stand in a figure or inside a page."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow

from sareloc.errors import PhotoError
from sareloc.photos import SizeRule, decode

Image = npt.NDArray[np.uint8]


def longest_side(pixels: int) -> SizeRule:
    """A size rule: the longer side is at most so many pixels, the aspect kept."""

    def size(height: int, width: int) -> tuple[int, int]:
        shrink = min(1.0, pixels / max(height, width))
        return max(1, round(height * shrink)), max(1, round(width * shrink))

    return size


def load_thumbnail(path: Path, pixels: int) -> Image | None:
    """The photo with its longer side at most so many pixels; None where it cannot be decoded."""
    try:
        return decode(path, size=longest_side(pixels))
    except PhotoError:
        return None


def jpeg_uri(image: Image, quality: int = 80) -> str:
    """The image inside a page: a data URI that needs no file and no network."""
    content = io.BytesIO()
    Pillow.fromarray(image).save(content, "JPEG", quality=quality, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()
