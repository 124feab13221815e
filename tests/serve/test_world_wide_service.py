"""A service over a map of photos on both sides of the Earth."""

from __future__ import annotations

from pathlib import Path

from tests.localize.town import world_position, write_world
from tests.serve.running import street_client

from sareloc.geo import distance_m
from sareloc.serve import ServeConfig


def test_photos_and_spheres_on_both_sides_of_the_earth_are_answered(tmp_path: Path) -> None:
    world = write_world(tmp_path)
    with street_client(world, config=ServeConfig(verify=40, min_confidence=0)) as client:
        for name, place in (("wall.jpg", 3), ("sphere.jpg", 5)):
            answer = client.post("/localize", content=(tmp_path / name).read_bytes())
            assert answer.status_code == 200
            assert answer.json()["matches"][0]["inliers"] > 30
            assert float(distance_m(answer.json()["latlon"], world_position(place))) < 25
