"""`sareloc figure NAME`: the paper's figures, curves of reports and runs, heat maps, as PNG, SVG or PDF."""

from __future__ import annotations

from pathlib import Path

from sareloc.checkpoint import load_model
from sareloc.cli import Device
from sareloc.errors import ArgumentError
from sareloc.evaluation import Report
from sareloc.figures import (
    SurenessCurve,
    draw_gradient_decay,
    draw_gradients,
    draw_heatmaps,
    draw_precision_recall,
    draw_recall,
    draw_training,
    occlusion_map,
    read_history,
    read_report,
    save_figure,
)
from sareloc.figures.thumbnails import longest_side
from sareloc.photos import decode


def gradients(*, out: Path) -> None:
    """Magnitudes of the gradients of positive and negative over their distances, for five losses (the paper's figure).

    Parameters
    ----------
    out
        The file to write: .png, .svg or .pdf.
    """
    print(save_figure(draw_gradients(), out))


def gradient_decay(*, out: Path, d_p: float = 2**0.5) -> None:
    """How hard each loss pushes a negative away as it gets farther, with the positive at one distance.

    Parameters
    ----------
    out
        The file to write: .png, .svg or .pdf.
    d_p
        The positive's distance; the paper's is the square root of 2.
    """
    print(save_figure(draw_gradient_decay(d_p=d_p), out))


def recall(reports: list[Path], *, out: Path) -> None:
    """Recall@N of several reports on one axis.

    Parameters
    ----------
    reports
        Files that sareloc evaluate --json printed; each is called by its file name.
    out
        The file to write: .png, .svg or .pdf.
    """
    print(save_figure(draw_recall(named_reports(reports)), out))


def precision_recall(reports: list[Path], *, out: Path, at: float | None = None) -> None:
    """Precision over recall of several reports as less and less sure answers are given.

    Parameters
    ----------
    reports
        Files that sareloc evaluate --json printed; each is called by its file name.
    out
        The file to write: .png, .svg or .pdf.
    at
        Mark the operating point where answers of at most this distance are given.
    """
    curves = {name: SurenessCurve.of_report(report) for name, report in named_reports(reports).items()}
    print(save_figure(draw_precision_recall(curves, at), out))


def training(runs: list[Path], *, out: Path) -> None:
    """Loss and validation recall of one or several training runs.

    Parameters
    ----------
    runs
        Folders that sareloc train wrote; each is called by its name.
    out
        The file to write: .png, .svg or .pdf.
    """
    print(save_figure(draw_training({_unique(run, runs): read_history(run) for run in runs}), out))


def heatmap(
    photo: Path,
    *,
    model: list[str] | None = None,
    out: Path,
    size: int = 256,
    box: int | None = None,
    stride: int | None = None,
    batch: int = 16,
    device: Device = None,
) -> None:
    """What in a photo mattered to a model: an occluding box slides over it, and where the descriptor moves, it glows.

    Parameters
    ----------
    photo
        The photo to look at.
    model
        A model that comes with sareloc (default, fast), or a checkpoint; give it twice to compare two.
    out
        The file to write: .png, .svg or .pdf.
    size
        The photo's longer side in pixels while boxes slide over it: smaller is faster.
    box
        Side of the occluding box, in pixels of that size; by default about 1/25 of the area.
    stride
        How far the box moves; by default half of its side.
    batch
        Occluded photos described at once.
    """
    small = decode(photo, size=longest_side(size))
    names = model or ["default"]
    paths = [Path(name) for name in names]
    heats = {
        _unique(path, paths): occlusion_map(load_model(name, device), small, box, stride, batch)
        for name, path in zip(names, paths, strict=True)
    }
    print(save_figure(draw_heatmaps(decode(photo, size=longest_side(640)), heats), out))


def named_reports(files: list[Path]) -> dict[str, Report]:
    """Reports by the names of their files."""
    return {_unique(file, files): read_report(file) for file in files}


def _unique(path: Path, among: list[Path]) -> str:
    """The shortest name of a path that no other of them has."""
    if among.count(path) > 1:
        raise ArgumentError(f"{path} is given twice")
    same_stem = [other for other in among if other.stem == path.stem]
    return path.stem if len(same_stem) == 1 else str(path)
