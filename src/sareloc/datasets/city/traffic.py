"""Cars and people: the part of a town that is different at every visit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sareloc.datasets.city.atlas import Atlas
from sareloc.datasets.city.furnish import Kerb, Sprites, join_sprites, make_sprite
from sareloc.datasets.city.quads import Quads, join, make_quad
from sareloc.datasets.city.sprites import PEOPLE
from sareloc.datasets.city.styles import CAR_COLOURS, CLOTHES, linear

Floats = npt.NDArray[np.float64]
QUADS_PER_CAR = 10


def make_traffic(
    rng: np.random.Generator, kerbs: list[Kerb], cars: float, people: float, atlas: Atlas
) -> tuple[Quads, Floats, Sprites]:
    """The cars of a visit as flat pieces, each piece's car centre (N, 2), and the people as sprites.

    `cars` and `people` are the shares of places along the kerbs that are taken.
    """
    pieces: list[Quads] = []
    centres: list[tuple[float, float]] = []
    walkers: list[Sprites] = []
    for kerb in kerbs:
        heading = kerb.along if kerb.out[0] * kerb.along[1] - kerb.out[1] * kerb.along[0] > 0 else -kerb.along
        for s in np.arange(5.0, kerb.length - 5.0, 6.0):
            parked = rng.random() < cars and kerb.road >= 3.7
            moving = rng.random() < 0.1 * cars
            for taken, beyond in ((parked, -1.05), (moving, -1.05 - 0.5 * kerb.road)):
                if taken:
                    centre = kerb.at(float(s + rng.uniform(-0.4, 0.4)), beyond + rng.uniform(-0.1, 0.1))
                    pieces += _car(rng, centre, heading, atlas)
                    centres += [centre] * QUADS_PER_CAR
            if rng.random() < people:
                foot = kerb.at(float(s + rng.uniform(-3, 3)), float(rng.uniform(0.5, max(0.8, kerb.pave - 0.6))))
                walkers.append(_person(rng, foot, atlas))
    hidden = (-1e4, -1e4)
    pieces = pieces or _car(rng, hidden, np.array([1.0, 0.0]), atlas)
    centres = centres or [hidden] * QUADS_PER_CAR
    return join(pieces), np.array(centres), join_sprites(walkers or [_person(rng, hidden, atlas)])


def _person(rng: np.random.Generator, foot: tuple[float, float], atlas: Atlas) -> Sprites:
    height = float(rng.uniform(1.55, 1.9))
    coat, trousers = (linear(str(c)) for c in rng.choice(CLOTHES, 2))
    skin = linear(str(rng.choice(["e0b79a", "c68f6c", "8a5a3c", "5b3a28"])))
    page = atlas.names[f"person {int(rng.integers(PEOPLE))}"]
    width = height / 2 * (1 if rng.random() < 0.5 else -1)
    return make_sprite(foot, (width, height), page, [skin, coat, trousers])


def _car(rng: np.random.Generator, centre: tuple[float, float], heading: Floats, atlas: Atlas) -> list[Quads]:
    """A body and a cabin, ten pieces in all; a van is a tall body with a flat cabin."""
    van = rng.random() < 0.14
    length, width = (5.4, 2.0) if van else (float(rng.uniform(3.8, 4.7)), 1.78)
    low, waist, top = 0.14, (2.2 if van else 0.86), (2.3 if van else float(rng.uniform(1.4, 1.6)))
    paint = linear(str(rng.choice(CAR_COLOURS)))
    colours = np.stack([paint, linear("15161a"), linear("b9bcc0")])
    front = np.array([*heading, 0.0])
    right = np.array([heading[1], -heading[0], 0.0])
    middle = np.array([*centre, 0.0])
    body = _box(middle, front * length, right * width, low, waist, inset=(0.0, 0.0, 0.0))
    back, nose, side = (0.02, 0.02, 0.02) if van else (0.12 * length, 0.26 * length, 0.16)
    shift = 0.0 if van else -0.06 * length
    cabin = _box(middle + front * shift, front * length * 0.92 if not van else front * length, right * width,
                 waist - 0.05, top, inset=(back, nose, side))  # fmt: skip
    name = atlas.names
    body_pages = [name["van side" if van else "car side"]] * 2 + [name["car end"]] * 2 + [name["plain"]]
    cabin_pages = [name["cabin side"]] * 2 + [name["windscreen"]] * 2 + [name["plain"]]
    return [
        make_quad(*geometry, colours, lean, page=page)
        for (geometry, lean), page in zip(body + cabin, body_pages + cabin_pages, strict=True)
    ]


def _box(
    middle: Floats, length: Floats, width: Floats, low: float, high: float, *, inset: tuple[float, float, float]
) -> list[tuple[tuple[Floats, Floats, Floats], tuple[float, float]]]:
    """Left, right, front, back and top of a box whose upper edge is drawn in at the back, the nose and both sides."""
    up = np.array([0.0, 0.0, high - low])
    base = middle + np.array([0.0, 0.0, low])
    ahead, across = length / np.linalg.norm(length), width / np.linalg.norm(width)
    back, nose, side = inset
    long, wide = float(np.linalg.norm(length)), float(np.linalg.norm(width))
    rear_left, rear_right = base - length / 2 - width / 2, base - length / 2 + width / 2
    front_left, front_right = base + length / 2 - width / 2, base + length / 2 + width / 2
    ends = (side / wide, side / wide)
    top = rear_left + up + back * ahead + side * across
    return [
        ((front_left, -length, up + side * across), (nose / long, back / long)),
        ((rear_right, length, up - side * across), (back / long, nose / long)),
        ((front_right, -width, up - nose * ahead), ends),
        ((rear_left, width, up + back * ahead), ends),
        ((top, width - 2 * side * across, length - (back + nose) * ahead), (0.0, 0.0)),
    ]
