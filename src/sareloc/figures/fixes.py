"""Fixes held against the truth: where they put the queries, and how often they are right when they are sure.

Ask for the fixes with `min_confidence=0`: a fix that was withheld says neither where it would have been nor whether
that was right.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sareloc.datasets.places import PhotoSet
from sareloc.errors import ArgumentError, PhotoError
from sareloc.figures.curves import SurenessCurve
from sareloc.figures.ground import Bools, Put
from sareloc.figures.style import Floats
from sareloc.geo import Positions, distance_m
from sareloc.localize import Fix


def put_by_fixes(
    fixes: Sequence[Fix | PhotoError],
    queries: PhotoSet,
    *,
    hit_radius_m: float = 25.0,
    min_confidence: float = 0.0,
    database: Positions | None = None,
) -> Put:
    """Where fixes put queries, a fix for each query; those without a position, less sure or not decoded are left out.

    Right: within `hit_radius_m` of where the query was taken.
    """
    true, found, confidence = _against_truth(fixes, queries)
    rows = np.flatnonzero(confidence >= min_confidence)  # never where there is none
    return Put(
        Positions.from_wgs84(true[rows]),
        Positions.from_wgs84(found[rows]),
        _right(true[rows], found[rows], hit_radius_m),
        tuple(queries.files[row] for row in rows),
        database,
    )


def sureness_of_fixes(
    fixes: Sequence[Fix | PhotoError], queries: PhotoSet, *, hit_radius_m: float = 25.0
) -> SurenessCurve:
    """Precision and recall over the confidence of fixes, a fix for each query; one without a position is no answer."""
    true, found, confidence = _against_truth(fixes, queries)
    answered = np.isfinite(confidence)
    right = np.zeros(len(queries), dtype=np.bool_)
    right[answered] = _right(true[answered], found[answered], hit_radius_m)
    return SurenessCurve.of_confidence(confidence, right.tolist())


def _against_truth(fixes: Sequence[Fix | PhotoError], queries: PhotoSet) -> tuple[Floats, Floats, Floats]:
    """Degrees (Q, 2) where queries were taken and where fixes put them, confidence (Q,); NaN without a position."""
    if queries.positions is None:
        raise ArgumentError("the queries have no positions: nothing says how far off their fixes are")
    if len(fixes) != len(queries):
        raise ArgumentError(f"there must be a fix for each query: found {len(fixes)} for {len(queries)}")
    found, confidence = np.full((len(fixes), 2), np.nan), np.full(len(fixes), np.nan)
    for row, fix in enumerate(fixes):
        if isinstance(fix, Fix) and fix.latlon is not None:
            found[row], confidence[row] = fix.latlon, fix.confidence
    return queries.positions.latlon(), found, confidence


def _right(true: Floats, found: Floats, hit_radius_m: float) -> Bools:
    return np.asarray(distance_m(true, found) <= hit_radius_m)
