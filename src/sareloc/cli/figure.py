"""`sareloc figure NAME`: figures of losses, reports, training runs, photos and datasets, as PNG, SVG or PDF."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from sareloc.cli.options import MIN_CONFIDENCE, Device, Model, Precision, Root, Split, Workers
from sareloc.errors import ArgumentError, PhotoError

if TYPE_CHECKING:
    from sareloc.datasets import Places
    from sareloc.evaluation import Report
    from sareloc.figures import PredictedPositions, QueryMatches
    from sareloc.localize import Fix
    from sareloc.models import PlaceModel


Out = Annotated[Path, Parameter(name="--out", help="The file to write: .png, .svg or .pdf.")]
Reports = Annotated[
    list[Path], Parameter(help="Outputs of sareloc evaluate --json; the legend shows their file names.")
]
Verify = Annotated[
    int | None,
    Parameter(
        name="--verify",
        help="Verify the top N matches geometrically; default: 10 if the map holds local features, else 0.",
    ),
]


def gradients(*, out: Out) -> None:
    """Draw the gradient magnitudes of five losses over the distances of positive and negative (the paper's figure)."""
    from sareloc.figures import draw_gradients, save_figure

    print(save_figure(draw_gradients(), out))


def gradient_decay(*, out: Out, d_p: float = 2**0.5) -> None:
    """Draw the gradient magnitude of the negative over its distance, for five losses, with the positive fixed.

    Parameters
    ----------
    d_p
        Distance of the positive. Default: the square root of 2, as in the paper.
    """
    from sareloc.figures import draw_gradient_decay, save_figure

    print(save_figure(draw_gradient_decay(d_p=d_p), out))


def recall(reports: Reports, *, out: Out) -> None:
    """Draw recall@N of several reports."""
    from sareloc.figures import draw_recall, save_figure

    print(save_figure(draw_recall(named_reports(reports)), out))


def precision_recall(reports: Reports, *, out: Out, at: float | None = None) -> None:
    """Draw precision over recall of several reports, over a threshold on the distance of the first match.

    Parameters
    ----------
    at
        Mark the operating point at this distance threshold.
    """
    from sareloc.figures import PrecisionRecallCurve, draw_precision_recall, save_figure

    curves = {name: PrecisionRecallCurve.of_report(report) for name, report in named_reports(reports).items()}
    print(save_figure(draw_precision_recall(curves, at), out))


def training(runs: list[Path], *, out: Out) -> None:
    """Draw the loss and validation recall of training runs.

    Parameters
    ----------
    runs
        Folders written by sareloc train; the legend shows their names.
    """
    from sareloc.figures import draw_training, read_history, save_figure

    print(save_figure(draw_training({_unique(run, runs): read_history(run) for run in runs}), out))


def heatmap(
    photo: Path,
    *,
    model: list[str] | None = None,
    out: Out,
    size: int = 256,
    box: int | None = None,
    stride: int | None = None,
    batch: int = 16,
    device: Device = None,
    precision: Precision = "auto",
) -> None:
    """Draw the occlusion heat map of a photo: how far the descriptor moves when each part of the photo is covered.

    Parameters
    ----------
    photo
        The photo file.
    model
        A packaged model (default, fast), a checkpoint, or a published file; several can be given to compare them.
        Default: fast.
    size
        Longer side in pixels to which the photo is scaled; smaller is faster.
    box
        Side of the occluding box in pixels of the scaled photo. Default: 1/25 of its area.
    stride
        Step of the box in pixels. Default: half of its side.
    batch
        Number of occluded photos encoded at once.
    """
    from sareloc.encode import occlusion_map
    from sareloc.figures import draw_heatmaps, save_figure
    from sareloc.models.checkpoint import STANDARD, load_model
    from sareloc.photos import decode, longest_side

    small = decode(photo, size=longest_side(size))
    names = model or [STANDARD]
    paths = [Path(name) for name in names]
    heats = {
        _unique(path, paths): occlusion_map(load_model(name, device, precision), small, box, stride, batch)
        for name, path in zip(names, paths, strict=True)
    }
    print(save_figure(draw_heatmaps(decode(photo, size=longest_side(640)), heats), out))


def named_reports(files: list[Path]) -> dict[str, Report]:
    """Reports by file name."""
    from sareloc.figures import read_report

    return {_unique(file, files): read_report(file) for file in files}


def _unique(path: Path, among: list[Path]) -> str:
    """The stem of a path, or the full path if another path has the same stem."""
    if among.count(path) > 1:
        raise ArgumentError(f"{path} is given twice")
    same_stem = [other for other in among if other.stem == path.stem]
    return path.stem if len(same_stem) == 1 else str(path)


@dataclass(frozen=True)
class Source:
    """The options of figures that describe a dataset with a model."""

    dataset: str
    """The name of a published dataset, a folder of photos, or a CSV file."""
    model: Annotated[Model, Parameter(name="--model")] = None
    root: Root = None
    split: Split = "test"
    store: Annotated[Path | None, Parameter(name="--store")] = None
    """Cache descriptors in this folder; evaluate and later figures reuse them."""
    workers: Workers = 2
    device: Device = None
    precision: Precision = "auto"

    def load_places(self) -> Places:
        """The dataset."""
        from sareloc.datasets import load_dataset

        return load_dataset(self.dataset, self.root, self.split)

    def load_model(self) -> PlaceModel:
        """The model, on its device."""
        from sareloc.models.checkpoint import STANDARD, load_model

        return load_model(self.model or STANDARD, self.device, self.precision)

    def query_matches(self, model: PlaceModel) -> QueryMatches:
        """The top matches of the dataset's queries."""
        from sareloc.evaluation import rank
        from sareloc.figures import query_matches

        return query_matches(rank(model, self.load_places(), store=self.store, workers=self.workers))


def embedding(
    source: Annotated[Source, Parameter(name="*")],
    *,
    out: Path,
    role: Literal["queries", "database"] = "queries",
    most: int = 1000,
    seed: int = 0,
) -> None:
    """Draw photos at the t-SNE positions of their descriptors, coloured by place: thumbnails where they fit, else dots.

    Parameters
    ----------
    out
        The file to write: .html (zoomable), .png, .svg or .pdf.
    role
        Which photos of the dataset to show.
    most
        Largest number of photos to show; of more, a random sample is shown.
    seed
        Random seed of the sample and of t-SNE.
    """
    import numpy as np

    from sareloc.encode import describe
    from sareloc.figures import (
        draw_embedding,
        load_thumbnail,
        place_labels,
        project_tsne,
        save_figure,
        write_embedding_page,
    )

    model = source.load_model()
    places = source.load_places()
    photos = places.queries if role == "queries" else places.database
    if len(photos) > most:
        photos = photos.take(np.sort(np.random.default_rng(seed).choice(len(photos), most, replace=False)))
    paths = photos.paths()
    described = describe(paths, model, store=source.store, workers=source.workers)
    rows = [row for row in range(len(photos)) if row not in described.failures]
    photos, points = photos.take(rows), project_tsne(described.vectors[rows], seed=seed)
    images = [load_thumbnail(paths[row], 96) for row in rows]
    if out.suffix.lower() == ".html":
        title = f"{places.name} {places.split}: t-SNE of the descriptors of {model.name}"
        print(write_embedding_page(out, points, place_labels(photos), images, photos.files, title=title))
    else:
        print(save_figure(draw_embedding(points, place_labels(photos), images), out))


def matches(
    source: Annotated[Source, Parameter(name="*")],
    *,
    out: Out,
    worst: int | None = None,
    best: int | None = None,
    query: list[str] | None = None,
    heat: bool = True,
    inliers: bool = False,
) -> None:
    """Draw queries with their top matches, bordered green (correct) or dashed red (wrong), and a heat map of each.

    With --inliers: each query beside its first match, with lines between their local features.

    Parameters
    ----------
    worst
        Number of queries whose first match is wrong, smallest descriptor distance first. Default: 4 if neither --best
        nor --query is given.
    best
        Number of queries whose first match is correct, smallest descriptor distance first.
    query
        A query, by file name or row number; may be given several times.
    heat
        Show the occlusion heat map of each query, which takes some seconds each.
    inliers
        Draw instead lines between matched local features of each query and its first match: those that agree on one
        two-view geometry, at most 100 lines, with their number.
    """
    from sareloc.figures import draw_inliers, draw_matches, query_heatmap, query_inliers, save_figure

    model = source.load_model()
    found = source.query_matches(model)
    if worst is None and best is None and not query:
        worst = 4
    rows = found.chosen(query or []) + found.best(best or 0) + found.worst(worst or 0)
    if inliers:
        print(save_figure(draw_inliers(found, query_inliers(found, rows, device=model.runs_on)), out))
        return
    heatmaps = {row: image for row in rows if heat and (image := query_heatmap(model, found, row)) is not None}
    print(save_figure(draw_matches(found, rows, heatmaps=heatmaps), out))


def map_figure(
    source: Annotated[Source, Parameter(name="*")],
    *,
    out: Out,
    place_map: Annotated[Path | None, Parameter(name="--map")] = None,
    verify: Verify = None,
    at: float = MIN_CONFIDENCE,
) -> None:
    """Draw true and predicted positions of queries on a map, with lines for the errors.

    Writes a GeoJSON file of the same name beside the figure unless the positions are local metres.

    Parameters
    ----------
    place_map
        A map built with the model: predict positions by its fixes. Default: by the first match.
    at
        With --map: leave out fixes below this confidence.
    """
    from sareloc.figures import draw_map, errors_geojson, save_figure, write_geojson

    model = source.load_model()
    if place_map is None:
        predicted = source.query_matches(model).predicted_positions()
    else:
        places = source.load_places()
        fixes = localize_queries(places, model, place_map, verify=verify, workers=source.workers)
        predicted = predicted_positions(fixes, places, at)
    print(save_figure(draw_map(predicted), out))
    if predicted.true.frame != "local":
        print(write_geojson(out.with_suffix(".geojson"), errors_geojson(predicted)))


def confidence(
    source: Annotated[Source, Parameter(name="*")],
    *,
    out: Out,
    place_map: Annotated[Path, Parameter(name="--map")],
    verify: Verify = None,
    at: float = MIN_CONFIDENCE,
) -> None:
    """Draw precision over recall of a map's fixes, over a threshold on their confidence, with the operating point.

    Parameters
    ----------
    place_map
        A map built with the model; its fixes of the dataset's queries are judged.
    at
        Mark the operating point at this confidence threshold.
    """
    from sareloc.figures import confidence_curve, draw_precision_recall, save_figure

    places = source.load_places()
    fixes = localize_queries(places, source.load_model(), place_map, verify=verify, workers=source.workers)
    curve = confidence_curve(fixes, places.queries, hit_radius_m=places.hit_radius_m)
    print(save_figure(draw_precision_recall({place_map.stem: curve}, at), out))


def localize_queries(
    places: Places, model: PlaceModel, place_map: Path, *, verify: int | None = None, workers: int = 0
) -> list[Fix | PhotoError]:
    """The fixes of a dataset's queries in a map, without a confidence threshold."""
    from sareloc.localize import Search, open_localizer

    paths = places.queries.paths()
    localizer = open_localizer(place_map, model, Search(verify=verify), min_confidence=0, workers=workers)
    return localizer.localize_many(paths)


def predicted_positions(fixes: list[Fix | PhotoError], places: Places, min_confidence: float) -> PredictedPositions:
    """The positions of a dataset's queries by their fixes, without those of a lower confidence."""
    from sareloc.figures import predicted_by_fixes

    return predicted_by_fixes(
        fixes,
        places.queries,
        hit_radius_m=places.hit_radius_m,
        min_confidence=min_confidence,
        database=places.database.positions,
    )
