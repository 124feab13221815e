"""From descriptors to the matches that a fix is made of: search, with the options that help accuracy."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from sareloc.errors import ArgumentError
from sareloc.localize.centring import CentredMap, centred
from sareloc.localize.expansion import AveragedMap, expand_queries
from sareloc.place_map import Area, Matches, PlaceMap

Vectors = npt.NDArray[np.float32]


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
