"""A photo is given, and its place is seen."""

from __future__ import annotations

import re
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect
from tests.localize.street import position, street_model
from tests.serve.page.visiting import Visit, choose, drop, given_files, shown_position, verdict
from tests.serve.running import DEADLINE_S, HeldLocalizer, running

from sareloc.geo import distance_m
from sareloc.serve import ServeConfig, make_app

MATCHES = 5
MIDDLE_OF_THE_CIRCLE = """async () => {
  const { mapView } = await import("/assets/app.js");
  const circle = document.querySelector(".fix-circle").getBoundingClientRect();
  const map = document.getElementById("map").getBoundingClientRect();
  const middle = [circle.x + circle.width / 2 - map.x, circle.y + circle.height / 2 - map.y];
  const { lat, lng } = mapView.map.containerPointToLatLng(middle);
  return [lat, lng];
}"""


def error_m(page: Page, place: int) -> float:
    """How far the position that is shown is from where the query of this place was taken."""
    return float(distance_m([shown_position(page)], [position(place, 3.0)])[0])


def test_a_dropped_photo_is_seen_in_the_right_place(visit: Visit, street_folder: Path) -> None:
    page = visit.page
    drop(page, street_folder / "queries" / "q07.jpg")
    assert verdict(page) in {"Very likely here", "Likely here", "Probably here"}
    assert error_m(page, 7) < 10
    expect(page.locator("#confidence")).to_contain_text("% sure that it is within 25\u00a0m")
    drawn = page.evaluate(MIDDLE_OF_THE_CIRCLE)
    assert distance_m([drawn], [shown_position(page)])[0] < 2
    # in view, and not behind the panel
    panel, circle = (page.locator(name).bounding_box() for name in ("#panel", ".fix-circle"))
    assert panel is not None
    assert circle is not None
    left = panel["x"] + panel["width"]
    assert left < circle["x"] < circle["x"] + circle["width"] < 1280
    assert abs(circle["x"] + circle["width"] / 2 - (left + 1280) / 2) < 100
    assert 0 < circle["y"] < circle["y"] + circle["height"] < 800
    assert visit.failed == []


def test_with_several_maps_that_of_the_answer_is_named_on_a_line_of_its_own(
    desktop: Page, street_folder: Path, tmp_path: Path
) -> None:
    shutil.copy(street_folder / "street.gpkg", tmp_path / "again.gpkg")
    app = make_app([street_folder / "street.gpkg", tmp_path / "again.gpkg"], street_model())
    with running(app) as url, Visit(desktop, url) as visit:
        drop(visit.page, street_folder / "queries" / "q07.jpg")
        verdict(visit.page)
        expect(visit.page.locator("#map-name")).to_have_text(re.compile(r"^Map \w+\.gpkg$"))
        place, name = (visit.page.locator(one).bounding_box() for one in ("#place", "#map-name"))
        assert place is not None
        assert name is not None
        assert name["y"] >= place["y"] + place["height"] - 1


def test_matches_are_pins_and_thumbnails_of_the_same_numbers(page: Page, street_folder: Path) -> None:
    choose(page, street_folder / "queries" / "q03.jpg")
    verdict(page)
    pins, thumbnails = page.locator(".pin"), page.locator("#matches button")
    expect(thumbnails).to_have_count(MATCHES)
    expect(pins).to_have_text([str(number) for number in range(1, MATCHES + 1)])
    for image in page.locator("#matches img, #match, #query").all():
        image.evaluate("image => image.decode()")  # rejects what is no image
    expect(page.locator(".pin.chosen")).to_have_text("1")

    thumbnails.nth(2).click()
    expect(page.locator(".pin.chosen")).to_have_text("3")
    expect(page.locator("#match-caption")).to_contain_text("Match 3")

    pins.nth(1).click()
    expect(thumbnails.nth(1)).to_have_attribute("aria-pressed", "true")
    expect(thumbnails.nth(2)).to_have_attribute("aria-pressed", "false")
    expect(page.locator("#match-caption")).to_contain_text("Match 2")


@pytest.mark.slow
def test_no_pin_hides_another(page: Page, street_folder: Path) -> None:
    choose(page, street_folder / "queries" / "q03.jpg")
    verdict(page)
    for _ in range(3):
        boxes = [box for pin in page.locator(".pin").all() if (box := pin.bounding_box()) is not None]
        middles = [complex(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes]
        apart = [abs(a - b) for number, a in enumerate(middles) for b in middles[:number]]
        assert len(middles) == MATCHES
        assert min(apart) > 20
        page.get_by_role("button", name="Zoom out").click()


def test_a_photo_from_elsewhere_is_not_in_this_map(page: Page, street_folder: Path) -> None:
    choose(page, street_folder / "elsewhere.jpg")
    assert verdict(page) == "Not in this map"
    expect(page.locator(".fix-circle")).to_have_count(0)
    expect(page.locator("#where")).to_be_hidden()
    expect(page.locator("#matches button")).to_have_count(MATCHES)
    expect(page.locator("#confidence")).to_contain_text("chance of")


def test_a_pasted_photo_is_asked_about(page: Page, street_folder: Path) -> None:
    given = page.evaluate_handle(*given_files(street_folder / "queries" / "q11.jpg"))
    page.evaluate("given => document.dispatchEvent(new ClipboardEvent('paste', { clipboardData: given }))", given)
    verdict(page)
    assert error_m(page, 11) < 10


@pytest.mark.slow
def test_the_next_photo_replaces_the_last(page: Page, street_folder: Path) -> None:
    choose(page, street_folder / "queries" / "q04.jpg")
    verdict(page)
    assert error_m(page, 4) < 10
    first = page.locator("#latlon").inner_text()
    choose(page, street_folder / "queries" / "q20.jpg")
    expect(page.locator("#latlon")).not_to_have_text(first)
    assert error_m(page, 20) < 10
    expect(page.locator(".fix-circle")).to_have_count(1)
    expect(page.locator(".pin")).to_have_count(MATCHES)


def test_what_mattered_is_laid_over_the_photo(page: Page, street_folder: Path) -> None:
    choose(page, street_folder / "queries" / "q05.jpg")
    verdict(page)
    button = page.get_by_role("button", name="What mattered?")
    button.click()
    expect(page.locator("#heat")).to_be_visible()
    expect(button).to_have_attribute("aria-pressed", "true")
    photo, heat = (page.locator(name).bounding_box() for name in ("#query", "#heat"))
    assert photo == heat
    assert abs(page.locator("#heat").evaluate("image => image.naturalWidth / image.naturalHeight") - 1.5) < 0.01
    button.click()
    expect(page.locator("#heat")).to_be_hidden()
    button.click()
    expect(page.locator("#heat")).to_be_visible()
    choose(page, street_folder / "queries" / "q06.jpg")  # another photo, which other things matter to
    expect(page.locator("#heat")).to_be_hidden()
    expect(button).to_have_attribute("aria-pressed", "false")


def test_a_photo_of_the_map_is_shown_where_the_map_is_pressed(page: Page) -> None:
    spot = page.evaluate(
        """async () => {
          const { mapView } = await import("/assets/app.js");
          const { x, y } = mapView.map.latLngToContainerPoint(mapView.photoLayer.photos[0].latlon);
          return [x, y];
        }"""
    )
    page.mouse.click(*spot)
    expect(page.locator(".photo-popup img")).to_have_attribute("alt", "Photo 00_0.jpg")
    page.locator(".photo-popup img").evaluate("image => image.decode()")


def test_the_circle_is_explained_and_seen_among_its_streets(page: Page, street_folder: Path) -> None:
    choose(page, street_folder / "queries" / "q03.jpg")
    verdict(page)
    expect(page.locator("#radius")).to_have_text(re.compile(r"^9 of 10 such answers are within \d+ m: the circle\.$"))
    expect(page.get_by_role("heading", name="distance from the answer")).to_be_visible()
    across_m, down_m = page.evaluate(
        """async () => {
          const { mapView: { map } } = await import("/assets/app.js");
          const { x, y } = map.getSize();
          const metres = (a, b) => map.distance(map.containerPointToLatLng(a), map.containerPointToLatLng(b));
          return [metres([0, y / 2], [x, y / 2]), metres([x / 2, 0], [x / 2, y])];
        }"""
    )
    assert min(across_m, down_m) >= 150


def test_a_map_site_is_a_link_that_loads_nothing(visit: Visit, street_folder: Path) -> None:
    page = visit.page
    choose(page, street_folder / "queries" / "q07.jpg")
    verdict(page)
    link = page.get_by_role("link", name="OpenStreetMap")
    latitude, longitude = shown_position(page)
    found = re.search(r"mlat=(-?[\d.]+)&mlon=(-?[\d.]+)", link.get_attribute("href") or "")
    assert found is not None
    assert (float(found[1]), float(found[2])) == pytest.approx((latitude, longitude), abs=1e-5)
    assert {"noopener", "noreferrer"} <= set((link.get_attribute("rel") or "").split())
    asked: list[str] = []
    visit.context.route(
        "https://www.openstreetmap.org/**", lambda route: (asked.append(route.request.url), route.fulfill(body="a map"))
    )
    with visit.context.expect_page() as opened:
        link.click()
    opened.value.wait_for_url("https://www.openstreetmap.org/**")  # the page's policy lets it go there
    assert len(asked) == 1
    assert opened.value.evaluate("() => [window.opener, document.referrer]") == [None, ""]


class ExactLocalizer(HeldLocalizer):
    """Answers with the very position of the first match, and is all but certain of it."""

    def localize_many(self, photos: Any, **options: Any) -> list[Any]:
        fixes = super().localize_many(photos, **options)
        return [replace(fix, latlon=fix.matches[0].latlon, radius_m=0.4) for fix in fixes]


def test_a_match_at_the_answer_is_under_1_m_from_it(desktop: Page, street_folder: Path) -> None:
    exact = ExactLocalizer(street_folder / "street.gpkg")
    exact.gate.set()
    with running(make_app(exact)) as url, Visit(desktop, url) as visit:
        choose(visit.page, street_folder / "queries" / "q07.jpg")
        verdict(visit.page)
        expect(visit.page.locator("#match-caption")).to_have_text("Match 1 · under 1 m from the answer")
        expect(visit.page.locator("#radius")).to_contain_text("within 1 m")


def test_several_photos_are_answered_one_after_the_other(desktop: Page, street_folder: Path, tmp_path: Path) -> None:
    held = HeldLocalizer(street_folder / "street.gpkg")
    bad = tmp_path / "bad.jpg"
    bad.write_text("no photo")
    with running(make_app(held)) as url, Visit(desktop, url) as visit:
        page = visit.page
        drop(
            page,
            street_folder / "queries" / "q07.jpg",
            street_folder / "elsewhere.jpg",
            bad,
            street_folder / "queries" / "q03.jpg",
        )
        photos = page.locator("#queue-list button")
        expect(photos).to_have_count(4)
        assert held.begun.wait(DEADLINE_S)
        expect(page.locator("#queue-count")).to_have_text("0 of 4 answered")
        assert [photos.nth(number).is_enabled() for number in range(4)] == [True, False, False, False]
        held.gate.set()
        expect(page.locator("#queue-count")).to_have_text("2 of 4 found")
        assert held.batches == [1, 1, 1]  # one at a time, the bad one never
        # the first is shown, and stays until another one is chosen
        expect(photos.nth(0)).to_have_attribute("aria-pressed", "true")
        assert error_m(page, 7) < 10
        expect(page.locator("#query-caption")).to_have_text("Photo 1 of 4")
        expect(page.get_by_role("button", name="Stop")).to_be_hidden()

        photos.nth(3).focus()  # by keyboard
        page.keyboard.press("Enter")
        expect(page.locator("#query-caption")).to_have_text("Photo 4 of 4")
        assert error_m(page, 3) < 10
        expect(page.locator(".fix-circle")).to_have_count(1)
        photos.nth(1).click()
        assert verdict(page) == "Not in this map"
        expect(photos.nth(1)).to_have_attribute("aria-label", "Photo 2, elsewhere.jpg: Not in this map")
        photos.nth(2).click()
        expect(page.get_by_role("heading", name="This photo cannot be used")).to_be_visible()
        expect(page.locator(".fix-circle")).to_have_count(0)
        photos.nth(0).click()
        assert error_m(page, 7) < 10
        for number in (0, 1, 3):
            expect(photos.nth(number).locator("canvas")).to_have_count(1)
        choose(page, street_folder / "queries" / "q11.jpg")  # one photo needs no list
        expect(page.locator("#queue")).to_be_hidden()


@pytest.mark.slow
def test_several_photos_can_be_stopped(desktop: Page, street_folder: Path) -> None:
    held = HeldLocalizer(street_folder / "street.gpkg")
    held.gate.set()
    names = [street_folder / "queries" / f"q{number:02d}.jpg" for number in (7, 3, 5)]
    with running(make_app(held)) as url, Visit(desktop, url) as visit:
        page = visit.page
        second = threading.Event()

        def hold_second(route: Route) -> None:
            if second.is_set():
                held.gate.clear()
            second.set()
            route.continue_()

        page.route("**/localize*", hold_second)
        choose(page, *names)
        expect(page.locator("#queue-list button").nth(1)).to_have_attribute("data-state", "working")
        page.get_by_role("button", name="Stop").click()
        assert verdict(page) != "Not in this map"  # what was answered stays
        assert error_m(page, 7) < 10
        expect(page.locator("#queue-list button")).to_have_count(1)
        expect(page.locator("#queue")).to_be_hidden()
        held.gate.set()


@pytest.mark.slow
def test_a_server_that_goes_away_among_several_photos_is_tried_again(visit: Visit, street_folder: Path) -> None:
    page = visit.page

    page.route("**/localize*", lambda route: route.abort())
    page.route("**/localize*", lambda route: route.continue_(), times=1)  # the later rule counts first
    choose(page, *(street_folder / "queries" / f"q{number:02d}.jpg" for number in (7, 3, 5)))
    expect(page.get_by_role("heading", name="The server does not answer")).to_be_visible()
    expect(page.locator("#queue-count")).to_have_text("2 of 3 answered")
    page.unroute("**/localize*")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#queue-count")).to_have_text("3 of 3 found")
    verdict(page)
    assert error_m(page, 3) < 10


def test_of_a_large_map_what_is_in_view_is_fetched(desktop: Page, street_folder: Path) -> None:
    limits = ServeConfig(max_features=20)
    app = make_app(street_folder / "street.gpkg", street_model(), config=limits)
    with running(app, limits) as url, Visit(desktop, url) as visit:
        shown = "async () => (await import('/assets/app.js')).mapView.photoLayer.photos.map((photo) => photo.id)"
        assert len(visit.page.evaluate(shown)) == 20
        with visit.page.expect_response(lambda response: "box=" in response.url) as fetched:
            for _ in range(4):
                visit.page.get_by_role("button", name="Zoom in").click()
        found = fetched.value.json()
        ids = ",".join(str(photo["id"]) for photo in found["features"])
        visit.page.wait_for_function(f"async () => String(await ({shown})()) === '{ids}'")
        assert found["inside"] < found["total"]
