"""From houses to the flat pieces they are drawn with: walls, roofs, cornices, shop signs, awnings, murals."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sareloc.datasets.city.atlas import POSTERS, WORDS, Atlas
from sareloc.datasets.city.houses import DEPTH_M, NORMALS, House, Side
from sareloc.datasets.city.quads import FACADE, Quads, join, make_quad
from sareloc.datasets.city.styles import SIGN_COLOURS, linear

Floats = npt.NDArray[np.float64]
UP = np.array([0.0, 0.0, 1.0])
BLANK = {"kind": FACADE, "bays": 1, "floors": -9, "window": 0.5, "sill": 0.8, "head": 2.0, "panes_u": 1, "panes_v": 1}
"""A wall without windows."""


def make_house_quads(rng: np.random.Generator, houses: list[House], atlas: Atlas) -> Quads:
    """Every piece of every house, in order."""
    return join([quad for house in houses for quad in _house(rng, house, atlas)])


def _house(rng: np.random.Generator, house: House, atlas: Atlas) -> list[Quads]:
    quads = [_wall(house, side) for side in house.sides]
    quads += _roof(house, atlas)
    for side in house.sides:
        if side.facade:
            quads += _cornice(house, side, atlas)
            if house.shop:
                quads += _shop(rng, house, side, atlas)
    if rng.random() < 0.12:
        quads += _mural(rng, house, atlas)
    return quads


def _side(house: House, direction: int) -> tuple[Floats, Floats, Floats]:
    """Lower left corner (seen from outside), the edge along the ground and the outward normal of a side."""
    x0, y0, x1, y1 = house.box
    nx, ny = NORMALS[direction]
    normal = np.array([nx, ny, 0.0])
    u = np.array([-ny, nx, 0.0])
    centre = np.array([(x0 + x1) / 2, (y0 + y1) / 2, 0.0])
    half_u, half_n = (x1 - x0) / 2, (y1 - y0) / 2
    if nx:
        half_u, half_n = half_n, half_u
    return centre + half_n * normal - half_u * u, 2 * half_u * u, normal


def _colours(house: House) -> Floats:
    return np.stack([linear(c) for c in house.colours[:3]])


def _wall(house: House, side: Side) -> Quads:
    corner, u, _ = _side(house, side.direction)
    style, width = house.style, float(np.linalg.norm(u))
    low = side.above_m
    bays = max(1, round(width / style.bay)) if side.facade else 0
    return make_quad(
        corner + low * UP, u, (house.height_m - low) * UP, _colours(house),
        kind=FACADE, bays=max(1, bays), ground=house.ground_m, floor=style.floor,
        floors=house.floors - 1 if side.facade else -9, window=style.window, sill=style.sill, head=style.head,
        arch=style.arch, panes_u=style.panes[0], panes_v=style.panes[1], surround=style.surround,
        shutter=style.shutter, band=style.band if side.facade else 0.0, pilaster=style.pilaster if side.facade else 0.0,
        brick=style.brick if side.facade else max(style.brick, 0.7 * (house.seed % 2)), ashlar=style.ashlar * side.facade,
        balcony=style.balcony * side.facade, street_floor=(2.0 if house.shop else 1.0) if side.facade else 0.0,
        cells=max(1, round(width / 4.2)) if house.shop else bays, seed=house.seed + side.direction,
    )  # fmt: skip


def _roof(house: House, atlas: Atlas) -> list[Quads]:
    """A slope up from the street with its two gable ends, or a gable towards the street; flat roofs are not seen."""
    style = house.style
    if not style.pitch:
        return []
    corner, u, normal = _side(house, house.front)
    width = float(np.linalg.norm(u))
    eaves = corner + house.height_m * UP
    tile = atlas.names["tiles" if style.pitch < 1 else "slate"]
    colours = np.stack([linear(house.colours[3])] * 3)
    along = u / width
    if house.gable:
        rise = style.pitch * width / 2
        back = -normal * DEPTH_M
        gable = make_quad(
            eaves, u, rise * UP, _colours(house), lean=(0.5, 0.5), **BLANK,
            floor=style.floor, brick=style.brick, band=style.band, seed=house.seed,
        )  # fmt: skip
        half = u / 2 + rise * UP
        over = 0.3 * normal
        slope = float(np.linalg.norm(half))
        left = make_quad(eaves + back, -back + over, half, colours, bays=tile, ground=DEPTH_M / 2, floor=slope / 2)
        right = make_quad(
            eaves + u + over, back - over, rise * UP - u / 2, colours, bays=tile, ground=DEPTH_M / 2, floor=slope / 2
        )
        return [gable, left, right]
    run = min(DEPTH_M / 2, 3.2 / style.pitch if style.pitch > 1 else DEPTH_M / 2)
    rise = style.pitch * run
    up = rise * UP - run * normal
    length = float(np.linalg.norm(up))
    over = 0.25 * up / length
    front = make_quad(
        eaves - over, u, up + over, colours, bays=tile, ground=round(width / 2), floor=max(1, round(length / 2))
    )
    ends = [
        make_quad(
            corner_end,
            run * direction,
            rise * UP,
            _colours(house),
            lean=lean,
            **BLANK,
            floor=3.0,
            brick=style.brick,
            seed=house.seed,
        )  # fmt: skip
        for corner_end, direction, lean in (
            (eaves - run * normal, normal, (0.0, 1.0)),
            (eaves + u, -normal, (1.0, 0.0)),
        )
    ]
    dormers = [_dormer(house, eaves, along * (at + 0.5) * width / count, normal) for count in (
        max(1, round(width / 4.5)),) for at in range(count)] if style.pitch > 1 else []  # fmt: skip
    return [front, *ends, *dormers]


def _dormer(house: House, eaves: Floats, offset: Floats, normal: Floats) -> Quads:
    """A window that stands out of a steep roof."""
    along = offset / np.linalg.norm(offset)
    style = house.style
    return make_quad(
        eaves + offset - 0.65 * along - 0.35 * normal + 0.3 * UP, 1.3 * along, 1.9 * UP, _colours(house),
        kind=FACADE, bays=1, ground=house.height_m + 0.3, floor=1.9, floors=1, window=0.42, sill=0.3, head=1.65, panes_u=2, panes_v=2,
        surround=style.surround, arch=0.3, seed=house.seed + 7,
    )  # fmt: skip


def _cornice(house: House, side: Side, atlas: Atlas) -> list[Quads]:
    """A moulding that stands out under the roof, and its underside."""
    corner, u, normal = _side(house, side.direction)
    size = house.style.cornice
    out = 0.15 + 0.5 * size
    base = corner + (house.height_m - size) * UP
    width = float(np.linalg.norm(u))
    colours = np.stack([linear(house.colours[1])] * 3)
    page = atlas.names["cornice" if size > 0.3 else "plain"]
    return [
        make_quad(base + out * normal, u, size * UP, colours, bays=page, ground=max(1, round(width / 1.2)), floor=1),
        make_quad(base, u, out * normal, 0.7 * colours, bays=atlas.names["plain"]),
    ]


def _shop(rng: np.random.Generator, house: House, side: Side, atlas: Atlas) -> list[Quads]:
    """Signs over the shop windows, now and then an awning and a sign that hangs over the pavement."""
    corner, u, normal = _side(house, side.direction)
    width = float(np.linalg.norm(u))
    units = max(1, round(width / float(rng.uniform(5.0, 9.0))))
    quads: list[Quads] = []
    for unit in range(units):
        start, end = width * unit / units + 0.2, width * (unit + 1) / units - 0.2
        along = u / width
        colours = _sign_colours(rng)
        word = atlas.names[f"word {int(rng.integers(WORDS))}"]
        board = min(end - start, float(rng.uniform(2.8, 6.0)))
        left = corner + along * (start + end - board) / 2 + 0.12 * normal
        base = left + (house.ground_m - 0.98) * UP
        full = corner + along * start + 0.08 * normal + (house.ground_m - 1.05) * UP
        plain = atlas.names["plain"]
        quads.append(make_quad(full, (end - start) * along, 0.84 * UP, colours, bays=plain, floors=0.1))
        glow = float(rng.choice([0.2, 0.6, 1.0]))
        quads.append(make_quad(base, board * along, 0.7 * UP, colours, bays=word, ground=1, floor=1, floors=glow))
        if rng.random() < 0.3:
            quads += _awning(full, (end - start) * along, 1.1 * normal - 0.5 * UP, colours[[0, 2, 1]], atlas)
        if rng.random() < 0.4:
            size = float(rng.uniform(0.7, 1.1))
            root = corner + along * (start + 0.3) + 0.15 * normal + (house.ground_m + 0.1) * UP
            page = atlas.names[f"poster {int(rng.integers(POSTERS))}"]
            look = _sign_colours(rng)
            quads.append(make_quad(root, size * normal, size * UP, look, bays=page, floors=glow))
            quads.append(make_quad(root + size * normal, -size * normal, size * UP, look, bays=page, floors=glow))
    return quads


def _awning(top: Floats, along: Floats, slope: Floats, colours: Floats, atlas: Atlas) -> list[Quads]:
    """Striped cloth over a shop window: its upper side, its underside and the strip that hangs down in front."""
    look = {"bays": atlas.names["stripes"], "ground": round(float(np.linalg.norm(along)) * 1.2), "floor": 1.0}
    return [
        make_quad(top + slope, along, -slope, colours, **look),
        make_quad(top, along, slope, 0.5 * colours, **look),
        make_quad(top + slope - 0.25 * UP, along, 0.25 * UP, 0.9 * colours, **look),
    ]


def _mural(rng: np.random.Generator, house: House, atlas: Atlas) -> list[Quads]:
    """A painting on a blank wall, or a poster beside the door."""
    blank = [s for s in house.sides if not s.facade and house.height_m - s.above_m > 4]
    page = atlas.names[f"poster {int(rng.integers(POSTERS))}"]
    if blank:
        corner, u, normal = _side(house, blank[0].direction)
        low, width = max(2.0, blank[0].above_m + 0.5), float(np.linalg.norm(u))
        at = corner + 0.15 * u + 0.05 * normal + low * UP
        return [
            make_quad(at, 0.6 * u, min(0.6 * width, house.height_m - low - 0.5) * UP, _sign_colours(rng), bays=page)
        ]
    corner, u, normal = _side(house, house.front)
    at = corner + 0.04 * u + 0.06 * normal + 0.9 * UP
    return [make_quad(at, 0.9 * u / np.linalg.norm(u), 1.3 * UP, _sign_colours(rng), bays=page)]


def _sign_colours(rng: np.random.Generator) -> Floats:
    """Three colours, the second readable on the first."""
    while True:
        look = np.stack([linear(str(c)) for c in rng.choice(SIGN_COLOURS, 3, replace=False)])
        if abs(look[0].mean() ** 0.45 - look[1].mean() ** 0.45) > 0.3:
            return look
