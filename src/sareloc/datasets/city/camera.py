"""Where the camera stands and looks: poses, the pinhole, and the town's place on Earth."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Poses:
    """N cameras in the town's frame (metres; z is up)."""

    eye: Floats
    """(N, 3)"""
    yaw: Floats
    """(N,) radians counter-clockwise from the town's x axis to the optical axis, on the plan."""
    pitch: Floats
    """(N,) radians that the optical axis is raised."""
    roll: Floats
    """(N,) radians that the camera is turned clockwise about its axis."""
    width_angle: Floats
    """(N,) horizontal angle of view in radians."""
    moment: Ints
    """(N,) which moment of the list each view is taken at."""
    seed: Ints
    """(N,) of the camera's noise."""

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
    """(N,) focal length in pixels of an image so many pixels wide."""
    return np.asarray(width / 2 / np.tan(poses.width_angle / 2))


def project(poses: Poses, points: npt.ArrayLike, height: int, width: int) -> Floats:
    """(N, P, 3): pixel column and row (0, 0 is the image's upper left corner) and depth of points (P, 3) in each view.

    A point is in the image where 0 <= column <= width, 0 <= row <= height and depth > 0.
    """
    offset = np.asarray(points, dtype=np.float64)[None] - poses.eye[:, None]
    depth, x, y = np.moveaxis(np.einsum("npc,nac->npa", offset, axes(poses)), -1, 0)
    f = focal_px(poses, width)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.stack([width / 2 + f * x / depth, height / 2 - f * y / depth, depth], axis=-1)
