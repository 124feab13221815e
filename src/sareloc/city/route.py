"""The route of a car through the streets of a town: junctions, lanes, rounded corners, and speed over time.

The car drives on the right, turns at random junctions, prefers streets that it has driven least, brakes for corners and
stops before some of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sareloc.arrays import Floats
from sareloc.city.plan import Streets

LANE = 0.4
"""Distance of the car from the centre line, relative to the half width of the road; as that of the database's car."""
TURN_RADIUS_M = 6.0
STEP_M = 0.1
CORNER_SPEED, SLOWEST_CRUISE, FASTEST_CRUISE = 5.0, 8.0, 15.0  # m/s
ACCELERATION, BRAKING = 2.0, 3.0  # m/s²
STOP_SHARE, STOP_S = 0.35, (1.5, 4.0)
"""Share of the corners before which the car stops, and for how many seconds."""

Point = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Route:
    """Positions on the plan (N, 2) in metres about every STEP_M, the direction of travel, and the times of arrival.

    Between two entries the car moves along a straight line; where it stops, an entry is repeated.
    """

    xy: Floats
    yaw: Floats
    """(N,) radians counter-clockwise from the town's x axis, continuous (not wrapped)."""
    time_s: Floats
    """(N,) seconds since the start, ascending."""

    def at(self, time_s: Floats) -> tuple[Floats, Floats]:
        """Positions (T, 2) and yaws (T,) at these times, which must be within the route."""
        x, y, yaw = (np.interp(time_s, self.time_s, values) for values in (*self.xy.T, self.yaw))
        return np.stack([x, y], axis=1), yaw


def make_route(rng: np.random.Generator, streets: Streets, seconds: float) -> Route:
    """A route of at least `seconds` seconds; it starts at rest."""
    corners = _corners(rng, streets, seconds * FASTEST_CRUISE)
    xy, yaw, corner_at = _rounded(corners)
    time_s, xy, yaw = _timed(rng, xy, yaw, corner_at)
    return Route(xy, yaw, time_s)


def junctions(streets: Streets) -> dict[Point, dict[Point, float]]:
    """The neighbours of every junction (its point on the plan), with the half width of the road between them."""
    found: dict[Point, dict[Point, float]] = {}
    rows = len(streets.long_y) - 1
    for j, y in enumerate(streets.long_y):
        xs = np.unique(np.concatenate([streets.cross_x[row] for row in (j - 1, j) if 0 <= row < rows]))
        points = [(float(x), float(y)) for x in xs]
        for a, b in pairwise(points):
            found.setdefault(a, {})[b] = found.setdefault(b, {})[a] = float(streets.long_road[j])
    for row in range(rows):
        for x, road in zip(streets.cross_x[row], streets.cross_road[row], strict=True):
            a, b = ((float(x), float(streets.long_y[k])) for k in (row, row + 1))
            found[a][b] = found[b][a] = float(road)
    return found


def _corners(rng: np.random.Generator, streets: Streets, wanted_m: float) -> Floats:
    """(C, 2) the points where the lanes meet at which the car turns, at least `wanted_m` metres along; then the end."""
    graph = junctions(streets)
    driven: dict[tuple[Point, Point], int] = {}
    before = sorted(graph)[int(rng.integers(len(graph)))]
    here = sorted(graph[before])[int(rng.integers(len(graph[before])))]
    corners = [_aside(before, before, here, graph[before][here])]
    length = 0.0
    while length < wanted_m:
        driven[before, here] = driven.get((before, here), 0) + 1
        choices = [
            there
            for there in sorted(graph[here])
            if there != before and _can_drive(graph, corners[-1], before, here, there)
        ]
        rarest = min(driven.get((here, there), 0) for there in choices)
        rare = [there for there in choices if driven.get((here, there), 0) == rarest]
        there = rare[int(rng.integers(len(rare)))]
        if _turns(before, here, there):
            corners.append(_aside(_aside(here, before, here, graph[before][here]), here, there, graph[here][there]))
            length += float(np.hypot(*np.subtract(corners[-1], corners[-2])))
        before, here = here, there
    corners.append(_aside(here, before, here, graph[before][here]))
    return np.array(corners)


def _can_drive(graph: dict[Point, dict[Point, float]], last: Point, before: Point, here: Point, there: Point) -> bool:
    """Straight on in the same lane, or a turn whose curve does not overlap that of the last corner."""
    if not _turns(before, here, there):
        return graph[before][here] == graph[here][there]
    corner = _aside(_aside(here, before, here, graph[before][here]), here, there, graph[here][there])
    return float(np.hypot(*np.subtract(corner, last))) > 2 * TURN_RADIUS_M + 1


def _turns(a: Point, b: Point, c: Point) -> bool:
    return (a[0] == b[0]) != (b[0] == c[0])


def _aside(point: Point, start: Point, end: Point, road: float) -> Point:
    """The point, moved to the right of the direction from `start` to `end` by the distance of the lane."""
    along = np.subtract(end, start) / np.hypot(*np.subtract(end, start))
    return float(point[0] + LANE * road * along[1]), float(point[1] - LANE * road * along[0])


def _rounded(corners: Floats) -> tuple[Floats, Floats, list[tuple[int, int]]]:
    """The polyline with its corners replaced by arcs: points, yaws, and first and last index of every arc."""
    xy, yaw, arcs = [corners[:1]], [np.empty(0)], []
    at, count = corners[0], 1
    legs = np.diff(corners, axis=0)
    heading = np.unwrap(np.arctan2(legs[:, 1], legs[:, 0]))
    for i, end in enumerate(corners[1:]):
        last = i == len(legs) - 1
        along = np.array([np.cos(heading[i]), np.sin(heading[i])])
        stop = end if last else end - TURN_RADIUS_M * along
        steps = max(2, round(float(np.hypot(*(stop - at))) / STEP_M))
        xy.append(at + np.linspace(0, 1, steps + 1)[1:, None] * (stop - at))
        yaw.append(np.full(steps + (i == 0), heading[i]))
        count += steps
        if last:
            break
        turn = heading[i + 1] - heading[i]  # a quarter turn
        centre = stop + np.sign(turn) * TURN_RADIUS_M * np.array([-along[1], along[0]])
        steps = round(abs(turn) * TURN_RADIUS_M / STEP_M)
        angles = heading[i] + turn * np.linspace(0, 1, steps + 1)[1:]
        out = np.stack([np.sin(angles), -np.cos(angles)], axis=1) * np.sign(turn) * TURN_RADIUS_M
        xy.append(centre + out)
        yaw.append(angles)
        arcs.append((count - 1, count - 1 + steps))
        count += steps
        at = xy[-1][-1]
    return np.concatenate(xy), np.concatenate(yaw), arcs


def _timed(
    rng: np.random.Generator, xy: Floats, yaw: Floats, arcs: list[tuple[int, int]]
) -> tuple[Floats, Floats, Floats]:
    """Times, points and yaws of a drive: speed limits of straights and corners, acceleration, braking, stops."""
    limit = np.empty(len(xy))
    stops: dict[int, float] = {0: 0.0}
    straights = zip([0, *(last for _, last in arcs)], [*(first for first, _ in arcs), len(xy) - 1], strict=True)
    for first, last in straights:
        limit[first : last + 1] = rng.uniform(SLOWEST_CRUISE, FASTEST_CRUISE)
    for first, last in arcs:
        limit[first : last + 1] = CORNER_SPEED
        if rng.random() < STOP_SHARE:
            stops[first] = float(rng.uniform(*STOP_S))
    limit[list(stops)] = 0.0
    step = np.hypot(*np.diff(xy, axis=0).T)
    square = limit**2
    for i in range(len(step)):
        square[i + 1] = min(square[i + 1], square[i] + 2 * ACCELERATION * step[i])
    for i in reversed(range(len(step))):
        square[i] = min(square[i], square[i + 1] + 2 * BRAKING * step[i])
    speed = np.sqrt(square)
    time_s = np.concatenate([[0.0], np.cumsum(2 * step / (speed[:-1] + speed[1:]))])
    # a stop is an entry that is repeated after its seconds
    rows = np.repeat(np.arange(len(xy)), [1 + (i in stops) for i in range(len(xy))])
    waited = np.zeros(len(rows))
    for i, pause in stops.items():
        waited[np.flatnonzero(rows == i)[1] :] += pause
    return time_s[rows] + waited, xy[rows], yaw[rows]
