"""Matched local features of a photo and a photo of the map, over HTTP."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.localize.town import write_town
from tests.serve.running import street_client

from sareloc.maps import PlaceMap
from sareloc.serve import ServeConfig
from sareloc.serve.schemas import InliersAnswer


def id_of(folder: Path, name: str) -> int:
    place_map = PlaceMap(folder / "town.gpkg")
    return int(place_map.ids[place_map.files.index(f"photos/{name}")])


def test_the_points_of_a_match_are_moved_as_the_photos_are(town_client: httpx.Client, town_folder: Path) -> None:
    """The query shows the wall 20 px of 224 farther to the right than the map's photo."""
    photo = (town_folder / "query.jpg").read_bytes()
    fix = town_client.post("/localize", params={"top": 24}, content=photo).json()
    match = next(match for match in fix["matches"] if match["photo"].endswith("07_0.jpg"))
    answer = town_client.post("/inliers", params={"id": match["id"]}, content=photo)
    assert answer.status_code == 200
    told = answer.json()
    InliersAnswer.model_validate(told)
    assert list(told) == ["id", "inliers", "geometry", "query_size", "photo_size", "query_xy", "photo_xy"]
    assert told["id"] == match["id"]
    assert told["inliers"] == len(told["query_xy"]) == len(told["photo_xy"])
    assert told["inliers"] == max(match["inliers"], match["planar_inliers"]) > 30
    assert (told["geometry"] == "homography") == (match["planar_inliers"] > match["inliers"])
    assert told["query_size"] == told["photo_size"] == [448, 320]  # enlarged
    moved = (np.array(told["photo_xy"]) - told["query_xy"]) * (224, 160)
    np.testing.assert_allclose(np.median(moved, axis=0), (20, 0), atol=0.5)


def test_photos_of_other_places_agree_in_few_points(town_client: httpx.Client, town_folder: Path) -> None:
    photo = (town_folder / "query.jpg").read_bytes()
    told = [
        town_client.post("/inliers", params={"id": id_of(town_folder, name)}, content=photo).json()["inliers"]
        for name in ("07_1.jpg", "03_0.jpg")
    ]
    assert told[0] > 2 * told[1]


def test_no_file_is_left_of_a_photo_that_was_asked_about(town_client: httpx.Client, town_folder: Path) -> None:
    before = sorted(town_folder.rglob("*"))
    town_client.post("/inliers?id=1", content=(town_folder / "query.jpg").read_bytes())
    assert sorted(town_folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("query", "body", "status", "said"),
    [
        ("?id=1", b"no photo", 422, "not a JPEG"),
        ("?id=1", b"", 400, ""),
        ("?id=9999", None, 404, "no photo with this id"),
        ("?id=0", None, 422, "id"),
        (f"?id={2**63}", None, 422, "id"),
        ("", None, 422, "id"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    town_client: httpx.Client, town_folder: Path, query: str, body: bytes | None, status: int, said: str
) -> None:
    content = (town_folder / "query.jpg").read_bytes() if body is None else body
    answer = town_client.post(f"/inliers{query}", content=content)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert said in answer.json()["detail"]


def test_photos_that_may_not_be_shown_are_not_compared(town_folder: Path, tmp_path: Path) -> None:
    """One answer for all causes, the same as for thumbnails; the map holds the local features of all of them."""
    folder = Path(shutil.copytree(town_folder, tmp_path / "town"))
    secret = tmp_path / "secret.jpg"
    (folder / "photos" / "00_0.jpg").rename(secret)
    (folder / "photos" / "00_0.jpg").symlink_to(secret)
    (folder / "photos" / "00_1.jpg").unlink()
    photo = (folder / "query.jpg").read_bytes()
    with street_client(folder / "town.gpkg") as client:
        told = [
            client.post(f"/inliers?id={photo_id}", content=photo)
            for photo_id in (id_of(folder, "00_0.jpg"), id_of(folder, "00_1.jpg"), 9999)
        ]
        thumbnail = client.get("/photos/9999/thumbnail")
        assert client.post(f"/inliers?id={id_of(folder, '01_0.jpg')}", content=photo).status_code == 200
    assert {(answer.status_code, answer.text) for answer in (*told, thumbnail)} == {(404, thumbnail.text)}


def test_a_map_without_local_features_says_that_matches_are_not_verified(tmp_path: Path) -> None:
    write_town(tmp_path, keypoints=0)
    photo = (tmp_path / "photos" / "03_0.jpg").read_bytes()
    with street_client(tmp_path / "town.gpkg") as client:
        answer = client.post("/inliers?id=1", content=photo)
        assert answer.status_code == 404
        assert "not verified" in answer.json()["detail"]
    with street_client(tmp_path / "town.gpkg", config=ServeConfig(verify=5)) as client:  # from the photos themselves
        assert client.post(f"/inliers?id={id_of(tmp_path, '03_1.jpg')}", content=photo).json()["inliers"] > 30
