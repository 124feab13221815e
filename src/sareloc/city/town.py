"""The static model of a town, and its camera trajectories.

Database: a car drives every street once and takes a panorama about every eleven metres, cut into evenly spaced views;
each street is driven on one of a few days. Queries: pedestrians within a few metres of the drive, with any heading, in
any weather.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats, Ints
from sareloc.city.atlas import make_atlas
from sareloc.city.building import make_house_quads
from sareloc.city.furnish import Kerb, furnish, make_kerbs
from sareloc.city.geometry import Poses, Quads, Sprites
from sareloc.city.moment import Moment, grid_shape, height_field, make_moment, openness, splat
from sareloc.city.plan import Streets, make_houses, make_streets
from sareloc.errors import ArgumentError, look_up


@dataclass(frozen=True)
class Size:
    """The number of photos per split."""

    panoramas: int
    yaws: int
    """Number of evenly spaced views of each panorama."""
    pitches_deg: tuple[float, ...]
    queries: int
    photo: tuple[int, int]
    """Default height and width of a photo."""


SIZES: dict[str, Size] = {
    "small": Size(25, 6, (5.0,), 50, (240, 320)),
    "medium": Size(250, 12, (5.0,), 1000, (480, 640)),
    "large": Size(417, 12, (4.0, 20.0), 7000, (480, 640)),
}
SPLITS = ("train", "val", "test")
METRES_PER_PANORAMA = 11.0


@dataclass(frozen=True, eq=False)
class Town:
    """The parts of a town that do not change between visits; metres in the town's frame, z up."""

    seed: int
    size: str
    streets: Streets
    quads: Quads
    sprites: Sprites
    trees: Floats
    """(N, 3) x, y and height of every tree."""
    kerbs: tuple[Kerb, ...]
    boxes: Floats
    """(H, 5) x0, y0, x1, y1 and height of every house."""
    heights: Floats
    """Height of the houses on a grid (see `moment.height_field`)."""
    lamp_light: Floats
    sky_share: Floats
    origin: tuple[float, float]
    """Latitude and longitude, in degrees, of the centre of the town."""
    rotation: float
    """Radians from east, counter-clockwise, to the town's x axis."""

    def enu(self, xy: npt.ArrayLike) -> Floats:
        """(N, 2) metres east and north of `origin` of points in the town's frame."""
        offset = np.asarray(xy, dtype=np.float64)[..., :2] - np.array(self.streets.extent) / 2
        c, s = np.cos(self.rotation), np.sin(self.rotation)
        return np.asarray(offset @ np.array([[c, s], [-s, c]]))

    def heading_deg(self, yaw: npt.ArrayLike) -> Floats:
        """Compass headings in degrees, clockwise from north, of directions in the town's frame."""
        return np.asarray((90.0 - np.rad2deg(np.asarray(yaw) + self.rotation)) % 360.0)


@lru_cache(maxsize=4)
def make_town(seed: int, size: str = "small") -> Town:
    """The town of a seed; `size` is a key of `SIZES`. Raises ArgumentError for a negative seed or an unknown size."""
    wanted = look_up(SIZES, size, "size of town")
    if seed < 0:
        raise ArgumentError(f"a seed must be an integer of at least 0: found {seed}")
    rng = np.random.default_rng([31, seed])
    atlas = make_atlas()
    streets = make_streets(rng, wanted.panoramas * METRES_PER_PANORAMA)
    houses = make_houses(rng, streets)
    quads = make_house_quads(rng, houses, atlas)
    kerbs = make_kerbs(streets)
    sprites, lamps = furnish(rng, streets, kerbs, atlas)
    tree = sprites.page[:, 0] != sprites.page[:, 1]
    boxes = np.array([[*house.box, house.height_m] for house in houses])
    shape = grid_shape(streets.extent)
    heights = height_field(shape, boxes[:, :4], boxes[:, 4])
    return Town(
        seed=seed,
        size=size,
        streets=streets,
        quads=quads,
        sprites=sprites,
        trees=np.column_stack([sprites.foot[tree, :2], sprites.size[tree, 1]]),
        kerbs=tuple(kerbs),
        boxes=boxes,
        heights=heights,
        lamp_light=splat(shape, lamps, 6.5, 1.6),
        sky_share=openness(heights),
        # A UTM zone is 6 degrees wide: stay away from its edges, so that a town has one zone.
        origin=(float(rng.uniform(45.0, 55.0)), float(6 * rng.integers(-1, 4) + 3 + rng.uniform(-2.5, 2.5))),
        rotation=float(rng.uniform(-np.pi, np.pi)),
    )


def split_seed(seed: int, split: str) -> int:
    """The seed of the town of a split: train, val and test are different towns."""
    return seed * len(SPLITS) + look_up({name: i for i, name in enumerate(SPLITS)}, split, "split")


DRIVES = ("clear", "overcast", "clear")
VISITS = ("clear", "low sun", "overcast", "rain", "fog", "snow", "dusk", "night", "wet night")
VISITS_OF_EACH = 2
CAR_HEIGHT_M, CAR_ANGLE = 2.5, np.deg2rad(62.0)


@dataclass(frozen=True, eq=False)
class Views:
    """The views of a town: camera poses of database and queries, and the moments that `Poses.moment` refers to."""

    database: Poses
    queries: Poses
    moments: tuple[Moment, ...]
    panoramas: Ints
    """(database,) the panorama of each database view."""
    tiles: Ints
    """(database,) the number of the view within its panorama."""


@dataclass(frozen=True, eq=False)
class Track:
    """The centre line of a street, and its half widths: of the road, and of road and pavement."""

    start: Floats
    along: Floats
    length: float
    road: float
    edge: float


def make_tracks(streets: Streets) -> list[Track]:
    """The centre lines of all streets."""
    width, _ = streets.extent
    tracks = [
        Track(np.array([0.0, y]), np.array([1.0, 0.0]), width, float(road), float(road + pave))
        for y, road, pave in zip(streets.long_y, streets.long_road, streets.long_pave, strict=True)
    ]
    for r, (low, high) in enumerate(zip(streets.long_y[:-1], streets.long_y[1:], strict=True)):
        tracks += [
            Track(np.array([x, low]), np.array([0.0, 1.0]), float(high - low), float(road), float(road + pave))
            for x, road, pave in zip(streets.cross_x[r], streets.cross_road[r], streets.cross_pave[r], strict=True)
        ]
    return tracks


def make_views(town: Town) -> Views:
    """The views of a town; deterministic for a town."""
    size = SIZES[town.size]
    rng = np.random.default_rng([51, town.seed])
    tracks = make_tracks(town.streets)
    kinds = [*DRIVES, *(VISITS * VISITS_OF_EACH)]
    moments = [make_moment(rng, kind, town.origin[0], town.rotation) for kind in kinds]
    # the images of the car's camera are rectified
    moments[: len(DRIVES)] = [replace(moment, bend=0.0, blur=0.0) for moment in moments[: len(DRIVES)]]
    database, panoramas, tiles = _drive(rng, tracks, size.panoramas, size.yaws, size.pitches_deg)
    queries = _visit(rng, tracks, size.queries, np.arange(len(DRIVES), len(moments)))
    return Views(database, queries, tuple(moments), panoramas, tiles)


def _drive(
    rng: np.random.Generator, tracks: list[Track], panoramas: int, yaws: int, pitches_deg: tuple[float, ...]
) -> tuple[Poses, Ints, Ints]:
    ends = np.cumsum([track.length for track in tracks])
    at = (np.arange(panoramas) + 0.5) * ends[-1] / panoramas
    which = np.searchsorted(ends, at)
    day = rng.integers(len(DRIVES), size=len(tracks))[which]
    eye, start = np.empty((panoramas, 3)), np.empty(panoramas)
    for i, (w, s) in enumerate(zip(which, at - (ends[which] - [tracks[w].length for w in which]), strict=True)):
        track = tracks[w]
        right = np.array([track.along[1], -track.along[0]])
        eye[i, :2] = track.start + s * track.along + 0.4 * track.road * right
        eye[i, 2] = CAR_HEIGHT_M
        start[i] = np.arctan2(track.along[1], track.along[0])
    cuts = yaws * len(pitches_deg)
    pano = np.repeat(np.arange(panoramas), cuts)
    tile = np.tile(np.arange(cuts), panoramas)
    n = len(pano)
    poses = Poses(
        eye=eye[pano],
        yaw=start[pano] - 2 * np.pi * (tile % yaws) / yaws,
        pitch=np.deg2rad(np.array(pitches_deg))[tile // yaws],
        roll=np.zeros(n),
        width_angle=np.full(n, CAR_ANGLE),
        moment=day[pano],
        seed=rng.integers(1 << 30, size=n),
    )
    return poses, pano, tile


def _visit(rng: np.random.Generator, tracks: list[Track], queries: int, moments: Ints) -> Poses:
    ends = np.cumsum([track.length for track in tracks])
    at = rng.uniform(0, ends[-1], queries)
    which = np.searchsorted(ends, at)
    yaw = rng.uniform(-np.pi, np.pi, queries)
    eye = np.empty((queries, 3))
    for i, w in enumerate(which):
        track = tracks[w]
        across = np.array([-track.along[1], track.along[0]])
        looks = float(np.cos(yaw[i]) * across[0] + np.sin(yaw[i]) * across[1])
        # The camera is on the far side of the street, so that it does not face a wall at close range.
        aside = -np.sign(looks) * rng.uniform(0, 0.35 * track.road + 0.45 * track.edge)
        s = at[i] - (ends[w] - track.length)
        eye[i] = [*(track.start + s * track.along + aside * across), rng.uniform(1.45, 1.8)]
    return Poses(
        eye=eye,
        yaw=yaw,
        pitch=np.deg2rad(rng.normal(7.0, 4.0, queries)),
        roll=np.deg2rad(rng.normal(0.0, 1.5, queries)),
        width_angle=np.deg2rad(rng.uniform(52.0, 70.0, queries)),
        moment=moments[rng.integers(len(moments), size=queries)],
        seed=rng.integers(1 << 30, size=queries),
    )
