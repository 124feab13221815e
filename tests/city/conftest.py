"""Small towns, still moments and single pieces for the tests of the drawn city."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sareloc.city import Moment, Poses, Town, make_moment, make_town


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder is in the group `city`."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.city)


@pytest.fixture(scope="session")
def town() -> Town:
    return make_town(1, "small")


@pytest.fixture(scope="session")
def noon() -> Moment:
    """A clear noon without traffic, camera noise, blur and distortion."""
    moment = make_moment(np.random.default_rng(0), "clear", 50.0, 0.0)
    still = {"cars": 0.0, "people": 0.0, "grain": 0.0, "vignette": 0.0, "bend": 0.0, "blur": 0.0}
    return replace(moment, exposure=1.0, **still)


@pytest.fixture
def make_poses():
    """make_poses((x, y, z), yaw_deg, ...): poses that look along yaw, counter-clockwise from the town's x axis."""

    def make(*stands: tuple[tuple[float, float, float], float], pitch=0.0, roll=0.0, angle_deg=60.0, moment=0) -> Poses:
        n = len(stands)
        return Poses(
            eye=np.array([eye for eye, _ in stands], dtype=np.float64),
            yaw=np.deg2rad([yaw for _, yaw in stands]),
            pitch=np.full(n, np.deg2rad(pitch)),
            roll=np.full(n, np.deg2rad(roll)),
            width_angle=np.full(n, np.deg2rad(angle_deg)),
            moment=np.full(n, moment),
            seed=np.arange(n),
        )

    return make
