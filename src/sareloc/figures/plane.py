"""Positions on one plane, and axes to draw them on: what the maps share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sareloc.datasets.check import unwrapped_latlon
from sareloc.errors import ArgumentError
from sareloc.figures.style import Floats, finite, new_figure
from sareloc.geo import Positions, distance_m, enu_from_wgs84

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
