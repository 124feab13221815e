"""Geometry of the scene: camera poses with pinhole projection, and quads, of which all solid objects are made.

A quad is the set of points corner + a U + b V with 0 <= b <= 1 and lean_left b <= a <= 1 - lean_right b: a
parallelogram, or with leans a trapezoid or a triangle. Its front side is where U x V points. `columns` are its material
parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats, Ints


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


def join_poses(parts: list[Poses]) -> Poses:
    """All poses of `parts` in order."""
    return Poses(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Poses)))


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
    "masonry", "course", "block", "bond", "tone", "joint", "mortar", "rough", "odd",
    "stain_u", "stain_v", "stain_m", "grime", "streak", "patch", "plinth", "pipe", "cable",
    "jitter", "wide", "blind", "attic", "frame", "painted", "renewed", "closed", "cloth", "flowers", "cooler", "rail",
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


def join(parts: list[Quads]) -> Quads:
    """All quads of `parts` in order."""
    return Quads(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Quads)))
