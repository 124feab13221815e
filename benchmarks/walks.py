"""Walks through a drawn city, localized photo by photo and as walks: a part of localize_options.py."""

from __future__ import annotations

import argparse

import numpy as np
from benchmarks.judged_fixes import gain, judge, right_ones
from benchmarks.measuring import only

from sareloc.city import Poses, Town, city_places, draw
from sareloc.city.town import DRIVES, make_tracks
from sareloc.geo import wgs84_from_enu
from sareloc.localize import Fix, Localizer, Search
from sareloc.maps import PlaceMap
from sareloc.models import PlaceModel

STEP_M, STEPS = 8.0, 10


def make_walk(town: Town, rng: np.random.Generator, moments: int) -> Poses | None:
    """Some steps along the pavement of one street, at one moment, looking ahead and to the houses."""
    tracks = [track for track in make_tracks(town.streets) if track.length >= STEP_M * STEPS]
    if not tracks:
        return None
    track = tracks[rng.integers(len(tracks))]
    along = rng.uniform(0, track.length - STEP_M * (STEPS - 1)) + STEP_M * np.arange(STEPS)
    across = np.array([-track.along[1], track.along[0]])
    side = rng.choice([-1.0, 1.0])
    eye = np.zeros((STEPS, 3))
    eye[:, :2] = track.start + along[:, None] * track.along + side * (track.road + 0.5) * across
    eye[:, 2] = rng.uniform(1.45, 1.8)
    ahead = np.arctan2(track.along[1], track.along[0])
    return Poses(
        eye=eye,
        yaw=ahead - side * np.deg2rad(rng.uniform(10, 60, STEPS)),  # over the street, to the other side
        pitch=np.deg2rad(rng.normal(7, 4, STEPS)),
        roll=np.deg2rad(rng.normal(0, 1.5, STEPS)),
        width_angle=np.full(STEPS, np.deg2rad(rng.uniform(52, 70))),
        moment=np.full(STEPS, rng.integers(len(DRIVES), moments)),
        seed=rng.integers(1 << 30, size=STEPS),
    )


def draw_walks(args: argparse.Namespace, split: str) -> tuple[list[list[np.ndarray]], np.ndarray]:
    """The images of walks through a town, and where all of them were taken; none where its streets are too short."""
    city = city_places(args.seed, args.town, split)
    rng = np.random.default_rng(1)
    walks = [make_walk(city.town, rng, len(city.views.moments)) for _ in range(args.walks)]
    poses = [walk for walk in walks if walk is not None]
    images = [list(draw(city.town, p, city.views.moments, *args.photo).permute(0, 2, 3, 1).numpy()) for p in poses]
    eyes = np.concatenate([np.zeros((0, 3)), *(p.eye for p in poses)])
    return images, wgs84_from_enu(city.town.enu(eyes), city.town.origin)


def ask(localizer: Localizer, walks: list[list[np.ndarray]], together: bool) -> list[Fix]:
    answers = (
        localizer.localize_walk(walk, 1.5 * STEP_M, top=1) if together else localizer.localize_many(walk, top=1)
        for walk in walks
    )
    return [fix for walk in answers for fix in only(Fix, walk)]


def measure_walks(
    model: PlaceModel, place_map: PlaceMap, args: argparse.Namespace
) -> dict[str, dict[str, float | None]]:
    """Walks through the town, and through the other town, photo by photo and as walks."""
    (walks, truth), (others, _) = draw_walks(args, "test"), draw_walks(args, "val")
    walk_of = np.repeat(np.arange(len(walks)), STEPS)
    rows = {}
    for name, search in (("", Search(verify=0)), (", verify 20", Search(verify=20))) if walks else ():
        localizer = Localizer(model, place_map, search, min_confidence=0)
        single = None
        for way in ("photo by photo", "as a walk"):
            fixes, out_of_map = (ask(localizer, some, way == "as a walk") for some in (walks, others))
            right = right_ones(fixes, truth)
            single = right if single is None else single
            rows[way + name] = judge(fixes, truth, out_of_map) | gain(right, single, walk_of)
    return rows
