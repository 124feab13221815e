"""Comparing the photos of a map with each other by two-view geometry: which show the same thing, and which look alike.

Each photo is compared with those whose search vectors are nearest, and with those that were taken near it: the former
show which places it could be of, the latter whether it is where its geotag says.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from sareloc.adapt.result_files import Arrays, in_chunks
from sareloc.arrays import Bools, Floats, Ints, Vectors
from sareloc.encode import Encoded
from sareloc.encode.encoder import single_threads
from sareloc.errors import MapError
from sareloc.geo import within_radius
from sareloc.geometry import Evidence, LocalFeatures
from sareloc.localize.verify import PREFILTERED, VERIFIED, Verifier
from sareloc.maps import PlaceMap
from sareloc.maps.notes import LOCAL_FEATURES
from sareloc.photos.record import without_fragment

NEAR_M = 50.0
"""Photos nearer than this to a photo's geotag are compared with it whatever their search vectors are."""
NEAR_COMPARED = 5
"""So many of them."""
VERIFIED_INLIERS = 30
"""Photos of the map within 50 m of each other with so many inliers show the same thing."""


@dataclass(frozen=True, eq=False)
class Comparisons:
    """n comparisons of a photo, the query, with a photo of the map."""

    query: Ints
    """(n,) ids of photos of the map; or rows of the photos without positions."""
    photo: Ints
    """(n,) ids of photos of the map."""
    distance: Floats
    """(n,) of their search vectors."""
    inliers: Floats
    """(n,) see `Evidence`; NaN: one of the two has no local features."""
    planar: Floats
    """(n,)"""

    def __len__(self) -> int:
        return len(self.query)

    @property
    def evidence(self) -> Evidence:
        """What geometry says of each pair."""
        return Evidence(self.inliers, self.planar)

    def take(self, rows: Ints | Bools) -> Comparisons:
        """These rows, by number or by a mask (n,)."""
        return Comparisons(*(getattr(self, field.name)[rows] for field in fields(self)))

    def arrays(self) -> Arrays:
        """The fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @staticmethod
    def join(parts: Sequence[Comparisons]) -> Comparisons:
        """All comparisons of several records."""
        kinds = (np.int64, np.int64, np.float64, np.float64, np.float64)
        return Comparisons(
            *(
                np.concatenate([np.zeros(0, dtype=kind), *(getattr(part, field.name) for part in parts)])
                for field, kind in zip(fields(Comparisons), kinds, strict=True)
            )
        )


def metres_apart(place_map: PlaceMap, compared: Comparisons) -> Floats:
    """The distance (n,) in metres between the photos of each comparison of photos of a map."""
    rows, others = (np.searchsorted(place_map.ids, ids) for ids in (compared.query, compared.photo))
    metres = place_map.positions.metres
    return np.asarray(np.linalg.norm(metres[rows] - metres[others], axis=1))


def shown_together(place_map: PlaceMap, compared: Comparisons) -> Bools:
    """Whether the photos of each comparison (n,) are within 50 m of each other and show the same thing."""
    return (metres_apart(place_map, compared) <= NEAR_M) & (compared.inliers >= VERIFIED_INLIERS)


def check_features(place_map: PlaceMap) -> None:
    """Raise MapError if a map is on a server, holds no local features, or only those of one photo."""
    if not place_map.store_class.is_file:
        raise MapError(f"map {place_map.path} is on a server: copy it to a file first (sareloc map copy)")
    if LOCAL_FEATURES not in place_map.notes:
        raise MapError(
            f"map {place_map.path} holds no local features, by which photos are compared: add them with "
            f'"sareloc map upgrade {place_map.path}"'
        )
    if len(place_map) < 2:
        raise MapError(f"map {place_map.path} holds {len(place_map)} photo: there is nothing to compare it with")


def compare_photos(
    place_map: PlaceMap, verifier: Verifier, temperature: float, *, folder: Path | None = None, progress: bool = True
) -> Comparisons:
    """Compare each photo of a map with about ten others that look alike and five that were taken within 50 m.

    The views of one 360° photo are not compared with each other.

    Args:
        place_map: a map of photos with local features.
        verifier: of the map.
        temperature: of the map's calibration.
        folder: where comparisons are kept, so that a call that was interrupted continues; default: nowhere.
        progress: show a progress bar, on a terminal.
    """
    near = within_radius(place_map.positions.metres, place_map.positions.metres, NEAR_M)

    def compare(row: int) -> Comparisons:
        photo_id = int(place_map.ids[row])
        features = place_map.local_features([photo_id]).get(photo_id)
        if features is None:
            return Comparisons.join([])
        vector = place_map.descriptors([photo_id])
        found = place_map.search(vector, PREFILTERED + 1)
        own = without_fragment(place_map.files[row])
        rows = np.union1d(np.searchsorted(place_map.ids, found.ids[0]), near[row])
        rows = np.array([one for one in rows.tolist() if without_fragment(place_map.files[one]) != own], dtype=np.int64)
        return _compare(place_map, verifier, photo_id, features, vector[0], rows, np.isin(rows, near[row]), temperature)

    name = hashlib.sha256(place_map.ids.tobytes() + str(place_map.manifest.map_id).encode()).hexdigest()[:16]
    return Comparisons(
        **in_chunks(lambda rows: _all(compare, rows).arrays(), len(place_map), name, folder, "compare", progress)
    )


def compare_queries(
    place_map: PlaceMap, verifier: Verifier, queries: Sequence[Encoded], temperature: float
) -> Comparisons:
    """Compare photos without positions, whose rows are the `query` of the result, with those of the map most like them.

    Args:
        place_map: a map of photos with local features.
        verifier: of the map.
        queries: the photos, with local features.
        temperature: of the map's calibration.
    """

    def compare(row: int) -> Comparisons:
        features = queries[row].features
        assert features is not None
        found = place_map.search(queries[row].vector[None], PREFILTERED)
        rows = np.searchsorted(place_map.ids, np.sort(found.ids[0]))
        nowhere = np.zeros(len(rows), dtype=np.bool_)
        return _compare(place_map, verifier, row, features, queries[row].vector, rows, nowhere, temperature)

    return _all(compare, range(len(queries)))


def _compare(
    place_map: PlaceMap,
    verifier: Verifier,
    query: int,
    features: LocalFeatures,
    vector: Vectors,
    rows: Ints,
    near: Bools,
    temperature: float,
) -> Comparisons:
    """Compare a photo with ten of the photos in these rows of the map, and five of those that are near (n,)."""
    if not len(rows):
        return Comparisons.join([])
    ids = place_map.ids[rows]
    distances = np.linalg.norm(place_map.descriptors(ids) - vector, axis=1).astype(np.float64)
    order = verifier.prefilter(features, ids, distances, temperature)
    chosen = np.union1d(order[:VERIFIED], order[near[order]][:NEAR_COMPARED])
    found = verifier.verify(features, ids[chosen], [place_map.files[row] for row in rows[chosen]]).evidence
    return Comparisons(np.full(len(chosen), query), ids[chosen], distances[chosen], found.inliers, found.planar)


def _all(compare: Callable[[int], Comparisons], rows: range) -> Comparisons:
    """The comparisons of some rows, in several threads."""
    return Comparisons.join(list(single_threads("compare", os.getpid()).map(compare, rows)))
