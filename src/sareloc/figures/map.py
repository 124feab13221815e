"""Maps of positions: predicted against true positions of queries (also as GeoJSON), a dataset, photos on a track."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sareloc.arrays import Bools, Floats
from sareloc.datasets.places import Places, find_positives
from sareloc.errors import ArgumentError, DatasetError, need
from sareloc.figures.style import RIGHT, SERIES_STYLES, WRONG, new_figure, require_finite, styled
from sareloc.files import write_atomically
from sareloc.geo import Positions, distance_m, enu_from_wgs84, unwrap_longitudes
from sareloc.photos import SOURCES, Geotag, TrackReport
from sareloc.photos.finding import TABLE
from sareloc.photos.tracks import utc
from sareloc.wording import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MAX_SIDE_INCHES, MIN_SIDE_INCHES = 6.5, 2.2
MIN_EXTENT_M, KILOMETRES_FROM_M = 20.0, 5000.0
MAX_TANGENT_PLANE_M = 500_000.0
"""Positions farther apart are drawn by longitude and latitude instead of on a tangent plane."""
METRES_PER_DEGREE = 111_195.0  # of latitude, and of longitude at the equator, on a sphere
RASTERIZE_FROM = 2000  # more points or lines become pixels inside an SVG, which would take megabytes otherwise
DATABASE_COLOUR = "#8c959f"
KILOMETRE_DEG = 0.009  # of latitude


@dataclass(frozen=True, eq=False)
class PredictedPositions:
    """True and predicted positions of Q queries. Raises ArgumentError if Q is 0 or the fields differ in length."""

    true: Positions
    """(Q,) where each query was taken."""
    found: Positions
    """(Q,) predicted positions: of the first match, or of the fix."""
    right: Bools
    """(Q,) whether the prediction counts as correct."""
    names: tuple[str, ...]
    """(Q,) names of the query photos."""
    database: Positions | None = None
    """Positions of the database photos."""

    def __post_init__(self) -> None:
        counts = len(self.true), len(self.found), len(self.right), len(self.names)
        if len(set(counts)) > 1:
            raise ArgumentError(
                "true positions, found positions, right and names must have a row for each query: "
                f"found {', '.join(map(str, counts))}"
            )
        if not counts[0]:
            raise ArgumentError("nothing to draw: no query has both a predicted and a true position")


@styled
def draw_map(predicted: PredictedPositions) -> Figure:
    """Circles at the true positions of queries, crosses at the predicted ones, a line between the two of each query.

    Lines of correct predictions are solid, of wrong ones dashed; dots are the database. Axes are metres east and north
    of the mean query position.
    """
    groups = [predicted.true, predicted.found]
    if predicted.database is not None:
        groups.append(predicted.database)
    planes = project_to_plane(groups)
    figure, axes = map_axes(np.concatenate(planes))
    if predicted.database is not None:
        label = f"database ({plural(len(predicted.database), 'photo')})"
        many = len(predicted.database) > RASTERIZE_FROM
        axes.plot(*planes[2].T, ".", color=DATABASE_COLOUR, markersize=4, zorder=1, label=label, rasterized=many)
    lines = need("matplotlib.collections", "plot").LineCollection
    errors, right = ground_distance_m(predicted.true, predicted.found), predicted.right
    for mask, colour, line, word in ((right, RIGHT, "-", "correct"), (~right, WRONG, (0, (4, 2)), "wrong")):
        if not mask.any():
            continue
        starts, ends, many = planes[0][mask], planes[1][mask], len(mask) > RASTERIZE_FROM
        segments = np.stack([starts, ends], axis=1)
        axes.add_collection(lines(segments, colors=colour, linestyles=[line], linewidths=1.1, rasterized=many))
        axes.plot(*starts.T, "o", color=colour, markerfacecolor="white", markersize=4.5, zorder=3, rasterized=many,
                  label=f"{word}: true position ({mask.sum()} of {len(mask)})")  # fmt: skip
        axes.plot(*ends.T, "x", color=colour, markersize=4.5, markeredgewidth=1.4, zorder=4, rasterized=many,
                  label=f"{word}: predicted, median error {np.median(errors[mask]):.1f} m")  # fmt: skip
    figure.legend(loc="outside lower center", ncols=2, markerscale=1.4, handlelength=1.2)
    return figure


def errors_geojson(predicted: PredictedPositions) -> dict[str, Any]:
    """A GeoJSON FeatureCollection (RFC 7946): for each query two points and a line, with `error_m` and `right`.

    Raises PositionError if the positions are local metres.
    """
    starts, ends = (positions.latlon()[:, ::-1].round(7).tolist() for positions in (predicted.true, predicted.found))
    errors = ground_distance_m(predicted.true, predicted.found)
    features = []
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        properties = {
            "query": predicted.names[row],
            "error_m": round(float(errors[row]), 2),
            "right": bool(predicted.right[row]),
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
    """Write a feature collection atomically; the folder is created."""
    return write_atomically(path, json.dumps(collection, allow_nan=False).encode())


@styled
def draw_dataset(places: Places) -> Figure:
    """A map of a dataset: database photos as dots, queries as triangles, queries without a positive as crosses.

    Without queries, and with positions from several sources, the photos of each source have a style of their own.

    Raises DatasetError if the dataset has no positions.
    """
    database, queries = places.database.positions, places.queries.positions
    if database is None or (queries is None and len(places.queries)):
        raise DatasetError(f"{places.name} has no positions for database and queries: a map needs positions")
    planes = project_to_plane([database] if queries is None else [database, queries])
    has_positive = np.array([len(rows) > 0 for rows in find_positives(places)], dtype=np.bool_)
    query_points = planes[1] if len(planes) > 1 else planes[0][:0]
    figure, axes = map_axes(np.concatenate(planes))
    groups: list[tuple[str, Floats, dict[str, Any]]] = [
        *_database_groups(places, planes[0]),
        ("query", query_points[has_positive], {"marker": "^", "color": SERIES_STYLES[0].colour, "linewidths": 0}),
        ("query without a positive", query_points[~has_positive], {"marker": "x", "color": WRONG, "linewidths": 1.4}),
    ]
    for label, points, style in groups:
        if len(points):
            size = float(np.clip(20000 / len(points), 5, 30))
            axes.scatter(
                points[:, 0],
                points[:, 1],
                size,
                label=f"{label} ({len(points):,})",
                rasterized=len(points) > RASTERIZE_FROM,
                **style,
            )
    axes.set_title(f"{places.name}, split {places.split}")
    figure.legend(loc="outside lower center", ncols=3, handletextpad=0.2, handlelength=1.6)
    return figure


def _database_groups(places: Places, points: Floats) -> list[tuple[str, Floats, dict[str, Any]]]:
    """Labels, points and styles of the database photos."""
    sources = np.array(places.database.sources or ())
    present = [name for name in (TABLE, *(name for name, _ in SOURCES)) if (sources == name).any()]
    if len(places.queries) or len(present) < 2:
        return [("database", points, {"marker": "o", "color": DATABASE_COLOUR, "linewidths": 0})]
    styles = zip(present, SERIES_STYLES, strict=False)
    return [
        (name, points[sources == name], {"marker": style.marker, "color": style.colour, "linewidths": 0})
        for name, style in styles
    ]


@styled
def draw_track(report: TrackReport) -> Figure:
    """A map of a track: its points, the photos placed on it with arrows in their headings, and photos with positions of
    their own, if they are within a kilometre of the track's bounding box."""
    placed = [one.geotag for one in report.placed]
    latlon = report.track.latlon
    low, high = latlon.min(axis=0) - KILOMETRE_DEG, latlon.max(axis=0) + KILOMETRE_DEG
    near = [tag for tag in report.own.values() if ((low <= tag.latlon) & (tag.latlon <= high)).all()]
    points, on_track, own = project_to_plane(
        [Positions.from_wgs84(latlon), *(Positions.from_wgs84([tag.latlon for tag in tags]) for tags in (placed, near))]
    )
    figure, axes = map_axes(np.concatenate([points, on_track, own]))
    line: dict[str, Any] = {"color": DATABASE_COLOUR, "linewidth": 1.0, "marker": ".", "markersize": 3}
    axes.plot(points[:, 0], points[:, 1], label=f"track ({plural(len(points), 'point')})", **line)
    for label, where, tags, style in (
        ("photos placed on it", on_track, placed, SERIES_STYLES[0]),
        ("photos with positions", own, near, SERIES_STYLES[1]),
    ):
        if tags:
            look: dict[str, Any] = {"color": style.colour, "marker": style.marker, "linewidths": 0, "zorder": 3}
            axes.scatter(where[:, 0], where[:, 1], 22, label=f"{label} ({len(tags):,})", **look)
            _draw_headings(axes, where, tags, style.colour)
    first, last = (utc(report.track.times[end]) for end in (0, -1))
    axes.set_title(f"{first} to {last} UTC")
    figure.legend(loc="outside lower center", ncols=3, handletextpad=0.4, handlelength=1.6)
    return figure


def _draw_headings(axes: Axes, where: Floats, tags: Sequence[Geotag], colour: str) -> None:
    rows = [row for row, tag in enumerate(tags) if tag.heading_deg is not None]
    angles = np.radians([tag.heading_deg for tag in tags if tag.heading_deg is not None])
    if rows:
        shape: dict[str, Any] = {"scale": 28, "width": 0.004, "headwidth": 4, "color": colour}
        axes.quiver(*where[rows].T, np.sin(angles), np.cos(angles), angles="xy", **shape)


def project_to_plane(groups: Sequence[Positions]) -> list[Floats]:
    """Metres east and north (N, 2) of each group of positions, relative to the mean of the first group.

    On a tangent plane, or by longitude and latitude if the positions are more than `MAX_TANGENT_PLANE_M` apart. Raises
    ArgumentError if some positions are local metres and others are not.
    """
    for positions in groups:
        if len(positions):
            require_finite(positions.metres, "positions")
    if not _need_degrees(groups):
        centre = groups[0].metres.mean(axis=0)
        return [positions.metres - centre for positions in groups]
    degrees = [positions.latlon() for positions in groups]
    ecef = [Positions.from_wgs84(latlon).metres for latlon in degrees]
    centre = ecef[0].mean(axis=0)
    if np.linalg.norm(np.concatenate(ecef) - centre, axis=1).max() < MAX_TANGENT_PLANE_M:
        origin = Positions(centre[None], "ecef").latlon()[0]
        return [enu_from_wgs84(latlon, origin) for latlon in degrees]
    lonlat = unwrap_longitudes(np.concatenate(degrees))[:, ::-1]
    shrink = np.cos(np.radians((lonlat[:, 1].min() + lonlat[:, 1].max()) / 2))
    metres = lonlat * (METRES_PER_DEGREE * shrink, METRES_PER_DEGREE)
    ends = np.cumsum([len(positions) for positions in groups])
    return np.split(metres - metres[: ends[0]].mean(axis=0), ends[:-1])


def ground_distance_m(a: Positions, b: Positions) -> Floats:
    """Metres (N,) between the rows of `a` and `b`, along the ellipsoid unless both are planar in one frame."""
    if _need_degrees([a, b]):
        return distance_m(a.latlon(), b.latlon())
    return np.asarray(np.linalg.norm(a.metres - b.metres, axis=1))


def _need_degrees(groups: Sequence[Positions]) -> bool:
    """False if all positions are planar metres of one frame; raises ArgumentError if they have no common frame."""
    frames = {(positions.frame, positions.epsg) for positions in groups}
    if len(frames) == 1:
        return groups[0].frame == "ecef"
    if any(positions.frame == "local" for positions in groups):
        raise ArgumentError("some positions are local metres and others are not: they have no common map")
    return True


def map_axes(points: Floats) -> tuple[Figure, Axes]:
    """Empty axes of equal scale, in metres or kilometres east and north, whose limits contain all points (N, 2)."""
    low, high = points.min(axis=0), points.max(axis=0)
    span = np.maximum(high - low, MIN_EXTENT_M) * 1.08
    centre = (low + high) / 2
    inches = np.maximum(MAX_SIDE_INCHES * span / span.max(), MIN_SIDE_INCHES)
    figure = new_figure(inches[0] + 0.8, inches[1] + 1.1)
    axes = figure.subplots()
    axes.set_aspect("equal", adjustable="box")
    axes.set_xlim(centre[0] - span[0] / 2, centre[0] + span[0] / 2)
    axes.set_ylim(centre[1] - span[1] / 2, centre[1] + span[1] / 2)
    unit, metres = ("kilometres", 1000.0) if span.max() > KILOMETRES_FROM_M else ("metres", 1.0)
    for axis, direction in ((axes.xaxis, "east"), (axes.yaxis, "north")):
        axis.set_label_text(f"{unit} {direction}")
        axis.set_major_formatter(lambda value, _: f"{value / metres:g}".replace("-", "−"))
    return figure, axes
