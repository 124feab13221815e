from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyproj import Geod, Transformer

from sareloc.errors import ArgumentError, PositionError
from sareloc.geo import (
    Positions,
    distance_m,
    ecef_from_wgs84,
    enu_from_wgs84,
    utm_epsg,
    utm_from_wgs84,
    wgs84_from_ecef,
    wgs84_from_enu,
    wgs84_from_utm,
    within_radius,
)

CORNERS = [[0, 0], [90, 0], [-90, 0], [0, 180], [0, -180], [0, 90], [89.999999, -179.999999], [-45, 1e-9]]
WORLD = np.array([[lat, lon] for lat in np.linspace(-90, 90, 19) for lon in np.linspace(-180, 180, 25)])
GEOD = Geod(ellps="WGS84")


def test_ecef_agrees_with_proj() -> None:
    proj = Transformer.from_crs("EPSG:4979", "EPSG:4978", always_xy=True)
    expected = np.stack(proj.transform(WORLD[:, 1], WORLD[:, 0], np.zeros(len(WORLD))), axis=1)
    np.testing.assert_allclose(ecef_from_wgs84(WORLD), expected, atol=5e-9)


@pytest.mark.parametrize("degrees", [WORLD[np.abs(WORLD[:, 0]) < 90], np.array(CORNERS)], ids=["grid", "corners"])
def test_ecef_round_trip_is_exact(degrees: np.ndarray) -> None:
    np.testing.assert_allclose(wgs84_from_ecef(ecef_from_wgs84(degrees)), degrees, atol=1e-13, rtol=1e-15)


@pytest.mark.parametrize("pole", [90, -90])
def test_a_pole_has_one_longitude(pole: float) -> None:
    np.testing.assert_array_equal(wgs84_from_ecef(ecef_from_wgs84([[pole, 77], [pole, -180]])), [[pole, 0], [pole, 0]])


@pytest.mark.parametrize("height_m", [-10_000.0, 9_000.0])
def test_a_point_off_the_ellipsoid_gives_the_place_below_or_above_it(height_m: float) -> None:
    proj = Transformer.from_crs("EPSG:4979", "EPSG:4978", always_xy=True)
    inside = WORLD[np.abs(WORLD[:, 0]) < 90]
    raised = np.stack(proj.transform(inside[:, 1], inside[:, 0], np.full(len(inside), height_m)), axis=1)
    np.testing.assert_allclose(wgs84_from_ecef(raised), inside, atol=1e-9)


def test_the_centre_of_the_earth_is_no_place() -> None:
    antipodes = ecef_from_wgs84([[0, 0], [0, 180]])
    with pytest.raises(PositionError, match=r"row 0 .*centre"):
        wgs84_from_ecef(antipodes.mean(axis=0, keepdims=True))


@pytest.mark.parametrize(
    ("latlon", "message"),
    [
        ([[0, 0], [90.5, 0]], "row 1: latitude 90.5 is outside -90..90"),
        ([[0, 0], [0, 0], [10, -180.1]], "row 2: longitude -180.1 is outside -180..180"),
        ([[0, float("nan")]], r"row 0 is not finite: \[0.0, nan\]"),
        ([[float("inf"), 0]], "row 0 is not finite"),
        ([[1, 2, 3]], r"latitude, longitude: found \(1, 3\)"),
        ([1, 2, 3, 4], r"found \(4,\)"),
    ],
)
def test_positions_outside_the_earth_are_named(latlon: list[object], message: str) -> None:
    for function in (ecef_from_wgs84, lambda x: distance_m(x, [0, 0]), Positions.from_wgs84):
        with pytest.raises(PositionError, match=message):
            function(np.array(latlon))


@pytest.mark.parametrize("make", [Positions.from_local, lambda rows: Positions.from_utm(rows, 32633)])
def test_planar_positions_are_checked_too(make) -> None:  # type: ignore[no-untyped-def]
    assert make([]).metres.shape == (0, 2)
    with pytest.raises(PositionError, match="row 1 is not finite"):
        make([[0, 0], [np.nan, 1]])
    with pytest.raises(PositionError, match=r"found \(2, 3\)"):  # six numbers must not become three rows
        make([[0, 0, 0], [1, 1, 1]])


@pytest.mark.parametrize(
    ("latlon", "epsg"),
    [
        ((52.52, 13.40), 32633),  # Berlin
        ((-33.87, 151.21), 32756),  # Sydney
        ((0.0, -180.0), 32601),
        ((0.0, 180.0), 32601),
        ((-0.001, 179.999), 32760),
        ((60.39, 5.32), 32632),  # Bergen: Norway's wide zone
        ((56.0, 3.0), 32632),
        ((55.99, 3.0), 32631),
        ((78.22, 15.65), 32633),  # Longyearbyen: Svalbard's
        ((78.0, 8.9), 32631),
        ((78.0, 9.0), 32633),
        ((78.0, 21.0), 32635),
        ((78.0, 33.0), 32637),
        ((78.0, 42.0), 32638),
        ((89.0, 0.0), 32631),
    ],
)
def test_utm_zone(latlon: tuple[float, float], epsg: int) -> None:
    assert utm_epsg(latlon) == utm_epsg([latlon]) == epsg


def test_utm_zone_of_a_mean_across_the_antimeridian() -> None:
    # The plain mean of the longitudes is 0.75: zone 31, in the Atlantic.
    assert utm_epsg([[-17, 179.9], [-17, -178.4]]) == 32701


def test_no_positions_have_no_zone() -> None:
    with pytest.raises(PositionError, match="no positions were given"):
        utm_epsg(np.empty((0, 2)))


def transverse_mercator(latitude: float, longitude: float, zone: int) -> tuple[float, float]:
    """Snyder's series (Map Projections: A Working Manual, eq. 8-9 to 8-13), by hand; good to millimetres in a zone."""
    a, e2 = 6378137.0, 0.00669437999014
    phi, a1 = np.radians(latitude), np.radians(longitude - (6 * zone - 183)) * np.cos(np.radians(latitude))
    n, t = a / np.sqrt(1 - e2 * np.sin(phi) ** 2), np.tan(phi) ** 2
    ep2 = e2 / (1 - e2)
    c = ep2 * np.cos(phi) ** 2
    m = a * (
        (1 - e2 / 4 - 3 * e2**2 / 64 - 5 * e2**3 / 256) * phi
        - (3 * e2 / 8 + 3 * e2**2 / 32 + 45 * e2**3 / 1024) * np.sin(2 * phi)
        + (15 * e2**2 / 256 + 45 * e2**3 / 1024) * np.sin(4 * phi)
        - 35 * e2**3 / 3072 * np.sin(6 * phi)
    )
    east = a1 + (1 - t + c) * a1**3 / 6 + (5 - 18 * t + t**2 + 72 * c - 58 * ep2) * a1**5 / 120
    north = a1**2 / 2 + (5 - t + 9 * c + 4 * c**2) * a1**4 / 24
    north += (61 - 58 * t + t**2 + 600 * c - 330 * ep2) * a1**6 / 720
    false_north = 0 if latitude >= 0 else 10_000_000
    return 500_000 + 0.9996 * n * east, false_north + 0.9996 * (m + n * np.tan(phi) * north)


@pytest.mark.parametrize(
    ("latitude", "longitude", "epsg"), [(48.8, 2.2, 32631), (-33.8, 151.2, 32756), (40.4, -79.9, 32617)]
)
def test_utm_agrees_with_the_textbook_series(latitude: float, longitude: float, epsg: int) -> None:
    expected = transverse_mercator(latitude, longitude, epsg % 100)
    np.testing.assert_allclose(utm_from_wgs84([[latitude, longitude]], epsg)[0], expected, atol=0.005)


@settings(max_examples=100, deadline=None)
@given(st.floats(-80, 84), st.floats(-180, 180))
@example(0.0, 180.0)
@example(10.0, -180.0)
def test_utm_round_trip(latitude: float, longitude: float) -> None:
    epsg = utm_epsg((latitude, longitude))
    back = wgs84_from_utm(utm_from_wgs84([[latitude, longitude]], epsg), epsg)
    assert distance_m(back, [[latitude, longitude]])[0] < 1e-6


def test_utm_errors() -> None:
    with pytest.raises(ArgumentError, match="EPSG code 4326"):
        utm_from_wgs84([[0, 0]], 4326)
    with pytest.raises(PositionError, match=r"row 1 .* too far from the UTM zone EPSG:32631"):
        utm_from_wgs84([[0, 3], [0, 95]], 32631)


@settings(max_examples=100, deadline=None)
@given(st.floats(-90, 90), st.floats(-180, 180), st.floats(0, 360), st.floats(0, 500_000))
def test_enu_round_trip_and_length(latitude: float, longitude: float, azimuth: float, metres: float) -> None:
    lon, lat, _ = GEOD.fwd(longitude, latitude, azimuth, metres)
    enu = enu_from_wgs84([[lat, lon]], (latitude, longitude))
    assert distance_m(wgs84_from_enu(enu, (latitude, longitude)), [[lat, lon]])[0] < 1e-6
    # On a sphere the tangent plane shows R sin(d / R): shorter by d^3 / (6 R^2).
    assert metres - np.hypot(*enu[0]) == pytest.approx(metres**3 / (6 * 6.37e6**2), rel=0.02, abs=1e-3)


def test_enu_directions() -> None:
    np.testing.assert_allclose(
        enu_from_wgs84([[50.001, 8], [50, 8.001]], (50, 8)) / 100, [[0, 1.112], [0.717, 0]], atol=1e-3
    )
    np.testing.assert_allclose(enu_from_wgs84([[0, -179.9999]], (0, 180)), [[11.13, 0]], atol=0.01)


def test_enu_has_a_horizon() -> None:
    with pytest.raises(PositionError, match="row 1 is a quarter"):
        enu_from_wgs84([[0, 89], [0, 90.0001]], (0, 0))
    with pytest.raises(PositionError, match="row 0 is too far"):
        wgs84_from_enu([[7e6, 0]], (0, 0))
    with pytest.raises(PositionError, match="an origin"):
        enu_from_wgs84([[0, 0]], [[0, 0], [1, 1]])


def test_distance_broadcasts_and_agrees_with_published_lengths() -> None:
    assert distance_m((0, 0), (0, 1)) == pytest.approx(111_319.4908, abs=1e-4)  # a degree of the equator
    assert distance_m((0, 0), (90, 0)) == pytest.approx(10_001_965.7293, abs=1e-3)  # the quarter meridian
    points = np.array([[0, 0], [1, 1], [2, 2]])
    table = distance_m(points[:, None], points[None])
    assert table.shape == (3, 3)
    np.testing.assert_array_equal(np.diag(table), 0)
    np.testing.assert_allclose(table, table.T)
    assert distance_m(np.empty((0, 2)), (0, 0)).shape == (0,)


def near(latitude: float, longitude: float, azimuth: float, metres: float) -> tuple[float, float]:
    lon, lat, _ = GEOD.fwd(longitude, latitude, azimuth, metres)
    return lat, lon


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([(0, 180), (60, -180), (90, 0), (-90, 12), (45, 6), (89.9999, 77), (55.7, 13.2)]),
    st.lists(st.tuples(st.floats(0, 360), st.floats(0, 100)), min_size=1, max_size=30),
    st.sampled_from([0, 10, 25, 60.0]),
)
def test_within_radius_agrees_with_geodesics_everywhere(
    start: tuple[float, float], offsets: list[tuple[float, float]], radius_m: float
) -> None:
    """At zone edges (6° E), the antimeridian and both poles, against every pair measured along the ellipsoid."""
    degrees = np.array([near(*start, azimuth, metres) for azimuth, metres in offsets])
    metres = Positions.from_wgs84(degrees).metres
    measured = distance_m(degrees[:, None], degrees[None])
    for row, found in enumerate(within_radius(metres, metres, radius_m)):
        assert found.dtype == np.int64
        assert set(np.flatnonzero(measured[row] <= radius_m - 1e-5)) <= set(found)
        assert set(found) <= set(np.flatnonzero(measured[row] <= radius_m + 1e-5))
        np.testing.assert_array_equal(found, np.sort(found))


def test_a_point_on_the_circle_is_inside() -> None:
    centre = np.array([[585_001.06, 4_476_761.80]])
    angles = np.linspace(0, 2 * np.pi, 360)
    circle = centre + 25 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert (np.linalg.norm(circle - centre, axis=1) > 25).any()  # rounding puts some outside
    assert len(within_radius(circle, centre, 25)[0]) == 360
    assert len(within_radius(circle, centre, 24.99999)[0]) == 0


def test_within_radius_of_little_or_nothing() -> None:
    points = [[0.0, 0.0], [3.0, 4.0]]
    assert [rows.tolist() for rows in within_radius(points, points, 0)] == [[0], [1]]
    assert [rows.tolist() for rows in within_radius(points, points, np.inf)] == [[0, 1], [0, 1]]
    assert [rows.tolist() for rows in within_radius(np.empty((0, 2)), points, 5)] == [[], []]
    assert within_radius(points, np.empty((0, 2)), 5) == []


def test_within_radius_errors() -> None:
    with pytest.raises(ArgumentError, match=r"found \(1, 2\) and \(1, 3\)"):
        within_radius([[0, 0]], [[0, 0, 0]], 5)
    for radius in (-1, np.nan):
        with pytest.raises(ArgumentError, match="radius"):
            within_radius([[0, 0]], [[0, 0]], radius)
    with pytest.raises(PositionError, match="row 0 is not finite"):
        within_radius([[0, np.nan]], [[0, 0]], 5)


def test_positions_know_their_degrees() -> None:
    degrees = np.array([[52.52, 13.40], [-33.87, 151.21]])
    np.testing.assert_allclose(Positions.from_wgs84(degrees).latlon(), degrees, atol=1e-12)
    east_north = utm_from_wgs84(degrees[:1], 32633)
    np.testing.assert_allclose(Positions.from_utm(east_north, 32633)[[0]].latlon(), degrees[:1], atol=1e-9)
    with pytest.raises(PositionError, match="local metres"):
        Positions.from_local([[0, 0]]).latlon()


def test_importing_needs_neither_pyproj_nor_scipy() -> None:
    heavy = {"pyproj", "scipy", "torch", "pillow_heif"}
    code = f"import sys, sareloc.loading, sareloc.geo; print({heavy} & set(sys.modules))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "set()"
