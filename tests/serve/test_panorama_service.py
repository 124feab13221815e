"""360° photos over HTTP: a query is answered once, uploads are added as views, thumbnails show the views of a map."""

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
from tests.serve.conftest import ALLOWED, TOKEN
from tests.serve.running import street_client

from sareloc.geo import distance_m
from sareloc.maps import MapConfig, PlaceMap, add_photos, build_map, verify_map
from sareloc.photos import Geotag, ViewOptions, decode
from sareloc.serve import ServeConfig

HEADING_DEG, TURNED_DEG, WIDTH = 100.0, 90.0, 512


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two 360° photos, 80 m apart, their map with local features, and a query at the second, turned to the right."""
    folder = tmp_path_factory.mktemp("spheres")
    spheres = [texture(WIDTH // 2, WIDTH, seed=place) for place in range(2)]
    for place, sphere in enumerate(spheres):
        tag = Geotag(position(place))
        save_panorama(folder / "photos" / f"{place}.jpg", sphere, tag, gpano_xmp(heading=HEADING_DEG))
    build_map(folder / "photos", folder / "town.gpkg", street_model(), config=MapConfig(keypoints=256, progress=False))
    save_panorama(folder / "query.jpg", np.roll(spheres[1], -round(WIDTH * TURNED_DEG / 360), axis=1))
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    with street_client(folder / "town.gpkg", config=ServeConfig(verify=4, min_confidence=0)) as client:
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


@pytest.fixture
def own_folder(tmp_path: Path, folder: Path) -> Path:
    for name in ("town.gpkg", "query.jpg"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    return tmp_path


def sphere_jpeg(path: Path, seed: int, tag: Geotag, *, tagged: bool = True) -> bytes:
    xmp = gpano_xmp(heading=HEADING_DEG) if tagged else b"<none/>"
    return save_panorama(path, texture(WIDTH // 2, WIDTH, seed=seed), tag, xmp).read_bytes()


def test_a_360_photo_is_added_as_its_views_and_found_by_the_next_query(own_folder: Path) -> None:
    photo = sphere_jpeg(own_folder / "new.jpg", 7, Geotag(position(5)))
    with street_client(own_folder / "town.gpkg", config=ServeConfig(token=TOKEN, verify=4)) as client:
        answer = client.post("/photos", files={"photos": ("pano.jpg", photo)}, headers=ALLOWED)
        added = answer.json()["photos"][0]
        again = client.post("/photos", files={"photos": ("again.jpg", photo)}, headers=ALLOWED).json()["photos"][0]
        fix = client.post("/localize", content=photo).json()
    assert (answer.status_code, added["id"]) == (201, added["ids"][0])
    assert len(set(added["ids"])) == 12
    assert again["ids"] == added["ids"]
    assert distance_m([fix["latlon"]], [position(5)])[0] < 1
    assert abs(fix["heading_deg"] - HEADING_DEG) < 4
    place_map = PlaceMap(own_folder / "town.gpkg")
    assert len(place_map) == 36
    names = place_map.files[-12:]
    assert [name.partition("#")[2].partition("&")[0] for name in names] == [f"yaw={yaw}" for yaw in range(0, 360, 30)]
    assert {len(place_map.local_features([photo_id])[photo_id]) > 10 for photo_id in added["ids"]} == {True}
    assert len(list((own_folder / "town-photos").iterdir())) == 1
    assert verify_map(own_folder / "town.gpkg") == []


def test_a_view_that_was_added_has_the_direction_that_map_add_gives_it(own_folder: Path) -> None:
    photo = sphere_jpeg(own_folder / "new.jpg", 7, Geotag(position(5)))
    with street_client(own_folder / "town.gpkg", config=ServeConfig(token=TOKEN)) as client:
        client.post("/photos", files={"photos": photo}, headers=ALLOWED)
    report = add_photos(
        own_folder / "town-photos", own_folder / "town.gpkg", street_model(), config=MapConfig(progress=False)
    )
    assert (report.added, report.updated, report.already) == (0, 0, 12)


def test_the_file_of_a_360_photo_is_deleted_with_its_last_view(own_folder: Path) -> None:
    photo = sphere_jpeg(own_folder / "new.jpg", 7, Geotag(position(5)))
    with street_client(own_folder / "town.gpkg", config=ServeConfig(token=TOKEN)) as client:
        *some, last = client.post("/photos", files={"photos": photo}, headers=ALLOWED).json()["photos"][0]["ids"]
        for photo_id in some:
            assert client.delete(f"/photos/{photo_id}", headers=ALLOWED).status_code == 204
        assert len(list((own_folder / "town-photos").iterdir())) == 1
        assert client.delete(f"/photos/{last}", headers=ALLOWED).status_code == 204
    assert list((own_folder / "town-photos").iterdir()) == []


def test_a_map_built_with_panorama_also_cuts_uploads_without_tags(own_folder: Path) -> None:
    plain = sphere_jpeg(own_folder / "plain.jpg", 8, Geotag(position(6), heading_deg=HEADING_DEG), tagged=False)
    views = ViewOptions((0, 180), untagged=True)
    build_map(
        own_folder / "plain.jpg", own_folder / "two.gpkg", street_model(), config=MapConfig(views=views, progress=False)
    )
    other = sphere_jpeg(own_folder / "other.jpg", 9, Geotag(position(7), heading_deg=HEADING_DEG), tagged=False)
    serving = ServeConfig(token=TOKEN)
    with street_client(own_folder / "two.gpkg", config=serving) as client:
        assert len(client.post("/photos", files={"photos": other}, headers=ALLOWED).json()["photos"][0]["ids"]) == 2
        headings = [f["properties"]["heading_deg"] for f in client.get("/map").json()["features"]]
    assert headings == pytest.approx([HEADING_DEG, HEADING_DEG + 180] * 2)
    with street_client(own_folder / "town.gpkg", config=serving) as client:
        told = client.post("/photos", files={"photos": plain}, headers=ALLOWED).json()["photos"][0]
    assert "ids" not in told  # 2:1 without tags: an ordinary photo
    assert PlaceMap(own_folder / "town.gpkg").files[-1].endswith(".jpg")
