"""From descriptors to the matches that a fix is made of: search, with the options that help accuracy."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from sareloc.arrays import Vectors
from sareloc.errors import ArgumentError, MapError
from sareloc.geo import ecef_from_wgs84
from sareloc.index import ApproximateEngine, Engine
from sareloc.localize.fusion import PLACE_M
from sareloc.maps import Area, Matches, PlaceMap

# Maps searched by other descriptors than their files hold: made from those at one moment, kept in memory.


class DerivedMap(PlaceMap):
    """The photos of a map under descriptors that were made from its own; the file stays as it is.

    `engine`: the new descriptors under the map's ids. `made`: what was done with the old ones, as a word for messages.
    """

    def __init__(self, place_map: PlaceMap, engine: Engine, made: str) -> None:
        vars(self).update(vars(place_map))
        self._photos = place_map.in_memory.searched_by(engine)
        self._made = made

    def refresh(self) -> None:
        """Refused: the descriptors are those of one moment."""
        raise MapError(
            f"the {self._made} descriptors of map {self.path} are of one moment: refresh the map that they were made "
            "of, and make them again"
        )


# Descriptors without what all photos of a map have in common.
#
# The photos of one town share its brick, its trees, its camera: their descriptors lie on one side of the sphere, and
# the more so the less the model has seen of such towns. What they share says nothing about where in the town a photo
# was taken. Taken away, from the map's photos and from those that are asked about, the rest tells them apart better.

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


# Descriptors averaged with their neighbours: of the query (query expansion), or of every photo of the map.

EXPANSION_ALPHA = 3.0  # cautious: a match may show another place
AVERAGING_ALPHA = 1.0  # bold: neighbours are known to stand near
EXPANSION_BATCH = 1024


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
        for start in range(0, len(place_map), EXPANSION_BATCH):
            ids = place_map.ids[start : start + EXPANSION_BATCH]
            vectors = place_map.descriptors(ids)
            matches = place_map.search(vectors, count + 1)
            there = ecef_from_wgs84(matches.latlon.reshape(-1, 2)).reshape(*matches.ids.shape, 3)
            away_m = np.linalg.norm(there - points[start : start + EXPANSION_BATCH, None], axis=2)
            barred = (away_m > PLACE_M) | (matches.ids == ids[:, None])
            distances = np.where(barred, np.inf, matches.distances)
            engine.upsert(ids, blend(vectors, _fetch(place_map, matches), distances, AVERAGING_ALPHA))
            bar.update(len(ids))
    return engine


def _fetch(place_map: PlaceMap, matches: Matches) -> Vectors:
    """The descriptors (Q, K, dim) of matches."""
    return place_map.descriptors(matches.ids.reshape(-1)).reshape(*matches.ids.shape, place_map.manifest.dim)


@dataclass(frozen=True)
class Search:
    """How matches are looked for. A calibration belongs to the search that it was made with."""

    candidates: int = 20
    """How many matches are fused into a fix."""
    centre: bool = False
    """Take away what all photos of the map have in common, from them and from the photo that is asked about."""
    expand: int = 0
    """Query expansion: average the query with so many of its matches, and search again."""
    average: int = 0
    """Database-side averaging: each photo of the map with its most alike neighbours, of so many those within 25 m."""
    rerank: int = 0
    """Put so many first matches in a new order by local features. Needs the map's photos, and time."""

    def __post_init__(self) -> None:
        for field in fields(self):
            least = 1 if field.name == "candidates" else 0
            if getattr(self, field.name) < least:
                raise ArgumentError(f"{field.name} must be {least} or more, found {getattr(self, field.name)}")

    @property
    def of_the_moment(self) -> bool:
        """Whether something is made of all photos of the map, and anew where they change."""
        return self.centre or bool(self.average)

    @property
    def name(self) -> str:
        """What differs from a plain search, such as "expand=3 rerank=50"; "plain" where nothing does."""
        chosen = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != f.default]
        return " ".join(chosen) or "plain"


class Searcher:
    """A map, searched in one way; re-ranking is not done here, it needs images."""

    def __init__(self, place_map: PlaceMap, search: Search) -> None:
        self.search = search
        self.base = CentredMap(place_map) if search.centre else place_map  # asked by its own photos to calibrate
        self.place_map = AveragedMap(self.base, search.average) if search.average else self.base

    def find(self, descriptors: Vectors, k: int, near: Area | None = None) -> Matches:
        """The k photos of the map most like each query (Q, dim)."""
        asked = np.asarray(descriptors, dtype=np.float32)
        if isinstance(self.base, CentredMap):
            asked = centred(asked, self.base.mean)
        if self.search.expand:
            asked = expand_queries(asked, self.place_map, self.search.expand, near)
        return self.place_map.search(asked, k, near)
