"""What a model answers to each query of a dataset: the matches that sheets, maps and the report page show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sareloc.datasets.places import Places, find_positives
from sareloc.errors import ArgumentError
from sareloc.evaluation import Ranked, counted, rank
from sareloc.figures.ground import Put
from sareloc.metrics import right_results
from sareloc.models.place_model import PlaceModel

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Answers:
    """The first K matches of each of Q queries, as the dataset's protocol counts them."""

    places: Places
    rankings: Ints
    """(Q, K) database rows, best first; -1 where there is none."""
    distances: Floats
    """(Q, K) between descriptors; inf where there is none."""
    right: Bools
    """(Q, K) whether the match counts as right."""
    answerable: Bools
    """(Q,) whether the database holds any right photo."""

    @property
    def first_right(self) -> Bools:
        """(Q,) whether the first match is right."""
        return self.right[:, 0] if self.right.shape[1] else np.zeros(len(self.right), dtype=np.bool_)

    def put(self) -> Put:
        """Every query that has a match, where it was taken and where its first match was, for the map."""
        there, asked = self.places.database.positions, self.places.queries.positions
        if there is None or asked is None:
            raise ArgumentError(f"{self.places.name} has no positions: there is no map to draw")
        rows = np.flatnonzero(self.rankings[:, :1].max(axis=1, initial=-1) >= 0)
        names = tuple(self.places.queries.files[row] for row in rows)
        return Put(asked[rows], there[self.rankings[rows, 0]], self.first_right[rows], names, there)

    def best(self, count: int) -> list[int]:
        """Queries whose first match is right, the surest (nearest descriptors) first."""
        return self._surest(self.first_right)[:count]

    def worst(self, count: int) -> list[int]:
        """Queries whose first match is wrong though a right one exists, the surest first: no threshold catches them."""
        return self._surest(~self.first_right & self.answerable)[:count]

    def chosen(self, queries: Sequence[str]) -> list[int]:
        """Queries by row number, file name, or the end of one."""
        return [self._row_of(query) for query in queries]

    def _surest(self, among: Bools) -> list[int]:
        nearest = self.distances[:, :1].min(axis=1, initial=np.inf)
        order = np.argsort(nearest, kind="stable")
        return [int(row) for row in order if among[row] and self.rankings[row, 0] >= 0]

    def _row_of(self, query: str) -> int:
        files = self.places.queries.files
        if query.isdecimal() and int(query) < len(files):
            return int(query)
        rows = [row for row, file in enumerate(files) if file == query or file.endswith(f"/{query}")]
        if len(rows) != 1:
            raise ArgumentError(
                f"{query!r} is {'no query' if not rows else f'{len(rows)} queries'} of {self.places.name}: "
                f"give a file name or a row from 0 to {len(files) - 1}"
            )
        return rows[0]


def find_answers(
    model: PlaceModel,
    places: Places,
    *,
    depth: int = 5,
    store: Path | None = None,
    batch: int = 8,
    workers: int = 0,
    progress: bool = True,
) -> Answers:
    """Describe a dataset, search exactly (see `rank`), and keep the first `depth` matches of each query.

    `store` keeps the descriptors: it is the folder that `evaluate` takes.
    """
    ranked = rank(model, places, n=depth, store=store, batch=batch, workers=workers, progress=progress)
    return answers_of(ranked, depth)


def answers_of(ranked: Ranked, depth: int = 5) -> Answers:
    """The first `depth` matches of each query, as the protocol counts them; at most the n that was ranked for."""
    rankings, distances = counted(ranked.places, ranked.rankings, ranked.distances)
    return judge(ranked.places, rankings[:, :depth], distances[:, :depth])


def judge(places: Places, rankings: Ints, distances: Floats) -> Answers:
    """The answers of rankings (Q, K) that the protocol's rule has been applied to already."""
    positives = find_positives(places)
    answerable = np.array([len(rows) > 0 for rows in positives], dtype=np.bool_)
    return Answers(places, rankings, distances, right_results(rankings, positives), answerable)
