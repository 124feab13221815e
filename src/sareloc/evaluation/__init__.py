"""How well a model finds places: describe, search exactly, judge by the dataset's own protocol, report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sareloc.datasets.places import Places, Protocol
from sareloc.evaluation.judging import NS, PROTOCOLS, CurvePoint, Report, Rule, counted, evaluate_rankings
from sareloc.evaluation.ranking import Boxes, Ranked, rank, rank_by_map, search
from sareloc.models.place_model import PlaceModel

__all__ = [
    "PROTOCOLS",
    "CurvePoint",
    "Ranked",
    "Report",
    "Rule",
    "counted",
    "evaluate",
    "evaluate_rankings",
    "rank",
    "rank_by_map",
    "search",
]


def evaluate(
    model: PlaceModel,
    places: Places,
    *,
    protocol: Protocol | None = None,
    ns: Sequence[int] = NS,
    dim: int | None = None,
    boxes: Boxes = "crop",
    batch: int = 8,
    workers: int = 0,
    store: Path | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Report:
    """Describe database and queries, search exactly, judge: `rank`, then `Ranked.report`.

    protocol: one of `PROTOCOLS` instead of the dataset's own, as "radius" for Tokyo 24/7 without the panorama rule.
    dim: the first so many coordinates of the descriptors. boxes: ask with the boxes that Oxford and Paris give
    ("crop", grown by half the receptive field) or with whole photos ("full"). store: a folder that keeps the
    descriptors, so that an interrupted run goes on where it stopped. seed: of the bootstrap.
    """
    ranked = rank(
        model, places, protocol=protocol, n=max(ns), dim=dim, boxes=boxes, batch=batch, workers=workers, store=store,
        progress=progress,
    )  # fmt: skip
    return ranked.report(ns=ns, seed=seed)
