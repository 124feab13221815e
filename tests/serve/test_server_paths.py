"""No answer shows a path of the server to a client without the token."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from tests.localize.street import position, street_model, view, write_view
from tests.serve.conftest import ALLOWED, TOKEN
from tests.serve.running import DEADLINE_S, running

from sareloc.maps import copy_map
from sareloc.models import save_checkpoint
from sareloc.serve import ServeConfig, make_app
from sareloc.serve.guard import public_name

GEOTAG = "/geotag?lat=48.8&lon=2.3&radius_m=10&confidence=0.9"


def ask_everything(client: httpx.Client, folder: Path) -> list[httpx.Response]:
    """Right and wrong requests to every route."""
    photo, files = (folder / "query.jpg").read_bytes(), form(folder)
    return [
        *(client.get(path) for path in ("/", "/docs", "/openapi.json", "/settings", "/health", "/metrics")),
        *(client.get(path) for path in ("/map", "/map?limit=0", "/map?box=1,2", "/assets/absent", "/absent")),
        *(client.get(f"/photos/{photo_id}/thumbnail") for photo_id in (1, 999)),
        *(client.post(path, content=photo) for path in ("/localize?top=24", "/heatmap", "/photos")),
        *(client.post(f"/inliers?id={photo_id}", content=photo) for photo_id in (1, 999)),
        *(client.post(path, content=content) for path in ("/preview", GEOTAG) for content in (photo, b"no photo")),
        *(client.post(path, content=b"no photo") for path in ("/localize", "/heatmap", "/inliers?id=1")),
        *(client.post(path, files=files) for path in ("/localize", "/photos")),
        client.delete("/photos/1"),
    ]


def form(folder: Path) -> list[tuple[str, tuple[str, bytes]]]:
    new = write_view(folder / "new.jpg", view(40, 0, town=9), position(40)).read_bytes()
    photos = {"a.jpg": (folder / "query.jpg").read_bytes(), "new.jpg": new, "bad.jpg": b"no photo"}
    return [("photos", item) for item in photos.items()]


def names(client: httpx.Client, folder: Path) -> list[str]:
    """Of photos of the map, in each answer that has one."""
    listed = client.get("/map").json()["features"][0]["properties"]["photo"]
    one = client.post("/localize", content=(folder / "query.jpg").read_bytes()).json()
    several = client.post("/localize", files=form(folder)).json()["fixes"][0]
    return [listed, one["matches"][0]["photo"], several["matches"][0]["photo"]]


def test_no_route_shows_a_path_without_the_token(town_folder: Path, tmp_path: Path) -> None:
    """The photos are not in the map's folder, so that the map has their absolute paths."""
    copy_map(town_folder / "town.gpkg", tmp_path / "town.gpkg", progress=False)
    (tmp_path / "query.jpg").write_bytes((town_folder / "query.jpg").read_bytes())
    save_checkpoint(street_model(), tmp_path / "model.safetensors")
    app = make_app(
        tmp_path / "town.gpkg",
        tmp_path / "model.safetensors",
        config=ServeConfig(verify=4, min_confidence=0, token=TOKEN, photos=(town_folder / "photos",)),
    )
    with running(app) as address, httpx.Client(base_url=address, timeout=DEADLINE_S) as client:
        answers, public = ask_everything(client, tmp_path), names(client, tmp_path)
        thumbnail = client.get("/photos/1/thumbnail")
        client.headers.update(ALLOWED)
        full = names(client, tmp_path)
        answers += [client.post("/photos", files=form(tmp_path)), client.delete("/photos/999")]
        (tmp_path / "town.gpkg").write_bytes(b"not a map")
        unreadable = [client.get(path) for path in ("/map", "/health", "/photos/1/thumbnail")]
    assert {answer.status_code for answer in answers} == {200, 201, 401, 404, 422}
    assert {answer.status_code for answer in unreadable} == {503}
    asked = {re.sub(r"\d+", "{photo_id}", answer.url.path) for answer in answers}
    assert asked >= set(app.openapi()["paths"])
    for answer in (*answers, *unreadable):
        shown = answer.text + str(answer.headers)
        assert not [folder for folder in (town_folder, tmp_path) if str(folder) in shown], answer.url
    assert thumbnail.headers["content-type"] == "image/jpeg"
    assert all(Path(name).is_file() for name in full)
    assert public == [Path(name).name for name in full]


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("photos/07.jpg", "photos/07.jpg"),
        ("/srv/photos/07.jpg", "07.jpg"),
        ("/srv/pano.jpg#yaw=30&pitch=0&fov=60&size=640x480", "pano.jpg#yaw=30&pitch=0&fov=60&size=640x480"),
        ("C:/photos/07.jpg", "07.jpg"),
        ("C:\\photos\\07.jpg", "07.jpg"),
        ("\\\\server\\photos\\07.jpg", "07.jpg"),
        ("/", "photo"),
    ],
)
def test_an_absolute_path_is_its_last_part(file: str, shown: str) -> None:
    assert public_name(file) == shown
