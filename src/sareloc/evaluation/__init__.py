"""How well a model finds places: describe, search exactly, judge by the dataset's own protocol, report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from sareloc.datasets import DATASETS
from sareloc.datasets.places import Places, Protocol, photo_paths
from sareloc.descriptors import Descriptors, describe_all, describe_boxes
from sareloc.errors import DatasetError, PhotoError, look_up
from sareloc.evaluation.exact_search import search
from sareloc.evaluation.judging import NS, PROTOCOLS, Rule, evaluate_rankings
from sareloc.evaluation.report import CurvePoint, Report
from sareloc.models.place_model import PlaceModel

__all__ = ["PROTOCOLS", "CurvePoint", "Report", "Rule", "evaluate", "evaluate_rankings", "search"]


def evaluate(
    model: PlaceModel,
    places: Places,
    *,
    protocol: Protocol | None = None,
    ns: Sequence[int] = NS,
    dim: int | None = None,
    boxes: Literal["crop", "full"] = "crop",
    batch: int = 8,
    workers: int = 0,
    store: Path | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Report:
    """Describe database and queries, search exactly, judge.

    protocol: one of `PROTOCOLS` instead of the dataset's own, as "radius" for Tokyo 24/7 without the panorama rule.
    dim: the first so many coordinates of the descriptors. boxes: ask with the boxes that Oxford and Paris give
    ("crop", grown by half the receptive field) or with whole photos ("full"). store: a folder that keeps the
    descriptors, so that an interrupted run goes on where it stopped. seed: of the bootstrap.
    """
    places = places if protocol is None else replace(places, protocol=protocol)
    rule = look_up(PROTOCOLS, places.protocol, "protocol")
    areas = places.boxes if boxes == "crop" else None
    asked = [places.queries.path(row) for row in range(len(places.queries))]

    _check_photos(places)
    paths = photo_paths(places if areas is None else replace(places, queries=places.queries.take([])))
    described = describe_all(model, paths, store=store, batch=batch, workers=workers, dim=dim, progress=progress)
    row_of = {path: row for row, path in enumerate(paths)}
    database = _take(described, [row_of[places.database.path(row)] for row in range(len(places.database))])
    if areas is None:
        queries = _take(described, [row_of[path] for path in asked])
    else:
        queries = describe_boxes(model, asked, areas, dim=dim, progress=progress)

    depth = min(rule.depth(places, max(ns)), len(places.database))
    rankings, distances = search(
        database.vectors, queries.vectors, depth, absent=database.failures, device=model.device
    )
    rankings[list(queries.failures)], distances[list(queries.failures)] = -1, np.inf
    report = evaluate_rankings(places, rankings, distances, ns=ns, seed=seed)
    return replace(
        report,
        model=model.name,
        fingerprint=model.fingerprint(),
        dim=database.vectors.shape[1],
        boxes=None if places.boxes is None else boxes,
        failures={"database": _reasons(database.failures), "queries": _reasons(queries.failures)},
    )


def _check_photos(places: Places) -> None:
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


def _reasons(failures: Mapping[int, PhotoError]) -> tuple[tuple[str, str], ...]:
    return tuple((failures[row].photo, failures[row].reason) for row in sorted(failures))
