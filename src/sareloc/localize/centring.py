"""Descriptors without what all photos of a map have in common.

The photos of one town share its brick, its trees, its camera: their descriptors lie on one side of the sphere, and the
more so the less the model has seen of such towns. What they share says nothing about where in the town a photo was
taken. Taken away, from the map's photos and from those that are asked about, the rest tells them apart better.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sareloc.engines import ApproximateEngine
from sareloc.localize.derived_map import DerivedMap
from sareloc.place_map import PlaceMap

Vectors = npt.NDArray[np.float32]

BATCH = 4096


class CentredMap(DerivedMap):
    """A map whose descriptors y became `L2(y - mean)`, with the mean of all of them; queries become the same."""

    def __init__(self, place_map: PlaceMap) -> None:
        ids = place_map.ids
        lots = [ids[start : start + BATCH] for start in range(0, len(ids), BATCH)]
        total = np.zeros(place_map.manifest.dim)
        for lot in lots:
            total += place_map.descriptors(lot).sum(axis=0, dtype=np.float64)
        self.mean = total / len(ids)
        engine = ApproximateEngine(place_map.manifest.dim)
        for lot in lots:
            engine.upsert(lot, centred(place_map.descriptors(lot), self.mean))
        super().__init__(place_map, engine, "centred")


def centred(vectors: Vectors, mean: npt.NDArray[np.float64]) -> Vectors:
    """Rows (n, dim) without `mean` (dim,), scaled to unit length; one that is the mean itself becomes 0."""
    rest = vectors - mean
    lengths = np.linalg.norm(rest, axis=1, keepdims=True)
    return np.asarray(np.divide(rest, lengths, out=np.zeros_like(rest), where=lengths > 0), dtype=np.float32)
