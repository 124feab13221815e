"""A service of several maps: answers, photos and uploads belong to the right one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.localize.street import PLACES, position, street_model, view, write_queries, write_view
from tests.serve.conftest import ALLOWED, TOKEN
from tests.serve.running import DEADLINE_S, running

from sareloc.geo import Box, enclosing_box
from sareloc.maps import MapConfig, add_photos, build_map
from sareloc.serve import ServeConfig, make_app

OTHER_TOWN = 5
FAR = 2.0  # degrees of longitude


@pytest.fixture(scope="module")
def two_towns(street_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: a/street.gpkg and b/other.gpkg of two towns, each with its photos, and queries of both."""
    folder = tmp_path_factory.mktemp("two_towns")
    shutil.copytree(street_folder, folder / "a")
    for place in range(PLACES):
        latitude, longitude = position(place, 0.0)
        write_view(folder / "b/photos" / f"{place}.jpg", view(place, 0, OTHER_TOWN), (latitude, longitude + FAR))
    config = MapConfig(keypoints=0, progress=False)
    build_map(folder / "b/photos", folder / "b/other.gpkg", street_model(), config=config)
    write_queries(folder / "queries", town=OTHER_TOWN)
    return folder


@pytest.fixture
def folder(two_towns: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(two_towns, tmp_path, dirs_exist_ok=True))


@pytest.fixture
def both(folder: Path) -> Iterator[httpx.Client]:
    config = ServeConfig(token=TOKEN, min_confidence=0.0)
    app = make_app([folder / "a/street.gpkg", folder / "b/other.gpkg"], street_model(), config=config)
    with running(app, config) as address, httpx.Client(base_url=address, timeout=DEADLINE_S) as client:
        yield client


def ask(client: httpx.Client, photo: Path, **options: int) -> dict:
    return client.post("/localize", content=photo.read_bytes(), params=options).raise_for_status().json()


def test_answers_and_their_photos_are_of_the_right_map(both: httpx.Client, folder: Path) -> None:
    towns = {"street.gpkg": folder / "a/queries/q03.jpg", "other.gpkg": folder / "queries/q03.jpg"}
    for name, photo in towns.items():
        fix = ask(both, photo, top=2)
        assert fix["map"] == name
        assert [match["map"] for match in fix["matches"]] == [name, name, *(towns.keys() - {name})]
    fix = ask(both, towns["other.gpkg"])
    pictures = [
        both.get(f"/photos/{fix['matches'][0]['id']}/thumbnail", params={"map": name}).raise_for_status().content
        for name in towns
    ]
    assert pictures[0] != pictures[1]
    missing = both.get("/photos/1/thumbnail")
    assert (missing.status_code, "street.gpkg, other.gpkg" in missing.json()["detail"]) == (422, True)
    assert str(folder) not in missing.text


def test_the_maps_are_listed(both: httpx.Client, folder: Path) -> None:
    listed = both.get("/map").json()
    assert (listed["total"], listed["inside"]) == (90 + PLACES, 90 + PLACES)
    assert {feature["properties"]["map"] for feature in listed["features"]} == {"street.gpkg", "other.gpkg"}
    west, _, east, _ = listed["bbox"]
    assert east - west == pytest.approx(FAR, abs=0.1)
    some = both.get("/map", params={"limit": 20}).json()["features"]
    counts = [sum(one["properties"]["map"] == name for one in some) for name in ("street.gpkg", "other.gpkg")]
    assert counts == [20 * 90 // (90 + PLACES), 20 * PLACES // (90 + PLACES)]
    one = both.get("/map", params={"map": "other.gpkg"}).json()
    assert one["total"] == PLACES
    assert both.get("/settings").json()["maps"] == ["street.gpkg", "other.gpkg"]
    health = both.get("/health").json()
    assert (health["photos"], [one["photos"] for one in health["maps"]]) == (90 + PLACES, [90, PLACES])
    assert both.get("/map", params={"map": "none"}).status_code == 422


def test_photos_are_added_to_the_named_map_and_removed_from_it(both: httpx.Client, folder: Path) -> None:
    write_view(folder / "new.jpg", view(70, 0, OTHER_TOWN), (48.9, 5.0))
    write_view(folder / "again.jpg", view(70, 1, OTHER_TOWN), None)
    files = {"photos": (folder / "new.jpg").read_bytes()}
    refused = both.post("/photos", files=files, headers=ALLOWED)
    assert (refused.status_code, "street.gpkg, other.gpkg" in refused.json()["detail"]) == (422, True)
    added = both.post("/photos", files=files, data={"map": "other.gpkg"}, headers=ALLOWED)
    assert added.status_code == 201
    assert [one["photos"] for one in both.get("/health").json()["maps"]] == [90, PLACES + 1]
    photo_id = added.json()["photos"][0]["id"]
    match = ask(both, folder / "again.jpg")["matches"][0]
    assert (match["id"], match["map"]) == (photo_id, "other.gpkg")
    assert (folder / "b/other-photos").is_dir()
    assert not (folder / "a/street-photos").exists()
    gone = both.delete(f"/photos/{photo_id}", params={"map": "other.gpkg"}, headers=ALLOWED)
    assert (gone.status_code, both.get("/health").json()["photos"]) == (204, 90 + PLACES)


def test_a_map_that_another_process_changes_is_read_again(both: httpx.Client, folder: Path) -> None:
    write_view(folder / "more/new.jpg", view(71, 0, OTHER_TOWN), (48.9, 5.0))
    write_view(folder / "again.jpg", view(71, 1, OTHER_TOWN), None)
    add_photos(folder / "more", folder / "b/other.gpkg", street_model(), config=MapConfig(progress=False))
    match = ask(both, folder / "again.jpg")["matches"][0]
    assert (match["photo"].endswith("new.jpg"), match["map"]) == (True, "other.gpkg")


def test_maps_of_different_models_and_an_empty_one(folder: Path) -> None:
    config = MapConfig(keypoints=0, progress=False)
    from sareloc.localize import open_localizer
    from sareloc.localize.several import SeveralMaps

    build_map(folder / "b/photos", folder / "third.gpkg", street_model(2), config=config)
    joined = SeveralMaps(
        {
            "street": open_localizer(folder / "a/street.gpkg", street_model(), min_confidence=0.0),
            "third": open_localizer(folder / "third.gpkg", street_model(2), min_confidence=0.0),
        },
        0.0,
    )
    app = make_app(joined)
    with running(app) as address, httpx.Client(base_url=address, timeout=DEADLINE_S) as client:
        assert ask(client, folder / "queries/q03.jpg")["map"] == "third"


@pytest.mark.parametrize(
    ("boxes", "found"),
    [
        ([(1, 10, 2, 20), (0, 30, 1, 40)], (0, 10, 2, 40)),
        ([(0, 170, 1, 175), (0, -175, 1, -170)], (0, 170, 1, -170)),
        ([(0, 170, 1, -175), (0, 175, 1, 178)], (0, 170, 1, -175)),
        ([(0, 5, 1, 5)], (0, 5, 1, 5)),
        ([(0, -120, 1, -60), (0, 0, 1, 60), (0, 120, 1, 170)], (0, -120, 1, 170)),
    ],
)
def test_the_box_around_maps(boxes: list[tuple[float, ...]], found: tuple[float, ...]) -> None:
    assert enclosing_box([Box(*box) for box in boxes]) == Box(*found)
