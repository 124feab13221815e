"""The command line: a table of commands, each loaded when it is called.

A command parses its arguments, calls one function of the library and prints; its docstring is its help. The modules of
commands import numpy, torch and the library inside of functions only, so that help is printed at once.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn, TextIO

from cyclopts import App, Parameter

from sareloc import __version__
from sareloc.errors import explain

app = App(
    name="sareloc",
    help="Visual place recognition: train a model, build a map of geotagged photos, localize photos.",
    version=__version__,
    default_parameter=Parameter(negative_iterable=()),  # no --empty-NAME options
)

maps = App(name="map", help="Build, update, check and calibrate maps of geotagged photos.")
maps.command("sareloc.cli.map:build", name="build")
maps.command("sareloc.cli.map:add", name="add")
maps.command("sareloc.cli.map:sync", name="sync")
maps.command("sareloc.cli.map:upgrade", name="upgrade")
maps.command("sareloc.cli.map:remove", name="remove")
maps.command("sareloc.cli.map:info", name="info")
maps.command("sareloc.cli.map:verify", name="verify")
maps.command("sareloc.cli.map:compact", name="compact")
maps.command("sareloc.cli.map:copy", name="copy")
maps.command("sareloc.cli.calibrate:calibrate_command", name="calibrate")
app.command(maps)
app.command("sareloc.cli.localize:localize_command", name="localize")
app.command("sareloc.cli.serve:serve_command", name="serve")
app.command("sareloc.cli.geotag:geotag_command", name="geotag")

datasets = App(
    name="data",
    help="Check a dataset, geotag photos by a track, draw a synthetic city, or cut a 360° photo into views.",
)
datasets.command("sareloc.cli.data:check", name="check")
datasets.command("sareloc.cli.track:track_command", name="track")
datasets.command("sareloc.cli.data:draw", name="draw")
datasets.command("sareloc.cli.data:views", name="views")
datasets.command("sareloc.cli.data:drive", name="draw-drive")
app.command(datasets)
models = App(name="model", help="List the packaged models, describe a model, or convert a published one.")
models.command("sareloc.cli.model:list_models", name="list")
models.command("sareloc.cli.model:model_info", name="info")
models.command("sareloc.cli.model:convert", name="convert")
app.command(models)
app.command("sareloc.cli.train:train_command", name="train")
app.command("sareloc.cli.evaluate:evaluate_command", name="evaluate")
app.command("sareloc.cli.model:export_command", name="export")

figures = App(name="figure", help="Draw the paper's figures, and figures of models and datasets, as PNG, SVG or PDF.")
figures.command("sareloc.cli.figure:gradients", name="gradients")
figures.command("sareloc.cli.figure:gradient_decay", name="gradient-decay")
figures.command("sareloc.cli.figure:recall", name="recall")
figures.command("sareloc.cli.figure:precision_recall", name="precision-recall")
figures.command("sareloc.cli.figure:confidence", name="confidence")
figures.command("sareloc.cli.figure:heatmap", name="heatmap")
figures.command("sareloc.cli.figure:embedding", name="embedding")
figures.command("sareloc.cli.figure:matches", name="matches")
figures.command("sareloc.cli.figure:map_figure", name="map")
figures.command("sareloc.cli.figure:training", name="training")
app.command(figures)
app.command("sareloc.cli.report:report_command", name="report")


def limit_spinning() -> None:
    """Before torch is imported: let OpenMP threads spin for microseconds, not milliseconds, while they wait.

    On a busy core a spinning thread delays the one it waits for. The user's own settings (OMP_WAIT_POLICY,
    GOMP_SPINCOUNT) take precedence.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line; an expected error is one line on standard error and exit status 1.

    words: the arguments after the program's name; default: those of this process.
    """
    limit_spinning()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names that are not UTF-8
    try:
        try:
            app(sys.argv[1:] if words is None else words)
        finally:
            _flush()
    except KeyboardInterrupt:
        _end("stopped", 130)
    except BrokenPipeError:  # the reader (head, less) has closed the pipe; discard what is buffered
        _discard(sys.stdout)
        sys.exit(141)
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and not _can_flush():
            error.filename = "standard output"
        if (sentence := explain(error)) is None:
            raise
        _end(sentence, 1)


def print_notes(notes: Iterable[str]) -> None:
    """Print notes on the input to standard error."""
    for note in notes:
        print(f"sareloc: {note}", file=sys.stderr)


def _end(sentence: str, status: int) -> NoReturn:
    """Print the error to standard error, if it can be written to, and exit."""
    if not _can_flush():
        _discard(sys.stdout)  # else the interpreter tries to flush again at exit and prints an error
    try:
        if sys.stderr is not None:
            print(f"sareloc: {sentence}", file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)
    sys.exit(status)


def _flush() -> None:
    if sys.stdout is not None:  # None: it was closed before the start
        sys.stdout.flush()


def _can_flush() -> bool:
    try:
        _flush()
    except OSError:
        return False
    return True


def _discard(stream: TextIO) -> None:
    """Discard what is buffered for this stream."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
