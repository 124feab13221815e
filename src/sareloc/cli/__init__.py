"""The command line: a table of commands.

A command parses its arguments, calls one function of the library and prints; its docstring is its help. The modules of
commands import numpy, torch and the library inside of functions only, so that help is printed at once.
"""

from __future__ import annotations

import io
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn, TextIO

from cyclopts import App, Parameter

from sareloc import __version__
from sareloc.cli import calibrate, data, evaluate, figure, geotag, localize, map, model, report, serve, train
from sareloc.cli.options import ResumableStop
from sareloc.errors import explain

LISTS = Parameter(negative_iterable=())
"""No --empty-NAME options; each group has it too, for the reference."""

app = App(
    name="sareloc",
    help="Visual place recognition: train a model, build a map of geotagged photos, localize photos.",
    version=__version__,
    suppress_keyboard_interrupt=False,  # `main` reports it
    default_parameter=LISTS,
)

maps = App(name="map", help="Build, update, check and calibrate maps of geotagged photos.", default_parameter=LISTS)
for _one in (map.build, map.add, map.sync, map.upgrade, map.remove, map.info, map.verify, map.compact, map.copy):
    maps.command(_one)
maps.command(map.adapt)
maps.command(map.list_command, name="list")
maps.command(calibrate.calibrate_command, name="calibrate")
app.command(maps)
app.command(localize.localize_command, name="localize")
app.command(serve.serve_command, name="serve")
app.command(geotag.geotag_command, name="geotag")

datasets = App(
    name="data",
    help="Check a dataset, geotag photos by a track, draw a synthetic city, or cut a 360° photo into views.",
    default_parameter=LISTS,
)
datasets.command(data.check, name="check")
datasets.command(data.track, name="track")
datasets.command(data.draw, name="draw")
datasets.command(data.views, name="views")
datasets.command(data.drive, name="draw-drive")
app.command(datasets)
models = App(name="model", help="List the packaged models, describe a model, or convert a published one.")
models.command(model.list_models, name="list")
models.command(model.model_info, name="info")
models.command(model.convert, name="convert")
app.command(models)
app.command(train.train_command, name="train")
app.command(evaluate.evaluate_command, name="evaluate")
app.command(model.export_command, name="export")

figures = App(
    name="figure",
    help="Draw the paper's figures, and figures of models and datasets, as PNG, SVG or PDF.",
    default_parameter=LISTS,
)
for _figure in (
    *(figure.gradients, figure.gradient_decay, figure.recall, figure.precision_recall, figure.confidence),
    *(figure.heatmap, figure.embedding, figure.matches),
):
    figures.command(_figure)
figures.command(figure.map_figure, name="map")
figures.command(figure.training)
app.command(figures)
app.command(report.report_command, name="report")


def limit_spinning() -> None:
    """Before torch is imported: let OpenMP threads spin for microseconds, not milliseconds, while they wait.

    On a busy core a spinning thread delays the one it waits for. The user's own settings (OMP_WAIT_POLICY,
    GOMP_SPINCOUNT) take precedence.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


class _Notes(logging.Handler):
    """Prints warnings of the library as the notes of a command."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"sareloc: {record.getMessage()}", file=sys.stderr)


NOTES = _Notes(logging.WARNING)


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line; an expected error is one line on standard error and exit status 1.

    words: the arguments after the program's name; default: those of this process.
    """
    limit_spinning()
    logging.getLogger("sareloc.localize").addHandler(NOTES)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names that are not UTF-8
    try:
        try:
            app(sys.argv[1:] if words is None else words)
        finally:
            _flush()
    except ResumableStop:
        given = [word for word in (sys.argv[1:] if words is None else words) if word != "--resume"]
        _end(f"stopped; to continue: {shlex.join(['sareloc', *given, '--resume'])}", 130)
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
