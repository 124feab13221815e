"""Each route of the service gives what it promises."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.localize.street import PLACES, position, street_model, view
from tests.serve.running import DEADLINE_S, running, same_place, street_client

from sareloc import __version__
from sareloc.errors import MissingExtraError
from sareloc.geo import distance_m
from sareloc.localize import Calibration, Localizer, Search
from sareloc.maps import MapConfig, MapManifest, PlaceMap, build_map, create_map_file, open_map_file
from sareloc.serve import ServeConfig, make_app


def query(folder: Path, place: int) -> bytes:
    return (folder / "queries" / f"q{place:02d}.jpg").read_bytes()


def test_a_photo_as_the_body_gives_what_the_command_line_prints(client: httpx.Client, street_folder: Path) -> None:
    answer = client.post("/localize", params={"top": 3}, content=query(street_folder, 5))
    assert answer.status_code == 200
    told = answer.json()
    assert list(told) == ["photo", "latlon", "radius_m", "confidence", "heading_deg", "place", "matches"]
    fix = Localizer(street_model(), PlaceMap(street_folder / "street.gpkg")).localize(query(street_folder, 5), top=3)
    assert told == json.loads(json.dumps(fix.to_json("photo")))
    assert distance_m(told["latlon"], position(5, 3.0)) < 25


def test_a_photo_of_another_town_is_not_in_this_map(client: httpx.Client, street_folder: Path) -> None:
    told = client.post("/localize", content=(street_folder / "elsewhere.jpg").read_bytes()).json()
    assert (told["latlon"], told["radius_m"]) == (None, None)
    assert told["reason"].startswith("not in this map")


def test_a_form_gives_one_answer_for_each_photo_in_order(client: httpx.Client, street_folder: Path) -> None:
    files = [
        ("photos", ("a.jpg", query(street_folder, 3))),
        ("photos", ("notes.txt", b"no photo")),
        ("photos", ("b.jpg", query(street_folder, 8))),
    ]
    answer = client.post("/localize", files=files)
    assert answer.status_code == 200
    first, bad, last = answer.json()["fixes"]
    assert [first["photo"], bad["photo"], last["photo"]] == ["a.jpg", "notes.txt", "b.jpg"]
    assert distance_m(first["latlon"], position(3, 3.0)) < 25
    assert distance_m(last["latlon"], position(8, 3.0)) < 25
    assert set(bad) == {"photo", "error"}
    assert "not a JPEG" in bad["error"]


def test_a_form_of_one_photo_is_a_list_of_one(client: httpx.Client, street_folder: Path) -> None:
    answer = client.post("/localize", files={"photos": ("a.jpg", query(street_folder, 3))}).json()
    assert [fix["photo"] for fix in answer["fixes"]] == ["a.jpg"]


def test_where_to_look(client: httpx.Client, street_folder: Path) -> None:
    latitude, longitude = position(20)
    circle = client.post("/localize", params={"circle": f"{latitude},{longitude},100"}, content=query(street_folder, 2))
    assert all(distance_m(match["latlon"], (latitude, longitude)) <= 100 for match in circle.json()["matches"])
    box = client.post("/localize", params={"box": "0,0,1,1"}, content=query(street_folder, 2)).json()
    assert box["matches"] == []
    assert "no photo of the map" in box["reason"]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"box": "1,2,3"}, "box"),
        ({"box": "5,0,1,1"}, "south <= north"),
        ({"box": "nan,0,1,1"}, "box"),
        ({"circle": "91,0,5"}, "91.0"),
        ({"circle": "1,1,-5"}, "radius"),
        ({"circle": "1,1,5", "box": "0,0,1,1"}, "circle"),
        ({"top": 0}, "top"),
        ({"top": 101}, "top"),
        ({"top": "many"}, "top"),
    ],
)
def test_wrong_parameters_say_so(client: httpx.Client, street_folder: Path, params: dict[str, str], said: str) -> None:
    answer = client.post("/localize", params=params, content=query(street_folder, 2))
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert said in answer.json()["detail"]


def test_the_map_is_geojson(client: httpx.Client, street_folder: Path) -> None:
    answer = client.get("/map")
    assert answer.headers["content-type"] == "application/geo+json"
    told = answer.json()
    assert (told["type"], told["total"], told["inside"]) == ("FeatureCollection", 3 * PLACES, 3 * PLACES)
    held = PlaceMap(street_folder / "street.gpkg")
    assert [feature["id"] for feature in told["features"]] == held.ids.tolist()
    first = told["features"][0]
    assert first["geometry"]["coordinates"] == held.latlon[0][::-1].tolist()
    assert first["properties"] == {"photo": "photos/00_0.jpg", "heading_deg": None, "time": None}
    west, south, east, north = told["bbox"]
    assert [south, west] == held.latlon.min(axis=0).tolist()
    assert [north, east] == held.latlon.max(axis=0).tolist()


def test_the_map_by_box_and_limit(client: httpx.Client) -> None:
    latitude, longitude = position(4)
    box = f"{latitude - 1e-3},{longitude - 2e-4},{latitude + 1e-3},{longitude + 2e-4}"
    inside = client.get("/map", params={"box": box}).json()
    assert (inside["total"], inside["inside"]) == (3 * PLACES, 3)
    assert {f["properties"]["photo"] for f in inside["features"]} == {f"photos/04_{i}.jpg" for i in range(3)}
    sample = client.get("/map", params={"limit": 10}).json()
    assert [feature["id"] for feature in sample["features"]] == [1 + 9 * i for i in range(10)]
    assert client.get("/map", params={"limit": 0}).status_code == 422
    assert client.get("/map", params={"limit": 10_001}).status_code == 422


def test_thumbnails_are_small_jpegs_that_browsers_keep(client: httpx.Client) -> None:
    answer = client.get("/photos/7/thumbnail", params={"size": 48})
    assert answer.headers["content-type"] == "image/jpeg"
    with Image.open(io.BytesIO(answer.content)) as shown:
        assert (shown.format, shown.size) == ("JPEG", (48, 32))
        assert np.abs(np.asarray(shown.resize((24, 16)), float) - small(view(2, 0))).mean() < 12
    again = client.get("/photos/7/thumbnail", params={"size": 48}, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = client.get("/photos/7/thumbnail", params={"size": 64})
    assert other.headers["etag"] != answer.headers["etag"]


def small(image: np.ndarray) -> np.ndarray:
    return np.asarray(Image.fromarray(image).resize((24, 16)), float)


@pytest.mark.parametrize("photo", ["0", "91", "-1", "1.5", "..%2Fstreet.gpkg", "9223372036854775808", "x"])
def test_photos_that_are_not_there(client: httpx.Client, photo: str) -> None:
    assert client.get(f"/photos/{photo}/thumbnail").status_code in (404, 422)


def test_settings_health_and_metrics(client: httpx.Client, street_folder: Path) -> None:
    assert client.get("/settings").json() == {
        "name": "Street", "maps": ["street.gpkg"], "tiles": None, "attribution": None, "max_bytes": 32 * 2**20,
        "max_files": 16, "max_features": 10_000, "adding": False, "heatmap": True,
    }  # fmt: skip
    manifest = PlaceMap(street_folder / "street.gpkg").manifest
    described = {"photos": 3 * PLACES, "model": "street", "fingerprint": manifest.fingerprint}
    assert client.get("/health").json() == {
        "status": "ok", "version": __version__, "maps": [{"name": "street.gpkg", **described}], **described,
    }  # fmt: skip
    client.post("/localize", content=query(street_folder, 1))
    client.get("/nobody/made/this/route")
    counted = client.get("/metrics")
    assert counted.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = counted.text.splitlines()
    assert any(
        line.startswith('sareloc_requests_total{method="POST",route="/localize",status="200"}') for line in lines
    )
    assert any(line.startswith('sareloc_requests_total{method="GET",route="other",status="404"}') for line in lines)
    assert f"sareloc_map_photos {3 * PLACES:.1f}" in lines
    assert not any("nobody" in line for line in lines)


def test_the_name_is_the_maps_unless_another_is_given(street_folder: Path) -> None:
    with street_client(street_folder / "street.gpkg") as client:
        assert client.get("/settings").json()["name"] == "street"


def test_a_localizer_is_served_as_it_is(street_folder: Path) -> None:
    localizer = Localizer(
        street_model(), PlaceMap(street_folder / "street.gpkg"), Search(candidates=5), min_confidence=0.99999
    )
    with running(make_app(localizer)) as address:
        told = httpx.post(f"{address}/localize", content=query(street_folder, 5), timeout=DEADLINE_S).json()
    fix = localizer.localize(query(street_folder, 5))
    assert told["confidence"] == pytest.approx(fix.confidence)
    assert same_place(told, fix)
    assert (told["latlon"] is None) == (not fix.found)


def test_without_the_extra_the_pip_line_is_named(street_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(MissingExtraError, match=r'fastapi is not installed .*: pip install "sareloc\[serve\]"'):
        make_app(street_folder / "street.gpkg", street_model())


def test_an_empty_map_is_served_and_answers_that_it_is(tmp_path: Path, street_folder: Path) -> None:
    model = street_model()
    create_map_file(tmp_path / "empty.gpkg", MapManifest(model.name, model.fingerprint(), model.dim))
    with street_client(tmp_path / "empty.gpkg", config=ServeConfig(token="t")) as client:
        assert client.get("/health").json()["photos"] == 0
        told = client.get("/map").json()
        assert (told["total"], told["features"]) == (0, [])
        assert "bbox" not in told
        lost = client.post("/localize", content=query(street_folder, 5)).json()
        assert (lost["latlon"], lost["matches"], lost["reason"]) == (None, [], "this map holds no photos yet")
        new = {"photos": (street_folder / "photos" / "05_0.jpg").read_bytes()}
        assert client.post("/photos", files=new, headers={"Authorization": "Bearer t"}).status_code == 201
        found = client.post("/localize", content=query(street_folder, 5)).json()
        assert [match["id"] for match in found["matches"]] == [1]


def test_the_calibration_that_a_map_gets_while_it_is_served_counts(own_folder: Path) -> None:
    with street_client(own_folder / "street.gpkg") as client:
        assert client.post("/localize", content=query(own_folder, 5)).json()["latlon"]
        doubt = Calibration(weights=(-20.0, 0.0, 0.0, 0.0))
        with open_map_file(own_folder / "street.gpkg", write=True) as file:
            file.write_note("calibration plain", doubt.to_json())
        assert client.post("/localize", content=query(own_folder, 5)).json()["latlon"] is None


def test_a_map_that_goes_away_is_a_503_and_comes_back(own_folder: Path) -> None:
    map_path = own_folder / "street.gpkg"
    with street_client(map_path) as client:
        map_path.rename(own_folder / "away.gpkg")
        answers = [client.get("/health"), client.get("/map"), client.post("/localize", content=query(own_folder, 5))]
        assert [answer.status_code for answer in answers] == [503] * 3
        assert all(str(own_folder) not in answer.text and answer.headers["retry-after"] for answer in answers)
        (own_folder / "away.gpkg").rename(map_path)
        assert client.get("/health").status_code == 200
        assert client.post("/localize", content=query(own_folder, 5)).status_code == 200
        quick = MapConfig(keypoints=0, progress=False)
        build_map(own_folder / "photos", own_folder / "other.gpkg", street_model(), config=quick)
        (own_folder / "other.gpkg").replace(map_path)  # another map under the name
        assert client.post("/localize", content=query(own_folder, 5)).status_code == 503
