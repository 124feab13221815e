"""A map of photos on both sides of the Earth, such as a family's: each query is answered where it was taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.localize.street import street_model
from tests.localize.town import HEADING_DEG, wall, world_position, write_world

from sareloc.cli import main
from sareloc.geo import distance_m
from sareloc.localize import Localizer, Search
from sareloc.localize.candidates import combine_poses
from sareloc.localize.estimate import Pose
from sareloc.maps import PlaceMap
from sareloc.models import save_checkpoint


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("world"))


def test_photos_and_spheres_on_both_sides_of_the_earth_are_localized(world: Path) -> None:
    localizer = Localizer(street_model(), PlaceMap(world), Search(verify=40), min_confidence=0)
    fixes = localizer.localize_many([wall(2, 20), wall(3, 20), world.with_name("sphere.jpg")], top=40)
    for fix, place in zip(fixes, (2, 3, 5), strict=True):
        assert fix.latlon is not None
        assert float(distance_m(fix.latlon, world_position(place))) < 25
        assert max(float(distance_m(fix.latlon, match.latlon)) for match in fix.matches) > 1.8e7
    assert fixes[2].heading_deg == pytest.approx((HEADING_DEG + 90) % 360, abs=4)
    walk = localizer.localize_walk([wall(2, 20), wall(3, 20)], 1e8)
    for fix, place in zip(walk, (2, 3), strict=True):
        assert float(distance_m(fix.latlon, world_position(place))) < 25


def test_the_command_line_answers_by_verified_matches(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = world.with_name("model.safetensors")
    save_checkpoint(street_model(), checkpoint)
    queries = [str(world.with_name(name)) for name in ("wall.jpg", "sphere.jpg")]
    options = ["--model", str(checkpoint), "--min-confidence", "0", "--verify", "40", "--workers", "0", "--json"]
    with pytest.raises(SystemExit) as ended:
        main(["localize", str(world), *queries, *options, "--device", "cpu"])
    assert ended.value.code == 0
    fixes = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for fix, place in zip(fixes, (3, 5), strict=True):
        assert fix["matches"][0]["inliers"] > 30
        assert float(distance_m(fix["latlon"], world_position(place))) < 25


def test_a_pose_on_the_other_side_of_the_earth_does_not_agree() -> None:
    near, far = Pose(world_position(0), 2.0, 10.0), Pose(world_position(1), 3.0, 10.0)
    assert combine_poses([far, near]) == combine_poses([near])
