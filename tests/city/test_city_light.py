"""Sun and shadow: against slow sums, and against what an almanac says."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest

from sareloc.city import WEATHER, make_moment
from sareloc.city.moment import (
    CELL_M,
    height_field,
    openness,
    shadow_height,
    splat,
    sun_position,
)
from sareloc.errors import ArgumentError


@pytest.mark.parametrize(("day", "tilt"), [(172, 23.44), (355, -23.44), (81, 0.0)])
def test_the_noon_sun_stands_in_the_south_at_the_almanacs_height(day, tilt):
    azimuth, elevation = sun_position(day, 12.0, 50.0)
    assert np.rad2deg(azimuth) % 360 == pytest.approx(180, abs=0.1)
    assert np.rad2deg(elevation) == pytest.approx(40 + tilt, abs=0.6)


def test_the_sun_rises_in_the_east_and_sets_in_the_west():
    morning, evening = (sun_position(81, hour, 50.0) for hour in (6.0, 18.0))
    assert np.rad2deg(morning[0]) == pytest.approx(90, abs=1)
    assert np.rad2deg(evening[0]) == pytest.approx(-90, abs=1)
    assert morning[1] == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("direction", [(0.6, 0.0, 0.8), (-0.5, 0.5, 0.7071), (0.1, -0.7, 0.7)])
def test_shadow_heights_agree_with_a_slow_march(direction):
    rng = np.random.default_rng(0)
    heights = np.zeros((24, 30))
    for _ in range(4):
        i, j = rng.integers(2, 18, 2)
        heights[i : i + 4, j : j + 5] = rng.uniform(3, 9)
    x, y, z = direction
    flat = np.hypot(x, y)
    slow = heights.copy()
    for i in range(24):
        for j in range(30):
            for k in range(1, 60):
                a, b = i + round(k * y / flat), j + round(k * x / flat)
                if 0 <= a < 24 and 0 <= b < 30:
                    slow[i, j] = max(slow[i, j], heights[a, b] - k * CELL_M * z / flat)
    padded = np.pad(slow, 1, mode="edge")
    blurred = sum(padded[i : i + 24, j : j + 30] for i in range(3) for j in range(3)) / 9
    assert shadow_height(heights, direction) == pytest.approx(blurred)


def test_houses_raise_the_field_and_close_the_sky():
    heights = height_field((200, 200), np.array([[0.0, 0.0, 15.0, 30.0]]), np.array([9.0]))
    cells = (heights > 0).sum() * CELL_M**2
    assert cells == pytest.approx(15 * 30, rel=0.05)
    sky = openness(heights)
    assert sky.max() == pytest.approx(1)
    assert sky.min() < 0.75


def test_spots_add_up():
    field = splat((300, 300), np.array([[20.0, 30.0], [20.0, 30.0]]), 3.0)
    assert field.sum() * CELL_M**2 == pytest.approx(2 * np.pi * 9, rel=0.02)


@pytest.mark.parametrize("kind", WEATHER)
def test_a_moment_is_fixed_by_its_seed(kind):
    first, again, other = (make_moment(np.random.default_rng(s), kind, 50.0, 0.3) for s in (4, 4, 5))
    assert first == again
    assert first != other
    assert np.linalg.norm(first.sun_direction) == pytest.approx(1)
    assert all(np.isfinite(value).all() for value in astuple(first))


def test_the_weather_shows_in_the_numbers():
    rng = np.random.default_rng(0)
    made = {kind: make_moment(rng, kind, 50.0, 0.0) for kind in WEATHER}
    assert made["night"].night == 1
    assert max(made["night"].sun) == 0
    assert made["clear"].night == 0
    assert made["clear"].sun[0] > 5 * made["overcast"].sun[0]
    assert made["fog"].fog_per_m > 5 * made["clear"].fog_per_m
    assert (made["rain"].wet, made["snow"].snow) == (1, 1)


def test_turning_the_town_turns_the_sun():
    here, turned = (make_moment(np.random.default_rng(3), "clear", 50.0, angle) for angle in (0.0, 0.5))
    x, y, z = here.sun_direction
    c, s = np.cos(-0.5), np.sin(-0.5)
    assert turned.sun_direction == pytest.approx((c * x - s * y, s * x + c * y, z))


def test_an_unknown_weather_names_the_known_ones():
    with pytest.raises(ArgumentError, match="unknown weather 'hail'"):
        make_moment(np.random.default_rng(0), "hail", 50.0, 0.0)
