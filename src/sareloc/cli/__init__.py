"""The command line: a table of commands, each loaded when it is called.

A command parses, calls one function of the library and prints. The table holds module paths rather than functions so
that `sareloc --help` imports neither torch nor anything else that takes time.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, NoReturn, TextIO

from cyclopts import App, Parameter

from sareloc import __version__
from sareloc.devices import DEVICE_HELP
from sareloc.errors import explain

Device = Annotated[str | None, Parameter(name="--device", help=DEVICE_HELP)]
"""The option that every command with a model takes."""

app = App(name="sareloc", help="Say where a photo was taken: learn, map, localize.", version=__version__)

maps = App(name="map", help="Maps of geotagged photos: build, look after, calibrate.")
maps.command("sareloc.cli.map:build", name="build", help="Make a map of geotagged photos.")
maps.command("sareloc.cli.map:add", name="add", help="Add photos to a map.")
maps.command("sareloc.cli.map:sync", name="sync", help="Add, update and remove: a map as its folders are now.")
maps.command("sareloc.cli.map:remove", name="remove", help="Remove photos from a map.")
maps.command("sareloc.cli.map:info", name="info", help="What a map holds.")
maps.command("sareloc.cli.map:verify", name="verify", help="Whether a map is whole.")
maps.command("sareloc.cli.map:compact", name="compact", help="Give back the space of removed photos.")
maps.command("sareloc.cli.map:copy", name="copy", help="Copy a map, from a file to Milvus or back.")
maps.command(
    "sareloc.cli.calibrate:calibrate_command", name="calibrate", help="Fit the confidence on photos with positions."
)
app.command(maps)
app.command("sareloc.cli.localize:localize_command", name="localize", help="Say where photos were taken.")
app.command("sareloc.cli.serve:serve_command", name="serve", help="Answer over HTTP, with a page for people.")
app.command(
    "sareloc.cli.geotag:geotag_command",
    name="geotag",
    help="Write found positions into copies of photos (EXIF; XMP sidecars for all but JPEG), marked as estimates.",
)

datasets = App(name="data", help="Datasets: check one, or draw a city.")
datasets.command(
    "sareloc.cli.data:check", name="check", help="Counts, extent, positives, missing and unreadable files."
)
datasets.command("sareloc.cli.data:draw", name="draw", help="Draw a city and write it as a dataset.")
app.command(datasets)
models = App(name="model", help="Models: those that come with sareloc, and what is known about one.")
models.command("sareloc.cli.model:list_models", name="list", help="Which models come with sareloc.")
models.command("sareloc.cli.model:info", name="info", help="What a model is, and how it was made.")
app.command(models)
app.command("sareloc.cli.train:train_command", name="train", help="Train a model on a dataset.")
app.command("sareloc.cli.evaluate:evaluate_command", name="evaluate", help="How well a model finds a dataset's places.")
app.command("sareloc.cli.model:export_command", name="export", help="Write a model for other runtimes (ONNX).")

figures = App(name="figure", help="Draw the paper's figures, and figures of models and datasets, as PNG, SVG or PDF.")
figures.command("sareloc.cli.figure:gradients", name="gradients", help="Gradient magnitudes of losses.")
figures.command(
    "sareloc.cli.figure:gradient_decay", name="gradient-decay", help="Gradients over the negative's distance."
)
figures.command("sareloc.cli.figure:recall", name="recall", help="Recall@N of several reports.")
figures.command(
    "sareloc.cli.figure:precision_recall", name="precision-recall", help="Precision over recall of reports."
)
figures.command(
    "sareloc.cli.figure:confidence", name="confidence", help="Precision over recall by confidence of fixes."
)
figures.command("sareloc.cli.figure:heatmap", name="heatmap", help="Occlusion heat map of a photo.")
figures.command("sareloc.cli.figure:embedding", name="embedding", help="Photos at their t-SNE positions.")
figures.command("sareloc.cli.figure:matches", name="matches", help="Queries with their top matches.")
figures.command("sareloc.cli.figure:map_figure", name="map", help="True and predicted query positions on a map.")
figures.command("sareloc.cli.figure:training", name="training", help="Loss and validation recall of training runs.")
app.command(figures)
app.command("sareloc.cli.report:report_command", name="report", help="Write an HTML report of runs and evaluations.")


def wait_quietly() -> None:
    """Before torch is there: its threads spin for microseconds, not milliseconds, while they wait for each other.

    On a core that somebody else needs, a thread that spins holds up the one it waits for. What the user has said about
    it (OMP_WAIT_POLICY, GOMP_SPINCOUNT) stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line; an error of the user's or of the machine's is one line on standard error, exit status 1.

    words: what follows the program's name; default: the arguments of this process.
    """
    wait_quietly()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file name that is not UTF-8 cannot be written as it is
    try:
        try:
            app(sys.argv[1:] if words is None else words)
        finally:
            _flush()
    except KeyboardInterrupt:
        _end("stopped", 130)
    except BrokenPipeError:  # the reader (head, less) has closed the pipe; what is still buffered goes nowhere
        _discard(sys.stdout)
        sys.exit(141)
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and not _can_flush():
            error.filename = "standard output"
        if (sentence := explain(error)) is None:
            raise
        _end(sentence, 1)


def print_notes(notes: Iterable[str]) -> None:
    """What a person should know of the input, on standard error."""
    for note in notes:
        print(f"sareloc: {note}", file=sys.stderr)


def _end(sentence: str, status: int) -> NoReturn:
    """Say why on standard error, if it can be written to, and exit."""
    if not _can_flush():
        _discard(sys.stdout)  # else the interpreter tries again at exit, and prints that it failed
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
    """What is still buffered for this stream goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
