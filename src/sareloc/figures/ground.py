"""Answers on the ground: where each query was taken, where it was put, and the error between them as a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sareloc.errors import ArgumentError, need
from sareloc.figures.plane import MANY, ground_axes, metres_apart, on_one_plane
from sareloc.figures.style import RIGHT, WRONG, drawn, write_beside
from sareloc.geo import Positions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Put:
    """Where Q queries were taken and where an answer put them. Refuses no queries at all, or rows that do not agree."""

    true: Positions
    """(Q,) where each was taken."""
    found: Positions
    """(Q,) where it was put: the position of the first match, or of the fix."""
    right: Bools
    """(Q,) whether that counts as right."""
    names: tuple[str, ...]
    """(Q,) what each is called."""
    database: Positions | None = None
    """Where the photos that were searched stand."""

    def __post_init__(self) -> None:
        counts = len(self.true), len(self.found), len(self.right), len(self.names)
        if len(set(counts)) > 1:
            raise ArgumentError(
                "true positions, found positions, right and names must have a row for each query: "
                f"found {', '.join(map(str, counts))}"
            )
        if not counts[0]:
            raise ArgumentError("there is nothing to draw: no query has both an answer and a known position")


@drawn
def draw_map(put: Put) -> Figure:
    """Queries on the ground: circles where they were taken, crosses where they were put, a line from one to the other.

    Lines of right answers are solid, of wrong ones dashed; dots are the database. Axes are metres east and north of
    the middle of the queries.
    """
    everything = [put.true, put.found] if put.database is None else [put.true, put.found, put.database]
    planes = on_one_plane(everything)
    figure, axes = ground_axes(np.concatenate(planes))
    if put.database is not None:
        label = f"database ({len(put.database)} photos)"
        many = len(put.database) > MANY
        axes.plot(*planes[2].T, ".", color="#8c959f", markersize=4, zorder=1, label=label, rasterized=many)
    lines = need("matplotlib.collections", "plot").LineCollection
    errors = metres_apart(put.true, put.found)
    for mask, colour, line, word in ((put.right, RIGHT, "-", "right"), (~put.right, WRONG, (0, (4, 2)), "wrong")):
        if not mask.any():
            continue
        starts, ends, many = planes[0][mask], planes[1][mask], len(mask) > MANY
        segments = np.stack([starts, ends], axis=1)
        axes.add_collection(lines(segments, colors=colour, linestyles=[line], linewidths=1.1, rasterized=many))
        axes.plot(*starts.T, "o", color=colour, markerfacecolor="white", markersize=4.5, zorder=3, rasterized=many,
                  label=f"{word}: taken here ({mask.sum()} of {len(mask)})")  # fmt: skip
        axes.plot(*ends.T, "x", color=colour, markersize=4.5, markeredgewidth=1.4, zorder=4, rasterized=many,
                  label=f"{word}: put here, median {np.median(errors[mask]):.1f} m off")  # fmt: skip
    figure.legend(loc="outside lower center", ncols=2, markerscale=1.4, handlelength=1.2)
    return figure


def errors_geojson(put: Put) -> dict[str, Any]:
    """The same as GeoJSON (RFC 7946): for each query two points and the line between, with `error_m` and `right`."""
    starts, ends = (positions.latlon()[:, ::-1].round(7).tolist() for positions in (put.true, put.found))
    errors = metres_apart(put.true, put.found)
    features = []
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        properties = {
            "query": put.names[row],
            "error_m": round(float(errors[row]), 2),
            "right": bool(put.right[row]),
        }
        for what, kind, coordinates in (
            ("taken", "Point", start),
            ("found", "Point", end),
            ("error", "LineString", [start, end]),
        ):
            features.append({
                "type": "Feature",
                "properties": {"what": what, **properties},
                "geometry": {"type": kind, "coordinates": coordinates},
            })  # fmt: skip
    return {"type": "FeatureCollection", "features": features}


def write_geojson(path: Path, collection: dict[str, Any]) -> Path:
    """Write a feature collection, beside its place first."""
    return write_beside(path, json.dumps(collection, allow_nan=False).encode())
