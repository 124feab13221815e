"""`sareloc report`: one page about training runs, evaluations and what went wrong in them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sareloc.cli import Device
from sareloc.cli.figure import fixes_of, named_reports
from sareloc.datasets import Places, load_dataset
from sareloc.errors import ArgumentError, PhotoError
from sareloc.evaluation import rank
from sareloc.figures import Put, answers_of, put_by_fixes, read_history, sureness_of_fixes, write_report
from sareloc.localize import Fix
from sareloc.localize.calibration import MIN_CONFIDENCE
from sareloc.models.checkpoint import load_model

FINISHED = "model.safetensors"
"""What `sareloc train` calls the model of a finished run, in the run's folder."""


def report_command(
    runs_or_reports: list[Path],
    *,
    out: Path,
    dataset: str | None = None,
    root: Path | None = None,
    split: str = "test",
    model: str | None = None,
    city: Annotated[Path | None, Parameter(name="--map")] = None,
    failures: int = 6,
    store: Path | None = None,
    workers: int = 2,
    device: Device = None,
    title: str = "How well places are found",
) -> None:
    """Write one self-contained page: the table, the curves, training, the map, the worst failures, how it was made.

    Parameters
    ----------
    runs_or_reports
        Folders that sareloc train wrote, and files that sareloc evaluate --json printed.
    out
        The page to write.
    dataset
        Evaluate a model on this dataset too, and show its map and its worst failures.
    root
        The folder that holds the dataset's files.
    split
        Which part of the dataset: train, val or test.
    model
        The model to evaluate; by default that of the first run.
    city
        A map that this model has built of the dataset: the page also says how sure its fixes are and where they lie.
    failures
        How many failures to show.
    store
        Keep the descriptors in this folder; an interrupted run goes on from there.
    workers
        Processes that decode photos.
    title
        What stands on top of the page.
    """
    runs = [path for path in runs_or_reports if path.is_dir()]
    reports = named_reports([path for path in runs_or_reports if path not in runs])
    histories = {run.resolve().name: read_history(run) for run in runs}
    answers, place_model, put, sureness, at = None, None, None, {}, None
    if dataset is not None:
        place_model = load_model(model or _finished_model(runs), device)
        ranked = rank(place_model, load_dataset(dataset, root, split), store=store, workers=workers)
        answers, shown = answers_of(ranked), place_model.name
        reports = {f"{shown} (here)" if shown in reports else shown: ranked.report()} | reports
        if city is not None:
            fixes = fixes_of(ranked.places, place_model, city, workers=workers)
            sureness = {
                city.stem: sureness_of_fixes(fixes, ranked.places.queries, hit_radius_m=ranked.places.hit_radius_m)
            }
            if any(isinstance(fix, Fix) and fix.confidence >= MIN_CONFIDENCE for fix in fixes):
                put, at = _put(fixes, ranked.places), MIN_CONFIDENCE
    elif city is not None:
        raise ArgumentError(f"{city} needs photos to be asked with: give a dataset with --dataset")
    print(
        write_report(
            out,
            reports=reports,
            histories=histories,
            answers=answers,
            put=put,
            sureness=sureness,
            at=at,
            model=place_model,
            failures=failures,
            title=title,
        )
    )


def _put(fixes: list[Fix | PhotoError], places: Places) -> Put:
    return put_by_fixes(
        fixes,
        places.queries,
        hit_radius_m=places.hit_radius_m,
        min_confidence=MIN_CONFIDENCE,
        database=places.database.positions,
    )


def _finished_model(runs: list[Path]) -> str:
    for run in runs:
        if (run / FINISHED).is_file():
            return str(run / FINISHED)
    found = f"no {FINISHED} in {', '.join(map(str, runs))}" if runs else "no run was given"
    raise ArgumentError(f"--dataset needs a model to ask, and there is {found}: give one with --model")
