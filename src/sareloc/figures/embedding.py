"""The embedding view: photos at their t-SNE positions, as a figure and as a zoomable, self-contained HTML page."""

from __future__ import annotations

import html
import json
import warnings
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats, Image, Ints
from sareloc.datasets.places import PhotoSet
from sareloc.errors import ArgumentError, need
from sareloc.figures.matches import jpeg_uri
from sareloc.figures.style import INK, new_figure, require_finite, styled
from sareloc.files import write_atomically
from sareloc.geo import within_radius
from sareloc.wording import plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MIN_PHOTOS = 5
PERPLEXITY = 30.0
MAX_SIDE_INCHES, MIN_SIDE_INCHES = 9.0, 3.0
ZOOMS = tuple(1.25**step for step in range(17))  # to 36
THUMBNAIL = 0.075  # of the page's shorter side


def project_tsne(
    descriptors: npt.ArrayLike, *, seed: int = 0, perplexity: float = PERPLEXITY, threads: int = 1
) -> Floats:
    """t-SNE coordinates (N, 2) of descriptors, scaled to 0..1, deterministic for a seed.

    Args:
        descriptors: (N, D).
        seed: of t-SNE.
        perplexity: about the number of neighbours that count; at most (N - 1) / 3.
        threads: of the computation.

    Raises:
        ArgumentError: if N is below `MIN_PHOTOS`.
    """
    rows = require_finite(descriptors, "descriptors")
    if rows.ndim != 2 or len(rows) < MIN_PHOTOS:
        raise ArgumentError(f"an embedding view needs at least {MIN_PHOTOS} descriptors (N, D): found {rows.shape}")
    tsne = need("openTSNE", "plot").TSNE(
        perplexity=min(perplexity, (len(rows) - 1) / 3), initialization="pca", metric="euclidean",
        neighbors="exact", random_state=seed, n_jobs=threads,
    )  # fmt: skip
    with warnings.catch_warnings():  # deprecation warnings of its dependencies
        warnings.simplefilter("ignore")
        points = np.asarray(tsne.fit(rows), dtype=np.float64)
    low, span = points.min(axis=0), max(float(np.ptp(points, axis=0).max()), 1e-9)
    centred: Floats = (points - low - (np.ptp(points, axis=0) - span) / 2) / span
    return centred


def place_labels(photos: PhotoSet, radius_m: float = 25.0, turn_deg: float = 45.0) -> Ints:
    """A place label (N,), from 0, for each photo: photos with equal labels show one place.

    Labels follow the first place id where the dataset has ids. Otherwise photos are grouped greedily by position:
    each photo without a label starts a place, and others without a label join it.

    Args:
        photos: with place ids or positions.
        radius_m: photos within this distance join a place,
        turn_deg: if their headings differ by at most this, or are unknown.

    Raises:
        ArgumentError: if there are neither ids nor positions.
    """
    if photos.place_ids is not None:
        numbers: dict[int, int] = {}
        firsts = [ids[0] if ids else -1 for ids in photos.place_ids]
        return np.array([numbers.setdefault(first, len(numbers)) for first in firsts], dtype=np.int64)
    if photos.positions is None:
        raise ArgumentError("these photos have neither place ids nor positions: they cannot be grouped into places")
    headings = np.full(len(photos), np.nan) if photos.headings_deg is None else photos.headings_deg
    places = np.full(len(photos), -1, dtype=np.int64)
    count = 0
    for row, near in enumerate(within_radius(photos.positions.metres, photos.positions.metres, radius_m)):
        if places[row] < 0:
            turned = np.abs((headings[near] - headings[row] + 180) % 360 - 180) > turn_deg  # False if unknown
            places[near[(places[near] < 0) & ~turned]] = count
            count += 1
    return places


def fitting_zooms(points: Floats, size: float, zooms: Sequence[float] = ZOOMS) -> Floats:
    """The smallest of `zooms` at which each thumbnail fits without overlapping another: (N,), inf if at none.

    `points` (N, 2) are the centres within 0..1, `size` is a thumbnail's side at zoom 1. Thumbnails keep their size
    while the points move apart, so a thumbnail that fits at one zoom fits at every larger one. Earlier photos have
    priority.
    """
    fits = np.full(len(points), np.inf)
    for zoom in zooms:
        shown = points[np.isfinite(fits)]
        for row in np.flatnonzero(np.isinf(fits)):
            if not (np.abs(shown - points[row]).max(axis=1) < size / zoom).any():
                fits[row] = zoom
                shown = np.concatenate([shown, points[row : row + 1]])
    return fits


def place_colour(place: int) -> tuple[float, float, float]:
    """An RGB colour for a place label: hues spaced by the golden ratio, in three values of lightness."""
    hue = place * 0.61803398875 % 1
    value = (0.85, 0.6, 0.95)[place % 3]
    colour: Floats = need("matplotlib.colors", "plot").hsv_to_rgb([hue, 0.8, value])
    return float(colour[0]), float(colour[1]), float(colour[2])


def _text_colour(background: tuple[float, float, float]) -> str:
    """Dark or white, by the luminance of the background."""
    return INK if float(np.dot(background, (0.299, 0.587, 0.114))) > 0.5 else "white"


@styled
def draw_embedding(
    points: npt.ArrayLike, places: npt.ArrayLike, images: Sequence[Image | None], size: float = 0.06
) -> Figure:
    """Thumbnails at their points with the colour and number of their place; dots where a thumbnail would overlap.

    Args:
        points: (N, 2) from `project_tsne`.
        places: (N,) from `place_labels`.
        images: a thumbnail of each photo; None: a dot.
        size: a thumbnail's side as a fraction of the figure.
    """
    where, numbers = require_finite(points, "points"), np.asarray(places, dtype=np.int64)
    if not len(where) == len(numbers) == len(images):
        raise ArgumentError(
            f"found {len(where)} points, {len(numbers)} places and {len(images)} images: each photo needs one of each"
        )
    fits = fitting_zooms(where, size, (1.0,))
    low, high = where.min(axis=0) - 0.6 * size, where.max(axis=0) + 0.6 * size
    inches = np.maximum(MAX_SIDE_INCHES * (high - low) / (high - low).max(), MIN_SIDE_INCHES)
    figure = new_figure(inches[0], inches[1])
    axes = figure.subplots()
    axes.set_axis_off()
    for point, place, image, zoom in zip(where, numbers.tolist(), images, fits, strict=True):
        colour = place_colour(place)
        if image is None or np.isinf(zoom):
            axes.plot(*point, "o", color=colour, markersize=7.5, zorder=1, gid="dot")
            axes.text(point[0], point[1], f"{place}", fontsize=4.2, color=_text_colour(colour), ha="center",
                      va="center_baseline", zorder=1.5)  # fmt: skip
            continue
        across, up = size * 0.46 * np.array(image.shape[1::-1]) / max(image.shape[:2])
        left, bottom, right, top = point[0] - across, point[1] - up, point[0] + across, point[1] + up
        axes.imshow(image, extent=(left, right, bottom, top), zorder=2, interpolation="antialiased")
        axes.plot([left, right, right, left, left], [bottom, bottom, top, top, bottom], color=colour,
                  linewidth=2.2, zorder=3, gid="thumbnail")  # fmt: skip
        axes.text(left, top, f"{place}", fontsize=6, color="white", ha="left", va="top", zorder=4,
                  bbox={"boxstyle": "square,pad=0.2", "facecolor": "black", "alpha": 0.6, "linewidth": 0})  # fmt: skip
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    return figure


def write_embedding_page(
    path: Path | str,
    points: npt.ArrayLike,
    places: npt.ArrayLike,
    images: Sequence[Image | None],
    names: Sequence[str],
    *,
    title: str = "Embedding of photos (t-SNE)",
) -> Path:
    """Write a page of photos at their points.

    Wheel, pinch, buttons or + and - zoom; dragging or the arrow keys pan; hovering over a photo shows its name and
    highlights all photos of its place.

    Args:
        path: of the page.
        points: (N, 2) from `project_tsne`.
        places: (N,) from `place_labels`.
        images: a thumbnail of each photo.
        names: of the photos.
        title: of the page.
    """
    where, numbers = require_finite(points, "points"), np.asarray(places, dtype=np.int64)
    if not len(where) == len(numbers) == len(images) == len(names):
        raise ArgumentError(
            f"found {len(where)} points, {len(numbers)} places, {len(images)} images and {len(names)} names: "
            "each photo needs one of each"
        )
    photos = [
        {
            "x": round(float(x), 5),
            "y": round(float(1 - y), 5),  # in pages y points down
            "fit": None if np.isinf(fit) or image is None else float(fit),
            "place": place,
            "colour": "#" + "".join(f"{round(255 * part):02x}" for part in place_colour(place)),
            "name": name,
            "image": None if image is None else jpeg_uri(image, quality=70),
        }
        for (x, y), fit, place, image, name in zip(
            where, fitting_zooms(where, THUMBNAIL), numbers.tolist(), images, names, strict=True
        )
    ]
    template = (files("sareloc.figures") / "embedding.html").read_text(encoding="utf-8")
    page = (
        template.replace("{{title}}", html.escape(title))
        .replace("{{count}}", f"{plural(len(photos), 'photo')}, {plural(len(set(numbers.tolist())), 'place')}")
        .replace("{{thumbnail}}", str(THUMBNAIL))
        .replace("{{photos}}", json.dumps(photos).replace("<", "\\u003c"))
    )
    return write_atomically(Path(path), page.encode(errors="backslashreplace"))
