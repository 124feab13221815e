"""The plan of a town: streets, blocks, and houses along the streets.

The town's frame is in metres with x right and y up on the plan. Streets are axis-aligned and their centre lines are at
integer metres, so that a table with one entry per metre gives the street of a point. Rows of blocks lie between long
streets along x; cross streets end at the long streets (T-junctions) and differ from row to row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sareloc.arrays import Floats, Ints
from sareloc.city.styles import STYLES, Style, shift_colour, vary

MARGIN_M = 48
"""Margin of the plan's tables beyond the outermost centre lines."""
SMALLEST_M = 220.0
BUILT, PARK, PLAZA = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Streets:
    """R rows of blocks: R + 1 long streets along x, and in each row C + 1 cross streets along y.

    A street has a centre line, the half width of its road and the width of the pavement on each side.
    """

    long_y: Floats
    """(R + 1,) y of the long streets' centre lines."""
    long_road: Floats
    long_pave: Floats
    cross_x: Floats
    """(R, C + 1) x of the cross streets' centre lines; first and last are equal in all rows."""
    cross_road: Floats
    cross_pave: Floats
    block_kind: Ints
    """(R, C) BUILT, PARK or PLAZA."""

    @property
    def extent(self) -> tuple[float, float]:
        """Length of the town in x and y, between the centre lines of its outermost streets."""
        return float(self.cross_x[0, -1]), float(self.long_y[-1])

    def block(self, row: int, column: int) -> tuple[float, float, float, float]:
        """The rectangle x0, y0, x1, y1 of a block, within the pavements."""
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
    """Streets with a total length of about `wanted_m` metres, at least around one block."""
    wanted_m = max(wanted_m, SMALLEST_M)
    rows = max(1, round((wanted_m / 124.0) ** 0.5 - 0.5))
    columns = min(range(1, 99), key=lambda c: abs((rows + 1) * c * 63.0 + rows * (c + 1) * 61.0 - wanted_m))
    depths = rng.uniform(50, 72, rows)
    spans = rng.uniform(48, 78, (rows, columns))
    width = float(spans.sum(1).mean())
    # Scaled to the total length and rounded to integer metres.
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


def _profiles(rng: np.random.Generator, shape: tuple[int, ...], wide_share: float) -> tuple[Floats, Floats]:
    """Half widths of roads and widths of pavements: some wide streets, most are narrow."""
    wide = rng.random(shape) < wide_share
    road = np.where(wide, rng.choice([5.5, 6.5], shape), rng.choice([3.25, 3.75, 4.25], shape))
    pave = np.where(wide, rng.choice([3.5, 4.5], shape), rng.choice([1.75, 2.25, 2.75], shape))
    return road, pave


def ground_tables(streets: Streets) -> tuple[Floats, Floats]:
    """Lookup tables per metre: `by_y` (Y, 4) row and y, road and pavement of the nearest long street; `by_xy`
    (R, X, 4) x, road and pavement of the nearest cross street, and the kind of block. Entry 0 is metre -MARGIN_M."""
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


Colours = tuple[str, str, str, str]
DEPTH_M = 12.0
SOUTH, EAST, NORTH, WEST = range(4)
NORMALS = ((0.0, -1.0), (1.0, 0.0), (0.0, 1.0), (-1.0, 0.0))
"""Outward directions of a house's four sides."""
UP = np.array([0.0, 0.0, 1.0])


@dataclass(frozen=True)
class Side:
    """One side of a house: a facade on a street, or a blank wall that is visible from `above_m` upwards."""

    direction: int
    facade: bool
    above_m: float


@dataclass(frozen=True)
class House:
    """A house: its box on the plan (x0, y0, x1, y1), style, and visible sides."""

    box: tuple[float, float, float, float]
    front: int
    style: Style
    floors: int
    ground_m: float
    """Height of the ground floor."""
    shop: bool
    gable: bool
    colours: Colours
    """Wall, trim, accent, roof."""
    sides: tuple[Side, ...]
    seed: int

    @property
    def height_m(self) -> float:
        """Height of the walls: floors and parapet."""
        return self.ground_m + (self.floors - 1) * self.style.floor + 0.35 + self.style.cornice


def side_frame(house: House, direction: int) -> tuple[Floats, Floats, Floats]:
    """Lower left corner (from outside), edge along the ground, and outward normal of a side."""
    x0, y0, x1, y1 = house.box
    nx, ny = NORMALS[direction]
    normal, along = np.array([nx, ny, 0.0]), np.array([-ny, nx, 0.0])
    half = np.array([x1 - x0, y1 - y0, 0.0]) / 2
    centre = np.array([x0 + x1, y0 + y1, 0.0]) / 2
    u = 2 * float(np.abs(half @ along)) * along
    return centre + float(np.abs(half @ normal)) * normal - u / 2, u, normal


@dataclass(frozen=True)
class _Row:
    """A strip of lots: its first corner, front side, and whether its ends are corners; it runs to the left along the
    street, as seen from the houses."""

    origin: tuple[float, float]
    length: float
    depth: float
    front: int
    corners: bool = False

    @property
    def along(self) -> Floats:
        """Unit vector along the street."""
        nx, ny = NORMALS[self.front]
        return np.array([-ny, nx])


@dataclass(frozen=True)
class _Lot:
    """A part of a strip, in metres from its start, and the house that is built there."""

    at: float
    width: float
    style: Style
    colours: Colours
    floors: int
    shop: bool


def make_houses(rng: np.random.Generator, streets: Streets) -> list[House]:
    """The houses of every built block, and of the ring around the town."""
    names = rng.permutation(sorted(STYLES))[:7]
    styles = [STYLES[str(name)] for name in names]
    houses: list[House] = []
    rows, columns = streets.block_kind.shape
    for row in range(rows):
        for column in range(columns):
            if streets.block_kind[row, column] == BUILT:
                district = rng.choice(len(styles), 3)
                for strip in _perimeter(streets.block(row, column)):
                    houses += _fill(rng, strip, [styles[i] for i in district])
    for strip in _ring(streets):
        houses += _fill(rng, strip, styles)
    return houses


def _perimeter(block: tuple[float, float, float, float]) -> list[_Row]:
    x0, y0, x1, y1 = block
    depth = min(DEPTH_M, (y1 - y0) / 2)
    strips = [
        _Row((x0, y0), x1 - x0, depth, SOUTH, corners=True),
        _Row((x1, y1), x1 - x0, depth, NORTH, corners=True),
    ]
    gap = y1 - y0 - 2 * depth
    if gap > 8:
        side = min(DEPTH_M, (x1 - x0) / 2 - 1)
        strips += [
            _Row((x0, y1 - depth), gap, side, WEST),
            _Row((x1, y0 + depth), gap, side, EAST),
        ]
    return strips


def _ring(streets: Streets) -> list[_Row]:
    width, height = streets.extent
    edge = streets.long_road + streets.long_pave
    side = streets.cross_road[0] + streets.cross_pave[0]
    x0, x1, y0, y1 = -side[0], width + side[-1], -edge[0], height + edge[-1]
    return [
        _Row((x1 + DEPTH_M, y0), x1 - x0 + 2 * DEPTH_M, DEPTH_M, NORTH),
        _Row((x0 - DEPTH_M, y1), x1 - x0 + 2 * DEPTH_M, DEPTH_M, SOUTH),
        _Row((x0, y0), y1 - y0, DEPTH_M, EAST),
        _Row((x1, y1), y1 - y0, DEPTH_M, WEST),
    ]


def _fill(rng: np.random.Generator, strip: _Row, styles: list[Style]) -> list[House]:
    """Houses along a strip: runs of equal style (terraces), with occasional gaps."""
    lots: list[_Lot] = []
    at = 0.0
    while strip.length - at > 3.5:
        style = vary(rng, styles[int(rng.integers(len(styles)))])
        floors = int(rng.integers(style.floors[0], style.floors[1] + 1))
        width = style.bay * int(rng.integers(2, 6)) + 0.6
        colours = _colours(rng, style)
        shop = bool(rng.random() < style.shop)
        for _ in range(int(rng.choice([1, 1, 2, 3, 4]))):
            if strip.length - at < width + 3.5:
                width = min(width + 3.4, strip.length - at)
            lots.append(_Lot(at, width, style, colours, floors, shop))
            at += width
            if strip.length - at <= 3.5:
                break
            colours = _colours(rng, style) if rng.random() < 0.3 else _repainted(rng, colours)
            if rng.random() < 0.5:
                style = replace(vary(rng, style), bay=style.bay, floor=style.floor, cornice=style.cornice)
        if rng.random() < 0.08 and strip.length - at > 12:
            at += float(rng.uniform(2.0, 4.5))
    made = [_house(rng, strip, lot, at_end=i in (0, len(lots) - 1)) for i, lot in enumerate(lots)]
    return [_with_sides(house, i, made, lots, strip) for i, house in enumerate(made)]


def _colours(rng: np.random.Generator, style: Style) -> Colours:
    wall, trim, accent, roof = (
        str(rng.choice(palette)) for palette in (style.walls, style.trims, style.accents, style.roofs)
    )
    return _repainted(rng, (wall, trim, accent, roof))


def _repainted(rng: np.random.Generator, colours: Colours) -> Colours:
    wall, trim, accent, roof = (shift_colour(rng, colour) for colour in colours)
    return wall, trim, accent, roof


def _house(rng: np.random.Generator, strip: _Row, lot: _Lot, *, at_end: bool) -> House:
    normal, style = np.array(NORMALS[strip.front]), lot.style
    recess = 0.0 if at_end else float(rng.choice([0.0, 0.0, 0.15, 0.4]))
    near = np.array(strip.origin) + lot.at * strip.along - recess * normal
    far = near + lot.width * strip.along - (strip.depth - recess) * normal
    low, high = np.minimum(near, far), np.maximum(near, far)
    return House(
        box=(float(low[0]), float(low[1]), float(high[0]), float(high[1])),
        front=strip.front,
        style=style,
        floors=lot.floors,
        ground_m=4.0 if lot.shop else max(3.3, style.floor + 0.3),
        shop=lot.shop,
        gable=bool(rng.random() < style.gable) and lot.width < 10,
        colours=lot.colours,
        sides=(),
        seed=int(rng.integers(1 << 24)),
    )


def _with_sides(house: House, i: int, row: list[House], lots: list[_Lot], strip: _Row) -> House:
    sides = [Side(house.front, True, 0.0)]
    for step in (-1, 1):  # the neighbours before and after it
        direction, j = (house.front + step) % 4, i + step
        if not 0 <= j < len(row):
            sides.append(Side(direction, strip.corners, 0.0))
            continue
        earlier, later = lots[min(i, j)], lots[max(i, j)]
        gap = later.at - earlier.at - earlier.width
        # A house that protrudes shows part of its side next to its neighbour.
        covered = 0.0 if gap > 0.5 or _protrudes(house, row[j]) else row[j].height_m
        if covered < house.height_m - 0.3:
            sides.append(Side(direction, False, min(covered, house.height_m)))
    return replace(house, sides=tuple(sides))


def _protrudes(house: House, neighbour: House) -> bool:
    nx, ny = NORMALS[house.front]
    reach = [max(nx * h.box[0], nx * h.box[2]) + max(ny * h.box[1], ny * h.box[3]) for h in (house, neighbour)]
    return reach[0] > reach[1] + 0.01
