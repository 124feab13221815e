"""Accuracy and calibration of fixes whose true positions are known, and the gain of one way over another."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sareloc.evaluation import judge_fixes
from sareloc.evaluation.fixes import fix_errors_m
from sareloc.geo import distance_m
from sareloc.localize import Fix

HIT_M = 25.0
DRAWS = 2000


def judge(fixes: list[Fix], truth: np.ndarray, out_of_map: list[Fix]) -> dict[str, float | None]:
    """Of fixes that were made with no lower limit to their confidence; out_of_map: of out-of-map photos."""
    first = distance_m([fix.matches[0].latlon for fix in fixes], truth)
    judged = judge_fixes(fixes, truth, out_of_map=out_of_map)
    kept = judged.correct_and_answered
    return {
        "recall@1": 100 * float((first <= HIT_M).mean()),
        "fix_right": judged.correct,
        "fix_median_m": float(np.median(fix_errors_m(fixes, truth))),
        "right_kept": 100 * kept / judged.correct if judged.correct and kept is not None else None,
        "sure_right": judged.answers_correct,
        "others_rejected": judged.strangers_rejected,
        "ece": judged.calibration_error,
    }


def right_ones(fixes: list[Fix], truth: np.ndarray) -> np.ndarray:
    return fix_errors_m(fixes, truth) <= HIT_M


def gain(right: np.ndarray, against: np.ndarray, groups: np.ndarray | None = None) -> dict[str, float | None]:
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
