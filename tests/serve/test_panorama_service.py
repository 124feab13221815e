"""360° photos over HTTP: a query is answered once, and thumbnails show the views of a map."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.geometry.scenes import texture
from tests.localize.street import position, street_model
from tests.photos.panorama_files import gpano_xmp, save_panorama
from tests.serve.running import street_client

from sareloc.geo import distance_m
from sareloc.localize import Search
from sareloc.maps import PlaceMap, build_map
from sareloc.photos import Geotag, decode

HEADING_DEG, TURNED_DEG, WIDTH = 100.0, 90.0, 512


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two 360° photos, 80 m apart, their map with local features, and a query at the second, turned to the right."""
    folder = tmp_path_factory.mktemp("spheres")
    spheres = [texture(WIDTH // 2, WIDTH, seed=place) for place in range(2)]
    for place, sphere in enumerate(spheres):
        tag = Geotag(position(place))
        save_panorama(folder / "photos" / f"{place}.jpg", sphere, tag, gpano_xmp(heading=HEADING_DEG))
    build_map(street_model(), folder / "photos", folder / "town.gpkg", keypoints=256, progress=False)
    save_panorama(folder / "query.jpg", np.roll(spheres[1], -round(WIDTH * TURNED_DEG / 360), axis=1))
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    with street_client(folder / "town.gpkg", search=Search(verify=4), min_confidence=0) as client:
        yield client


def test_a_360_photo_is_answered_with_one_fix(client: httpx.Client, folder: Path) -> None:
    photo = (folder / "query.jpg").read_bytes()
    fix = client.post("/localize", params={"top": 3}, content=photo).json()
    assert distance_m([fix["latlon"]], [position(1)])[0] < 1
    assert abs(fix["heading_deg"] - HEADING_DEG - TURNED_DEG) < 4
    assert len(fix["matches"]) == 3
    both = [("photos", ("a.jpg", photo)), ("photos", ("b.jpg", photo))]
    assert [one["photo"] for one in client.post("/localize", files=both).json()["fixes"]] == ["a.jpg", "b.jpg"]


def test_matched_points_are_in_the_panorama_and_in_the_view(client: httpx.Client, folder: Path) -> None:
    photo = (folder / "query.jpg").read_bytes()
    match = client.post("/localize", content=photo).json()["matches"][0]
    assert "1.jpg#yaw=" in match["photo"]
    told = client.post("/inliers", params={"id": match["id"]}, content=photo).json()
    assert told["query_size"] == [WIDTH, WIDTH // 2]
    assert told["inliers"] == len(told["query_xy"]) > 20


def test_a_thumbnail_shows_the_view(client: httpx.Client, folder: Path) -> None:
    place_map = PlaceMap(folder / "town.gpkg")
    name = next(name for name in place_map.files if name.startswith("photos/0.jpg#yaw=120&"))
    answer = client.get(f"/photos/{int(place_map.ids[place_map.files.index(name)])}/thumbnail", params={"size": 96})
    assert answer.status_code == 200
    with Image.open(io.BytesIO(answer.content)) as shown:
        assert shown.size == (96, 72)
        difference = np.asarray(shown.convert("RGB")).astype(int) - decode(place_map.photo_path(name))
    assert np.abs(difference).mean() < 8
