"""A photo is given, and its place is seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.localize.street import position, street_model
from tests.web.page.visiting import Visit, choose, drop, given_file, shown_position, verdict
from tests.web.running import running

from sareloc.geo import distance_m
from sareloc.web import Limits, make_app

MATCHES = 5
MIDDLE_OF_THE_CIRCLE = """async () => {
  const { ground } = await import("/assets/app.js");
  const circle = document.querySelector(".fix-circle").getBoundingClientRect();
  const map = document.getElementById("ground").getBoundingClientRect();
  const middle = [circle.x + circle.width / 2 - map.x, circle.y + circle.height / 2 - map.y];
  const { lat, lng } = ground.map.containerPointToLatLng(middle);
  return [lat, lng];
}"""


def error_m(page: Page, place: int) -> float:
    """How far the position that is shown is from where the query of this place was taken."""
    return float(distance_m([shown_position(page)], [position(place, 3.0)])[0])


def test_a_dropped_photo_is_seen_in_the_right_place(visit: Visit, web_town: Path) -> None:
    page = visit.page
    drop(page, web_town / "queries" / "q07.jpg")
    assert verdict(page) in {"Very likely here", "Likely here", "Probably here"}
    assert error_m(page, 7) < 10
    expect(page.locator("#confidence")).to_contain_text("% sure of the place")
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


def test_matches_are_pins_and_thumbnails_of_the_same_numbers(page: Page, web_town: Path) -> None:
    choose(page, web_town / "queries" / "q03.jpg")
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
def test_no_pin_hides_another(page: Page, web_town: Path) -> None:
    choose(page, web_town / "queries" / "q03.jpg")
    verdict(page)
    for _ in range(3):
        boxes = [box for pin in page.locator(".pin").all() if (box := pin.bounding_box()) is not None]
        middles = [complex(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes]
        apart = [abs(a - b) for number, a in enumerate(middles) for b in middles[:number]]
        assert len(middles) == MATCHES
        assert min(apart) > 20
        page.get_by_role("button", name="Zoom out").click()


def test_a_photo_from_elsewhere_is_not_in_this_map(page: Page, web_town: Path) -> None:
    choose(page, web_town / "elsewhere.jpg")
    assert verdict(page) == "Not in this map"
    expect(page.locator(".fix-circle")).to_have_count(0)
    expect(page.locator("#where")).to_be_hidden()
    expect(page.locator("#matches button")).to_have_count(MATCHES)
    expect(page.locator("#confidence")).to_contain_text("chance of")


def test_a_pasted_photo_is_asked_about(page: Page, web_town: Path) -> None:
    given = page.evaluate_handle(*given_file(web_town / "queries" / "q11.jpg"))
    page.evaluate("given => document.dispatchEvent(new ClipboardEvent('paste', { clipboardData: given }))", given)
    verdict(page)
    assert error_m(page, 11) < 10


@pytest.mark.slow
def test_the_next_photo_replaces_the_last(page: Page, web_town: Path) -> None:
    choose(page, web_town / "queries" / "q04.jpg")
    verdict(page)
    assert error_m(page, 4) < 10
    first = page.locator("#latlon").inner_text()
    choose(page, web_town / "queries" / "q20.jpg")
    expect(page.locator("#latlon")).not_to_have_text(first)
    assert error_m(page, 20) < 10
    expect(page.locator(".fix-circle")).to_have_count(1)
    expect(page.locator(".pin")).to_have_count(MATCHES)


def test_what_mattered_is_laid_over_the_photo(page: Page, web_town: Path) -> None:
    choose(page, web_town / "queries" / "q05.jpg")
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
    choose(page, web_town / "queries" / "q06.jpg")  # another photo, which other things matter to
    expect(page.locator("#heat")).to_be_hidden()
    expect(button).to_have_attribute("aria-pressed", "false")


def test_a_photo_of_the_map_is_shown_where_the_map_is_pressed(page: Page) -> None:
    spot = page.evaluate(
        """async () => {
          const { ground } = await import("/assets/app.js");
          const { x, y } = ground.map.latLngToContainerPoint(ground.dots.photos[0].latlon);
          return [x, y];
        }"""
    )
    page.mouse.click(*spot)
    expect(page.locator(".peek img")).to_have_attribute("alt", "Photo 00_0.jpg")
    page.locator(".peek img").evaluate("image => image.decode()")


@pytest.mark.slow
def test_of_several_photos_the_first_is_asked_about(page: Page, web_town: Path) -> None:
    page.locator("#file").evaluate("input => (input.multiple = true)")  # as a drop may bring several
    page.locator("#file").set_input_files([web_town / "queries" / name for name in ("q07.jpg", "q03.jpg")])
    verdict(page)
    assert error_m(page, 7) < 10
    expect(page.locator("#query-caption")).to_have_text("The first of 2 photos")


def test_of_a_large_map_what_is_in_view_is_fetched(browser: Browser, web_town: Path) -> None:
    limits = Limits(max_features=20)
    app = make_app(web_town / "street.gpkg", street_model(), limits=limits)
    with running(app, limits) as url, Visit(browser, url) as visit:
        shown = "async () => (await import('/assets/app.js')).ground.dots.photos.map((photo) => photo.id)"
        assert len(visit.page.evaluate(shown)) == 20
        with visit.page.expect_response(lambda response: "box=" in response.url) as fetched:
            for _ in range(4):
                visit.page.get_by_role("button", name="Zoom in").click()
        found = fetched.value.json()
        ids = ",".join(str(photo["id"]) for photo in found["features"])
        visit.page.wait_for_function(f"async () => String(await ({shown})()) === '{ids}'")
        assert found["inside"] < found["total"]
