"""A drive through the drawn city: the route of a car, a video of its camera, and the GPX track of a receiver.

The car drives on the right, turns at random junctions, prefers streets that it has driven least, brakes for corners and
stops before some of them.

The receiver's clock is UTC. `clock_offset_s` is added to the camera's clock to get UTC: -3.2 if it is 3.2 s fast. The
video's `creation_time` is what the camera's clock says at the first frame; hence the frame at `time_s` was taken at the
UTC time creation_time + time_s + clock_offset_s. Other traffic stands still.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from sareloc.arrays import Floats
from sareloc.arrays import Image as Pixels
from sareloc.city.dataset import claim
from sareloc.city.geometry import Poses
from sareloc.city.moment import Moment, make_moment
from sareloc.city.plan import Streets
from sareloc.city.render import draw_scene
from sareloc.city.scene import make_scene
from sareloc.city.town import Town, make_town, split_seed
from sareloc.errors import ArgumentError, need
from sareloc.files import replacing, write_atomically
from sareloc.geo import wgs84_from_enu
from sareloc.photos.tracks import Track, gpx_of_track

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
    return _timed(rng, *_rounded(_corners(rng, streets, seconds * FASTEST_CRUISE)))


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


def _timed(rng: np.random.Generator, xy: Floats, yaw: Floats, arcs: list[tuple[int, int]]) -> Route:
    """The times of a drive: speed limits of straights and corners, acceleration, braking, stops."""
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
    return Route(xy[rows], yaw[rows], time_s[rows] + waited)


CAMERA_HEIGHT_M, CAMERA_PITCH, CAMERA_ANGLE = 1.4, np.deg2rad(2.0), np.deg2rad(70.0)
FRAME_SIZE = (270, 480)
TRACK_MARGIN_S = 30
"""Seconds of the track before the first frame and after the last."""
GPS_CORRELATION_S = 20.0
A_YEAR_S = 365 * 86400
FRAMES_AT_ONCE = 32
VIDEO, TRACK, TRUTH, RECORD = "drive.mp4", "drive.gpx", "truth.csv", "drive.json"


@dataclass(frozen=True, eq=False)
class Drive:
    """A drive: N frames with exact poses, and a track of M points. Times of day are seconds since 1970, UTC."""

    town: Town
    moment: Moment
    """Its time is that of the first frame."""
    poses: Poses
    """(N,) pose of the camera at each frame; the heading is the direction of travel."""
    times_s: Floats
    """(N,) seconds since the first frame."""
    latlon: Floats
    """(N, 2) degrees."""
    headings_deg: Floats
    """(N,) compass headings."""
    fps: float
    """Frames per second."""
    clock_offset_s: float
    """What is added to the camera's clock to get UTC: negative if it is fast."""
    track_latlon: Floats
    """(M, 2) degrees, with the receiver's noise."""
    track_times: Floats
    """(M,) whole seconds, in UTC."""
    arguments: Mapping[str, object]
    """What `make_drive` was called with."""

    @property
    def creation_time(self) -> float:
        """What the camera's clock says at the first frame: a whole second."""
        return float(round(self.moment.time - self.clock_offset_s))


def make_drive(
    seed: int = 0,
    size: str = "small",
    split: str = "test",
    *,
    number: int = 0,
    seconds: float = 60.0,
    fps: float = 10.0,
    weather: str = "clear",
    clock_offset_s: float = -3.2,
    gps_noise_m: float = 1.5,
) -> Drive:
    """A drive through the town of a split, in the year after that of the database; deterministic.

    Args:
        seed: seed of the city.
        size: small, medium or large.
        split: train, val or test.
        number: selects the route and the day.
        seconds: length of the drive.
        fps: frames per second.
        weather: see `WEATHER`.
        clock_offset_s: added to the camera's clock to get UTC: -3.2 if it is 3.2 s fast.
        gps_noise_m: standard deviation of the track's error to the east and to the north, which changes within
            GPS_CORRELATION_S seconds; 0: none.

    Raises:
        ArgumentError: for invalid arguments.
    """
    _check(number, seconds, fps, clock_offset_s, gps_noise_m)
    town = make_town(split_seed(seed, split), size)
    route_rng, moment_rng, noise_rng = np.random.default_rng([61, town.seed, number]).spawn(3)
    route = make_route(route_rng, town.streets, seconds + 2 * TRACK_MARGIN_S)
    moment = make_moment(moment_rng, weather, town.origin[0], town.rotation)
    start = math.ceil(moment.time) + A_YEAR_S + clock_offset_s  # the camera writes whole seconds
    times_s = np.arange(max(1, round(seconds * fps))) / fps
    xy, yaw = route.at(times_s + TRACK_MARGIN_S)
    n = len(times_s)
    track_times = np.arange(math.ceil(start - TRACK_MARGIN_S), math.floor(start + times_s[-1] + TRACK_MARGIN_S) + 1.0)
    track_xy, _ = route.at(track_times - start + TRACK_MARGIN_S)
    return Drive(
        town=town,
        moment=replace(moment, time=start),
        poses=Poses(
            eye=np.column_stack([xy, np.full(n, CAMERA_HEIGHT_M)]),
            yaw=yaw,
            pitch=np.full(n, CAMERA_PITCH),
            roll=np.zeros(n),
            width_angle=np.full(n, CAMERA_ANGLE),
            moment=np.zeros(n, dtype=np.int64),
            seed=moment_rng.integers(1 << 30, size=n),
        ),
        times_s=times_s,
        latlon=wgs84_from_enu(town.enu(xy), town.origin),
        headings_deg=town.heading_deg(yaw),
        fps=fps,
        clock_offset_s=clock_offset_s,
        track_latlon=wgs84_from_enu(
            town.enu(track_xy) + gps_noise_m * _gps_noise(noise_rng, len(track_xy)), town.origin
        ),
        track_times=track_times,
        arguments={
            "seed": seed, "size": size, "split": split, "number": number, "seconds": seconds, "fps": fps,
            "weather": weather, "clock_offset_s": clock_offset_s, "gps_noise_m": gps_noise_m,
        },
    )  # fmt: skip


def _check(number: int, seconds: float, fps: float, clock_offset_s: float, gps_noise_m: float) -> None:
    if number < 0:
        raise ArgumentError(f"the number of a drive must be at least 0: found {number}")
    for name, value in (("seconds", seconds), ("fps", fps)):
        if not 0 < value < math.inf:
            raise ArgumentError(f"{name} must be greater than 0: found {value}")
    if not math.isfinite(clock_offset_s):
        raise ArgumentError(f"the clock offset must be a number of seconds: found {clock_offset_s}")
    if not 0 <= gps_noise_m < math.inf:
        raise ArgumentError(f"the GPS noise must be at least 0 metres: found {gps_noise_m}")


def _gps_noise(rng: np.random.Generator, n: int) -> Floats:
    """(n, 2) first-order autoregressive noise of standard deviation 1, one value per second."""
    kept = math.exp(-1 / GPS_CORRELATION_S)
    noise = rng.normal(size=(n, 2))
    for i in range(1, n):
        noise[i] = kept * noise[i - 1] + math.sqrt(1 - kept**2) * noise[i]
    return noise


def draw_frames(drive: Drive, height: int, width: int, device: torch.device | str = "cpu") -> Iterator[Pixels]:
    """Render the frames (height, width, 3) of a drive in order, in batches.

    Args:
        drive: see `make_drive`.
        height: frame height in pixels.
        width: frame width in pixels.
        device: where to render.
    """
    scene = make_scene(drive.town, [drive.moment], device)
    for start in range(0, len(drive.poses), FRAMES_AT_ONCE):
        rows = np.arange(start, min(start + FRAMES_AT_ONCE, len(drive.poses)))
        yield from draw_scene(scene, drive.poses.take(rows), height, width).permute(0, 2, 3, 1).cpu().numpy()


def draw_drive(
    drive: Drive,
    out: str | Path,
    *,
    frame_size: tuple[int, int] = FRAME_SIZE,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> None:
    """Write a drive to a folder: drive.mp4 (H.264), drive.gpx, truth.csv and drive.json.

    truth.csv has the columns frame, time_s (in the video), lat, lon, heading_deg; drive.json records the arguments.
    Files that exist are kept, so that a run can be repeated.

    Args:
        drive: see `make_drive`.
        out: the folder.
        frame_size: height and width, even numbers.
        device: where to render.
        progress: show a bar on standard error.

    Raises:
        ArgumentError: if the folder contains another drive.
        MissingExtraError: without the extra `video`.
    """
    need("av", "video")
    height, width = frame_size
    if height % 2 or width % 2:
        raise ArgumentError(f"height and width of a video frame must be even: found {height}x{width}")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"{folder} is a file: give a folder to write the drive to")
    claim(folder / RECORD, {"format": 1, "frame": [height, width], **drive.arguments}, "drive")
    for name, content in ((TRACK, gpx_of(drive)), (TRUTH, truth_of(drive))):
        if not (folder / name).exists():
            write_atomically(folder / name, content)
    if not (folder / VIDEO).exists():
        frames = draw_frames(drive, height, width, device)
        _write_video(
            folder / VIDEO,
            tqdm(frames, total=len(drive.poses), desc=VIDEO, unit="frame", disable=not progress),
            frame_size,
            Fraction(drive.fps).limit_denominator(1001),
            drive.creation_time,
        )


def _write_video(
    path: Path, frames: Iterable[Pixels], size: tuple[int, int], fps: Fraction, creation_time: float
) -> None:
    av = need("av", "video")
    with (
        replacing(path) as temporary,
        av.open(str(temporary), "w", format="mp4", options={"movflags": "+faststart"}) as container,
    ):
        container.metadata["creation_time"] = f"{datetime.fromtimestamp(creation_time, UTC):%Y-%m-%dT%H:%M:%S}.000000Z"
        stream = container.add_stream("libx264", rate=fps, options={"crf": "20"})
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        for k, image in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            frame.pts, frame.time_base = k, 1 / fps
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def gpx_of(drive: Drive) -> bytes:
    """The track of a drive as GPX 1.1, one point per second."""
    return gpx_of_track(Track(drive.track_times, drive.track_latlon)).encode()


def truth_of(drive: Drive) -> bytes:
    """The exact pose of every frame as CSV."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["frame", "time_s", "lat", "lon", "heading_deg"])
    for k, (time, (latitude, longitude), heading) in enumerate(
        zip(drive.times_s, drive.latlon, drive.headings_deg, strict=True)
    ):
        table.writerow([k, f"{time:.6f}", f"{latitude:.8f}", f"{longitude:.8f}", f"{heading:.3f}"])
    return text.getvalue().encode()
