"""Aliases of numpy array types for signatures."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Vectors = npt.NDArray[np.float32]
"""Descriptors, one per row."""
Image = npt.NDArray[np.uint8]
"""Pixels (height, width, 3), RGB."""
