"""Photos where the model puts them: t-SNE positions, with as many thumbnails as fit and dots for the others."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sareloc.datasets.places import PhotoSet
from sareloc.errors import ArgumentError, need
from sareloc.figures.style import INK, Floats, drawn, finite, new_figure
from sareloc.geo import within_radius

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Image = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

FEWEST = 5  # fewer photos have no neighbourhoods to show
PERPLEXITY = 30.0
SIDE_INCHES, LEAST_INCHES = 9.0, 3.0
ZOOMS = tuple(1.25**step for step in range(17))  # to 36


def embed(descriptors: npt.ArrayLike, *, seed: int = 0, perplexity: float = PERPLEXITY, threads: int = 1) -> Floats:
    """Where t-SNE puts N descriptors (N, D) on a plane: (N, 2), within 0..1 each way, the same for the same seed.

    The perplexity, about the number of neighbours that count, is lowered to (N - 1) / 3 where there are few photos.
    """
    rows = finite(descriptors, "descriptors")
    if rows.ndim != 2 or len(rows) < FEWEST:
        raise ArgumentError(f"an embedding view needs at least {FEWEST} descriptors (N, D): found {rows.shape}")
    tsne = need("openTSNE", "plot").TSNE(
        perplexity=min(perplexity, (len(rows) - 1) / 3), initialization="pca", metric="euclidean",
        neighbors="exact", random_state=seed, n_jobs=threads,
    )  # fmt: skip
    with warnings.catch_warnings():  # its dependencies deprecate things at one another
        warnings.simplefilter("ignore")
        points = np.asarray(tsne.fit(rows), dtype=np.float64)
    low, span = points.min(axis=0), max(float(np.ptp(points, axis=0).max()), 1e-9)
    middled: Floats = (points - low - (np.ptp(points, axis=0) - span) / 2) / span
    return middled


def places_of(photos: PhotoSet, radius_m: float = 25.0, turn_deg: float = 45.0) -> Ints:
    """A place number (N,), from 0, for each photo: photos of one number are of one place.

    By the first place id where the dataset has ids. Else by position: each photo that is in no place yet opens one, and
    those within `radius_m` that are in none join it, if they look the same way within `turn_deg` (or if it is not known
    which way). Where there are neither ids nor positions, the error says so.
    """
    if photos.place_ids is not None:
        numbers: dict[int, int] = {}
        firsts = [ids[0] if ids else -1 for ids in photos.place_ids]
        return np.array([numbers.setdefault(first, len(numbers)) for first in firsts], dtype=np.int64)
    if photos.positions is None:
        raise ArgumentError("these photos have neither place ids nor positions: nothing says which show one place")
    headings = np.full(len(photos), np.nan) if photos.headings_deg is None else photos.headings_deg
    places = np.full(len(photos), -1, dtype=np.int64)
    count = 0
    for row, near in enumerate(within_radius(photos.positions.metres, photos.positions.metres, radius_m)):
        if places[row] < 0:
            turned = np.abs((headings[near] - headings[row] + 180) % 360 - 180) > turn_deg  # never where unknown
            places[near[(places[near] < 0) & ~turned]] = count
            count += 1
    return places


def fitting_zooms(points: Floats, size: float, zooms: Sequence[float] = ZOOMS) -> Floats:
    """From which zoom on each thumbnail fits without covering another: (N,) of `zooms`, inf where at none.

    `points` (N, 2) are the middles within 0..1, `size` a thumbnail's side at zoom 1. Thumbnails keep their size while
    the points move apart: what fits at one zoom fits at every larger one. Earlier photos come first.
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
    """A colour for a place number: hues a golden section apart, in three lightnesses."""
    hue = place * 0.61803398875 % 1
    value = (0.85, 0.6, 0.95)[place % 3]
    colour: Floats = need("matplotlib.colors", "plot").hsv_to_rgb([hue, 0.8, value])
    return float(colour[0]), float(colour[1]), float(colour[2])


def _ink_on(colour: tuple[float, float, float]) -> str:
    """What can be read on this colour."""
    return INK if float(np.dot(colour, (0.299, 0.587, 0.114))) > 0.5 else "white"


@drawn
def draw_embedding(
    points: npt.ArrayLike, places: npt.ArrayLike, images: Sequence[Image | None], size: float = 0.06
) -> Figure:
    """Thumbnails at their points, in their place's colour and with its number; those that would cover another: dots.

    `points` (N, 2) from `embed`, `places` (N,) from `places_of`; `size` is a thumbnail's side as a share of the figure.
    """
    where, numbers = finite(points, "points"), np.asarray(places, dtype=np.int64)
    if not len(where) == len(numbers) == len(images):
        raise ArgumentError(
            f"found {len(where)} points, {len(numbers)} places and {len(images)} images: one each, please"
        )
    fits = fitting_zooms(where, size, (1.0,))
    low, high = where.min(axis=0) - 0.6 * size, where.max(axis=0) + 0.6 * size
    inches = np.maximum(SIDE_INCHES * (high - low) / (high - low).max(), LEAST_INCHES)
    figure = new_figure(inches[0], inches[1])
    axes = figure.subplots()
    axes.set_axis_off()
    for point, place, image, zoom in zip(where, numbers.tolist(), images, fits, strict=True):
        colour = place_colour(place)
        if image is None or np.isinf(zoom):
            axes.plot(*point, "o", color=colour, markersize=7.5, zorder=1, gid="dot")
            axes.text(point[0], point[1], f"{place}", fontsize=4.2, color=_ink_on(colour), ha="center",
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
