"""Write the coastline of the page: the land of Natural Earth as small integers.

    python -m research.make_coastline land-110m.json src/sareloc/serve/page/land.json

land-110m.json is a file of npm's package world-atlas (version 2.0.2): Natural Earth 4.1.0, 1:110m, as TopoJSON. The
result is {"units": 100, "rings": [...]}: each ring is the longitude and latitude of its first point in units of 1/100
degree, then the differences between each point and the one before it. Rings are closed; their last point, which is the
first, is left out. A ring inside another one is water. A ring that crosses the antimeridian goes on beyond 180 degrees;
the one around the south pole ends by way of the pole.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from sareloc.files import write_atomically

UNITS = 100
SOUTH_POLE = -90 * UNITS
Point = tuple[int, int]


def rings_of(topology: dict[str, Any]) -> Iterator[list[Point]]:
    """The rings of the polygons of a TopoJSON file, in units."""
    scale, start = topology["transform"]["scale"], topology["transform"]["translate"]

    def points(arc: list[list[int]]) -> list[Point]:
        places = accumulate(arc, lambda at, step: [at[0] + step[0], at[1] + step[1]])
        return [(_unit(start[0] + scale[0] * x), _unit(start[1] + scale[1] * y)) for x, y in places]

    arcs = [points(arc) for arc in topology["arcs"]]
    for geometry in topology["objects"]["land"]["geometries"]:
        for polygon in geometry["arcs"]:
            for ring in polygon:
                yield [point for arc in ring for point in (arcs[arc] if arc >= 0 else arcs[~arc][::-1])[:-1]]


def _unit(degrees: float) -> int:
    return round(UNITS * degrees)


def numbers_of(ring: list[Point]) -> list[int]:
    """The first point and the differences; points that became equal by rounding are left out."""
    kept = [point for at, point in enumerate(ring) if point != ring[at - 1]]
    steps = [(_short(x - before_x), y - before_y) for (before_x, before_y), (x, y) in pairwise([*kept, kept[0]])]
    around = sum(x for x, _ in steps)
    if around:  # to the pole, along it to below the first point; from there the ring closes
        steps += [(0, SOUTH_POLE - kept[0][1]), (-around, 0)]
    else:
        steps.pop()
    columns = list(accumulate((x for x, _ in steps), initial=kept[0][0]))
    worlds = round((min(columns) + max(columns)) / (2 * 360 * UNITS))  # its middle is on the map, as that of its lakes
    return [kept[0][0] - 360 * UNITS * worlds, kept[0][1], *(number for step in steps for number in step)]


def _short(step: int) -> int:
    """A difference of longitudes, the shorter way around."""
    return (step + 180 * UNITS) % (360 * UNITS) - 180 * UNITS


def main(source: str, out: str) -> None:
    rings = [numbers_of(ring) for ring in rings_of(json.loads(Path(source).read_text()))]
    text = json.dumps({"units": UNITS, "rings": rings}, separators=(",", ":"))
    write_atomically(Path(out), f"{text}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
