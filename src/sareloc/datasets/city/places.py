"""A drawn town as a dataset without files: positions, and images drawn when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sareloc.datasets.city.camera import Poses, join_poses
from sareloc.datasets.city.drawing import draw_scene, scene_of
from sareloc.datasets.city.scene import usable
from sareloc.datasets.city.town import Town, make_town, split_seed
from sareloc.datasets.city.views import Views, make_views
from sareloc.datasets.places import PhotoSet, Places
from sareloc.geo import Positions

DRAWN_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class CityPlaces:
    """One split of a drawn city: its town, who photographs it, and its `Places` (positions in metres east and north of
    the town's middle; file names that no file bears)."""

    places: Places
    town: Town
    views: Views

    @property
    def poses(self) -> Poses:
        """Of the database, then of the queries."""
        return join_poses([self.views.database, self.views.queries])


def city_places(seed: int, size: str = "small", split: str = "test") -> CityPlaces:
    """The split of the drawn city of this seed: small, medium or large; train, val or test."""
    town = make_town(split_seed(seed, split), size)
    views = make_views(town)
    database, queries = (
        _photo_set(town, views, poses, role)
        for poses, role in ((views.database, "database"), (views.queries, "queries"))
    )
    places = Places(f"city-{size}-{seed}", split, database, queries, panoramas=views.panoramas)
    return CityPlaces(places, town, views)


def _photo_set(town: Town, views: Views, poses: Poses, role: str) -> PhotoSet:
    times = np.array([moment.time for moment in views.moments])
    return PhotoSet(
        folder=Path(role),
        files=tuple(f"{i:06d}.jpg" for i in range(len(poses))),
        positions=Positions.from_local(town.enu(poses.eye)),
        times=times[poses.moment],
        headings_deg=town.heading_deg(poses.yaw),
    )


def draw_pixels(
    city: CityPlaces,
    height: int,
    width: int,
    device: torch.device | str = "cpu",
    rows: npt.ArrayLike | None = None,
) -> Tensor:
    """Images (N, 3, height, width) uint8 on `device`: of database, then queries, or of some of these rows."""
    chosen = np.arange(len(city.poses)) if rows is None else np.asarray(rows, dtype=np.int64).reshape(-1)
    images = torch.empty(len(chosen), 3, height, width, dtype=torch.uint8, device=usable(device))
    for where, drawn in draw_in_turn(city, chosen, height, width, device):
        images[torch.from_numpy(where).to(images.device)] = drawn
    return images


def draw_in_turn(
    city: CityPlaces, rows: npt.NDArray[np.int64], height: int, width: int, device: torch.device | str
) -> Iterator[tuple[npt.NDArray[np.int64], Tensor]]:
    """Draw poses `rows` some hundred at a time, moment by moment: pairs of places in `rows` and images."""
    if not len(rows):
        return
    scene, poses = scene_of(city.town, city.poses.take(rows), city.views.moments, device)
    order = np.argsort(poses.moment, kind="stable")
    for start in range(0, len(order), DRAWN_AT_ONCE):
        where = order[start : start + DRAWN_AT_ONCE]
        yield where, draw_scene(scene, poses.take(where), height, width)
