"""Drawn descriptors that are as hard to search as real ones: places seen several times, streets that look alike.

A descriptor is the unit vector of a sum of three parts: what its district looks like, what its place looks like, and
what this view of it looks like. Each part is Gaussian with a variance that falls with the dimension's number i as
i^-decay: whitened descriptors have none (0), others have much (1). Views per place are geometric, so that half of the
places are seen a few times and some often. A query is one more view of a place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
BLOCK = 50_000


@dataclass(frozen=True)
class Town:
    """How descriptors are drawn."""

    dim: int = 512
    decay: float = 0.5
    views: float = 6.0
    """Mean number of photos of a place."""
    districts: int = 200
    district_share: float = 0.5
    """Share of a place's variance that its district has in common."""
    view_noise: float = 0.8
    """Size of a view's part, where the place's is 1."""


def draw(town: Town, photos: int, queries: int, rng: np.random.Generator) -> tuple[Vectors, Vectors]:
    """Unit descriptors (photos, dim) and (queries, dim)."""
    scale = np.arange(1, town.dim + 1) ** (-town.decay / 2)
    scale = (scale / np.linalg.norm(scale)).astype(np.float32)

    def gaussians(count: int) -> Vectors:
        return rng.standard_normal((count, town.dim), dtype=np.float32) * scale

    def views_of(places: npt.NDArray[np.int64]) -> Vectors:
        views = centres[places] + town.view_noise * gaussians(len(places))
        return (views / np.linalg.norm(views, axis=1, keepdims=True)).astype(np.float32)

    counts = rng.geometric(1 / town.views, photos)  # more than are needed
    places = np.repeat(np.arange(photos), counts)[:photos]
    district = rng.integers(0, town.districts, places[-1] + 1)
    centres = np.sqrt(town.district_share) * gaussians(town.districts)[district]
    centres += np.sqrt(1 - town.district_share) * gaussians(len(district))
    database = np.empty((photos, town.dim), dtype=np.float32)
    for start in range(0, photos, BLOCK):
        database[start : start + BLOCK] = views_of(places[start : start + BLOCK])
    return database, views_of(rng.integers(0, len(centres), queries))
