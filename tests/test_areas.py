"""Boxes and circles on the Earth, against the distance along the ground."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyproj import Geod

from sareloc.errors import PositionError
from sareloc.geo import distance_m
from sareloc.maps import Box, Circle


@settings(max_examples=60)
@given(st.floats(-89, 89), st.floats(-180, 180), st.floats(0, 7).map(lambda power: 10**power), st.integers(0, 99))
def test_a_circle_holds_what_lies_within_its_radius_along_the_ground(
    latitude: float, longitude: float, radius_m: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    spread = radius_m / 111_000 * rng.uniform(0, 2, (200, 1))
    points = np.array([latitude, longitude]) + rng.normal(size=(200, 2)) * spread
    points[:, 0] = np.clip(points[:, 0], -90, 90)
    points[:, 1] = (points[:, 1] + 180) % 360 - 180
    inside = Circle((latitude, longitude), radius_m).rows(points)
    expected = np.flatnonzero(distance_m(points, (latitude, longitude)) <= radius_m + 1e-6)
    assert inside.tolist() == expected.tolist()


@settings(max_examples=100)
@given(st.floats(-90, 90), st.floats(-180, 180), st.floats(-1, 7.4).map(lambda power: 10**power), st.integers(0, 99))
def test_the_bounds_of_a_circle_hold_it_and_little_more(
    latitude: float, longitude: float, radius_m: float, seed: int
) -> None:
    circle = Circle((latitude, longitude), radius_m)
    bounds = circle.bounds()
    rim = Geod(ellps="WGS84").fwd(
        np.full(360, longitude), np.full(360, latitude), np.arange(360.0), np.full(360, radius_m)
    )
    points = np.stack([rim[1], (np.array(rim[0]) + 180) % 360 - 180], axis=1)
    assert len(bounds.rows(points)) == 360
    assert bounds.north - bounds.south <= 1.03 * np.degrees(2 * radius_m / 6.33e6) + 1e-6
    if abs(latitude) < 60 and radius_m < 1e5:
        wide = (bounds.east - bounds.west) % 360
        assert wide <= 1.05 * np.degrees(2 * radius_m / 6.33e6) / np.cos(np.radians(abs(latitude) + 1)) + 1e-6


def test_the_bounds_of_a_box_are_the_box() -> None:
    box = Box(10, 178, 11, -178)
    assert box.bounds() == box


def test_the_border_belongs_to_the_circle() -> None:
    points = np.array([[48.0, 2.0], [48.001, 2.0]])
    exactly = float(distance_m(points[0], points[1]))
    assert Circle((48.0, 2.0), exactly).rows(points).tolist() == [0, 1]
    assert Circle((48.0, 2.0), exactly - 0.001).rows(points).tolist() == [0]
    assert Circle((48.0, 2.0), 0).rows(points).tolist() == [0]


def test_a_circle_crosses_the_antimeridian() -> None:
    points = np.array([[0.0, 179.999], [0.0, -179.999], [0.0, 179.9]])
    assert Circle((0.0, 180.0), 200).rows(points).tolist() == [0, 1]


def test_a_box_holds_its_border_and_may_cross_the_antimeridian() -> None:
    points = np.array(
        [[10.0, 20.0], [11.0, 21.0], [10.5, 20.5], [12.0, 20.5], [10.5, 19.9], [10.5, -179.0], [10.5, 179.0]]
    )
    assert Box(10, 20, 11, 21).rows(points).tolist() == [0, 1, 2]
    assert Box(10, 178, 11, -178).rows(points).tolist() == [5, 6]
    assert Box(-90, -180, 90, 180).rows(points).tolist() == list(range(7))
    assert Box(0, 0, 1, 1).rows(points[:0]).tolist() == []


def test_an_invalid_area_is_reported() -> None:
    with pytest.raises(PositionError, match="found 11, 20, 10, 21"):
        Box(11, 20, 10, 21)
    with pytest.raises(PositionError, match="longitude 200"):
        Circle((0, 200), 5)
    with pytest.raises(PositionError, match="found -1"):
        Circle((0, 0), -1)
    with pytest.raises(PositionError, match="found nan"):
        Circle((0, 0), float("nan"))
