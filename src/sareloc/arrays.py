"""The array types that signatures name."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Vectors = npt.NDArray[np.float32]
"""Descriptors, one in each row."""
Image = npt.NDArray[np.uint8]
"""Pixels, (height, width, 3), RGB."""
