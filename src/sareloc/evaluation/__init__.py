"""Evaluation of a model or a map on a dataset: describe, search, judge by the dataset's protocol, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sareloc.datasets.places import Places, Protocol
from sareloc.errors import ArgumentError
from sareloc.evaluation.fixes import FixReport, evaluate_fixes, judge_fixes
from sareloc.evaluation.judging import NS, PROTOCOLS, CurvePoint, Report, Rule, apply_protocol, evaluate_rankings
from sareloc.evaluation.ranking import Boxes, Ranked, rank, rank_by_map, search, verify_rankings
from sareloc.maps import PlaceMap
from sareloc.models.place_model import PlaceModel

__all__ = [
    "PROTOCOLS",
    "CurvePoint",
    "FixReport",
    "Ranked",
    "Report",
    "Rule",
    "apply_protocol",
    "evaluate",
    "evaluate_fixes",
    "evaluate_rankings",
    "judge_fixes",
    "rank",
    "rank_by_map",
    "search",
    "verify_rankings",
]


def evaluate(
    model: PlaceModel,
    places: Places,
    *,
    place_map: PlaceMap | None = None,
    protocol: Protocol | None = None,
    ns: Sequence[int] = NS,
    dim: int | None = None,
    boxes: Boxes = "crop",
    verify: int = 0,
    batch: int = 8,
    workers: int = 0,
    store: Path | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Report:
    """Compute the descriptors of a dataset's database and queries, search exactly, and judge the rankings.

    Args:
        model: the model.
        places: the dataset.
        place_map: search this map of the database photos instead, by its own index (see `rank_by_map`).
        protocol: one of `PROTOCOLS`; default: that of the dataset.
        ns: the N of recall@N.
        dim: keep the first `dim` coordinates of the descriptors; default: all.
        boxes: crop the queries of Oxford and Paris to their boxes, enlarged by half the receptive field ("crop"), or
            use full photos ("full").
        verify: order so many first results of each query by local features (see `verify_rankings`).
        batch: images at a time.
        workers: processes that decode photos.
        store: folder of a descriptor cache, to resume an interrupted run; default: none.
        seed: of the bootstrap.
        progress: show a progress bar.
    """
    if place_map is not None:
        if dim is not None or store is not None:
            raise ArgumentError("a map has its own dimensions and descriptors: leave dim and store out")
        ranked = rank_by_map(
            model,
            places,
            place_map,
            protocol=protocol,
            n=max(*ns, verify),
            batch=batch,
            workers=workers,
            progress=progress,
        )
    else:
        ranked = rank(
            model, places, protocol=protocol, n=max(*ns, verify), dim=dim, boxes=boxes, batch=batch, workers=workers,
            store=store, progress=progress,
        )  # fmt: skip
    if verify:
        rankings, distances = verify_rankings(
            ranked.places, ranked.rankings, ranked.distances, verify, device=model.runs_on, workers=workers,
            progress=progress,
        )  # fmt: skip
        ranked = replace(ranked, rankings=rankings, distances=distances)
    return ranked.report(ns=ns, seed=seed)
