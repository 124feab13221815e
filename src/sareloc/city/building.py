"""The quads of houses: walls, roofs, dormers and cornices, and what distinguishes houses: signs, awnings, murals."""

from __future__ import annotations

import numpy as np

from sareloc.arrays import Floats
from sareloc.city.atlas import POSTERS, WORDS, Atlas
from sareloc.city.geometry import FACADE, Quads, join, make_quad
from sareloc.city.plan import DEPTH_M, UP, House, Side, side_frame
from sareloc.city.styles import SIGN_COLOURS, linear

BLANK = {"kind": FACADE, "bays": 1, "ground": -9.0, "floors": -9, "floor": 3.0, "window": 0.5, "sill": 0.8, "head": 2.0}
"""A wall without windows."""
MURALS = 0.12
"""The fraction of houses with a mural or a poster."""


def make_shop(rng: np.random.Generator, house: House, side: Side, atlas: Atlas) -> list[Quads]:
    """Signs over the shop windows of one side, with an occasional awning and projecting sign."""
    corner, u, normal = side_frame(house, side.direction)
    width = float(np.linalg.norm(u))
    along = u / width
    units = max(1, round(width / float(rng.uniform(5.0, 9.0))))
    quads: list[Quads] = []
    for unit in range(units):
        start, end = width * unit / units + 0.2, width * (unit + 1) / units - 0.2
        colours, glow = _sign_colours(rng), float(rng.choice([0.2, 0.6, 1.0]))
        strip = corner + along * start + 0.08 * normal + (house.ground_m - 1.05) * UP
        quads.append(make_quad(strip, (end - start) * along, 0.84 * UP, colours, page=atlas.names["plain"], glow=0.1))
        word = atlas.names[f"word {int(rng.integers(WORDS))}"]
        board = min(end - start, float(rng.uniform(2.8, 6.0)))
        left = strip + along * (end - start - board) / 2 + 0.04 * normal + 0.07 * UP
        quads.append(make_quad(left, board * along, 0.7 * UP, colours, page=word, glow=glow))
        if rng.random() < 0.3:
            quads += _awning(strip, (end - start) * along, 1.1 * normal - 0.5 * UP, colours[[0, 2, 1]], atlas)
        if rng.random() < 0.4:
            size = float(rng.uniform(0.7, 1.1))
            root = corner + along * (start + 0.3) + 0.15 * normal + (house.ground_m + 0.1) * UP
            look, page = _sign_colours(rng), atlas.names[f"poster {int(rng.integers(POSTERS))}"]
            quads += [
                make_quad(root, size * normal, size * UP, look, page=page, glow=glow),
                make_quad(root + size * normal, -size * normal, size * UP, look, page=page, glow=glow),
            ]
    return quads


def make_mural(rng: np.random.Generator, house: House, atlas: Atlas) -> Quads:
    """A mural on a visible blank wall, or else a poster on the front."""
    page, look = atlas.names[f"poster {int(rng.integers(POSTERS))}"], _sign_colours(rng)
    blank = [s for s in house.sides if not s.facade and house.height_m - s.above_m > 4]
    if not blank:
        corner, u, normal = side_frame(house, house.front)
        at = corner + 0.04 * u + 0.06 * normal + 0.9 * UP
        return make_quad(at, 0.9 * u / np.linalg.norm(u), 1.3 * UP, look, page=page)
    corner, u, normal = side_frame(house, blank[0].direction)
    low, width = max(2.0, blank[0].above_m + 0.5), float(np.linalg.norm(u))
    at = corner + 0.15 * u + 0.05 * normal + low * UP
    return make_quad(at, 0.6 * u, min(0.6 * width, house.height_m - low - 0.5) * UP, look, page=page)


def _awning(top: Floats, along: Floats, slope: Floats, colours: Floats, atlas: Atlas) -> list[Quads]:
    """A striped awning over a shop window: upper side, underside and front strip."""
    page, repeat = atlas.names["stripes"], round(float(np.linalg.norm(along)) * 1.2)
    return [
        make_quad(top + slope, along, -slope, colours, page=page, repeat_u=repeat),
        make_quad(top, along, slope, 0.5 * colours, page=page, repeat_u=repeat),
        make_quad(top + slope - 0.25 * UP, along, 0.25 * UP, 0.9 * colours, page=page, repeat_u=repeat),
    ]


def _sign_colours(rng: np.random.Generator) -> Floats:
    """Three colours, with contrast between the first and the second."""
    while True:
        look = np.stack([linear(str(c)) for c in rng.choice(SIGN_COLOURS, 3, replace=False)])
        if abs(look[0].mean() ** 0.45 - look[1].mean() ** 0.45) > 0.3:
            return look


def make_house_quads(rng: np.random.Generator, houses: list[House], atlas: Atlas) -> Quads:
    """The quads of all houses, in order."""
    return join([quad for house in houses for quad in _house(rng, house, atlas)])


def _house(rng: np.random.Generator, house: House, atlas: Atlas) -> list[Quads]:
    quads = [_wall(house, side) for side in house.sides]
    quads += _roof(house, atlas)
    for side in house.sides:
        if side.facade:
            quads += _cornice(house, side, atlas)
            if house.shop:
                quads += make_shop(rng, house, side, atlas)
    if rng.random() < MURALS:
        quads.append(make_mural(rng, house, atlas))
    return quads


def _colours(house: House) -> Floats:
    return np.stack([linear(c) for c in house.colours[:3]])


def _wall(house: House, side: Side) -> Quads:
    corner, u, _ = side_frame(house, side.direction)
    style, width, low = house.style, float(np.linalg.norm(u)), side.above_m
    up = (house.height_m - low) * UP
    if not side.facade:
        # Party walls are of brick more often than facades.
        brick = max(style.brick, 0.7 * (house.seed % 2))
        return make_quad(corner + low * UP, u, up, _colours(house), **BLANK, brick=brick, seed=house.seed)
    bays = max(1, round(width / style.bay))
    return make_quad(
        corner + low * UP, u, up, _colours(house), kind=FACADE, bays=bays, ground=house.ground_m, floor=style.floor,
        floors=house.floors - 1, window=style.window, sill=style.sill, head=style.head, arch=style.arch,
        panes_u=style.panes[0], panes_v=style.panes[1], surround=style.surround, shutter=style.shutter,
        band=style.band, pilaster=style.pilaster, brick=style.brick, ashlar=style.ashlar, balcony=style.balcony,
        street_floor=2 if house.shop else 1, cells=max(1, round(width / 4.2)) if house.shop else bays,
        seed=house.seed + side.direction,
    )  # fmt: skip


def _roof(house: House, atlas: Atlas) -> list[Quads]:
    """A tiled roof that slopes up from the street, or with a gable on the street; flat roofs are not visible."""
    if not house.style.pitch:
        return []
    tiles = atlas.names["tiles" if house.style.pitch < 1 else "slate"]
    return _gable(house, tiles) if house.gable else _slope(house, tiles)


def _tiled(corner: Floats, u: Floats, v: Floats, house: House, page: int) -> Quads:
    colours = np.stack([linear(house.colours[3])] * 3)
    repeat = [max(1, round(float(np.linalg.norm(edge)) / 2)) for edge in (u, v)]
    return make_quad(corner, u, v, colours, page=page, repeat_u=repeat[0], repeat_v=repeat[1])


def _gable(house: House, page: int) -> list[Quads]:
    corner, u, normal = side_frame(house, house.front)
    style, eaves = house.style, corner + house.height_m * UP
    rise = style.pitch * float(np.linalg.norm(u)) / 2 * UP
    look = {**BLANK, "brick": style.brick, "band": style.band, "floor": style.floor, "seed": house.seed}
    depth, over = DEPTH_M * normal, 0.3 * normal
    return [
        make_quad(eaves, u, rise, _colours(house), (0.5, 0.5), **look),
        _tiled(eaves - depth, depth + over, rise + u / 2, house, page),
        _tiled(eaves + u + over, -depth - over, rise - u / 2, house, page),
    ]


def _slope(house: House, page: int) -> list[Quads]:
    """One slope with two triangular ends; a steep one has dormers."""
    corner, u, normal = side_frame(house, house.front)
    style, eaves = house.style, corner + house.height_m * UP
    steep = style.pitch > 1
    run = 3.2 / style.pitch if steep else DEPTH_M / 2
    rise, back = style.pitch * run * UP, -run * normal
    over = 0.06 * (rise + back)
    look = {**BLANK, "brick": style.brick, "seed": house.seed}
    quads = [
        _tiled(eaves - over, u, rise + back + over, house, page),
        make_quad(eaves + back, -back, rise, _colours(house), (0.0, 1.0), **look),
        make_quad(eaves + u, back, rise, _colours(house), (1.0, 0.0), **look),
    ]
    count = max(1, round(float(np.linalg.norm(u)) / 4.5)) if steep else 0
    return quads + [_dormer(house, eaves + u * (i + 0.5) / count, u / np.linalg.norm(u), normal) for i in range(count)]


def _dormer(house: House, at: Floats, along: Floats, normal: Floats) -> Quads:
    """A dormer window in a steep roof."""
    return make_quad(
        at - 0.65 * along - 0.35 * normal + 0.3 * UP, 1.3 * along, 1.9 * UP, _colours(house), kind=FACADE, bays=1,
        ground=house.height_m + 0.3, floor=1.9, floors=1, window=0.42, sill=0.3, head=1.65, panes_u=2, panes_v=2,
        surround=house.style.surround, arch=0.3, seed=house.seed + 7,
    )  # fmt: skip


def _cornice(house: House, side: Side, atlas: Atlas) -> list[Quads]:
    """A cornice under the roof, and its underside."""
    corner, u, normal = side_frame(house, side.direction)
    size = house.style.cornice
    base, out = corner + (house.height_m - size) * UP, (0.15 + 0.5 * size) * normal
    colours = np.stack([linear(house.colours[1])] * 3)
    page, repeat = atlas.names["cornice" if size > 0.3 else "plain"], max(1, round(float(np.linalg.norm(u)) / 1.2))
    return [
        make_quad(base + out, u, size * UP, colours, page=page, repeat_u=repeat),
        make_quad(base, u, out, 0.7 * colours, page=atlas.names["plain"]),
    ]
