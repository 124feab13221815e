"""What a search of a map gives, and the seam beneath it: the photos of a map, opened for searching."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sareloc.engines import EngineInfo
from sareloc.place_map.areas import Area
from sareloc.place_map.records import Manifest

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Matches:
    """The photos of a map that look most like each of Q queries, the most alike first.

    K is the k that was asked for, or the number of photos in the map (in the area) where that is smaller.
    """

    ids: Ints
    """(Q, K) ids of photos in the map."""
    distances: Vectors
    """(Q, K) Euclidean distances of descriptors, 0 to 2."""
    latlon: Floats
    """(Q, K, 2) latitude, longitude in degrees, WGS84."""
    files: tuple[tuple[str, ...], ...]
    """Q x K file names."""


class MapPhotos(Protocol):
    """The photos of a map, wherever they are: in memory, or on a server that is asked. Safe from several threads."""

    manifest: Manifest
    notes: dict[str, str]

    def __len__(self) -> int: ...

    def search(self, descriptors: Vectors, k: int, near: Area | None) -> Matches:
        """The k photos most like each query (Q, dim), from the area `near` alone where it is given."""

    def descriptors(self, ids: Ints) -> Vectors:
        """The descriptors (n, dim) of these photos, at half precision or better."""

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
        """The ids (n,) and positions (n, 2) of so many photos drawn at random, or of all where there are no more."""

    def count_around(self, points_m: Floats, radius_m: float) -> Ints:
        """How many photos stand within the radius of each of these points (Q, 3) in earth-centred metres."""

    def settle(self) -> None:
        """Do now what makes searching what was added as fast and good as it can be."""

    def engine_info(self) -> EngineInfo:
        """How this map is searched."""

    def refresh(self) -> None:
        """Take in what has been added and removed since."""
