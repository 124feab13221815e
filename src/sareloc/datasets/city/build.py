"""From houses to the flat pieces they are drawn with: walls, roofs, dormers, cornices."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sareloc.datasets.city.atlas import Atlas
from sareloc.datasets.city.houses import DEPTH_M, UP, House, Side, side_frame
from sareloc.datasets.city.quads import FACADE, Quads, join, make_quad
from sareloc.datasets.city.shops import make_mural, make_shop
from sareloc.datasets.city.styles import linear

Floats = npt.NDArray[np.float64]
BLANK = {"kind": FACADE, "bays": 1, "ground": -9.0, "floors": -9, "floor": 3.0, "window": 0.5, "sill": 0.8, "head": 2.0}
"""A wall without windows."""
MURALS = 0.12
"""The share of houses with a painting or a poster."""


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
        # Party walls are of brick more often than what they carry.
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
    """Tiles that slope up from the street or from a gable towards it; flat roofs are not seen from below."""
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
    """One slope with its two triangular ends; a steep one is low and has dormers."""
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
    """A window that stands out of a steep roof."""
    return make_quad(
        at - 0.65 * along - 0.35 * normal + 0.3 * UP, 1.3 * along, 1.9 * UP, _colours(house), kind=FACADE, bays=1,
        ground=house.height_m + 0.3, floor=1.9, floors=1, window=0.42, sill=0.3, head=1.65, panes_u=2, panes_v=2,
        surround=house.style.surround, arch=0.3, seed=house.seed + 7,
    )  # fmt: skip


def _cornice(house: House, side: Side, atlas: Atlas) -> list[Quads]:
    """A moulding that stands out under the roof, and its underside."""
    corner, u, normal = side_frame(house, side.direction)
    size = house.style.cornice
    base, out = corner + (house.height_m - size) * UP, (0.15 + 0.5 * size) * normal
    colours = np.stack([linear(house.colours[1])] * 3)
    page, repeat = atlas.names["cornice" if size > 0.3 else "plain"], max(1, round(float(np.linalg.norm(u)) / 1.2))
    return [
        make_quad(base + out, u, size * UP, colours, page=page, repeat_u=repeat),
        make_quad(base, u, out, 0.7 * colours, page=atlas.names["plain"]),
    ]
