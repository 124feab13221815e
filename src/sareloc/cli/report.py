"""`sareloc report`: one HTML page of training runs, evaluations and failures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sareloc.cli.figure import localize_queries, named_reports, predicted_positions
from sareloc.cli.options import MIN_CONFIDENCE, Device, Precision, Root, Split, Workers
from sareloc.errors import ArgumentError

FINISHED = "model.safetensors"
"""The file name of the model that `sareloc train` writes at the end of a run."""


def report_command(
    runs_or_reports: list[Path],
    *,
    out: Path,
    dataset: str | None = None,
    root: Root = None,
    split: Split = "test",
    model: str | None = None,
    place_map: Annotated[Path | None, Parameter(name="--map")] = None,
    failures: int = 6,
    inliers: int = 3,
    store: Path | None = None,
    workers: Workers = 2,
    device: Device = None,
    precision: Precision = "auto",
    title: str = "Place recognition report",
) -> None:
    """Write one self-contained HTML page: results, curves, training, map of errors, failures, provenance.

    Parameters
    ----------
    runs_or_reports
        Folders written by sareloc train, and outputs of sareloc evaluate --json.
    out
        The HTML file to write.
    dataset
        Also evaluate a model on this dataset, and show a map of its errors and its failures.
    model
        The model to evaluate. Default: the model of the first finished run.
    place_map
        A map of the dataset built with this model: show the confidence and the positions of its fixes.
    failures
        Number of failures to show.
    inliers
        Number of queries to show beside their first matches with lines between matched local features: correct ones,
        smallest descriptor distance first.
    store
        Cache descriptors in this folder; an interrupted run resumes from it.
    title
        Title of the page.
    """
    from sareloc.datasets import load_dataset
    from sareloc.evaluation import rank
    from sareloc.figures import confidence_curve, query_inliers, query_matches, read_history, write_report
    from sareloc.localize import Fix
    from sareloc.models.checkpoint import load_model

    runs = [path for path in runs_or_reports if path.is_dir()]
    reports = named_reports([path for path in runs_or_reports if path not in runs])
    histories = {run.resolve().name: read_history(run) for run in runs}
    matches, place_model, predicted, curves, at, pairs = None, None, None, {}, None, None
    if dataset is not None:
        place_model = load_model(model or _finished_model(runs), device, precision)
        ranked = rank(place_model, load_dataset(dataset, root, split), store=store, workers=workers)
        matches, shown = query_matches(ranked), place_model.name
        pairs = query_inliers(matches, matches.best(inliers), device=place_model.runs_on)
        reports = {f"{shown} (here)" if shown in reports else shown: ranked.report()} | reports
        if place_map is not None:
            fixes = localize_queries(ranked.places, place_model, place_map, workers=workers)
            curve = confidence_curve(fixes, ranked.places.queries, hit_radius_m=ranked.places.hit_radius_m)
            curves = {place_map.stem: curve}
            if any(isinstance(fix, Fix) and fix.confidence >= MIN_CONFIDENCE for fix in fixes):
                predicted, at = predicted_positions(fixes, ranked.places, MIN_CONFIDENCE), MIN_CONFIDENCE
    elif place_map is not None:
        raise ArgumentError("--map needs queries: give a dataset with --dataset")
    print(
        write_report(
            out,
            reports=reports,
            histories=histories,
            matches=matches,
            inliers=pairs,
            predicted=predicted,
            confidence_curves=curves,
            at=at,
            model=place_model,
            failures=failures,
            title=title,
        )
    )


def _finished_model(runs: list[Path]) -> str:
    for run in runs:
        if (run / FINISHED).is_file():
            return str(run / FINISHED)
    found = f"there is no {FINISHED} in {', '.join(map(str, runs))}" if runs else "no run was given"
    raise ArgumentError(f"--dataset needs a model, and {found}: give one with --model")
