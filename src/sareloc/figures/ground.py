"""Answers on the ground: where each query was taken, where it was put, and the error between them as a line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sareloc.datasets.places import PhotoSet
from sareloc.errors import ArgumentError, PhotoError, need
from sareloc.figures.style import RIGHT, WRONG, Floats, drawn, finite, new_figure, write_beside
from sareloc.geo import Positions, distance_m, enu_from_wgs84
from sareloc.localize import Fix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Bools = npt.NDArray[np.bool_]

MOST_INCHES, LEAST_INCHES = 6.5, 2.2
SMALLEST_VIEW_M = 20.0
MANY = 2000  # so many points or lines become pixels inside an SVG, which would be megabytes otherwise


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


def put_by_fixes(
    fixes: Sequence[Fix | PhotoError],
    queries: PhotoSet,
    *,
    hit_radius_m: float = 25.0,
    database: Positions | None = None,
) -> Put:
    """Where fixes put queries, a fix for each query; those without a position, or not decoded, are left out.

    Right: within `hit_radius_m` of where the query was taken.
    """
    if queries.positions is None:
        raise ArgumentError("the queries have no positions: nothing says how far off their fixes are")
    if len(fixes) != len(queries):
        raise ArgumentError(f"there must be a fix for each query: found {len(fixes)} for {len(queries)}")
    placed = [(row, fix.latlon) for row, fix in enumerate(fixes) if isinstance(fix, Fix) and fix.latlon is not None]
    rows = np.array([row for row, _ in placed], dtype=np.int64)
    true, found = queries.positions[rows].latlon(), np.array([latlon for _, latlon in placed]).reshape(-1, 2)
    return Put(
        Positions.from_wgs84(true),
        Positions.from_wgs84(found),
        distance_m(true, found) <= hit_radius_m,
        tuple(queries.files[row] for row in rows),
        database,
    )


@drawn
def draw_map(put: Put) -> Figure:
    """Queries on the ground: circles where they were taken, crosses where they were put, a line from one to the other.

    Lines of right answers are solid, of wrong ones dashed; dots are the database. Axes are metres east and north of
    the middle of the queries.
    """
    everything = [put.true, put.found] if put.database is None else [put.true, put.found, put.database]
    planes = _on_one_plane(everything)
    figure, axes = _ground(np.concatenate(planes))
    if put.database is not None:
        label = f"database ({len(put.database)} photos)"
        many = len(put.database) > MANY
        axes.plot(*planes[2].T, ".", color="#8c959f", markersize=3, zorder=1, label=label, rasterized=many)
    lines = need("matplotlib.collections", "plot").LineCollection
    errors = np.linalg.norm(planes[0] - planes[1], axis=1)
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
    errors = np.linalg.norm(np.subtract(*_on_one_plane([put.true, put.found])), axis=1)
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


def _on_one_plane(everything: list[Positions]) -> list[Floats]:
    """Metres east and north (N, 2) of a common middle."""
    for positions in everything:
        finite(positions.metres, "positions")
    frames = {(positions.frame, positions.epsg) for positions in everything}
    if len(frames) == 1 and everything[0].frame != "ecef":
        middle = everything[0].metres.mean(axis=0)
        return [positions.metres - middle for positions in everything]
    if any(positions.frame == "local" for positions in everything):
        raise ArgumentError("some positions are local metres and others are not: they have no common map")
    degrees = [positions.latlon() for positions in everything]
    middle = Positions(Positions.from_wgs84(degrees[0]).metres.mean(axis=0, keepdims=True), "ecef").latlon()[0]
    return [enu_from_wgs84(latlon, middle) for latlon in degrees]


def _ground(points: Floats) -> tuple[Figure, Axes]:
    """An empty map that shows all points (N, 2)."""
    low, high = points.min(axis=0), points.max(axis=0)
    span = np.maximum(high - low, SMALLEST_VIEW_M) * 1.08
    middle = (low + high) / 2
    inches = np.maximum(MOST_INCHES * span / span.max(), LEAST_INCHES)
    figure = new_figure(inches[0] + 0.8, inches[1] + 1.1)
    axes = figure.subplots()
    axes.set_aspect("equal", adjustable="box")
    axes.set_xlim(middle[0] - span[0] / 2, middle[0] + span[0] / 2)
    axes.set_ylim(middle[1] - span[1] / 2, middle[1] + span[1] / 2)
    axes.set(xlabel="metres east", ylabel="metres north")
    return figure, axes
