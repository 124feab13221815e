"""Where the streets of a town run: rows of blocks between long streets, cross streets that differ from row to row.

The town's own frame is metres, x to the right and y up on the plan; every street runs along an axis and its centre line
lies on a whole metre, so that a table with one entry per metre says exactly which street a point belongs to. Cross
streets stop at the long streets (T-junctions), which closes the view along them as in an old town.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MARGIN_M = 48
"""The plan's tables reach so many metres beyond the outermost street lines."""
SMALLEST_M = 220.0
BUILT, PARK, PLAZA = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Streets:
    """R rows of blocks: R + 1 long streets along x, and in each row C + 1 cross streets along y.

    A street is given by its centre line, the half width of its road and the width of the pavement on each side.
    """

    long_y: Floats
    """(R + 1,) y of the long streets' centre lines."""
    long_road: Floats
    long_pave: Floats
    cross_x: Floats
    """(R, C + 1) x of the cross streets' centre lines; the first and the last are the same in all rows."""
    cross_road: Floats
    cross_pave: Floats
    block_kind: Ints
    """(R, C) BUILT, PARK or PLAZA."""

    @property
    def extent(self) -> tuple[float, float]:
        """Length of the town in x and y, between the centre lines of its outermost streets."""
        return float(self.cross_x[0, -1]), float(self.long_y[-1])

    def length_m(self) -> float:
        """The length of all centre lines."""
        width, _ = self.extent
        return float(len(self.long_y) * width + (np.diff(self.long_y)[:, None] * np.ones_like(self.cross_x)).sum())

    def block(self, row: int, column: int) -> tuple[float, float, float, float]:
        """The rectangle x0, y0, x1, y1 that the pavements leave to a block."""
        x, road, pave = self.cross_x[row], self.cross_road[row], self.cross_pave[row]
        edge = road + pave
        long_edge = self.long_road + self.long_pave
        return (
            x[column] + edge[column],
            self.long_y[row] + long_edge[row],
            x[column + 1] - edge[column + 1],
            self.long_y[row + 1] - long_edge[row + 1],
        )


def make_streets(rng: np.random.Generator, wanted_m: float) -> Streets:
    """Streets of about `wanted_m` metres in all, at least around one block."""
    wanted_m = max(wanted_m, SMALLEST_M)
    rows = max(1, round((wanted_m / 124.0) ** 0.5 - 0.5))
    columns = min(range(1, 99), key=lambda c: abs(_rough_length(rows, c) - wanted_m))
    depths = rng.uniform(50, 72, rows)
    spans = rng.uniform(48, 78, (rows, columns))
    width = float(spans.sum(1).mean())
    # Everything is scaled to the wanted length, and put on whole metres.
    scale = wanted_m / ((rows + 1) * width + depths.sum() * (columns + 1))
    width, long_y = round(width * scale), np.round(np.concatenate([[0], np.cumsum(depths)]) * scale)
    inner = np.round(np.cumsum(spans, axis=1) * (width / spans.sum(1, keepdims=True)))
    cross_x = np.concatenate([np.zeros((rows, 1)), inner], axis=1)
    cross_x[:, -1] = width
    long_road, long_pave = _profiles(rng, (rows + 1,), wide_share=0.4)
    cross_road, cross_pave = _profiles(rng, (rows, columns + 1), wide_share=0.15)
    for border in (0, -1):
        cross_road[:, border], cross_pave[:, border] = cross_road[0, border], cross_pave[0, border]
    kind = rng.choice([BUILT, PARK, PLAZA], size=(rows, columns), p=[0.88, 0.07, 0.05])
    kind[0, 0] = BUILT  # a town of one block has houses on it
    return Streets(long_y, long_road, long_pave, cross_x, cross_road, cross_pave, kind.astype(np.int64))


def _rough_length(rows: int, columns: int) -> float:
    return (rows + 1) * columns * 63.0 + rows * (columns + 1) * 61.0


def _profiles(rng: np.random.Generator, shape: tuple[int, ...], wide_share: float) -> tuple[Floats, Floats]:
    """Half widths of roads and widths of pavements: a few wide streets with trees, most narrow."""
    wide = rng.random(shape) < wide_share
    road = np.where(wide, rng.choice([5.5, 6.5], shape), rng.choice([3.25, 3.75, 4.25], shape))
    pave = np.where(wide, rng.choice([3.5, 4.5], shape), rng.choice([1.75, 2.25, 2.75], shape))
    return road, pave


def ground_tables(streets: Streets) -> tuple[Floats, Floats]:
    """What lies under every metre: `by_y` (Y, 4) row, nearest long street's y, road, pavement; `by_xy` (R, X, 4)
    nearest cross street's x, road, pavement, and the kind of the block. Entry 0 is metre -MARGIN_M."""
    width, height = streets.extent
    ys = np.arange(-MARGIN_M, int(height) + MARGIN_M) + 0.5
    xs = np.arange(-MARGIN_M, int(width) + MARGIN_M) + 0.5
    rows = len(streets.long_y) - 1
    row = np.clip(np.searchsorted(streets.long_y, ys) - 1, 0, rows - 1)
    near = np.abs(ys[:, None] - streets.long_y).argmin(1)
    by_y = np.stack([row, streets.long_y[near], streets.long_road[near], streets.long_pave[near]], axis=1)
    by_xy = np.empty((rows, len(xs), 4))
    for r in range(rows):
        near = np.abs(xs[:, None] - streets.cross_x[r]).argmin(1)
        column = np.clip(np.searchsorted(streets.cross_x[r], xs) - 1, 0, streets.cross_x.shape[1] - 2)
        kind = streets.block_kind[r, column]
        by_xy[r] = np.stack(
            [streets.cross_x[r, near], streets.cross_road[r, near], streets.cross_pave[r, near], kind], axis=1
        )
    return by_y, by_xy
