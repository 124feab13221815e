"""`sareloc evaluate`: recall and errors of a model, or of a map, on a dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from sareloc.cli import Device, print_notes
from sareloc.datasets import load_dataset
from sareloc.datasets.places import Protocol
from sareloc.evaluation import Report, evaluate
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
    verify: int = 0,
    place_map: Annotated[Path | None, Parameter(name="--map", metavar="MAP")] = None,
    batch: int = 8,
    workers: int = 2,
    device: Device = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Describe the database and the queries of a dataset, search exactly, and judge by the dataset's protocol.

    Parameters
    ----------
    dataset
        Name of a dataset, or a folder of photos with the layout of one.
    model
        Packaged model (default, fast) or checkpoint; default: the model default, or with --map the packaged model that
        the map was built with.
    root
        Folder of the dataset's files.
    split
        Split of the dataset: train, val or test.
    protocol
        What counts as correct; default: the protocol of the dataset. radius counts every photo of a Tokyo 24/7
        panorama.
    dim
        Keep the first N dimensions of the descriptors; default: all.
    boxes
        For queries with boxes (Oxford, Paris): crop to the box, or use the full photo.
    store
        Folder of a descriptor cache, to resume an interrupted run; default: none.
    verify
        Order the top N results of each query by local features: matches, inliers and distances; 0: do not.
    place_map
        Search this map of the dataset's database photos (a file or an address) instead of describing them.
    batch
        Maximum photos described at once.
    workers
        Number of processes that decode photos.
    as_json
        Print one JSON object instead of a table.
    """
    places = load_dataset(dataset, root, split)
    print_notes(places.notes)
    searched = None if place_map is None else PlaceMap(place_map)
    if searched is None:
        loaded = load_model(model or "default", device)
    else:
        loaded = load_map_model(searched.manifest, searched.path.name, model, device)
    report = evaluate(
        loaded, places, place_map=searched, protocol=protocol, dim=dim, boxes=boxes, store=store, verify=verify,
        batch=batch, workers=workers,
    )  # fmt: skip
    print(json.dumps(report.to_json()) if as_json else report_table(report))


def report_table(report: Report) -> str:
    """A report as text."""
    low, high = report.recall_at_1_interval or (0.0, 0.0)
    lines = [
        ("dataset", f"{report.dataset} {report.split}: {report.database} database photos, {report.queries} queries"),
        ("model", f"{report.model} {report.fingerprint}, {report.dim}-D"),
        ("correct", f"{report.meaning} (protocol {report.protocol})"),
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
        lines.append(("unanswerable", f"{report.queries_without_positives} queries have no positive: missed"))
    for role, outcome in (("database", "left out"), ("queries", "missed")):
        lines += [(f"{role}: {outcome}", f"{photo}: {reason}") for photo, reason in report.failures[role]]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)


def _metres(metres: float | None) -> str:
    return "(no answer)" if metres is None else f"{metres:.1f} m"
