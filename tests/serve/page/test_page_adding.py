"""Photos are added to the map in the page, with the token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect
from tests.localize.street import street_model, view, write_view
from tests.serve.conftest import TOKEN
from tests.serve.page.visiting import Visit, choose, verdict
from tests.serve.running import running

from sareloc.geo import distance_m
from sareloc.maps import Box, remove_photos
from sareloc.serve import ServeConfig, make_app

HARBOUR = (48.8584, 2.30)


@pytest.fixture
def own_visit(desktop: Page, own_client: httpx.Client) -> Iterator[Visit]:
    """The page of a service with a token."""
    with Visit(desktop, str(own_client.base_url)) as visit:
        visit.page.get_by_text("Add photos to this map").click()
        yield visit


def add(page: Page, *photos: Path) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Add photos…").click()
    chooser.value.set_files(photos)


def test_photos_are_added_with_the_token_and_found_by_the_next_query(
    own_visit: Visit, own_client: httpx.Client, tmp_path: Path
) -> None:
    page, new, bad = own_visit.page, tmp_path / "new.jpg", tmp_path / "notes.jpg"
    write_view(new, view(50, 0, town=5), None)
    bad.write_text("no photo")
    before = own_client.get("/health").json()["photos"]
    page.get_by_label("Token of this service").fill(TOKEN)
    add(page, new)
    expect(page.locator("#add-note")).to_have_text("0 of 1 photo added. new.jpg: has no position: enter one above")
    page.get_by_label("Position of photos without a geotag").fill(", ".join(map(str, HARBOUR)))
    add(page, new, bad)
    expect(page.locator("#add-note")).to_contain_text("1 of 2 photos added. ")
    expect(page.locator("#add-note")).to_contain_text("notes.jpg")
    expect(page.locator("#about")).to_contain_text(f"{before + 1} photos")
    shown = page.evaluate("async () => (await import('/assets/app.js')).mapView.photoLayer.photos.map((p) => p.latlon)")
    assert min(float(distance_m(one, HARBOUR)) for one in shown) < 1
    choose(page, new)
    verdict(page)
    first = page.locator("#match-caption").inner_text()
    assert first.startswith("Match 1")
    assert own_client.get("/health").json()["photos"] == before + 1
    assert len(own_visit.failed) == 2


def test_a_wrong_token_is_reported_and_nothing_is_added(
    own_visit: Visit, own_client: httpx.Client, tmp_path: Path
) -> None:
    page, new = own_visit.page, tmp_path / "new.jpg"
    write_view(new, view(50, 0, town=5), HARBOUR)
    before = own_client.get("/health").json()["photos"]
    button = page.get_by_role("button", name="Add photos…")
    button.click()
    expect(page.locator("#add-note")).to_have_text("Enter the token of this service first.")
    page.get_by_label("Token of this service").fill("wrong")
    page.get_by_label("Position of photos without a geotag").fill("somewhere")
    button.click()
    expect(page.locator("#add-note")).to_contain_text("A position is a latitude and a longitude")
    page.get_by_label("Position of photos without a geotag").fill("")
    add(page, new, new)
    expect(page.locator("#add-note")).to_have_text("0 of 2 photos added. The token is wrong.")
    assert own_client.get("/health").json()["photos"] == before
    assert len(own_visit.failed) == 1


def test_the_first_photos_of_an_empty_map_are_added_in_the_page(desktop: Page, own_folder: Path) -> None:
    path = own_folder / "street.gpkg"
    remove_photos(path, area=Box(-90, -180, 90, 180))
    app = make_app(path, street_model(), config=ServeConfig(token=TOKEN))
    with running(app) as url, Visit(desktop, url) as visit:
        page = visit.page
        expect(page.get_by_role("heading", name="This map has no photos yet")).to_be_visible()
        page.get_by_text("Add photos to this map").click()
        page.get_by_label("Token of this service").fill(TOKEN)
        add(page, *sorted((own_folder / "photos").glob("0[0-3]_0.jpg")))
        expect(page.locator("#add-note")).to_have_text("4 of 4 photos added.")
        expect(page.get_by_role("button", name="Choose photos")).to_be_visible()
        expect(page.locator("#about")).to_contain_text("4 photos")


def test_without_a_token_nothing_can_be_added(page: Page) -> None:
    expect(page.get_by_text("Add photos to this map")).to_be_hidden()
