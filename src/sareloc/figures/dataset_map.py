"""A dataset on the ground: where its database and its queries are, and which queries nothing can answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sareloc.datasets.places import Places, find_positives
from sareloc.errors import DatasetError
from sareloc.figures.plane import MANY, ground_axes, on_one_plane
from sareloc.figures.style import LOOKS, WRONG, Floats, drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATABASE = "#8c959f"


@drawn
def draw_dataset(places: Places) -> Figure:
    """Database photos as dots, queries as triangles, queries without a positive as crosses: also told apart in grey."""
    database, queries = places.database.positions, places.queries.positions
    if database is None or (queries is None and len(places.queries)):
        raise DatasetError(f"{places.name} has no positions for database and queries: there is no map to draw")
    planes = on_one_plane([database] if queries is None else [database, queries])
    answered = np.array([len(rows) > 0 for rows in find_positives(places)], dtype=np.bool_)
    asked = planes[1] if len(planes) > 1 else planes[0][:0]
    figure, axes = ground_axes(np.concatenate(planes))
    groups: list[tuple[str, Floats, dict[str, Any]]] = [
        ("database", planes[0], {"marker": "o", "color": DATABASE, "linewidths": 0}),
        ("query", asked[answered], {"marker": "^", "color": LOOKS[0].colour, "linewidths": 0}),
        ("query without a positive", asked[~answered], {"marker": "x", "color": WRONG, "linewidths": 1.4}),
    ]
    for label, points, style in groups:
        if len(points):
            size = float(np.clip(20000 / len(points), 5, 30))
            axes.scatter(
                points[:, 0],
                points[:, 1],
                size,
                label=f"{label} ({len(points):,})",
                rasterized=len(points) > MANY,
                **style,
            )
    axes.set_title(f"{places.name}, split {places.split}")
    figure.legend(loc="outside lower center", ncols=3, handletextpad=0.2, handlelength=1.6)
    return figure
