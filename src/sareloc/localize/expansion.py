"""Descriptors averaged with their neighbours: of the query (query expansion), or of every photo of the map."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from sareloc.engines import ApproximateEngine, Engine
from sareloc.geo import ecef_from_wgs84
from sareloc.localize.derived_map import DerivedMap
from sareloc.localize.fusion import PLACE_M
from sareloc.place_map import Area, Matches, PlaceMap

Vectors = npt.NDArray[np.float32]

EXPANSION_ALPHA = 3.0  # cautious: a match may show another place
AVERAGING_ALPHA = 1.0  # bold: neighbours are known to stand near
BATCH = 1024


def blend(vectors: Vectors, neighbours: Vectors, distances: npt.ArrayLike, alpha: float) -> Vectors:
    """Unit vectors (Q, D), each added to its neighbours (Q, K, D) and scaled to unit length again.

    A neighbour at distance d counts `max(0, s)^alpha` with the cosine `s = 1 - d^2 / 2`, the vector itself 1: alpha
    query expansion (Radenović et al. 2018). A neighbour at an infinite distance does not count.
    """
    cosines = np.maximum(0.0, 1 - np.asarray(distances, dtype=np.float64) ** 2 / 2)
    mixed = vectors + np.einsum("qk,qkd->qd", cosines**alpha, neighbours)
    return np.asarray(mixed / np.linalg.norm(mixed, axis=1, keepdims=True), dtype=np.float32)


def expand_queries(descriptors: Vectors, place_map: PlaceMap, count: int, near: Area | None = None) -> Vectors:
    """Queries (Q, dim), blended with the `count` photos of the map that are most like each."""
    matches = place_map.search(descriptors, count, near)
    return blend(descriptors, _fetch(place_map, matches), matches.distances, EXPANSION_ALPHA)


class AveragedMap(DerivedMap):
    """A map whose descriptors are blended with their own neighbours in the map (database-side averaging).

    Of the `count` most alike photos only those within 25 m have a part: a photo of a twin house elsewhere would blur
    just what tells the two apart.
    """

    def __init__(self, place_map: PlaceMap, count: int) -> None:
        super().__init__(place_map, _averaged(place_map, count), "averaged")


def _averaged(place_map: PlaceMap, count: int) -> Engine:
    engine = ApproximateEngine(place_map.manifest.dim)
    points = place_map.positions.metres
    with tqdm(total=len(place_map), desc="average", unit="photo", disable=None, leave=False) as bar:
        for start in range(0, len(place_map), BATCH):
            ids = place_map.ids[start : start + BATCH]
            vectors = place_map.descriptors(ids)
            matches = place_map.search(vectors, count + 1)
            there = ecef_from_wgs84(matches.latlon.reshape(-1, 2)).reshape(*matches.ids.shape, 3)
            away_m = np.linalg.norm(there - points[start : start + BATCH, None], axis=2)
            barred = (away_m > PLACE_M) | (matches.ids == ids[:, None])
            distances = np.where(barred, np.inf, matches.distances)
            engine.upsert(ids, blend(vectors, _fetch(place_map, matches), distances, AVERAGING_ALPHA))
            bar.update(len(ids))
    return engine


def _fetch(place_map: PlaceMap, matches: Matches) -> Vectors:
    """The descriptors (Q, K, dim) of matches."""
    return place_map.descriptors(matches.ids.reshape(-1)).reshape(*matches.ids.shape, place_map.manifest.dim)
