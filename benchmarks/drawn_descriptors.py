"""Drawn descriptors that are as hard to search as real ones, in any number.

Photos are taken along a walk. A descriptor is the unit vector of a sum of Gaussian parts: what all photos have in
common, what the walk passes by (each part changes slowly, over some photos, some dozens or some hundreds), and what
this view alone shows. The variance of what is passed by falls as i^-structure_decay with the number i of the dimension,
so that places far apart look alike, too. A query is one more view of a place.

The defaults were fitted to real descriptors, whitened 512-D VGG16-NetVLAD of 3,700 photos of one town's streets, and
are a little harder. There the mean distances to the 1st, 5th, 10th and 100th neighbour and the median one are 0.96,
1.08, 1.11, 1.21, 1.36 (drawn: 0.95, 1.07, 1.11, 1.20, 1.36), and visiting 2, 4, 8, 16 and 32 of 64 clusters finds 67,
80, 90, 96 and 99 % of the ten nearest (drawn: 62, 77, 88, 96, 99 %).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

Vectors = npt.NDArray[np.float32]
BLOCK = 50_000


@dataclass(frozen=True)
class Walk:
    """How descriptors are drawn. Shares are of the variance; with those of the view and in common they add up to 1."""

    dim: int = 512
    view_share: float = 0.36
    common_share: float = 0.06
    structure_shares: tuple[float, ...] = (0.33, 0.12, 0.13)
    structure_photos: tuple[float, ...] = (2.5, 12.0, 100.0)
    """Over so many photos each part of the structure changes."""
    structure_decay: float = 1.0
    view_decay: float = 0.25


WHITE = Walk(
    view_share=0.5, common_share=0.0, structure_shares=(0.5,), structure_photos=(3.0,), structure_decay=0, view_decay=0
)
"""No structure but places and no dimension more important than another: the hardest there is for an index."""


class Block(NamedTuple):
    """Some photos of a walk, and queries about places among them."""

    start: int
    """The number of the first photo."""
    descriptors: Vectors
    asked: npt.NDArray[np.int64]
    """(q,) numbers of the photos that the queries are other views of, rising."""
    queries: Vectors


def draw(walk: Walk, photos: int, queries: int, rng: np.random.Generator) -> tuple[Vectors, Vectors]:
    """Unit descriptors (photos, dim) along a walk, and (queries, dim) of more views of places on it."""
    database = np.empty((photos, walk.dim), dtype=np.float32)
    questions: list[Vectors] = []
    for block in draw_blocks(walk, photos, queries, rng):
        database[block.start : block.start + len(block.descriptors)] = block.descriptors
        questions.append(block.queries)
    return database, rng.permutation(np.concatenate(questions))


def draw_blocks(
    walk: Walk, photos: int, queries: int, rng: np.random.Generator, asked_among: int | None = None
) -> Iterator[Block]:
    """The same, some ten thousand photos at a time; `asked_among`: queries are about the first so many photos alone."""
    structure, view = _spectrum(walk.dim, walk.structure_decay), _spectrum(walk.dim, walk.view_decay)

    def gaussians(count: int) -> Vectors:
        return rng.standard_normal((count, walk.dim), dtype=np.float32)

    def views_of(places: Vectors) -> Vectors:
        seen = places + np.float32(np.sqrt(walk.view_share)) * gaussians(len(places)) * view
        unit: Vectors = (seen / np.linalg.norm(seen, axis=1, keepdims=True)).astype(np.float32)
        return unit

    common = np.sqrt(walk.common_share) * gaussians(1) * structure
    parts = [
        (np.float32(np.sqrt(share)), np.float32(np.exp(-1 / n)))
        for share, n in zip(walk.structure_shares, walk.structure_photos, strict=True)
    ]
    states = [gaussians(1) * structure for _ in parts]
    asked = np.sort(rng.integers(0, asked_among or photos, queries))
    for start in range(0, photos, BLOCK):
        count = min(BLOCK, photos - start)
        places = np.repeat(common, count, axis=0).astype(np.float32)
        for i, (size, kept) in enumerate(parts):
            changes = np.float32(np.sqrt(1 - kept**2)) * gaussians(count) * structure
            one, back = np.ones(1, dtype=np.float32), np.array([1, -kept], dtype=np.float32)
            passed, _ = lfilter(
                one, back, changes, axis=0, zi=kept * states[i]
            )  # each adds to what is left of the last
            states[i] = passed[-1:].copy()
            places += size * passed
        here = asked[(asked >= start) & (asked < start + count)]
        yield Block(start, views_of(places), here, views_of(places[here - start]))


def _spectrum(dim: int, decay: float) -> Vectors:
    scale = np.arange(1, dim + 1) ** (-decay / 2)
    return (scale / np.linalg.norm(scale)).astype(np.float32)
