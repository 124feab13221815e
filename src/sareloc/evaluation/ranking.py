"""What a model answers to every query of a dataset: describe, search exactly, keep the rankings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from sareloc.datasets import DATASETS
from sareloc.datasets.places import Places, Protocol, photo_paths
from sareloc.descriptors import Descriptors, describe_all, describe_boxes
from sareloc.errors import DatasetError, PhotoError, look_up
from sareloc.evaluation.exact_search import search
from sareloc.evaluation.judging import NS, PROTOCOLS, evaluate_rankings
from sareloc.evaluation.report import Report
from sareloc.models.place_model import PlaceModel

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Boxes = Literal["crop", "full"]


@dataclass(frozen=True, eq=False)
class Ranked:
    """The nearest database photos of each of Q queries, and whose descriptors say so."""

    places: Places
    """The dataset, with the protocol that it is to be judged by."""
    rankings: Ints
    """(Q, K) database rows, nearest first, before the protocol's rule is applied; -1 where there is none."""
    distances: Floats
    """(Q, K) between descriptors; inf where there is none."""
    model: str
    fingerprint: str
    dim: int
    boxes: Boxes | None
    """Whether queries were cropped to their boxes, where the dataset has boxes."""
    failures: Mapping[str, tuple[tuple[str, str], ...]]
    """Photos of the database and of the queries that could not be decoded, with reasons."""

    def report(self, *, ns: Sequence[int] = NS, seed: int = 0) -> Report:
        """How good the rankings are, by the protocol; no N may be larger than the n they were made for."""
        judged = evaluate_rankings(self.places, self.rankings, self.distances, ns=ns, seed=seed)
        about = {name: getattr(self, name) for name in ("model", "fingerprint", "dim", "boxes", "failures")}
        return replace(judged, **about)


def rank(
    model: PlaceModel,
    places: Places,
    *,
    protocol: Protocol | None = None,
    n: int = max(NS),
    dim: int | None = None,
    boxes: Boxes = "crop",
    batch: int = 8,
    workers: int = 0,
    store: Path | None = None,
    progress: bool = True,
) -> Ranked:
    """Describe database and queries and search exactly, so deep that the first n can be judged by the protocol.

    For the other knobs see `evaluate`.
    """
    places = places if protocol is None else replace(places, protocol=protocol)
    rule = look_up(PROTOCOLS, places.protocol, "protocol")
    areas = places.boxes if boxes == "crop" else None
    asked = [places.queries.path(row) for row in range(len(places.queries))]

    check_photos(places)
    paths = photo_paths(places if areas is None else replace(places, queries=places.queries.take([])))
    described = describe_all(model, paths, store=store, batch=batch, workers=workers, dim=dim, progress=progress)
    row_of = {path: row for row, path in enumerate(paths)}
    database = _take(described, [row_of[places.database.path(row)] for row in range(len(places.database))])
    if areas is None:
        queries = _take(described, [row_of[path] for path in asked])
    else:
        queries = describe_boxes(model, asked, areas, dim=dim, progress=progress)

    rankings, distances = search(
        database.vectors,
        queries.vectors,
        min(rule.depth(places, n), len(places.database)),
        absent=database.failures,
        device=model.device,
    )
    rankings[list(queries.failures)], distances[list(queries.failures)] = -1, np.inf
    return Ranked(
        places,
        rankings,
        distances,
        model=model.name,
        fingerprint=model.fingerprint(),
        dim=database.vectors.shape[1],
        boxes=None if places.boxes is None else boxes,
        failures={"database": reasons(database.failures), "queries": reasons(queries.failures)},
    )


def check_photos(places: Places) -> None:
    """Refuse to describe thousands of photos that are not there, rather than report that all were missed."""
    for photos, role in ((places.database, "database photos"), (places.queries, "queries")):
        if not len(photos):
            raise DatasetError(f"{places.name} has no {role} in split {places.split!r}: nothing can be evaluated")
        if not any(photos.path(row).is_file() for row in range(len(photos))):
            layout = f". It is laid out so:\n{DATASETS[places.name].layout}" if places.name in DATASETS else ""
            raise DatasetError(f"none of the {len(photos)} {role} of {places.name} is in {photos.folder}{layout}")


def _take(described: Descriptors, rows: Sequence[int]) -> Descriptors:
    # a slice of a memory map reads nothing; a list of rows copies them
    whole = list(rows) == list(range(len(rows)))
    vectors = described.vectors[: len(rows)] if whole else described.vectors[np.asarray(rows, dtype=np.int64)]
    failures = {new: described.failures[old] for new, old in enumerate(rows) if old in described.failures}
    return Descriptors(vectors, failures)


def reasons(failures: Mapping[int, PhotoError]) -> tuple[tuple[str, str], ...]:
    """The photos that failed and why, in the order of their rows."""
    return tuple((failures[row].photo, failures[row].reason) for row in sorted(failures))
