"""Geometry of the scene: camera poses with pinhole projection, and the quads and sprites of which objects are made.

A quad is the set of points corner + a U + b V with 0 <= b <= 1 and lean_left b <= a <= 1 - lean_right b: a
parallelogram, or with leans a trapezoid or a triangle. Its front side is where U x V points. `columns` are its material
parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats, Ints
from sareloc.city.styles import Habits, Surface


@dataclass(frozen=True, eq=False)
class Poses:
    """N camera poses in the town's frame (metres; z up)."""

    eye: Floats
    """(N, 3)"""
    yaw: Floats
    """(N,) radians counter-clockwise from the town's x axis to the optical axis, on the plan."""
    pitch: Floats
    """(N,) elevation of the optical axis in radians."""
    roll: Floats
    """(N,) clockwise rotation about the optical axis in radians."""
    width_angle: Floats
    """(N,) horizontal angle of view in radians."""
    moment: Ints
    """(N,) index of the moment of each view."""
    seed: Ints
    """(N,) seed of the camera noise."""

    def __len__(self) -> int:
        return len(self.eye)

    def take(self, rows: npt.ArrayLike) -> Poses:
        """The poses of these rows, in this order."""
        index = np.asarray(rows, dtype=np.int64).reshape(-1)
        return Poses(*(getattr(self, f.name)[index] for f in fields(Poses)))


def axes(poses: Poses) -> Floats:
    """(N, 3, 3): rows are the unit vectors forward, right and up of each camera, in the town's frame."""
    cy, sy, cp, sp = np.cos(poses.yaw), np.sin(poses.yaw), np.cos(poses.pitch), np.sin(poses.pitch)
    zero = np.zeros_like(cy)
    forward = np.stack([cy * cp, sy * cp, sp], axis=1)
    right = np.stack([sy, -cy, zero], axis=1)
    up = np.cross(right, forward)
    c, s = np.cos(poses.roll)[:, None], np.sin(poses.roll)[:, None]
    return np.stack([forward, c * right - s * up, c * up + s * right], axis=1)


def focal_px(poses: Poses, width: int) -> Floats:
    """(N,) focal length in pixels for an image of this width."""
    return np.asarray(width / 2 / np.tan(poses.width_angle / 2))


def project(poses: Poses, points: npt.ArrayLike, height: int, width: int) -> Floats:
    """Pixel column and row (0, 0 is the upper left corner) and depth of points in each view: (N, P, 3).

    A point is in the image if 0 <= column <= width, 0 <= row <= height and depth > 0.

    Args:
        poses: the N cameras.
        points: (P, 3) metres in the town's frame.
        height: image height in pixels.
        width: image width in pixels.
    """
    offset = np.asarray(points, dtype=np.float64)[None] - poses.eye[:, None]
    depth, x, y = np.moveaxis(np.einsum("npc,nac->npa", offset, axes(poses)), -1, 0)
    f = focal_px(poses, width)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.stack([width / 2 + f * x / depth, height / 2 - f * y / depth, depth], axis=-1)


NOWHERE = (-1e4, -1e4)
"""A point on the plan that is too far away to be seen."""
FACADE, PANEL = 0.0, 1.0
COLUMNS = (
    "kind", "width", "height", "normal_x", "normal_y", "normal_z",
    "r0", "g0", "b0", "r1", "g1", "b1", "r2", "g2", "b2",
    # a textured panel: its page of the atlas, repetitions along U and V, emission at night; the number of letters of a
    # sign and the letters (see `lettering.pack`); share of weathering
    "page", "repeat_u", "repeat_v", "glow", "letters", "text0", "text1", "text2", "worn",
    # a facade: its grid of windows, see `styles.Style`; cells and street_floor are for the ground floor
    "bays", "ground", "floor", "floors", "window", "sill", "head", "arch", "panes_u", "panes_v",
    "surround", "shutter", "band", "pilaster", "balcony", "street_floor", "cells", "seed",
    # what no two houses share: their masonry and its age (`styles.Surface`), how their windows differ (`styles.Habits`)
    *(field.name for part in (Surface, Habits) for field in fields(part)),
)  # fmt: skip
COLUMN = {name: i for i, name in enumerate(COLUMNS)}


@dataclass(frozen=True, eq=False)
class Quads:
    """N quads: corners and edges in metres of the town's frame, and material parameters."""

    corner: Floats
    """(N, 3)"""
    u: Floats
    """(N, 3)"""
    v: Floats
    """(N, 3)"""
    lean: Floats
    """(N, 2) left and right lean, as fractions of the length of U at b = 1."""
    columns: Floats
    """(N, len(COLUMNS))"""

    def __len__(self) -> int:
        return len(self.corner)


def make_quad(
    corner: Floats, u: Floats, v: Floats, colours: Floats, lean: tuple[float, float] = (0.0, 0.0), /, **columns: float
) -> Quads:
    """One quad; `colours` (3, 3) linear RGB, `columns`: other material parameters by name; default kind: a panel."""
    normal = np.array([u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], u[0] * v[1] - u[1] * v[0]])
    normal = normal / np.sqrt(normal @ normal)
    row = np.zeros(len(COLUMNS))
    row[COLUMN["kind"]] = PANEL
    row[COLUMN["width"]], row[COLUMN["height"]] = np.sqrt(u @ u), np.sqrt(v @ v)
    row[COLUMN["normal_x"] : COLUMN["normal_z"] + 1] = normal
    row[COLUMN["r0"] : COLUMN["b2"] + 1] = colours.reshape(9)
    row[COLUMN["repeat_u"] : COLUMN["repeat_v"] + 1] = 1.0
    for name, value in columns.items():
        row[COLUMN[name]] = value
    return Quads(corner[None], u[None], v[None], np.array([lean], dtype=np.float64), row[None])


@dataclass(frozen=True, eq=False)
class Sprites:
    """N sprites: flat images that always face the camera."""

    foot: Floats
    """(N, 3) position of the lower centre."""
    size: Floats
    """(N, 2) width and height in metres."""
    page: Floats
    """(N, 2) atlas page with and without leaves; equal except for trees."""
    colours: Floats
    """(N, 9) three linear colours."""
    glow: Floats
    """(N,) emission of the second colour at night."""
    leafy: Floats
    """(N,) 1 if the second colour is that of the season's leaves."""
    seed: Floats
    """(N,) in [0, 1): how the image of a tree or hedge is bent and thinned; no two are equal."""

    def __len__(self) -> int:
        return len(self.foot)


def make_sprite(
    foot: tuple[float, float],
    size: tuple[float, float],
    page: int,
    colours: list[Floats],
    *,
    bare: int | None = None,
    glow: float = 0.0,
    leafy: bool = False,
    seed: float = 0.0,
) -> Sprites:
    """One sprite on the ground."""
    return Sprites(
        np.array([[*foot, 0.0]]),
        np.array([size], dtype=np.float64),
        np.array([[page, page if bare is None else bare]], dtype=np.float64),
        np.stack(colours).reshape(1, 9),
        np.array([glow]),
        np.array([float(leafy)]),
        np.array([seed]),
    )


Rows = TypeVar("Rows", Poses, Quads, Sprites)


def join(parts: list[Rows]) -> Rows:
    """All poses, quads or sprites of `parts` in order."""
    return replace(parts[0], **{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(parts[0])})
