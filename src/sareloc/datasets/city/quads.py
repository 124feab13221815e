"""Everything solid in a town is a flat four-sided piece; this is their table.

A piece is the set of points corner + a U + b V with 0 <= b <= 1 and lean_left b <= a <= 1 - lean_right b: a
parallelogram, or with leans a trapezoid or a triangle. Its front is where U x V points. `columns` says how it is
painted.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FACADE, PANEL = 0.0, 1.0
COLUMNS = (
    "kind", "width", "height", "normal_x", "normal_y", "normal_z",
    "r0", "g0", "b0", "r1", "g1", "b1", "r2", "g2", "b2",
    # a panel: its page of the atlas, how often that repeats along U and V, how far it shines at night
    "page", "repeat_u", "repeat_v", "glow",
    # a facade: its grid of windows, see `styles.Style`; cells and street_floor are those of the ground floor
    "bays", "ground", "floor", "floors", "window", "sill", "head", "arch", "panes_u", "panes_v",
    "surround", "shutter", "band", "pilaster", "brick", "ashlar", "balcony", "street_floor", "cells", "seed",
)  # fmt: skip
COLUMN = {name: i for i, name in enumerate(COLUMNS)}


@dataclass(frozen=True, eq=False)
class Quads:
    """N pieces: corners and edges in metres of the town's frame, and the columns that say how each is painted."""

    corner: Floats
    """(N, 3)"""
    u: Floats
    """(N, 3)"""
    v: Floats
    """(N, 3)"""
    lean: Floats
    """(N, 2) left and right lean, as shares of U's length at b = 1."""
    columns: Floats
    """(N, len(COLUMNS))"""

    def __len__(self) -> int:
        return len(self.corner)


def make_quad(
    corner: Floats, u: Floats, v: Floats, colours: Floats, lean: tuple[float, float] = (0.0, 0.0), /, **columns: float
) -> Quads:
    """One piece; `colours` is (3, 3) linear RGB, `columns` the rest by name; a panel unless `kind` says otherwise."""
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
    """All pieces of `parts` in order."""
    return Quads(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Quads)))
