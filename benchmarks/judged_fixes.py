"""Accuracy, confidence and calibration of fixes whose true positions are known, with bootstrap intervals."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sareloc.geo import distance_m
from sareloc.localize import Fix
from sareloc.localize.calibration import expected_calibration_error

HIT_M, SURE = 25.0, 0.5
DRAWS = 2000


def judge(fixes: list[Fix], truth: np.ndarray) -> dict[str, float | None]:
    """Of fixes that were made with no lower limit to their confidence."""
    first = distance_m([fix.matches[0].latlon for fix in fixes], truth)
    errors = distance_m([fix.latlon for fix in fixes], truth)
    sure = np.array([fix.confidence >= SURE for fix in fixes])
    right = errors <= HIT_M
    return {
        "recall@1": 100 * float((first <= HIT_M).mean()),
        "fix_right": 100 * float(right.mean()),
        "fix_median_m": float(np.median(errors)),
        "right_kept": 100 * float(sure[right].mean()),
        "sure_right": 100 * float(right[sure].mean()) if sure.any() else None,
    }


def right_ones(fixes: list[Fix], truth: np.ndarray) -> np.ndarray:
    return distance_m([fix.latlon for fix in fixes], truth) <= HIT_M


def told_of_strangers(fixes: list[Fix], truth: np.ndarray, strangers: list[Fix]) -> dict[str, float]:
    """Photos of the other town, of which none can be right, and the calibration error over as many of both."""
    rejected = 100 * float(np.mean([fix.confidence < SURE for fix in strangers]))
    asked = [*fixes, *strangers[: len(fixes)]]
    right = np.zeros(len(asked), dtype=bool)
    right[: len(fixes)] = right_ones(fixes, truth)
    return {"others_rejected": rejected, "ece": expected_calibration_error([fix.confidence for fix in asked], right)}


def gain(right: np.ndarray, against: np.ndarray, groups: np.ndarray | None = None) -> dict[str, float]:
    """By how many points more fixes are right, with the interval."""
    more = 100 * (right.astype(float) - against)
    low, high = interval(more, groups)
    return {"gain": float(more.mean()), "gain_low": low, "gain_high": high}


def interval(values: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean of `values` (n,); the draws are the same in every call.

    `groups` (n,): values of one group, such as the photos of one walk, are drawn together, as they are not independent.
    """
    numbers = np.asarray(values, dtype=np.float64)
    which = np.arange(len(numbers)) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    sums, counts = np.bincount(which, numbers), np.bincount(which)
    rows = np.random.default_rng(0).integers(len(sums), size=(DRAWS, len(sums)))
    low, high = np.percentile(sums[rows].sum(axis=1) / counts[rows].sum(axis=1), (2.5, 97.5))
    return float(low), float(high)
