"""`sareloc evaluate`: how well a model finds the places of a dataset."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from sareloc.cli import Device, print_notes
from sareloc.datasets import load_dataset
from sareloc.datasets.places import Protocol
from sareloc.errors import ArgumentError
from sareloc.evaluation import Report, evaluate, rank_by_map
from sareloc.maps import PlaceMap, load_map_model
from sareloc.models.checkpoint import load_model


def evaluate_command(
    dataset: str,
    *,
    model: str | None = None,
    root: Path | None = None,
    split: str = "test",
    protocol: Protocol | None = None,
    dim: int | None = None,
    boxes: Literal["crop", "full"] = "crop",
    store: Path | None = None,
    city: Annotated[Path | None, Parameter(name="--map")] = None,
    batch: int = 8,
    workers: int = 2,
    device: Device = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Describe a dataset's database and queries, search exactly, and judge by the dataset's own protocol.

    Parameters
    ----------
    dataset
        A dataset's name, or a folder of photos laid out as one.
    model
        A model that comes with sareloc (default, fast), or a checkpoint. By itself default; with --map, the packaged
        model that the map was built with.
    root
        The folder that holds the dataset's files.
    split
        Which part of the dataset: train, val or test.
    protocol
        What counts as right, instead of the dataset's own rule: radius lets Tokyo 24/7 count every photo of a panorama.
    dim
        Use the first so many dimensions of the descriptors.
    boxes
        Where queries have boxes (Oxford, Paris): ask with the box or with the full photo.
    store
        Keep the descriptors in this folder; an interrupted run goes on from there.
    city
        Ask this map of the dataset's database photos, a file or an address, instead of describing and searching them.
    batch
        Photos described at once.
    workers
        Processes that decode photos.
    as_json
        Print one JSON object instead of a table.
    """
    places = load_dataset(dataset, root, split)
    print_notes(places.notes)
    places = places if protocol is None else replace(places, protocol=protocol)
    if city is not None:
        if dim is not None or store is not None:
            raise ArgumentError("a map has its own dimensions and holds its descriptors: leave --dim and --store out")
        place_map = PlaceMap(city)
        loaded = load_map_model(place_map.manifest, place_map.path.name, model, device)
        report = rank_by_map(loaded, places, place_map, batch=batch, workers=workers).report()
    else:
        loaded = load_model(model or "default", device)
        report = evaluate(loaded, places, dim=dim, boxes=boxes, store=store, batch=batch, workers=workers)
    print(json.dumps(report.to_json()) if as_json else table(report))


def table(report: Report) -> str:
    """A report for people to read."""
    low, high = report.recall_at_1_interval or (0.0, 0.0)
    lines = [
        ("dataset", f"{report.dataset} {report.split}: {report.database} database photos, {report.queries} queries"),
        ("model", f"{report.model} {report.fingerprint}, {report.dim}-D"),
        ("right", f"{report.meaning} (protocol {report.protocol})"),
        *((f"recall@{n}", f"{percent:6.2f} %") for n, percent in report.recall.items()),
        ("95 % interval", f"{low:.2f} to {high:.2f} % for recall@1"),
    ]
    if report.plain_recall is not None:
        plain = ", ".join(f"@{n} {percent:.2f} %" for n, percent in report.plain_recall.items())
        lines.append(("plain recall", f"{plain} (protocol radius, for comparison with tools that use it)"))
    if report.mean_average_precision is not None:
        asked = "" if report.boxes is None else f" ({report.boxes} queries)"
        lines.append(("mAP", f"{report.mean_average_precision:6.2f} %{asked}"))
    if report.error_quantiles_m is not None:
        spread = ", ".join(f"{_metres(m)} for {share:.0%}" for share, m in report.error_quantiles_m.items())
        lines.append(("error", f"at most {spread} of the queries"))
    if report.queries_without_positives:
        lines.append(("unanswerable", f"{report.queries_without_positives} queries have no right photo: missed"))
    for role, outcome in (("database", "left out"), ("queries", "missed")):
        lines += [(f"{role}: {outcome}", f"{photo}: {reason}") for photo, reason in report.failures[role]]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)


def _metres(metres: float | None) -> str:
    return "(no answer)" if metres is None else f"{metres:.1f} m"
