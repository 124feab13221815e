"""A map on Milvus (milvus-lite) is served as the same map in a file is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.localize.street import street_model
from tests.serve.running import DEADLINE_S, running, street_client

from sareloc.errors import ArgumentError
from sareloc.maps import Box, PlaceMap, copy_map, open_store
from sareloc.serve import ServeConfig, make_app

pytest.importorskip("milvus_lite")


@pytest.fixture(scope="module")
def address(street_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    there = f"milvus-lite:{tmp_path_factory.mktemp('served')}/lite.db/street"
    copy_map(street_folder / "street.gpkg", there, progress=False)
    return there


@pytest.fixture(scope="module")
def milvus(address: str, street_folder: Path) -> Iterator[httpx.Client]:
    app = make_app(address, street_model(), config=ServeConfig(photos=(street_folder,)))
    with running(app) as url, httpx.Client(base_url=url, timeout=DEADLINE_S) as connected:
        yield connected


@pytest.fixture(scope="module")
def file(street_folder: Path) -> Iterator[httpx.Client]:
    with street_client(street_folder / "street.gpkg") as connected:
        yield connected


def test_fixes_agree(milvus: httpx.Client, file: httpx.Client, street_folder: Path) -> None:
    for name in ("q02", "q05", "q09"):
        photo = (street_folder / "queries" / f"{name}.jpg").read_bytes()
        there, here = (client.post("/localize", content=photo).json() for client in (milvus, file))
        assert there["latlon"] == pytest.approx(here["latlon"], abs=1e-5)
        nearest = [[Path(m["photo"]).name for m in told["matches"]] for told in (there, here)]
        assert nearest[0][0] == nearest[1][0]


def test_a_thumbnail_is_found_under_the_id_of_a_match(milvus: httpx.Client, street_folder: Path) -> None:
    photo = (street_folder / "queries" / "q05.jpg").read_bytes()
    match = milvus.post("/localize", content=photo).json()["matches"][0]
    assert match["id"] > 2**53  # more than a number of JavaScript holds
    assert milvus.get(f"/photos/{match['id']}/thumbnail").headers["content-type"] == "image/jpeg"
    assert milvus.get("/photos/1/thumbnail").status_code == 404


def test_a_map_on_milvus_has_no_folder_of_its_own(address: str, street_folder: Path) -> None:
    service = make_app(address, street_model()).state.service
    (served,) = service.maps.values()
    assert served.photo_folders == ()
    assert (served.hidden_photos().count, served.hidden_photos().folders) == (90, (str(street_folder / "photos"),))


def test_the_listing_is_that_of_the_file(milvus: httpx.Client, file: httpx.Client) -> None:
    there, here = (client.get("/map", params={"limit": 10_000}).json() for client in (milvus, file))
    assert (there["total"], there["inside"]) == (here["total"], here["inside"])
    assert there["bbox"] == pytest.approx(here["bbox"], abs=1e-6)

    def known(told):
        return sorted(
            (Path(f["properties"]["photo"]).name, *f["geometry"]["coordinates"], f["properties"]["time"])
            for f in told["features"]
        )

    assert known(there) == known(here)
    few = milvus.get("/map", params={"limit": 5}).json()
    assert (len(few["features"]), few["inside"]) == (5, here["total"])
    latlon = np.array([f["geometry"]["coordinates"][::-1] for f in here["features"]])
    half = Box(latlon[:, 0].min(), latlon[:, 1].min(), float(np.median(latlon[:, 0])), latlon[:, 1].max())
    box = ",".join(map(str, (half.south, half.west, half.north, half.east)))
    counts = {client.get("/map", params={"box": box, "limit": 10_000}).json()["inside"] for client in (milvus, file)}
    assert counts == {len(half.rows(latlon))}


def test_health_counts_what_is_there(milvus: httpx.Client, address: str) -> None:
    assert milvus.get("/health").json()["photos"] == len(PlaceMap(address))


def test_what_is_removed_elsewhere_is_no_longer_found(street_folder: Path, tmp_path: Path) -> None:
    there = f"milvus-lite:{tmp_path}/lite.db/street"
    copy_map(street_folder / "street.gpkg", there, progress=False)
    photo = (street_folder / "queries" / "q05.jpg").read_bytes()
    with running(make_app(there, street_model())) as url, httpx.Client(base_url=url, timeout=DEADLINE_S) as client:
        before = client.post("/localize", content=photo).json()["matches"][0]["id"]
        with open_store(there, write=True) as store:
            assert store.remove(np.array([before])) == 1
        after = client.post("/localize", params={"top": 20}, content=photo).json()["matches"]
        assert before not in [match["id"] for match in after]


def test_photos_are_not_added_over_http(address: str) -> None:
    with pytest.raises(ArgumentError, match="map add"):
        make_app(address, street_model(), config=ServeConfig(token="a-token"))
