"""`sareloc figure NAME` of a dataset: embedding, matches, map, confidence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from cyclopts import Parameter

from sareloc.cli import Device
from sareloc.datasets import Places, load_dataset
from sareloc.describe import describe_all, occlusion_map
from sareloc.errors import ArgumentError, PhotoError
from sareloc.evaluation import Report
from sareloc.figures import (
    Answers,
    SurenessCurve,
    draw_embedding,
    draw_gradient_decay,
    draw_gradients,
    draw_heatmaps,
    draw_map,
    draw_matches,
    draw_precision_recall,
    draw_recall,
    draw_training,
    embed,
    errors_geojson,
    find_answers,
    heat_picture,
    load_thumbnail,
    places_of,
    put_by_fixes,
    read_history,
    read_report,
    save_figure,
    sureness_of_fixes,
    write_embedding_page,
    write_geojson,
)
from sareloc.localize import Fix, Search, open_localizer
from sareloc.localize.calibration import MIN_CONFIDENCE
from sareloc.models import PlaceModel
from sareloc.models.checkpoint import load_model
from sareloc.photos import decode, longest_side

# `sareloc figure NAME`: the paper's figures, curves of reports and runs, heat maps, as PNG, SVG or PDF.


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


@dataclass(frozen=True)
class Asked:
    """Which dataset is asked, with which model."""

    dataset: str
    """A dataset's name, or a folder of photos laid out as one."""
    model: Annotated[str, Parameter(name="--model")] = "default"
    """A model that comes with sareloc (default, fast), or a checkpoint."""
    root: Annotated[Path | None, Parameter(name="--root")] = None
    """The folder that holds the dataset's files."""
    split: Annotated[str, Parameter(name="--split")] = "test"
    """Which part of the dataset: train, val or test."""
    store: Annotated[Path | None, Parameter(name="--store")] = None
    """Keep the descriptors in this folder; the next figure, or evaluate, takes them from there."""
    workers: Annotated[int, Parameter(name="--workers")] = 2
    """Processes that decode photos."""
    device: Device = None

    def open_model(self) -> PlaceModel:
        """The model, on its device."""
        return load_model(self.model, self.device)

    def answers(self, model: PlaceModel) -> Answers:
        """What the model answers to the dataset's queries."""
        places = load_dataset(self.dataset, self.root, self.split)
        return find_answers(model, places, store=self.store, workers=self.workers)


def embedding(
    asked: Annotated[Asked, Parameter(name="*")],
    *,
    out: Path,
    role: Literal["queries", "database"] = "queries",
    most: int = 1000,
    seed: int = 0,
) -> None:
    """Photos where the model puts them (t-SNE), coloured by place: thumbnails where they fit, dots elsewhere.

    Parameters
    ----------
    out
        The file to write: .html to zoom into, .png, .svg or .pdf.
    role
        Which photos of the dataset to show.
    most
        Show at most so many photos, drawn at random.
    seed
        Of the random draw and of t-SNE.
    """
    model = asked.open_model()
    places = load_dataset(asked.dataset, asked.root, asked.split)
    photos = places.queries if role == "queries" else places.database
    if len(photos) > most:
        photos = photos.take(np.sort(np.random.default_rng(seed).choice(len(photos), most, replace=False)))
    paths = [photos.path(row) for row in range(len(photos))]
    described = describe_all(model, paths, store=asked.store, workers=asked.workers)
    rows = [row for row in range(len(photos)) if row not in described.failures]
    photos, points = photos.take(rows), embed(described.vectors[rows], seed=seed)
    images = [load_thumbnail(paths[row], 96) for row in rows]
    if out.suffix.lower() == ".html":
        title = f"{places.name} {places.split}: photos where {model.name} puts them"
        print(write_embedding_page(out, points, places_of(photos), images, photos.files, title=title))
    else:
        print(save_figure(draw_embedding(points, places_of(photos), images), out))


def matches(
    asked: Annotated[Asked, Parameter(name="*")],
    *,
    out: Path,
    worst: int | None = None,
    best: int | None = None,
    query: list[str] | None = None,
    heat: bool = True,
) -> None:
    """Queries with their first matches, bordered green (right) or dashed red (wrong), and what mattered in the query.

    Parameters
    ----------
    out
        The file to write: .png, .svg or .pdf.
    worst
        So many queries whose first match is wrong, the surest first; 4 where nothing else is asked for.
    best
        So many queries whose first match is right, the surest first.
    query
        A query, by its file name or row number; may be given several times.
    heat
        Show what mattered in each query; takes some seconds for each.
    """
    model = asked.open_model()
    answers = asked.answers(model)
    if worst is None and best is None and not query:
        worst = 4
    rows = answers.chosen(query or []) + answers.best(best or 0) + answers.worst(worst or 0)
    heats = {row: picture for row in rows if heat and (picture := heat_picture(model, answers, row)) is not None}
    print(save_figure(draw_matches(answers, rows, heats=heats), out))


def map_figure(
    asked: Annotated[Asked, Parameter(name="*")],
    *,
    out: Path,
    city: Annotated[Path | None, Parameter(name="--map")] = None,
    rerank: int = 0,
    at: float = MIN_CONFIDENCE,
) -> None:
    """Queries on the ground: where they were taken, where they were put, and the error as a line.

    A GeoJSON file of the same name goes beside the figure, where the dataset has a place on Earth.

    Parameters
    ----------
    out
        The file to write: .png, .svg or .pdf.
    city
        A map that the model has built: queries are put where its fixes are. By itself, where their first match is.
    rerank
        With --map: put so many first matches in a new order by local features.
    at
        With --map: leave out fixes that are less sure.
    """
    model = asked.open_model()
    if city is None:
        put = asked.answers(model).put()
    else:
        places = load_dataset(asked.dataset, asked.root, asked.split)
        fixes = fixes_of(places, model, city, rerank=rerank, workers=asked.workers)
        put = put_by_fixes(
            fixes,
            places.queries,
            hit_radius_m=places.hit_radius_m,
            min_confidence=at,
            database=places.database.positions,
        )
    print(save_figure(draw_map(put), out))
    if put.true.frame != "local":
        print(write_geojson(out.with_suffix(".geojson"), errors_geojson(put)))


def confidence(
    asked: Annotated[Asked, Parameter(name="*")],
    *,
    out: Path,
    city: Annotated[Path, Parameter(name="--map")],
    rerank: int = 0,
    at: float = MIN_CONFIDENCE,
) -> None:
    """Precision over recall as less and less sure fixes of a map are given, with its operating point.

    Parameters
    ----------
    out
        The file to write: .png, .svg or .pdf.
    city
        A map that the model has built: its fixes and their confidence are judged.
    rerank
        Put so many first matches in a new order by local features.
    at
        Mark the operating point where fixes of at least this confidence are given.
    """
    places = load_dataset(asked.dataset, asked.root, asked.split)
    fixes = fixes_of(places, asked.open_model(), city, rerank=rerank, workers=asked.workers)
    curve = sureness_of_fixes(fixes, places.queries, hit_radius_m=places.hit_radius_m)
    print(save_figure(draw_precision_recall({city.stem: curve}, at), out))


def fixes_of(
    places: Places, model: PlaceModel, city: Path, *, rerank: int = 0, workers: int = 0
) -> list[Fix | PhotoError]:
    """What a map answers to each query of a dataset, however unsure."""
    paths = [places.queries.path(row) for row in range(len(places.queries))]
    localizer = open_localizer(city, model, Search(rerank=rerank), min_confidence=0, workers=workers)
    return localizer.localize_many(paths)
