"""A town from a seed: plan, houses, furniture, where it lies on Earth."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sareloc.datasets.city.atlas import make_atlas
from sareloc.datasets.city.build import make_house_quads
from sareloc.datasets.city.furnish import Kerb, Sprites, furnish, make_kerbs
from sareloc.datasets.city.houses import make_houses
from sareloc.datasets.city.lighting import grid_shape, height_field, openness, splat
from sareloc.datasets.city.quads import Quads
from sareloc.datasets.city.streets import Streets, make_streets
from sareloc.errors import ArgumentError, look_up

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Size:
    """How much of a town is photographed, per split."""

    panoramas: int
    yaws: int
    """Views cut from each panorama, evenly around."""
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
    """Everything about a town that does not change between visits; metres in the town's own frame, z up."""

    seed: int
    size: str
    streets: Streets
    quads: Quads
    sprites: Sprites
    trees: Floats
    """(N, 3) foot and height of every tree."""
    kerbs: tuple[Kerb, ...]
    boxes: Floats
    """(H, 5) x0, y0, x1, y1 and height of every house."""
    heights: Floats
    """Height of the houses on a grid (see `lighting`)."""
    lamp_light: Floats
    sky_share: Floats
    origin: tuple[float, float]
    """Latitude and longitude, in degrees, of the middle of the town."""
    rotation: float
    """Radians from east, counter-clockwise, to the town's x axis."""

    def enu(self, xy: npt.ArrayLike) -> Floats:
        """(N, 2) metres east and north of `origin`, of points of the town's frame."""
        offset = np.asarray(xy, dtype=np.float64)[..., :2] - np.array(self.streets.extent) / 2
        c, s = np.cos(self.rotation), np.sin(self.rotation)
        return np.asarray(offset @ np.array([[c, s], [-s, c]]))

    def heading_deg(self, yaw: npt.ArrayLike) -> Floats:
        """Compass headings, clockwise from north, of directions in the town's frame."""
        return np.asarray((90.0 - np.rad2deg(np.asarray(yaw) + self.rotation)) % 360.0)


@lru_cache(maxsize=4)
def make_town(seed: int, size: str = "small") -> Town:
    """The town of this seed, of a size in `SIZES`."""
    wanted = look_up(SIZES, size, "size of town")
    if seed < 0:
        raise ArgumentError(f"a seed is a whole number from 0 up, found {seed}")
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
        # A zone of UTM is 6 degrees wide: keep clear of its edges, so that a town has one zone.
        origin=(float(rng.uniform(45.0, 55.0)), float(6 * rng.integers(-1, 4) + 3 + rng.uniform(-2.5, 2.5))),
        rotation=float(rng.uniform(-np.pi, np.pi)),
    )


def split_seed(seed: int, split: str) -> int:
    """The seed of a split's own town: train, val and test never share one."""
    return seed * len(SPLITS) + look_up({name: i for i, name in enumerate(SPLITS)}, split, "split")
