"""How far a share measured on so many queries may be off: percentile bootstrap."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

DRAWS = 2000


def interval(values: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> tuple[float, float]:
    """The middle 95 % of the means of `values` (n,), drawn again with replacement; always the same draws.

    `groups` (n,): values of one group, such as the photos of one walk, are drawn together: they are not independent.
    """
    numbers = np.asarray(values, dtype=np.float64)
    which = np.arange(len(numbers)) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    sums, counts = np.bincount(which, numbers), np.bincount(which)
    rows = np.random.default_rng(0).integers(len(sums), size=(DRAWS, len(sums)))
    low, high = np.percentile(sums[rows].sum(axis=1) / counts[rows].sum(axis=1), (2.5, 97.5))
    return float(low), float(high)
