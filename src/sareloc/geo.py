"""Geographic positions: conversions between frames, distances, neighbours within a radius, and search areas.

Frames, named in every function: `wgs84` is (N, 2) latitude, longitude in degrees; `utm` is (N, 2) east, north in metres
of one zone, given by its EPSG code (32601..32660 north, 32701..32760 south); `ecef` is (N, 3) earth-centred metres on
the ellipsoid (height 0); `enu` is (N, 2) metres east and north of an origin.

Neighbours are searched in ECEF (or in the planar metres of one UTM zone): the chord of 1 km is 1 µm shorter than its
arc, and there is no antimeridian and no zone boundary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats, Ints
from sareloc.errors import ArgumentError, PositionError

if TYPE_CHECKING:
    from pyproj import Transformer


Frame = Literal["ecef", "utm", "local"]

# The ellipsoid of WGS84: equatorial and polar radius in metres, squared eccentricities of the ellipse.
EQUATOR_M = 6378137.0
POLE_M = EQUATOR_M * (1 - 1 / 298.257223563)
ECCENTRICITY_SQ = 1 - (POLE_M / EQUATOR_M) ** 2
SECOND_ECCENTRICITY_SQ = (EQUATOR_M / POLE_M) ** 2 - 1
DEEPEST_M = 1e6  # a point nearer to the centre of the Earth has no meaningful position on the surface
ROUNDING_M = 1e-6  # a thousand times the rounding error of float64 coordinates at the size of the Earth
ROUNDING_DEG = 1e-9
SHORTEST_DEGREE_M = 110_500.0  # of latitude, at the equator
SMALLEST_RADIUS_M = 6.3e6  # of the Earth's curvature


@dataclass(frozen=True, eq=False)
class Positions:
    """The positions of N photos.

    `metres` (N, 2 or 3) float64: Euclidean distances between near rows are distances on the ground.
    `frame`: "ecef" (from WGS84), "utm" (planar, in the zone `epsg`) or "local" (planar, without geographic reference).
    """

    metres: Floats
    frame: Frame
    epsg: int | None = None

    @staticmethod
    def from_wgs84(latlon: npt.ArrayLike) -> Positions:
        """Positions from (N, 2) latitude, longitude in degrees."""
        return Positions(ecef_from_wgs84(latlon), "ecef")

    @staticmethod
    def from_utm(east_north: npt.ArrayLike, epsg: int) -> Positions:
        """Positions from (N, 2) east, north in metres, all in the UTM zone of this EPSG code."""
        return Positions(_rows(east_north, "east, north"), "utm", epsg)

    @staticmethod
    def from_local(xy_m: npt.ArrayLike) -> Positions:
        """Positions from (N, 2) metres in a local frame."""
        return Positions(_rows(xy_m, "x, y"), "local")

    def __len__(self) -> int:
        return len(self.metres)

    def __getitem__(self, rows: npt.ArrayLike | slice) -> Positions:
        index = rows if isinstance(rows, slice) else np.atleast_1d(np.asarray(rows))
        return Positions(self.metres[index], self.frame, self.epsg)

    def latlon(self) -> Floats:
        """(N, 2) latitude, longitude in degrees; raises PositionError in a local frame."""
        if self.frame == "ecef":
            return wgs84_from_ecef(self.metres)
        if self.frame == "utm" and self.epsg is not None:
            return wgs84_from_utm(self.metres, self.epsg)
        raise PositionError("these positions are local metres without geographic reference: give lat and lon instead")


def ecef_from_wgs84(latlon: npt.ArrayLike) -> Floats:
    """Earth-centred metres (N, 3) of points on the ellipsoid, from (N, 2) degrees, in closed form."""
    latitude, longitude = np.radians(_checked_degrees(latlon)).T
    normal = EQUATOR_M / np.sqrt(1 - ECCENTRICITY_SQ * np.sin(latitude) ** 2)
    across = normal * np.cos(latitude)
    along = normal * (1 - ECCENTRICITY_SQ) * np.sin(latitude)
    return np.stack([across * np.cos(longitude), across * np.sin(longitude), along], axis=1)


def wgs84_from_ecef(ecef: npt.ArrayLike) -> Floats:
    """Degrees (N, 2) from earth-centred metres (N, 3): Bowring's formula, exact on the ellipsoid.

    A point off the ellipsoid, such as a mean of positions, gives the degrees of its vertical projection (within a
    nanodegree up to 10 km). At a pole the longitude is 0. Raises PositionError for a point near the Earth's centre.
    """
    x, y, z = _rows(ecef, "x, y, z").T
    deep = np.flatnonzero(x * x + y * y + z * z < DEEPEST_M**2)
    if len(deep):
        raise PositionError(
            f"row {deep[0]} is less than {DEEPEST_M / 1000:.0f} km from the centre of the Earth and has no position on "
            "its surface: is it a mean of positions all over the Earth?"
        )
    axis_distance = np.hypot(x, y)
    parametric = np.arctan2(EQUATOR_M * z, POLE_M * axis_distance)
    latitude = np.arctan2(
        z + SECOND_ECCENTRICITY_SQ * POLE_M * np.sin(parametric) ** 3,
        axis_distance - ECCENTRICITY_SQ * EQUATOR_M * np.cos(parametric) ** 3,
    )
    # Within rounding of the pole the direction of x and y is noise.
    longitude = np.where(axis_distance < ROUNDING_M, 0.0, np.arctan2(y, x))
    return np.stack([np.degrees(latitude), np.degrees(longitude)], axis=1)


def utm_epsg(latlon: npt.ArrayLike) -> int:
    """The EPSG code of the UTM zone of one point (2,) or of the mean of (N, 2) points, in degrees.

    Includes the wider zones of Norway and Svalbard. Beyond 84° N and 80° S, where the standard ends, the zone's
    projection is still usable and its code is returned. Raises PositionError if there are no points.
    """
    degrees = _checked_degrees(latlon)
    if not len(degrees):
        raise PositionError("no positions were given: the UTM zone is undefined")
    if len(degrees) > 1:
        degrees = wgs84_from_ecef(ecef_from_wgs84(degrees).mean(axis=0))
    latitude, longitude = degrees[0]
    zone = int((longitude + 180) // 6) % 60 + 1
    if 56 <= latitude < 64 and 3 <= longitude < 12:
        zone = 32
    elif 72 <= latitude < 84 and 0 <= longitude < 42:
        zone = 31 + 2 * int((longitude + 3) // 12)
    return (32600 if latitude >= 0 else 32700) + zone


def utm_from_wgs84(latlon: npt.ArrayLike, epsg: int) -> Floats:
    """East, north (N, 2) in metres of the UTM zone `epsg`, from (N, 2) degrees."""
    latitude, longitude = _checked_degrees(latlon).T
    return _projected(_utm(epsg), longitude, latitude, epsg)


def wgs84_from_utm(east_north: npt.ArrayLike, epsg: int) -> Floats:
    """Degrees (N, 2) from (N, 2) east, north in metres of the UTM zone `epsg`."""
    east, north = _rows(east_north, "east, north").T
    longitude_latitude = _projected(_utm(epsg, backwards=True), east, north, epsg)
    # On the antimeridian PROJ may exceed 180 degrees by the last bit.
    return np.clip(longitude_latitude[:, ::-1], (-90, -180), (90, 180))


def enu_from_wgs84(latlon: npt.ArrayLike, origin: npt.ArrayLike) -> Floats:
    """Metres east and north (N, 2) of `origin` (2,), from degrees, on the tangent plane at the origin.

    At 10 km from the origin the plane shortens distances by 4 mm, at 100 km by 4 m. Raises PositionError for a point a
    quarter of the Earth's circumference away or more, which has no image on the plane.
    """
    axes, start = _tangent_frame(origin)
    points = ecef_from_wgs84(latlon)
    normals = points / np.array([EQUATOR_M, EQUATOR_M, POLE_M]) ** 2
    hidden = np.flatnonzero(normals @ axes[2] <= 0)
    if len(hidden):
        raise PositionError(
            f"row {hidden[0]} is a quarter of the Earth's circumference or more from the origin {origin!r}"
        )
    return (points - start) @ axes[:2].T


def wgs84_from_enu(enu: npt.ArrayLike, origin: npt.ArrayLike) -> Floats:
    """Degrees (N, 2) from (N, 2) metres east and north of `origin` (2,) degrees: undoes `enu_from_wgs84`."""
    axes, start = _tangent_frame(origin)
    scale = np.array([EQUATOR_M, EQUATOR_M, POLE_M])
    on_plane = start + _rows(enu, "east, north") @ axes[:2]
    # The height `up` from plane to ellipsoid is the upper root of |on_plane / scale + up * axes[2] / scale|^2 = 1.
    flat, rise = on_plane / scale, axes[2] / scale
    half_b, c = flat @ rise, (flat * flat).sum(axis=1) - 1
    root_sq = half_b**2 - (rise @ rise) * c
    missing = np.flatnonzero(root_sq < 0)
    if len(missing):
        raise PositionError(
            f"row {missing[0]} is too far from the origin {origin!r}: the tangent plane does not meet the Earth there"
        )
    up = -c / (half_b + np.sqrt(root_sq))
    return wgs84_from_ecef(on_plane + up[:, None] * axes[2])


def distance_m(a: npt.ArrayLike, b: npt.ArrayLike) -> Floats:
    """Metres along the ellipsoid between (..., 2) and (..., 2) degrees, broadcast; one value per pair of rows."""
    from pyproj import Geod

    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape[-1:] != (2,) or second.shape[-1:] != (2,):
        raise PositionError(f"positions must be (..., 2) latitude, longitude: found {first.shape} and {second.shape}")
    first, second = np.broadcast_arrays(first, second)
    start, end = _checked_degrees(first.reshape(-1, 2)), _checked_degrees(second.reshape(-1, 2))
    metres = Geod(ellps="WGS84").inv(start[:, 1], start[:, 0], end[:, 1], end[:, 0])[2]
    return np.asarray(metres, dtype=np.float64).reshape(first.shape[:-1])


def unwrap_longitudes(latlon: Floats) -> Floats:
    """A copy of (N, 2) degrees with continuous longitudes (beyond ±180) if the points lie across the antimeridian."""
    unwrapped = latlon.copy()
    longitude = np.radians(unwrapped[:, 1])
    centre = np.degrees(np.arctan2(np.sin(longitude).mean(), np.cos(longitude).mean()))
    unwrapped[:, 1] = centre + (unwrapped[:, 1] - centre + 180) % 360 - 180
    return unwrapped


def within_radius(points_m: npt.ArrayLike, centres_m: npt.ArrayLike, radius_m: float) -> list[Ints]:
    """The sorted rows of the points within a radius of each centre, by a KD-tree.

    Args:
        points_m: (N, D) metres of one frame, as in `Positions.metres`.
        centres_m: (M, D) metres of the same frame.
        radius_m: a point on the circle is inside, also if rounding puts it up to a micrometre outside.
    """
    from scipy.spatial import cKDTree

    points, centres = np.asarray(points_m, dtype=np.float64), np.asarray(centres_m, dtype=np.float64)
    if points.ndim != 2 or centres.ndim != 2 or points.shape[1] != centres.shape[1]:
        raise ArgumentError(
            f"points and centres must be (N, D) and (M, D) in one frame: found {points.shape} and {centres.shape}"
        )
    if not radius_m >= 0:
        raise ArgumentError(f"a radius in metres must be at least 0: found {radius_m}")
    if not len(points) or not len(centres):
        return [np.empty(0, dtype=np.int64) for _ in centres]
    tree = cKDTree(_finite(points))
    inside = tree.query_ball_point(_finite(centres), radius_m + ROUNDING_M, return_sorted=True)
    return [np.asarray(rows, dtype=np.int64) for rows in inside]


def _rows(values: npt.ArrayLike, columns: str) -> Floats:
    """Finite float64 rows with these columns; one row may be 1-D, no rows may be an empty list."""
    array = np.asarray(values, dtype=np.float64)
    width = columns.count(",") + 1
    rows = array.reshape(-1, width) if array.ndim <= 1 and array.size in (0, width) else array
    if rows.ndim != 2 or rows.shape[1] != width:
        raise PositionError(f"positions must be (N, {width}) {columns}: found {array.shape}")
    return _finite(rows)


def _finite(rows: Floats) -> Floats:
    invalid = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(invalid):
        raise PositionError(f"row {invalid[0]} is not finite: {rows[invalid[0]].tolist()}")
    return rows


def _checked_degrees(latlon: npt.ArrayLike) -> Floats:
    rows = _rows(latlon, "latitude, longitude")
    for column, name, limit in ((0, "latitude", 90), (1, "longitude", 180)):
        outside = np.flatnonzero(np.abs(rows[:, column]) > limit)
        if len(outside):
            raise PositionError(
                f"row {outside[0]}: {name} {rows[outside[0], column]} is outside -{limit}..{limit} degrees "
                "(are latitude and longitude in this order?)"
            )
    return rows


def _tangent_frame(origin: npt.ArrayLike) -> tuple[Floats, Floats]:
    """The unit vectors (3, 3) east, north, up at `origin` in ECEF, and the origin (3,)."""
    start = ecef_from_wgs84(np.asarray(origin, dtype=np.float64).reshape(-1, 2))
    if len(start) != 1:
        raise PositionError(f"an origin must be one latitude, longitude: found {len(start)}")
    latitude, longitude = np.radians(np.asarray(origin, dtype=np.float64).reshape(2))
    sin_lat, cos_lat = np.sin(latitude), np.cos(latitude)
    sin_lon, cos_lon = np.sin(longitude), np.cos(longitude)
    east = [-sin_lon, cos_lon, 0.0]
    north = [-sin_lat * cos_lon, -sin_lat * sin_lon, cos_lat]
    up = [cos_lat * cos_lon, cos_lat * sin_lon, sin_lat]
    return np.array([east, north, up]), start[0]


@lru_cache(maxsize=32)
def _utm(epsg: int, backwards: bool = False) -> Transformer:
    from pyproj import Transformer

    if not (32601 <= epsg <= 32660 or 32701 <= epsg <= 32760):
        raise ArgumentError(f"EPSG code {epsg} is not a UTM zone (32601..32660 north, 32701..32760 south)")
    ends = (f"EPSG:{epsg}", "EPSG:4326") if backwards else ("EPSG:4326", f"EPSG:{epsg}")
    return Transformer.from_crs(*ends, always_xy=True)


def _projected(transformer: Transformer, x: Floats, y: Floats, epsg: int) -> Floats:
    result = np.stack(transformer.transform(x, y), axis=1)
    invalid = np.flatnonzero(~np.isfinite(result).all(axis=1))
    if len(invalid):
        first = invalid[0]
        raise PositionError(f"row {first} ({x[first]}, {y[first]}) is too far from the UTM zone EPSG:{epsg}")
    return result


@dataclass(frozen=True)
class Box:
    """A search area between two latitudes and two longitudes, in degrees, borders included.

    If `west` is greater than `east`, the box crosses the antimeridian. Raises PositionError for invalid degrees.
    """

    south: float
    west: float
    north: float
    east: float

    def __post_init__(self) -> None:
        if not (-90 <= self.south <= self.north <= 90 and abs(self.west) <= 180 and abs(self.east) <= 180):
            raise PositionError(
                f"a box must be south, west, north, east in degrees with south <= north: found "
                f"{self.south}, {self.west}, {self.north}, {self.east}"
            )

    def bounds(self) -> Box:
        """The bounding box: itself."""
        return self

    def rows(self, latlon: Floats) -> Ints:
        """The rows of (N, 2) degrees inside the area, in ascending order."""
        latitude, longitude = latlon.T
        inside = (self.west <= longitude, longitude <= self.east)
        between = inside[0] & inside[1] if self.west <= self.east else inside[0] | inside[1]
        return np.flatnonzero(between & (self.south <= latitude) & (latitude <= self.north))


def enclosing_box(boxes: Sequence[Box]) -> Box | None:
    """The smallest box that contains these, across the antimeridian if that is shorter; None without any."""
    if not boxes:
        return None
    best = (360.0, -180.0)
    for start in boxes:  # the box that begins where one of them does and is the narrowest
        width = max(
            (box.west - start.west) % 360 + ((box.east - box.west) % 360 if box.east != box.west else 0.0)
            for box in boxes
        )
        best = min(best, (width, start.west))
    width, west = best
    east = west + width - (360.0 if west + width > 180 else 0.0)
    south, north = min(box.south for box in boxes), max(box.north for box in boxes)
    return Box(south, west, north, east) if width < 360 else Box(south, -180.0, north, 180.0)


@dataclass(frozen=True)
class Circle:
    """A search area within `radius_m` metres of a position along the ellipsoid, border included."""

    latlon: tuple[float, float]
    radius_m: float

    def __post_init__(self) -> None:
        Positions.from_wgs84(self.latlon)  # raises PositionError for invalid coordinates
        if not self.radius_m >= 0:
            raise PositionError(f"a radius in metres must be at least 0: found {self.radius_m}")

    def bounds(self) -> Box:
        """A bounding box, at most slightly larger than necessary."""
        latitude, longitude = self.latlon
        angle = (self.radius_m + ROUNDING_M) / SMALLEST_RADIUS_M  # radians
        tall = math.degrees(angle) + ROUNDING_DEG
        south, north = max(latitude - tall, -90.0), min(latitude + tall, 90.0)
        if south == -90 or north == 90 or angle >= math.pi / 2:
            return Box(south, -180.0, north, 180.0)  # contains a pole, hence all longitudes
        # on a sphere the circle is widest slightly nearer to the pole than its centre
        wide = math.degrees(math.asin(min(1.0, math.sin(angle) / math.cos(math.radians(latitude))))) + ROUNDING_DEG
        if wide >= 180:
            return Box(south, -180.0, north, 180.0)
        return Box(south, (longitude - wide + 180) % 360 - 180, north, (longitude + wide + 180) % 360 - 180)

    def rows(self, latlon: Floats) -> Ints:
        """The rows of (N, 2) degrees inside the area, in ascending order."""
        limit = self.radius_m + ROUNDING_M
        band = np.flatnonzero(np.abs(latlon[:, 0] - self.latlon[0]) * SHORTEST_DEGREE_M <= limit)
        chords = np.linalg.norm(ecef_from_wgs84(latlon[band]) - ecef_from_wgs84(self.latlon), axis=1)
        # the distance on the ground is at least the chord, and at most the arc on a smaller sphere
        smaller = np.minimum(chords / (2 * SMALLEST_RADIUS_M), 1)
        inside = (smaller < 0.5) & (2 * SMALLEST_RADIUS_M * np.arcsin(smaller) <= limit)
        unclear = np.flatnonzero((chords <= limit) & ~inside)
        inside[unclear] = distance_m(latlon[band[unclear]], self.latlon) <= limit
        rows: Ints = band[inside]
        return rows


Area = Box | Circle
