"""Parts of the Earth to search in: a box, or a circle around a position."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sareloc.errors import PositionError
from sareloc.geo import Positions, distance_m, ecef_from_wgs84

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
ROUNDING_M = 1e-6
ROUNDING_DEG = 1e-9
SHORTEST_DEGREE_M = 110_500.0  # of latitude, at the equator
SMALLEST_RADIUS_M = 6.3e6  # of the Earth's curvature


@dataclass(frozen=True)
class Box:
    """Between two latitudes and two longitudes, in degrees, borders included.

    A `west` greater than `east` means the box that crosses the antimeridian.
    """

    south: float
    west: float
    north: float
    east: float

    def __post_init__(self) -> None:
        if not (-90 <= self.south <= self.north <= 90 and abs(self.west) <= 180 and abs(self.east) <= 180):
            raise PositionError(
                f"a box is south, west, north, east in degrees with south <= north: found "
                f"{self.south}, {self.west}, {self.north}, {self.east}"
            )

    def bounds(self) -> Box:
        """A box that holds the area: itself."""
        return self

    def rows(self, latlon: Floats) -> Ints:
        """The rows of (N, 2) latitudes and longitudes that lie inside, rising."""
        latitude, longitude = latlon.T
        inside = (self.west <= longitude, longitude <= self.east)
        between = inside[0] & inside[1] if self.west <= self.east else inside[0] | inside[1]
        return np.flatnonzero(between & (self.south <= latitude) & (latitude <= self.north))


@dataclass(frozen=True)
class Circle:
    """Within `radius_m` metres of a position, along the ground, border included."""

    latlon: tuple[float, float]
    radius_m: float

    def __post_init__(self) -> None:
        Positions.from_wgs84(self.latlon)  # a position that is none says so
        if not self.radius_m >= 0:
            raise PositionError(f"a radius in metres cannot be {self.radius_m}")

    def bounds(self) -> Box:
        """A box that holds the circle, hardly larger than it need be."""
        latitude, longitude = self.latlon
        angle = (self.radius_m + ROUNDING_M) / SMALLEST_RADIUS_M  # radians
        tall = math.degrees(angle) + ROUNDING_DEG
        south, north = max(latitude - tall, -90.0), min(latitude + tall, 90.0)
        if south == -90 or north == 90 or angle >= math.pi / 2:
            return Box(south, -180.0, north, 180.0)  # a pole is inside, and with it all longitudes
        # on a sphere the circle is widest a little nearer to the pole than its centre
        wide = math.degrees(math.asin(min(1.0, math.sin(angle) / math.cos(math.radians(latitude))))) + ROUNDING_DEG
        if wide >= 180:
            return Box(south, -180.0, north, 180.0)
        return Box(south, (longitude - wide + 180) % 360 - 180, north, (longitude + wide + 180) % 360 - 180)

    def rows(self, latlon: Floats) -> Ints:
        """The rows of (N, 2) latitudes and longitudes that lie inside, rising."""
        limit = self.radius_m + ROUNDING_M
        band = np.flatnonzero(np.abs(latlon[:, 0] - self.latlon[0]) * SHORTEST_DEGREE_M <= limit)
        chords = np.linalg.norm(ecef_from_wgs84(latlon[band]) - ecef_from_wgs84(self.latlon), axis=1)
        # along the ground is farther than straight through, though not farther than on a smaller Earth
        smaller = np.minimum(chords / (2 * SMALLEST_RADIUS_M), 1)
        inside = (smaller < 0.5) & (2 * SMALLEST_RADIUS_M * np.arcsin(smaller) <= limit)
        unclear = np.flatnonzero((chords <= limit) & ~inside)
        inside[unclear] = distance_m(latlon[band[unclear]], self.latlon) <= limit
        rows: Ints = band[inside]
        return rows


Area = Box | Circle
