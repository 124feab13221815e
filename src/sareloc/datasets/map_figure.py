"""A small map of a dataset: where its database and its queries are, and which queries nothing can answer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sareloc.datasets.check import unwrapped_latlon
from sareloc.datasets.places import Places, find_positives
from sareloc.errors import ArgumentError, DatasetError, need
from sareloc.geo import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRES_PER_DEGREE = 111_195.0  # of latitude, and of longitude at the equator: a picture needs no ellipsoid
MAP_IN, AROUND_IN = 6.2, (0.8, 1.3)  # the longer side of the map, and what labels and legend take beside and below
NARROWEST = 0.4  # the shorter side of the map against the longer
MARGIN, FOOT = 0.04, 0.09  # of the longer side, around the photos and below them, where the scale stands
KILOMETRES_FROM_M = 5000.0
DOTS_PER_INCH = 150
FORMATS = (".png", ".svg", ".pdf")


def draw_places(places: Places, path: Path) -> None:
    """Draw the map into `path` (png, svg or pdf). Told apart by shape and lightness, so that it also prints in grey."""
    figure_module = need("matplotlib.figure", "plot")
    if path.suffix.lower() not in FORMATS:
        raise ArgumentError(f"a map is drawn as {', '.join(FORMATS)}: {path} is none of them")
    database, queries = _planar_metres(places)
    corner, sides = _window(np.concatenate([database, queries]))
    figure = figure_module.Figure((MAP_IN * sides / sides.max() + AROUND_IN).tolist(), layout="constrained")
    axes: Axes = figure.add_subplot(
        aspect="equal",
        xlim=(corner[0], corner[0] + sides[0]),
        ylim=(corner[1], corner[1] + sides[1]),
        axisbelow=True,
    )
    _draw_photos(axes, places, database, queries)
    _label_axes(axes, sides.max())
    axes.set_title(f"{places.name}, split {places.split}", loc="left")
    _draw_scale(axes, float(sides.min()))
    figure.legend(loc="outside lower center", ncols=3, frameon=False, handletextpad=0.2)
    beside = path.with_name(f".{path.name}.part")
    figure.savefig(beside, format=path.suffix.lower()[1:], dpi=DOTS_PER_INCH)
    os.replace(beside, path)


def _window(points: Floats) -> tuple[Floats, Floats]:
    """The lower left corner and the sides (2,) of what is shown, in metres: all points, and not too narrow a strip."""
    low, high = points.min(axis=0), points.max(axis=0)
    longer = max(float((high - low).max()), 1.0)
    sides = np.maximum(high - low, NARROWEST * longer) + 2 * MARGIN * longer
    foot = np.array([0.0, FOOT * longer])
    return (low + high - sides) / 2 - foot, sides + foot


def _draw_photos(axes: Axes, places: Places, database: Floats, queries: Floats) -> None:
    answered = np.array([len(rows) > 0 for rows in find_positives(places)], dtype=bool)
    groups: list[tuple[str, Floats, dict[str, Any]]] = [
        ("database", database, {"marker": "o", "color": "0.72", "linewidths": 0}),
        ("query", queries[answered], {"marker": "^", "color": "#14508c", "linewidths": 0}),
        ("query without a positive", queries[~answered], {"marker": "x", "color": "#d7301f", "linewidths": 1.4}),
    ]
    for label, points, style in groups:
        if len(points):
            size = float(np.clip(20000 / len(points), 5, 30))
            axes.scatter(points[:, 0], points[:, 1], size, label=f"{label} ({len(points):,})", **style)


def _label_axes(axes: Axes, reach_m: float) -> None:
    unit, metres = ("kilometres", 1000.0) if reach_m > KILOMETRES_FROM_M else ("metres", 1.0)
    for axis, direction in ((axes.xaxis, "east"), (axes.yaxis, "north")):
        axis.set_label_text(f"{unit} {direction}")
        axis.set_major_formatter(lambda value, _: f"{value / metres:g}")
    axes.grid(color="0.92", linewidth=0.6)


def _planar_metres(places: Places) -> tuple[Floats, Floats]:
    """(N, 2) metres east and north of the south-west corner, of database and queries."""
    database, queries = places.database.positions, places.queries.positions
    if database is None or (queries is None and len(places.queries)):
        raise DatasetError(f"{places.name} has no positions for database and queries: there is no map to draw")
    known = [database] if queries is None else [database, queries]
    if database.frame == "ecef":
        latlon = unwrapped_latlon(known)
        shrink = np.cos(np.radians((latlon[:, 0].min() + latlon[:, 0].max()) / 2))
        metres = latlon[:, ::-1] * [METRES_PER_DEGREE * shrink, METRES_PER_DEGREE]
    else:
        metres = np.concatenate([positions.metres for positions in known])
    metres = metres - metres.min(axis=0)
    return metres[: len(database)], metres[len(database) :]


def _draw_scale(axes: Axes, reach_m: float) -> None:
    """A bar of 1, 2 or 5 times a power of ten metres, at most a third of the map's shorter side."""
    anchored = need("mpl_toolkits.axes_grid1.anchored_artists", "plot")
    lengths = [digit * 10.0**power for power in range(8) for digit in (1, 2, 5)]
    length = max((metres for metres in lengths if metres <= reach_m / 3), default=0.1)
    label = f"{length:g} m" if length < 1000 else f"{length / 1000:g} km"
    bar = anchored.AnchoredSizeBar(axes.transData, length, label, "lower right", pad=0.3, sep=3, frameon=False)
    axes.add_artist(bar)
