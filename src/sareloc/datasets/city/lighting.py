"""Fields on a town's plan: how high the shadows of houses reach, where trees and cars darken the ground, lamp light.

One texel is CELL_M metres. The shadow field turns the question "does this point see the sun?" into one lookup: a point
is lit where it lies above the field. With the sun at elevation e in direction s, S(p) = max_k h(p + k s) - k tan e.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sareloc.datasets.city.moment import Moment
from sareloc.datasets.city.streets import MARGIN_M

Floats = npt.NDArray[np.float64]
CELL_M = 0.75


def grid_shape(extent: tuple[float, float]) -> tuple[int, int]:
    """Rows and columns of the fields of a town of this extent."""
    return tuple(int(np.ceil((e + 2 * MARGIN_M) / CELL_M)) for e in (extent[1], extent[0]))  # type: ignore[return-value]


def _cell(metres: npt.ArrayLike) -> Floats:
    return np.asarray((np.asarray(metres, dtype=np.float64) + MARGIN_M) / CELL_M)


def height_field(shape: tuple[int, int], boxes: Floats, heights: Floats) -> Floats:
    """Height of the houses over every cell; boxes (N, 4) x0, y0, x1, y1."""
    field = np.zeros(shape)
    for (x0, y0, x1, y1), height in zip(boxes, heights, strict=True):
        i0, i1 = (round(float(_cell(v))) for v in (y0, y1))
        j0, j1 = (round(float(_cell(v))) for v in (x0, x1))
        window = field[max(i0, 0) : max(i1, 0), max(j0, 0) : max(j1, 0)]
        np.maximum(window, height, out=window)
    return field


def splat(shape: tuple[int, int], points: Floats, radius_m: npt.ArrayLike, power: float = 2.0) -> Floats:
    """The sum of soft round spots exp(-(d / radius)^power) about points (N, 2)."""
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
    """The share of the sky seen from the ground: less between high houses."""
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
    """The height up to which every cell's column of air lies in the shadow of houses."""
    x, y, z = sun_direction
    flat = float(np.hypot(x, y))
    tangent = z / max(flat, 1e-6)
    steps = int(min(heights.max() / tangent / CELL_M, 220))
    shadow = heights.copy()
    for k in range(1, steps + 1):
        dj, di = round(k * x / flat), round(k * y / flat)
        moved = _shift(heights, di, dj) - k * CELL_M * tangent
        np.maximum(shadow, moved, out=shadow)
    return _box_blur(_box_blur(shadow, 1, 0), 1, 1)


def _shift(field: Floats, di: int, dj: int) -> Floats:
    """field[i + di, j + dj], 0 outside."""
    moved = np.zeros_like(field)
    h, w = field.shape
    if abs(di) < h and abs(dj) < w:
        moved[max(0, -di) : h - max(0, di), max(0, -dj) : w - max(0, dj)] = field[
            max(0, di) : h - max(0, -di), max(0, dj) : w - max(0, -dj)
        ]
    return moved


def ground_shade(shape: tuple[int, int], moment: Moment, trees: Floats, crowns: Floats) -> Floats:
    """How far trees (feet (N, 2), heights (N,)) keep the sun off the ground, 0 to 1."""
    x, y, z = moment.sun_direction
    away = np.array([-x, -y]) / max(z, 0.2)
    density = 0.25 if moment.bare else 0.85
    return density * np.minimum(1, splat(shape, trees + crowns[:, None] * 0.66 * away, 0.32 * crowns, 3.0))
