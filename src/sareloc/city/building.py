"""The quads of houses: walls, roofs, dormers and cornices, and what distinguishes houses: signs, awnings, murals."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from sareloc.arrays import Floats
from sareloc.city.atlas import Atlas
from sareloc.city.geometry import FACADE, Quads, join, make_quad
from sareloc.city.lettering import FACES, SCRIPTS, make_word, pack
from sareloc.city.plan import DEPTH_M, UP, House, Side, side_frame
from sareloc.city.styles import SIGN_COLOURS, linear, make_habits, shift_colour, weather_surface
from sareloc.city.textures import POSTERS

BLANK: dict[str, float] = {
    "kind": FACADE,
    "bays": 1,
    "ground": -9.0,
    "floors": -9,
    "floor": 3.0,
    "window": 0.5,
    "sill": 0.8,
    "head": 2.0,
    "rail": 0.1,
}
"""A wall without windows."""
MURALS, GRAFFITI = 0.12, 0.15
"""The fraction of houses with a mural or a poster, and of fronts without shops that are painted on."""


def make_shop(rng: np.random.Generator, house: House, side: Side, atlas: Atlas) -> list[Quads]:
    """Signs over the shop windows of one side, each with its own word; some with an awning and a projecting sign."""
    corner, u, normal = side_frame(house, side.direction)
    width = float(np.linalg.norm(u))
    along = u / width
    units = max(1, round(width / float(rng.uniform(4.5, 9.5))))
    edges = (
        np.concatenate([[0.0], np.sort((np.arange(1, units) + rng.uniform(-0.2, 0.2, units - 1)) / units), [1.0]])
        * width
    )
    quads: list[Quads] = []
    for start, end in zip(edges[:-1] + 0.15, edges[1:] - 0.15, strict=True):
        colours, glow = _sign_colours(rng), float(rng.choice([0.2, 0.6, 1.0]))
        high = float(rng.uniform(0.55, 0.95))
        strip = corner + along * start + 0.08 * normal + (house.ground_m - float(rng.uniform(0.95, 1.1))) * UP
        back = colours if rng.random() < 0.6 else _sign_colours(rng)
        quads.append(
            make_quad(strip, (end - start) * along, high * UP, back, page=atlas.names["plain"], glow=0.1, **_age(rng))
        )
        text = pack(rng, make_word(rng))
        size = high * float(rng.uniform(0.7, 1.0))
        board = min(end - start, size * text["letters"] * float(rng.uniform(0.45, 0.95)))
        slack = end - start - board
        left = strip + along * (slack * float(rng.choice([0.5, rng.random()]))) + 0.04 * normal
        left = left + float(rng.uniform(0, high - size)) * UP
        quads.append(
            make_quad(left, board * along, size * UP, colours, page=_face(rng, atlas), glow=glow, **text, **_age(rng))
        )
        if rng.random() < 0.3:
            slope = float(rng.uniform(0.7, 1.4)) * normal - float(rng.uniform(0.3, 0.7)) * UP
            quads += _awning(rng, strip, (end - start) * along, slope, colours[[0, 2, 1]], atlas)
        if rng.random() < 0.4:
            tall, out = float(rng.uniform(0.6, 1.1)), float(rng.uniform(0.6, 1.2))
            at = corner + along * float(rng.uniform(start + 0.2, end - 0.2))
            root = at + 0.15 * normal + (house.ground_m + float(rng.uniform(-0.1, 0.6))) * UP
            look = {"page": atlas.names[f"poster {int(rng.integers(POSTERS))}"], **_age(rng)}
            if rng.random() < 0.6:
                look = {"page": _face(rng, atlas), **pack(rng, make_word(rng)[:5]), **_age(rng)}
            shown = _sign_colours(rng)
            quads += [
                make_quad(root, out * normal, tall * UP, shown, glow=glow, **look),
                make_quad(root + out * normal, -out * normal, tall * UP, shown, glow=glow, **look),
            ]
    return quads


def _face(rng: np.random.Generator, atlas: Atlas, *, script: float = 0.15) -> int:
    """The page of a sign's letters."""
    written = rng.random() < script
    number = len(FACES) + int(rng.integers(SCRIPTS)) if written else int(rng.integers(len(FACES)))
    return atlas.names[f"face {number}"]


def _age(rng: np.random.Generator) -> dict[str, float]:
    """How a panel has weathered: its own part of the noise."""
    return {
        "worn": float(rng.uniform(0.1, 0.7)), "stain_u": float(rng.random()), "stain_v": float(rng.random()),
        "stain_m": float(rng.uniform(3.0, 9.0)),
    }  # fmt: skip


def make_graffiti(rng: np.random.Generator, house: House, side: Side, atlas: Atlas) -> list[Quads]:
    """Painted letters low on a wall, on a ground that was painted over before."""
    corner, u, normal = side_frame(house, side.direction)
    width = float(np.linalg.norm(u))
    quads = []
    for _ in range(int(rng.integers(1, 4))):
        size = float(rng.uniform(0.5, 1.5))
        text = pack(rng, make_word(rng)[:7])
        long = min(size * text["letters"] * float(rng.uniform(0.35, 0.7)), 0.6 * width)
        at = corner + u / width * float(rng.uniform(0.05, 0.95) * (width - long))
        at = at + float(rng.uniform(0.03, 0.06)) * normal + float(rng.uniform(0.3, 1.6)) * UP
        colours = _sign_colours(rng)
        colours[0] = linear(shift_colour(rng, house.colours[0], 0.15))
        look = {**text, **_age(rng)}
        quads.append(make_quad(at, long * u / width, size * UP, colours, page=_face(rng, atlas, script=0.8), **look))
    return quads


def make_mural(rng: np.random.Generator, house: House, atlas: Atlas) -> Quads:
    """A mural on a visible blank wall, or else a poster on the front."""
    age = _age(rng)
    page, look = atlas.names[f"poster {int(rng.integers(POSTERS))}"], _sign_colours(rng)
    blank = [s for s in house.sides if not s.facade and house.height_m - s.above_m > 4]
    if not blank:
        corner, u, normal = side_frame(house, house.front)
        at = corner + 0.04 * u + 0.06 * normal + 0.9 * UP
        return make_quad(at, 0.9 * u / np.linalg.norm(u), 1.3 * UP, look, page=page, **age)
    corner, u, normal = side_frame(house, blank[0].direction)
    low, width = max(2.0, blank[0].above_m + 0.5), float(np.linalg.norm(u))
    at = corner + 0.15 * u + 0.05 * normal + low * UP
    return make_quad(at, 0.6 * u, min(0.6 * width, house.height_m - low - 0.5) * UP, look, page=page, **age)


def _awning(
    rng: np.random.Generator, top: Floats, along: Floats, slope: Floats, colours: Floats, atlas: Atlas
) -> list[Quads]:
    """A striped or plain awning over a shop window: upper side, underside and front strip."""
    plain = rng.random() < 0.4
    page = atlas.names["plain" if plain else "stripes"]
    look = {
        "page": page,
        "repeat_u": max(1, round(float(np.linalg.norm(along)) * float(rng.uniform(0.6, 2.4)))),
        **_age(rng),
    }
    hem = float(rng.uniform(0.12, 0.35)) * UP
    return [
        make_quad(top + slope, along, -slope, colours, **look),
        make_quad(top, along, slope, 0.5 * colours, **look),
        make_quad(top + slope - hem, along, hem, 0.9 * colours, **look),
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
    style, front = house.style, house.sides[0]
    width = float(np.linalg.norm(side_frame(house, front.direction)[1]))
    surface = asdict(weather_surface(rng, style.brick, style.ashlar, width))
    habits = asdict(make_habits(rng, style))
    quads = [_wall(rng, house, side, surface | {"seed": house.seed + side.direction}, habits) for side in house.sides]
    quads += _roof(rng, house, surface | {"seed": house.seed, "pipe": -9.0, "cable": -9.0}, atlas)
    for side in house.sides:
        if side.facade:
            quads += _cornice(rng, house, side, atlas)
            if house.shop:
                quads += make_shop(rng, house, side, atlas)
        if rng.random() < (GRAFFITI if side.facade else 3 * GRAFFITI) and side.above_m < 1 and not house.shop:
            quads += make_graffiti(rng, house, side, atlas)
    if rng.random() < MURALS:
        quads.append(make_mural(rng, house, atlas))
    return quads


def _colours(house: House) -> Floats:
    return np.stack([linear(c) for c in house.colours[:3]])


def _wall(
    rng: np.random.Generator, house: House, side: Side, surface: dict[str, float], habits: dict[str, float]
) -> Quads:
    corner, u, _ = side_frame(house, side.direction)
    style, width, low = house.style, float(np.linalg.norm(u)), side.above_m
    up = (house.height_m - low) * UP
    # each side has its own part of the noise
    surface = surface | {"stain_u": float(rng.random()), "stain_v": float(rng.random())}
    if not side.facade:
        # Party walls are of brick more often than facades.
        brick = max(surface["masonry"], 0.7 * (house.seed % 2))
        look = BLANK | surface | {"masonry": brick, "pipe": -9.0, "cable": -9.0}
        return make_quad(corner + low * UP, u, up, _colours(house), **look)
    bays = max(1, round(width / style.bay))
    return make_quad(
        corner + low * UP, u, up, _colours(house), kind=FACADE, bays=bays, ground=house.ground_m, floor=style.floor,
        floors=house.floors - 1, window=style.window, sill=style.sill, head=style.head, arch=style.arch,
        panes_u=style.panes[0], panes_v=style.panes[1], surround=style.surround, shutter=style.shutter,
        band=style.band, pilaster=style.pilaster, balcony=style.balcony,
        street_floor=2 if house.shop else 1, cells=max(1, round(width / 4.2)) if house.shop else bays,
        **surface, **habits,
    )  # fmt: skip


def _roof(rng: np.random.Generator, house: House, surface: dict[str, float], atlas: Atlas) -> list[Quads]:
    """A tiled roof that slopes up from the street, or with a gable on the street; flat roofs are not visible."""
    if not house.style.pitch:
        return []
    tiles = atlas.names["tiles" if house.style.pitch < 1 else "slate"]
    return _gable(rng, house, surface, tiles) if house.gable else _slope(rng, house, surface, tiles)


def _tiled(rng: np.random.Generator, corner: Floats, u: Floats, v: Floats, house: House, page: int) -> Quads:
    colours = np.stack([linear(house.colours[3])] * 3)
    tile = float(rng.uniform(1.5, 2.6))
    repeat = [max(1, round(float(np.linalg.norm(edge)) / tile)) for edge in (u, v)]
    return make_quad(corner, u, v, colours, page=page, repeat_u=repeat[0], repeat_v=repeat[1], **_age(rng))


def _gable(rng: np.random.Generator, house: House, surface: dict[str, float], page: int) -> list[Quads]:
    corner, u, normal = side_frame(house, house.front)
    style, eaves = house.style, corner + house.height_m * UP
    rise = style.pitch * float(np.linalg.norm(u)) / 2 * UP
    look = BLANK | surface | {"band": style.band, "floor": style.floor}
    depth, over = DEPTH_M * normal, 0.3 * normal
    return [
        make_quad(eaves, u, rise, _colours(house), (0.5, 0.5), **look),
        _tiled(rng, eaves - depth, depth + over, rise + u / 2, house, page),
        _tiled(rng, eaves + u + over, -depth - over, rise - u / 2, house, page),
    ]


def _slope(rng: np.random.Generator, house: House, surface: dict[str, float], page: int) -> list[Quads]:
    """One slope with two triangular ends; a steep one has dormers."""
    corner, u, normal = side_frame(house, house.front)
    style, eaves = house.style, corner + house.height_m * UP
    steep = style.pitch > 1
    run = 3.2 / style.pitch if steep else DEPTH_M / 2
    rise, back = style.pitch * run * UP, -run * normal
    over = 0.06 * (rise + back)
    look = BLANK | surface
    quads = [
        _tiled(rng, eaves - over, u, rise + back + over, house, page),
        make_quad(eaves + back, -back, rise, _colours(house), (0.0, 1.0), **look),
        make_quad(eaves + u, back, rise, _colours(house), (1.0, 0.0), **look),
    ]
    count = max(1, round(float(np.linalg.norm(u)) / 4.5)) if steep else 0
    return quads + [
        _dormer(
            house,
            surface | {"rail": 0.1, "frame": 0.04, "cloth": 0.5, "jitter": 0.05},
            eaves + u * (i + 0.5) / count,
            u / np.linalg.norm(u),
            normal,
        )
        for i in range(count)
    ]


def _dormer(house: House, surface: dict[str, float], at: Floats, along: Floats, normal: Floats) -> Quads:
    """A dormer window in a steep roof."""
    return make_quad(
        at - 0.65 * along - 0.35 * normal + 0.3 * UP, 1.3 * along, 1.9 * UP, _colours(house), kind=FACADE, bays=1,
        ground=house.height_m + 0.3, floor=1.9, floors=1, window=0.42, sill=0.3, head=1.65, panes_u=2, panes_v=2,
        surround=house.style.surround, arch=0.3,
        **(surface | {"seed": house.seed + 7 + round(float(at.sum()))}),
    )  # fmt: skip


def _cornice(rng: np.random.Generator, house: House, side: Side, atlas: Atlas) -> list[Quads]:
    """A cornice under the roof, and its underside."""
    corner, u, normal = side_frame(house, side.direction)
    size = house.style.cornice
    base, out = corner + (house.height_m - size) * UP, (0.15 + 0.5 * size) * normal
    colours = np.stack([linear(house.colours[1])] * 3)
    page = atlas.names["cornice" if size > 0.3 else "plain"]
    repeat = max(1, round(float(np.linalg.norm(u)) / float(rng.uniform(0.8, 2.2))))
    return [
        make_quad(base + out, u, size * UP, colours, page=page, repeat_u=repeat, **_age(rng)),
        make_quad(base, u, out, 0.7 * colours, page=atlas.names["plain"]),
    ]
