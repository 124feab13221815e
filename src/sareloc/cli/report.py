"""`sareloc report`: one page about training runs, evaluations and what went wrong in them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sareloc.cli.figure import named_reports, open_model
from sareloc.datasets import load_dataset
from sareloc.errors import ArgumentError
from sareloc.evaluation import evaluate
from sareloc.figures import find_answers, read_history, write_report

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
    failures: int = 6,
    store: Path | None = None,
    workers: int = 2,
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
    answers, place_model = None, None
    if dataset is not None:
        place_model = open_model(model or _finished_model(runs))
        places = load_dataset(dataset, root, split)
        with tempfile.TemporaryDirectory(prefix="sareloc-") as scratch:
            kept = store or Path(scratch) / "descriptors"
            fresh = evaluate(place_model, places, boxes="full", store=kept, workers=workers)
            answers = find_answers(place_model, places, store=kept, workers=workers)
        reports = {f"{place_model.name} (here)" if place_model.name in reports else place_model.name: fresh} | reports
    print(
        write_report(
            out,
            reports=reports,
            histories=histories,
            answers=answers,
            model=place_model,
            failures=failures,
            title=title,
        )
    )


def _finished_model(runs: list[Path]) -> str:
    for run in runs:
        if (run / FINISHED).is_file():
            return str(run / FINISHED)
    found = f"no {FINISHED} in {', '.join(map(str, runs))}" if runs else "no run was given"
    raise ArgumentError(f"--dataset needs a model to ask, and there is {found}: give one with --model")
