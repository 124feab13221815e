"""Images and points for the tests of geometry."""

from __future__ import annotations

import numpy as np

from sareloc.arrays import Image


def texture(height: int, width: int, seed: int = 0) -> Image:
    """Overlapping boxes of random grey levels: corners that XFeat finds."""
    rng = np.random.default_rng(seed)
    image = np.full((height, width), 128, dtype=np.uint8)
    for _ in range(height * width // 150):
        y, x = rng.integers(0, height), rng.integers(0, width)
        image[y : y + rng.integers(3, 25), x : x + rng.integers(3, 25)] = rng.integers(0, 256)
    return np.repeat(image[..., None], 3, axis=2)
