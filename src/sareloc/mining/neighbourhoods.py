"""What geography allows: which database photos may be a query's positive, and which are too close to be a negative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sareloc.datasets.places import Places, find_positives
from sareloc.errors import DatasetError
from sareloc.geo import within_radius

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """What the positions alone allow, for each of Q queries.

    `positives[q]`: the database rows that may be its positive. `near[q]`: those too close to be a negative.
    """

    positives: list[Ints]
    near: list[Ints]

    @property
    def trainable(self) -> Ints:
        """The queries that have a potential positive; the others are skipped."""
        return np.array([q for q, rows in enumerate(self.positives) if len(rows)], dtype=np.int64)


def find_neighbourhoods(
    places: Places,
    *,
    positive_min_m: float = 1.0,
    positive_radius_m: float = 10.0,
    negative_radius_m: float = 25.0,
) -> Neighbourhoods:
    """Who may be positive or negative, by the rule of the dataset.

    By position: positives lie at `positive_min_m` < d <= `positive_radius_m` (the lower bound keeps views of the
    query's own panorama out), negatives at d > `negative_radius_m`. Where both photos have a time stamp and the
    protocol is "time" (TokyoTM), a positive also has another time stamp. Under the protocol "place-id" a positive
    shares a place with the query and a negative shares none. A photo that is both query and database is never its own
    positive.
    """
    if places.protocol == "place-id":
        same_place = find_positives(places)
        return Neighbourhoods(_without_itself(places, same_place), same_place)
    if places.database.positions is None or places.queries.positions is None:
        raise DatasetError(
            f"{places.name}: tuples are mined by position, and its photos have none: give lat and lon, or place_id"
        )
    points, centres = places.database.positions.metres, places.queries.positions.metres
    too_close = within_radius(points, centres, positive_min_m)
    close = within_radius(points, centres, positive_radius_m)
    near = within_radius(points, centres, negative_radius_m)
    positives = [np.setdiff1d(c, t, assume_unique=True) for c, t in zip(close, too_close, strict=True)]
    times = (places.database.times, places.queries.times)
    if places.protocol == "time" and times[0] is not None and times[1] is not None:
        positives = [rows[times[0][rows] != times[1][q]] for q, rows in enumerate(positives)]
    return Neighbourhoods(positives, near)


def _without_itself(places: Places, positives: list[Ints]) -> list[Ints]:
    row_of = {places.database.path(row): row for row in range(len(places.database))}
    own = [row_of.get(places.queries.path(query)) for query in range(len(places.queries))]
    return [rows if row is None else rows[rows != row] for rows, row in zip(positives, own, strict=True)]


def join_neighbourhoods(parts: Sequence[tuple[Neighbourhoods, int]]) -> Neighbourhoods:
    """Several towns as one: databases (whose sizes are given) one after the other, and so the queries.

    A photo of another town is far from a query: it may be a negative.
    """
    positives: list[Ints] = []
    near: list[Ints] = []
    first = 0
    for part, database in parts:
        positives += [rows + first for rows in part.positives]
        near += [rows + first for rows in part.near]
        first += database
    return Neighbourhoods(positives, near)


def check_minable(places: Places, neighbourhoods: Neighbourhoods, negatives: int) -> None:
    """Raises DatasetError if nothing can be mined here, and says why."""
    if not len(places.queries):
        raise DatasetError(
            f"{places.name} has no queries: training takes them from a folder queries/ beside database/, or from a "
            "CSV file with a column role"
        )
    if not len(neighbourhoods.trainable):
        raise DatasetError(
            f"{places.name}: none of its {len(places.queries)} queries has a potential positive among "
            f"{len(places.database)} database photos: raise positive_radius_m, or check the positions with "
            f'"sareloc data check"'
        )
    fewest = min(len(places.database) - len(neighbourhoods.near[q]) for q in neighbourhoods.trainable)
    if fewest < negatives:
        raise DatasetError(
            f"{places.name}: a query has only {fewest} database photos that may be a negative, and a tuple takes "
            f"{negatives}: lower negative_radius_m or negatives, or use a larger town"
        )
