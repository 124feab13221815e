"""Street furniture (trees, lamps, signs, benches), which is static, and traffic (cars, people) of each visit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sareloc.arrays import Floats
from sareloc.city.atlas import Atlas
from sareloc.city.geometry import NOWHERE, Quads, Sprites, join, make_quad, make_sprite
from sareloc.city.plan import PARK, PLAZA, Streets
from sareloc.city.sprites import PEOPLE, TREES
from sareloc.city.styles import CAR_COLOURS, CLOTHES, SIGN_COLOURS, linear, shift_colour
from sareloc.city.textures import CARS

QUADS_PER_CAR = 10


@dataclass(frozen=True, eq=False)
class Kerb:
    """The kerb on one side of a street between two junctions."""

    start: Floats
    along: Floats
    out: Floats
    """Unit vectors along the street and from its centre line towards the houses."""
    length: float
    road: float
    pave: float

    def at(self, s: float, beyond_kerb: float) -> tuple[float, float]:
        """The point `s` metres along the kerb and `beyond_kerb` metres behind it (negative: on the road)."""
        p = self.start + s * self.along + (self.road + beyond_kerb) * self.out
        return float(p[0]), float(p[1])


def make_kerbs(streets: Streets) -> list[Kerb]:
    """The kerbs of all streets, without the junctions."""
    kerbs: list[Kerb] = []
    rows = len(streets.long_y) - 1
    for j, y in enumerate(streets.long_y):
        for side, row in ((-1, j - 1), (1, j)):
            nearest = min(max(row, 0), rows - 1)
            x, edge = streets.cross_x[nearest], streets.cross_road[nearest] + 2.0
            if not 0 <= row < rows:
                x, edge = x[[0, -1]], edge[[0, -1]]
            kerbs += [
                Kerb(np.array([x[i] + edge[i], y]), np.array([1.0, 0.0]), np.array([0.0, side]),
                     float(x[i + 1] - edge[i + 1] - x[i] - edge[i]), float(streets.long_road[j]),
                     float(streets.long_pave[j]))
                for i in range(len(x) - 1)
            ]  # fmt: skip
    for r in range(rows):
        low = streets.long_y[r] + streets.long_road[r] + 2.0
        high = streets.long_y[r + 1] - streets.long_road[r + 1] - 2.0
        for i, x0 in enumerate(streets.cross_x[r]):
            kerbs += [
                Kerb(np.array([x0, low]), np.array([0.0, 1.0]), np.array([side, 0.0]), float(high - low),
                     float(streets.cross_road[r, i]), float(streets.cross_pave[r, i]))
                for side in (-1.0, 1.0)
            ]  # fmt: skip
    return kerbs


def furnish(rng: np.random.Generator, streets: Streets, kerbs: list[Kerb], atlas: Atlas) -> tuple[Sprites, Floats]:
    """The street furniture, and the positions of the lamps (L, 2)."""
    parts: list[Sprites] = []
    lamps: list[tuple[float, float]] = []
    iron = linear(str(rng.choice(["2b3035", "3d4a3f", "55595c"])))
    for n, kerb in enumerate(kerbs):
        for s in np.arange(6.0 + 9.0 * (n % 2), kerb.length, 21.0):
            foot = kerb.at(float(s), 0.45)
            lamps.append(foot)
            parts.append(
                make_sprite(foot, (1.9, 6.6), atlas.names["lamp"], [iron, np.array([1.0, 0.72, 0.38]), iron], glow=6.0)
            )
        if kerb.pave >= 3.4:
            parts += [
                _tree(rng, kerb.at(float(s) + rng.uniform(-0.8, 0.8), 0.9), atlas)
                for s in np.arange(3.0, kerb.length, 9.0)
                if rng.random() < 0.85
            ]
        parts += _litter(rng, kerb, iron, atlas)
    for row, column in np.argwhere(streets.block_kind != 0):
        parts += _open_block(rng, streets.block(row, column), int(streets.block_kind[row, column]), atlas)
    return join(parts), np.array(lamps)


def _tree(rng: np.random.Generator, foot: tuple[float, float], atlas: Atlas) -> Sprites:
    kind = int(rng.integers(TREES))
    height = float(rng.uniform(4.5, 10.5))
    width = height * float(rng.uniform(0.6, 1.15)) * (1 if rng.random() < 0.5 else -1)
    bark = linear("4a3f35") * rng.uniform(0.6, 1.5)
    leaves = np.array([rng.uniform(0.7, 1.2), 1.0, rng.uniform(0.6, 1.2)]) * rng.uniform(0.65, 1.3)
    return make_sprite(
        foot, (width, height), atlas.names[f"tree {kind}"], [bark, leaves, bark],
        bare=atlas.names[f"bare {kind}"], leafy=True, seed=float(rng.random()),
    )  # fmt: skip


def _litter(rng: np.random.Generator, kerb: Kerb, iron: Floats, atlas: Atlas) -> list[Sprites]:
    """Signs, bins, bollards, benches, bicycles: one every dozen metres."""
    parts = []
    red, white, blue, wood = (linear(c) for c in ("b3191f", "f2f2ee", "1f4e9c", "7a5a38"))
    bright = [linear(str(c)) for c in rng.choice(SIGN_COLOURS, 2)]
    things = {
        "traffic light": ((0.55, 3.2), [iron, red, blue], 3.0),
        "round sign": ((0.75, 2.9), [iron, red, white] if rng.random() < 0.5 else [iron, blue, white], 0.0),
        "bin": ((0.6, 1.0), [iron, bright[0], iron], 0.0),
        "bollard": ((0.4, 0.95), [iron, white, iron], 0.0),
        "bench": ((1.7, 0.85), [iron, wood, wood], 0.0),
        "bike": ((1.75, 1.0), [iron, bright[1], iron], 0.0),
        "column": ((1.4, 3.3), [linear("3c5a46"), *bright], 0.3),
    }
    chances = [0.0, 0.3, 0.15, 0.2, 0.12, 0.18, 0.05]
    for s in np.arange(2.0, kerb.length - 2.0, 11.0):
        name = str(rng.choice(list(things), p=chances))
        if name == "column" and kerb.pave < 2.5:
            name = "bollard"
        size, colours, glow = things[name]
        parts.append(
            make_sprite(kerb.at(float(s + rng.uniform(0, 8)), 0.6), size, atlas.names[name], colours, glow=glow)
        )
    if kerb.road >= 5 and kerb.length > 10:
        size, colours, glow = things["traffic light"]
        parts.append(make_sprite(kerb.at(-0.6, 0.4), size, atlas.names["traffic light"], colours, glow=glow))
    return parts


def _open_block(
    rng: np.random.Generator, block: tuple[float, float, float, float], kind: int, atlas: Atlas
) -> list[Sprites]:
    x0, y0, x1, y1 = block
    step = {PARK: 7.5, PLAZA: 14.0}[kind]
    parts = [
        _tree(rng, (x + rng.uniform(-1.5, 1.5), y + rng.uniform(-1.5, 1.5)), atlas)
        for x in np.arange(x0 + 3, x1 - 2, step)
        for y in np.arange(y0 + 3, y1 - 2, step)
        if rng.random() < 0.75
    ]
    if kind == PARK:
        green = [linear("4a3f35"), np.array([0.7, 0.9, 0.7]), linear("4a3f35")]
        for y in (y0 + 0.5, y1 - 0.5):
            parts += [
                make_sprite((x, y), (4.2, 1.1), atlas.names["hedge"], green, leafy=True, seed=float(rng.random()))
                for x in np.arange(x0 + 3, x1 - 3, 4.0)
            ]
    return parts


def make_traffic(
    rng: np.random.Generator, kerbs: list[Kerb], cars: float, people: float, atlas: Atlas
) -> tuple[Quads, Floats, Sprites]:
    """The cars of a visit as quads, the car centre of each quad (N, 2), and the people as sprites.

    `cars` and `people` are the fractions of positions along the kerbs that are occupied.
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
    pieces = pieces or _car(rng, NOWHERE, np.array([1.0, 0.0]), atlas)
    centres = centres or [NOWHERE] * QUADS_PER_CAR
    return join(pieces), np.array(centres), join(walkers or [_person(rng, NOWHERE, atlas)])


def _person(rng: np.random.Generator, foot: tuple[float, float], atlas: Atlas) -> Sprites:
    height = float(rng.uniform(1.55, 1.9))
    coat, trousers = (linear(str(c)) for c in rng.choice(CLOTHES, 2))
    skin = linear(str(rng.choice(["e0b79a", "c68f6c", "8a5a3c", "5b3a28"])))
    page = atlas.names[f"person {int(rng.integers(PEOPLE))}"]
    width = height / 2 * (1 if rng.random() < 0.5 else -1)
    return make_sprite(foot, (width, height), page, [skin, coat, trousers])


def _car(rng: np.random.Generator, centre: tuple[float, float], heading: Floats, atlas: Atlas) -> list[Quads]:
    """A body and a cabin, ten quads in all; a van has a tall body and a flat cabin."""
    van = rng.random() < 0.14
    length, width = (5.4, 2.0) if van else (float(rng.uniform(3.8, 4.7)), 1.78)
    low, waist, top = 0.14, (2.2 if van else 0.86), (2.3 if van else float(rng.uniform(1.4, 1.6)))
    paint = linear(shift_colour(rng, str(rng.choice(CAR_COLOURS)), 0.15))
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
    model = int(rng.integers(CARS))
    body_pages = (
        [name["van side" if van else f"car side {model}"]] * 2 + [name[f"car end {model}"]] * 2 + [name["plain"]]
    )
    cabin_pages = [name["cabin side"]] * 2 + [name["windscreen"]] * 2 + [name["plain"]]
    dirt = {
        "worn": float(rng.uniform(0.0, 0.25)), "stain_u": float(rng.random()), "stain_v": float(rng.random()),
        "stain_m": 4.0,
    }  # fmt: skip
    return [
        make_quad(*geometry, colours, lean, page=page, **dirt)
        for (geometry, lean), page in zip(body + cabin, body_pages + cabin_pages, strict=True)
    ]


def _box(
    middle: Floats, length: Floats, width: Floats, low: float, high: float, *, inset: tuple[float, float, float]
) -> list[tuple[tuple[Floats, Floats, Floats], tuple[float, float]]]:
    """Left, right, front, back and top of a box whose top is inset at the back, the nose and both sides."""
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
