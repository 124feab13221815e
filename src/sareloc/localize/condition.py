"""The condition of photos that are asked together: what their search vectors have in common, such as night or snow.

The vectors of photos taken at night differ from those of a map taken by day in one direction, whatever they show. Each
side is centred on its own mean before the two are compared: `q' = unit(q - l m_q)` for queries, `a' = unit(a - l m_a)`
for the photos of the map. No labels are needed, but photos of many places: the mean of photos of one place is that
place. Pure functions and a record, with a file for its reuse.
"""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Ints, Vectors
from sareloc.errors import ArgumentError
from sareloc.files import read_regular, write_atomically
from sareloc.geo import Area, ecef_from_wgs84
from sareloc.maps import Matches, PlaceMap

MIN_PHOTOS = 20
"""Photos that are asked together are searched as they are if they are fewer."""
SAMPLED = 200
"""At most so many photos, spread evenly over those asked, are encoded to estimate their condition."""
WEIGHT = 0.5
"""l for many photos of many places."""
SHRINKAGE = 5
"""l is half of `WEIGHT` for so many photos."""
PHOTOS_OF_A_PLACE = 2
"""So many photos of one place count; further ones do not make the mean more certain."""
CELL_M = 25.0
DEEPER, LEAST_DEPTH = 3, 300
"""Times as many photos as asked for are retrieved before they are compared exactly, and at least so many."""
FORMAT = 1
LARGEST_BYTES = 2**20  # of a file


@dataclass(frozen=True, eq=False)
class Condition:
    """A condition of photos, such as night: what the search vectors of photos of many places have in common."""

    mean: Vectors
    """(vector_dim,) The mean of their search vectors, each of unit length."""
    photos: int
    """How many photos it is the mean of."""
    places: int
    """How many places they show, see `count_places`."""
    vector_space: str
    """Identifies what the vectors were computed by, see `Localizer.vector_space`."""

    @property
    def weight(self) -> float:
        """l, the part of the means that is subtracted; 0: the photos or their places are too few.

        With `n = min(photos, 2 places)`, `l = 0.5 n / (n + 5)`; 0 if n is less than 20.
        """
        count = min(self.photos, PHOTOS_OF_A_PLACE * self.places)
        return WEIGHT * count / (count + SHRINKAGE) if count >= MIN_PHOTOS else 0.0

    def to_json(self) -> str:
        """One line that `from_json` reads."""
        mean = base64.b64encode(self.mean.astype("<f4").tobytes()).decode()
        counts = {"photos": self.photos, "places": self.places}
        return json.dumps({"format": FORMAT, "vector_space": self.vector_space, **counts, "mean": mean})

    @staticmethod
    def from_json(text: str | bytes) -> Condition:
        """The condition that `to_json` wrote. Raises ArgumentError if malformed: it may come from anywhere."""
        try:
            given = json.loads(text)
            if given["format"] != FORMAT:
                raise ValueError("it was written by a newer version of sareloc")
            photos, places, space = given["photos"], given["places"], given["vector_space"]
            if type(photos) is not int or type(places) is not int or not 0 <= places <= photos:
                raise ValueError("its numbers of photos and places are out of range")
            if not isinstance(space, str):
                raise TypeError("its vector space is not a text")
            mean = np.frombuffer(base64.b64decode(given["mean"], validate=True), dtype="<f4").astype(np.float32)
            if not float(np.linalg.norm(mean.astype(np.float64))) <= 1 + 1e-3:  # also if it is not a number
                raise ValueError("it is not a mean of unit vectors")
            return Condition(mean, photos, places, space)
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as wrong:
            raise ArgumentError(
                f"this is not a condition that sareloc wrote ({wrong!r:.200}): estimate it again (--save-condition)"
            ) from wrong


UsedCondition = Condition | Literal["auto"] | None
"""What queries are centred on: a condition; "auto": that of the photos of the call, if they are 20 or more; None."""


def save_condition(condition: Condition, path: str | Path) -> Path:
    """Write a condition to a file, for photos of the same camera or the same night that are localized later."""
    return write_atomically(Path(path), condition.to_json().encode())


def open_condition(path: str | Path) -> Condition:
    """The condition in a file. Raises ArgumentError if it is not one, OSError if it cannot be read."""
    return Condition.from_json(read_regular(path, LARGEST_BYTES))


def centre(vectors: Vectors, mean: Vectors, weight: float) -> Vectors:
    """`unit(v - l m)`: vectors (..., D), a mean (D,) and l; a vector that is l m becomes 0."""
    rest = vectors - np.float32(weight) * mean
    unit: Vectors = rest / np.maximum(np.linalg.norm(rest, axis=-1, keepdims=True), np.float32(1e-9))
    return unit


def count_places(latlon: npt.ArrayLike) -> int:
    """The number of cells of 25 m that contain positions (n, 2) in degrees."""
    points = np.asarray(latlon, dtype=np.float64).reshape(-1, 2)
    return len(np.unique(np.floor(ecef_from_wgs84(points) / CELL_M), axis=0)) if len(points) else 0


def spread(count: int, most: int) -> Ints:
    """`most` rows of `count`, spread evenly, or all of them."""
    chosen = min(count, most)
    return np.arange(chosen, dtype=np.int64) * count // max(chosen, 1)


def search_centred(place_map: PlaceMap, vectors: Vectors, k: int, near: Area | None, condition: Condition) -> Matches:
    """The photos of a map nearest to each query after both are centred.

    The distances are `s |q' - a'|`: `s = sqrt(1 - l (2 - l) |m_a|^2)` is the length of the map's vectors (root mean
    square) after l m_a is subtracted and before they are scaled to unit length. They are of the size of distances that
    are not centred, so that the map's calibration applies to them.

    With `a' = unit(a - l m_a)`, `q' . a'` differs from `q' . a` by a constant of the query and a factor of the photo,
    which is nearly the same for all: the index is searched for `q'` as for any query, and the first few hundred photos
    are compared exactly.

    Args:
        place_map: the map.
        vectors: search vectors of the queries (Q, vector_dim).
        k: how many photos.
        near: only photos in this area.
        condition: of the queries; its weight is not 0.
    """
    weight, mean = condition.weight, place_map.mean_vector()
    length = np.float32(math.sqrt(1 - weight * (2 - weight) * float(mean @ mean)))
    queries = centre(vectors, condition.mean, weight)
    found = place_map.search(queries, max(DEEPER * k, LEAST_DEPTH), near)
    if not found.ids.size:
        return found
    ids, rows = np.unique(found.ids, return_inverse=True)
    photos = centre(place_map.descriptors(ids), mean, weight)  # (n, vector_dim)
    distances = np.stack(
        [
            length * np.linalg.norm(photos[row] - query, axis=1)
            for row, query in zip(rows.reshape(found.ids.shape), queries, strict=True)
        ]
    )
    order = np.lexsort((found.ids, distances), axis=1)[:, :k]
    return Matches(
        np.take_along_axis(found.ids, order, axis=1),
        np.take_along_axis(distances, order, axis=1),
        np.take_along_axis(found.latlon, order[:, :, None], axis=1),
        tuple(tuple(files[column] for column in line) for files, line in zip(found.files, order.tolist(), strict=True)),
    )
