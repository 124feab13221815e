"""A dataset on the ground: where its database and its queries are, and which queries nothing can answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sareloc.arrays import Bools, Floats
from sareloc.datasets.check import unwrapped_latlon
from sareloc.datasets.places import Places, find_positives
from sareloc.errors import ArgumentError, DatasetError, need
from sareloc.figures.style import LOOKS, RIGHT, WRONG, drawn, finite, new_figure, write_beside
from sareloc.geo import Positions, distance_m, enu_from_wgs84

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Positions on one plane, and axes to draw them on: what the maps share.

MOST_INCHES, LEAST_INCHES = 6.5, 2.2
SMALLEST_VIEW_M, KILOMETRES_FROM_M = 20.0, 5000.0
FLAT_M = 500_000.0  # what reaches farther is drawn by longitude and latitude: the Earth is too round for one plane
METRES_PER_DEGREE = 111_195.0  # of latitude, and of longitude at the equator: a picture of a continent needs no more
MANY = 2000  # so many points or lines become pixels inside an SVG, which would be megabytes otherwise


def on_one_plane(everything: Sequence[Positions]) -> list[Floats]:
    """Metres east and north (N, 2), all from the middle of the first positions."""
    for positions in everything:
        if len(positions):
            finite(positions.metres, "positions")
    if not on_earth(everything):
        middle = everything[0].metres.mean(axis=0)
        return [positions.metres - middle for positions in everything]
    degrees = [positions.latlon() for positions in everything]
    ecef = [Positions.from_wgs84(latlon).metres for latlon in degrees]
    middle = ecef[0].mean(axis=0)
    if np.linalg.norm(np.concatenate(ecef) - middle, axis=1).max() < FLAT_M:
        origin = Positions(middle[None], "ecef").latlon()[0]
        return [enu_from_wgs84(latlon, origin) for latlon in degrees]
    whole = unwrapped_latlon(everything)[:, ::-1]
    shrink = np.cos(np.radians((whole[:, 1].min() + whole[:, 1].max()) / 2))
    metres = whole * (METRES_PER_DEGREE * shrink, METRES_PER_DEGREE)
    ends = np.cumsum([len(positions) for positions in everything])
    return np.split(metres - metres[: ends[0]].mean(axis=0), ends[:-1])


def metres_apart(a: Positions, b: Positions) -> Floats:
    """Metres (N,) between rows, along the ground where they are on Earth."""
    if on_earth([a, b]):
        return distance_m(a.latlon(), b.latlon())
    return np.asarray(np.linalg.norm(a.metres - b.metres, axis=1))


def on_earth(everything: Sequence[Positions]) -> bool:
    """Whether degrees are what they share, rather than one plane of metres; those that share neither are refused."""
    frames = {(positions.frame, positions.epsg) for positions in everything}
    if len(frames) == 1:
        return everything[0].frame == "ecef"
    if any(positions.frame == "local" for positions in everything):
        raise ArgumentError("some positions are local metres and others are not: they have no common map")
    return True


def ground_axes(points: Floats) -> tuple[Figure, Axes]:
    """An empty map, in metres or kilometres, that shows all points (N, 2)."""
    low, high = points.min(axis=0), points.max(axis=0)
    span = np.maximum(high - low, SMALLEST_VIEW_M) * 1.08
    middle = (low + high) / 2
    inches = np.maximum(MOST_INCHES * span / span.max(), LEAST_INCHES)
    figure = new_figure(inches[0] + 0.8, inches[1] + 1.1)
    axes = figure.subplots()
    axes.set_aspect("equal", adjustable="box")
    axes.set_xlim(middle[0] - span[0] / 2, middle[0] + span[0] / 2)
    axes.set_ylim(middle[1] - span[1] / 2, middle[1] + span[1] / 2)
    unit, metres = ("kilometres", 1000.0) if span.max() > KILOMETRES_FROM_M else ("metres", 1.0)
    for axis, direction in ((axes.xaxis, "east"), (axes.yaxis, "north")):
        axis.set_label_text(f"{unit} {direction}")
        axis.set_major_formatter(lambda value, _: f"{value / metres:g}".replace("-", "−"))
    return figure, axes


# Answers on the ground: where each query was taken, where it was put, and the error between them as a line.


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
