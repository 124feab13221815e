"""What changes between visits: sun, sky, weather, season, traffic and camera (`Moment`), and light fields on the plan.

A moment depends on its seed, its weather and the town's latitude, not on the houses. Light is linear; 1 is white paper
in the noon sun. Fields have one texel per CELL_M metres: heights, shadows of houses, shade of trees, lamp light. With
the sun at elevation e in direction s, the shadow field is S(p) = max_k h(p + k s) - k tan e; a point above it is lit.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats
from sareloc.city.plan import MARGIN_M
from sareloc.errors import look_up

Colour = tuple[float, float, float]
CELL_M = 0.75
"""Side of a texel of the fields."""


@dataclass(frozen=True)
class Weather:
    """A kind of moment: the ranges from which its values are drawn."""

    hours: tuple[float, float]
    """Local solar time."""
    months: tuple[int, ...] = tuple(range(1, 13))
    cloud: tuple[float, float] = (0.1, 0.5)
    sun: float = 1.0
    """Fraction of direct sunlight."""
    fog_m: tuple[float, float] = (600.0, 1500.0)
    """Distance at which contrast falls to 37 %."""
    wet: float = 0.0
    snow: float = 0.0
    cars: tuple[float, float] = (0.35, 0.75)
    people: tuple[float, float] = (0.05, 0.3)


WEATHER: dict[str, Weather] = {
    "clear": Weather((9.5, 15.5), months=tuple(range(3, 11))),
    "low sun": Weather((7.6, 16.8), months=(3, 4, 5, 6, 7, 8, 9), cloud=(0.1, 0.4)),
    "overcast": Weather((9, 16), cloud=(0.9, 1.0), sun=0.06, fog_m=(350, 900)),
    "rain": Weather((9, 16), cloud=(0.95, 1.0), sun=0.03, fog_m=(160, 400), wet=1.0, people=(0.02, 0.1)),
    "fog": Weather((8, 15), months=(1, 2, 3, 10, 11, 12), cloud=(1.0, 1.0), sun=0.05, fog_m=(28, 70)),
    "snow": Weather((9, 15), months=(12, 1, 2), cloud=(0.7, 1.0), sun=0.12, fog_m=(150, 500), snow=1.0),
    "dusk": Weather((19.2, 19.8), months=(4, 5, 8, 9), cloud=(0.3, 0.8), sun=0.0),
    "night": Weather((22, 23.5), cloud=(0.3, 1.0), sun=0.0, cars=(0.5, 0.8), people=(0.02, 0.12)),
    "wet night": Weather((22, 23.5), cloud=(1.0, 1.0), sun=0.0, wet=1.0, cars=(0.5, 0.8), people=(0.0, 0.05)),
}


@dataclass(frozen=True)
class Moment:
    """One visit. Colours are linear RGB; directions are in the town's frame."""

    seed: int
    time: float
    """Seconds since 1970, UTC."""
    sun_direction: Colour
    """Unit vector to the sun."""
    sun: Colour
    """Light of the sun on a surface that faces it."""
    zenith: Colour
    horizon: Colour
    ambient: Colour
    """Light of the sky on a surface that sees all of it."""
    cloud: float
    fog_per_m: float
    night: float
    """How far lamps and windows are lit, 0 to 1."""
    wet: float
    snow: float
    leaf: Colour
    """Colour of the leaves."""
    bare: float
    """1 where the trees have no leaves."""
    litter: float
    """Fallen leaves on the ground, 0 to 1."""
    cars: float
    people: float
    exposure: float
    balance: Colour
    """Gain of each channel: the camera's white balance."""
    grain: float
    """Standard deviation of the camera's noise at mid-grey, 0 to 1 is black to white."""
    vignette: float
    habits: float
    """An integer below 2^20 that decides which windows are lit and which curtains are drawn."""
    bend: float
    """Radial distortion: a pixel r half widths from the centre shows the point that a pinhole camera draws at
    r (1 + bend r^2)."""
    blur: float
    """Standard deviation of the camera's blur, as a fraction of the image's width."""


def make_moment(rng: np.random.Generator, kind: str, latitude_deg: float, rotation_rad: float) -> Moment:
    """A moment with weather of a given kind.

    Args:
        rng: draws day, hour and the rest.
        kind: see `WEATHER`.
        latitude_deg: for the sun's path.
        rotation_rad: counter-clockwise from east to the town's x axis.
    """
    weather = look_up(WEATHER, kind, "weather")
    month = int(rng.choice(weather.months))
    low, high = weather.hours
    hour = float(rng.choice([low, high]) if kind == "low sun" else rng.uniform(low, high)) + float(
        rng.uniform(-0.3, 0.3)
    )
    day = datetime(2023, month, int(rng.integers(1, 28)), tzinfo=UTC)
    azimuth, elevation = sun_position(day.timetuple().tm_yday, hour, latitude_deg)
    night = float(np.clip((0.02 - elevation) / 0.14, 0, 1)) if not weather.sun else float(weather.fog_m[1] < 100) * 0.3
    cloud = float(rng.uniform(*weather.cloud))
    lift = max(elevation, 0.14)
    bearing = np.pi / 2 - azimuth - rotation_rad
    warm = np.clip(1 - lift / 0.6, 0, 1)
    sun = weather.sun * np.array([1.0, 0.93 - 0.25 * warm, 0.82 - 0.5 * warm]) * 1.35
    day_sky = _sky(cloud, warm if weather.sun > 0.5 else 0.2 * warm)
    dark = (np.array([0.008, 0.012, 0.025]), np.array([0.05, 0.04, 0.032]), np.array([0.014, 0.015, 0.02]))
    zenith, horizon, ambient = (d * (1 - night) ** 2 + n * night for d, n in zip(day_sky, dark, strict=True))
    leaf, bare, litter = _season(rng, month)
    if weather.snow:
        bare, litter = 1.0, 0.0
    mean_light = float(np.mean(ambient)) + 0.4 * float(np.mean(sun)) + 0.085 * night
    return Moment(
        seed=int(rng.integers(1 << 30)),
        time=(day + timedelta(hours=hour)).timestamp(),
        sun_direction=(
            float(np.cos(bearing) * np.cos(lift)),
            float(np.sin(bearing) * np.cos(lift)),
            float(np.sin(lift)),
        ),
        sun=_colour(sun),
        zenith=_colour(zenith),
        horizon=_colour(horizon),
        ambient=_colour(ambient),
        cloud=cloud,
        fog_per_m=1 / float(rng.uniform(*weather.fog_m)),
        night=night,
        wet=weather.wet,
        snow=weather.snow,
        leaf=leaf,
        bare=bare,
        litter=litter,
        cars=float(rng.uniform(*weather.cars)),
        people=float(rng.uniform(*weather.people)),
        exposure=0.72 / mean_light**0.9 * float(2 ** rng.normal(0, 0.22)),
        balance=_colour(np.exp(rng.normal(0, 0.05, 3) * [1, 0.3, 1])),
        grain=float(rng.uniform(0.004, 0.012) + 0.02 * night),
        vignette=float(rng.uniform(0.0, 0.35)),
        habits=float(rng.integers(1 << 20)),
        bend=float(rng.uniform(-0.04, 0.0)),
        blur=float(rng.choice([0.0, rng.uniform(0.0003, 0.0014)]) + 0.0006 * night),
    )


def sun_position(day_of_year: int, solar_hour: float, latitude_deg: float) -> tuple[float, float]:
    """Azimuth (clockwise from north) and elevation of the sun in radians; at solar hour 12 it is due south."""
    declination = np.deg2rad(-23.44) * np.cos(2 * np.pi * (day_of_year + 10) / 365)
    angle, latitude = np.deg2rad(15 * (solar_hour - 12)), np.deg2rad(latitude_deg)
    up = np.sin(latitude) * np.sin(declination) + np.cos(latitude) * np.cos(declination) * np.cos(angle)
    east = -np.cos(declination) * np.sin(angle)
    north = np.cos(latitude) * np.sin(declination) - np.sin(latitude) * np.cos(declination) * np.cos(angle)
    return float(np.arctan2(east, north)), float(np.arcsin(np.clip(up, -1, 1)))


def _sky(cloud: float, warm: float) -> tuple[Floats, Floats, Floats]:
    """Colours of zenith and horizon, and the ambient light of the sky on a horizontal surface."""
    blue, haze = np.array([0.1, 0.25, 0.6]), np.array([0.42, 0.6, 0.8])
    grey_top, grey_low = np.array([0.5, 0.53, 0.57]), np.array([0.66, 0.68, 0.7])
    haze = haze * (1 - warm) + np.array([0.9, 0.62, 0.4]) * warm
    heavy = float(np.clip((cloud - 0.5) * 2, 0, 1))
    zenith, horizon = blue * (1 - heavy) + grey_top * heavy, haze * (1 - heavy) + grey_low * heavy
    ambient = (0.5 * zenith + 0.5 * horizon) * (0.8 + 0.1 * heavy) + 0.04
    return zenith, horizon, ambient


def _season(rng: np.random.Generator, month: int) -> tuple[Colour, float, float]:
    """Colour of the leaves, 1 if trees are bare, and the amount of fallen leaves."""
    green, lime, gold = np.array([0.09, 0.19, 0.035]), np.array([0.2, 0.32, 0.06]), np.array([0.42, 0.2, 0.03])
    turn = float(np.clip((month - 8.5) / 2, 0, 1)) if month > 8 else 0.0
    fresh = float(np.clip((6.5 - month) / 2, 0, 1))
    colour = green * (1 - fresh) + lime * fresh
    colour = (colour * (1 - turn) + gold * turn) * rng.uniform(0.85, 1.15)
    return _colour(colour), float(month in (12, 1, 2, 3) or (month == 11 and rng.random() < 0.5)), 0.9 * turn


def _colour(values: Floats) -> Colour:
    r, g, b = (float(v) for v in values)
    return r, g, b


def grid_shape(extent: tuple[float, float]) -> tuple[int, ...]:
    """Rows and columns of the fields of a town with this extent."""
    return tuple(int(np.ceil((e + 2 * MARGIN_M) / CELL_M)) for e in reversed(extent))


def _cell(metres: npt.ArrayLike) -> Floats:
    return np.asarray((np.asarray(metres, dtype=np.float64) + MARGIN_M) / CELL_M)


def height_field(shape: tuple[int, ...], boxes: Floats, heights: Floats) -> Floats:
    """Height of the houses in every cell; boxes (N, 4) x0, y0, x1, y1."""
    field = np.zeros(shape)
    for (x0, y0, x1, y1), height in zip(boxes, heights, strict=True):
        i0, i1 = (round(float(_cell(v))) for v in (y0, y1))
        j0, j1 = (round(float(_cell(v))) for v in (x0, x1))
        window = field[max(i0, 0) : max(i1, 0), max(j0, 0) : max(j1, 0)]
        np.maximum(window, height, out=window)
    return field


def splat(shape: tuple[int, ...], points: Floats, radius_m: npt.ArrayLike, power: float = 2.0) -> Floats:
    """The sum of radial kernels exp(-(d / radius)^power) at points (N, 2)."""
    field = np.zeros(shape)
    radii = np.broadcast_to(np.asarray(radius_m, dtype=np.float64), len(points))
    for (x, y), radius in zip(points, radii, strict=True):
        reach = int(np.ceil(2.6 * radius / CELL_M))
        cx, cy = float(_cell(x)), float(_cell(y))
        i0, i1 = max(0, int(cy) - reach), min(shape[0], int(cy) + reach + 1)
        j0, j1 = max(0, int(cx) - reach), min(shape[1], int(cx) + reach + 1)
        if i0 >= i1 or j0 >= j1:
            continue
        dy, dx = np.arange(i0, i1)[:, None] + 0.5 - cy, np.arange(j0, j1)[None] + 0.5 - cx
        field[i0:i1, j0:j1] += np.exp(-((np.hypot(dx, dy) * CELL_M / radius) ** power))
    return field


def openness(heights: Floats) -> Floats:
    """The visible fraction of the sky from the ground; lower between high houses."""
    blurred = heights
    for axis in (0, 1):
        blurred = _box_blur(blurred, round(9 / CELL_M), axis)
    return np.asarray(1 / (1 + blurred / 14))


def _box_blur(field: Floats, reach: int, axis: int) -> Floats:
    pad = [(0, 0), (0, 0)]
    pad[axis] = (reach + 1, reach)
    total = np.cumsum(np.pad(field, pad, mode="edge"), axis=axis)
    size, n = 2 * reach + 1, field.shape[axis]
    return np.asarray((np.take(total, range(size, size + n), axis) - np.take(total, range(n), axis)) / size)


def shadow_height(heights: Floats, sun_direction: tuple[float, float, float]) -> Floats:
    """The height of the houses' shadow above every cell."""
    x, y, z = sun_direction
    flat = float(np.hypot(x, y))
    tangent = z / max(flat, 1e-6)
    steps = int(min(heights.max() / tangent / CELL_M, 220))
    shadow, padded = heights.copy(), np.pad(heights, steps)
    for k in range(1, steps + 1):
        i, j = steps + round(k * y / flat), steps + round(k * x / flat)
        moved = padded[i : i + heights.shape[0], j : j + heights.shape[1]] - k * CELL_M * tangent
        np.maximum(shadow, moved, out=shadow)
    return _box_blur(_box_blur(shadow, 1, 0), 1, 1)


def ground_shade(shape: tuple[int, ...], moment: Moment, trees: Floats, crowns: Floats) -> Floats:
    """The shade of trees (positions (N, 2), heights (N,)) on the ground, 0 to 1."""
    x, y, z = moment.sun_direction
    away = np.array([-x, -y]) / max(z, 0.2)
    density = 0.25 if moment.bare else 0.85
    return density * np.minimum(1, splat(shape, trees + crowns[:, None] * 0.66 * away, 0.32 * crowns, 3.0))
