"""What tells a house from its like: shop signs, awnings, signs over the pavement, posters, painted walls."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sareloc.datasets.city.atlas import Atlas
from sareloc.datasets.city.houses import UP, House, Side, side_frame
from sareloc.datasets.city.pages import POSTERS, WORDS
from sareloc.datasets.city.quads import Quads, make_quad
from sareloc.datasets.city.styles import SIGN_COLOURS, linear

Floats = npt.NDArray[np.float64]


def make_shop(rng: np.random.Generator, house: House, side: Side, atlas: Atlas) -> list[Quads]:
    """Signs over the shop windows of one side, now and then an awning and a sign that hangs over the pavement."""
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
    """A painting on a blank wall where the house shows one, else a poster beside its door."""
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
    """Striped cloth over a shop window: its upper side, its underside and the strip that hangs down in front."""
    page, repeat = atlas.names["stripes"], round(float(np.linalg.norm(along)) * 1.2)
    return [
        make_quad(top + slope, along, -slope, colours, page=page, repeat_u=repeat),
        make_quad(top, along, slope, 0.5 * colours, page=page, repeat_u=repeat),
        make_quad(top + slope - 0.25 * UP, along, 0.25 * UP, 0.9 * colours, page=page, repeat_u=repeat),
    ]


def _sign_colours(rng: np.random.Generator) -> Floats:
    """Three colours, the second readable on the first."""
    while True:
        look = np.stack([linear(str(c)) for c in rng.choice(SIGN_COLOURS, 3, replace=False)])
        if abs(look[0].mean() ** 0.45 - look[1].mean() ** 0.45) > 0.3:
            return look
