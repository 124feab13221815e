"""The command line: a table of commands, each loaded when it is called.

A command parses its arguments, calls one function of the library and prints. The table holds module paths rather than
functions, so that `sareloc --help` does not import torch.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, NoReturn, TextIO

from cyclopts import App, Parameter

from sareloc import __version__
from sareloc.errors import explain

DEVICE_HELP = (
    "Device of the model: cpu, cuda, cuda:N (GPU number N, from 0), mps (Apple), or a faster CPU runtime: openvino, "
    "openvino-int8 (extra openvino). Default: cuda if there is a GPU, else cpu."
)
Device = Annotated[str | None, Parameter(name="--device", help=DEVICE_HELP)]
"""The `--device` option of every command that runs a model."""
PRECISION_HELP = (
    "Number format of the model: float32, bfloat16, or auto: that of the environment variable SARELOC_PRECISION if "
    "it is set, else bfloat16 where the device is fast in it and float32 elsewhere."
)
Precision = Annotated[Literal["auto", "float32", "bfloat16"], Parameter(name="--precision", help=PRECISION_HELP)]
"""The `--precision` option of every command that computes descriptors."""

app = App(
    name="sareloc",
    help="Visual place recognition: train a model, build a map of geotagged photos, localize photos.",
    version=__version__,
    default_parameter=Parameter(negative_iterable=()),  # no --empty-NAME options
)

maps = App(name="map", help="Build, update, check and calibrate maps of geotagged photos.")
maps.command("sareloc.cli.map:build", name="build", help="Build a map from geotagged photos.")
maps.command("sareloc.cli.map:add", name="add", help="Add photos to a map.")
maps.command(
    "sareloc.cli.map:sync", name="sync", help="Add, update and remove photos so that a map matches its folders."
)
maps.command("sareloc.cli.map:upgrade", name="upgrade", help="Add the local features that photos of a map lack.")
maps.command("sareloc.cli.map:remove", name="remove", help="Remove photos from a map.")
maps.command("sareloc.cli.map:info", name="info", help="Show what a map contains.")
maps.command("sareloc.cli.map:verify", name="verify", help="Check a map's integrity.")
maps.command("sareloc.cli.map:compact", name="compact", help="Free the disk space of removed photos.")
maps.command("sareloc.cli.map:copy", name="copy", help="Copy a map to another file or server.")
maps.command(
    "sareloc.cli.calibrate:calibrate_command",
    name="calibrate",
    help="Calibrate confidence and radius on photos with known positions.",
)
app.command(maps)
app.command("sareloc.cli.localize:localize_command", name="localize", help="Find where photos were taken.")
app.command("sareloc.cli.serve:serve_command", name="serve", help="Run the HTTP service and its web page.")
app.command(
    "sareloc.cli.geotag:geotag_command",
    name="geotag",
    help="Write estimated positions into copies of photos (EXIF; XMP sidecars for formats other than JPEG).",
)

datasets = App(
    name="data",
    help="Check a dataset, geotag photos by a track, draw a synthetic city, or cut a 360° photo into views.",
)
datasets.command(
    "sareloc.cli.data:check",
    name="check",
    help="Check a dataset: counts, extent, positives, missing and unreadable files.",
)
datasets.command(
    "sareloc.cli.track:track_command",
    name="track",
    help="Write the positions of photos on a GPS track (GPX, NMEA) to a table, by their EXIF times.",
)
datasets.command("sareloc.cli.data:draw", name="draw", help="Draw a synthetic city and write it as a dataset.")
datasets.command("sareloc.cli.data:views", name="views", help="Cut a 360° photo into perspective views.")
datasets.command(
    "sareloc.cli.data:drive", name="draw-drive", help="Draw a drive through a synthetic city: a video and a GPX track."
)
app.command(datasets)
models = App(name="model", help="List the packaged models, describe a model, or convert a published one.")
models.command("sareloc.cli.model:list_models", name="list", help="List the packaged models.")
models.command("sareloc.cli.model:model_info", name="info", help="Describe a model: architecture, training, results.")
models.command(
    "sareloc.cli.model:convert", name="convert", help="Write a network that others published as a checkpoint."
)
app.command(models)
app.command("sareloc.cli.train:train_command", name="train", help="Train a model on a dataset.")
app.command(
    "sareloc.cli.evaluate:evaluate_command",
    name="evaluate",
    help="Evaluate a model on a dataset: recall@N, mAP, or the accuracy and calibration of fixes.",
)
app.command("sareloc.cli.model:export_command", name="export", help="Export a model to ONNX.")

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
