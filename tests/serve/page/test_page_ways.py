"""Every way to use the page: by keyboard alone, by ear, on a phone, in the dark, and under a strict policy."""

from __future__ import annotations

from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect
from tests.localize.street import street_model
from tests.serve.page.visiting import Visit, choose, shown_position, verdict
from tests.serve.running import running

from sareloc.serve import ServeConfig, make_app

FOCUSED = "() => document.activeElement.getAttribute('aria-label') || document.activeElement.textContent.trim()"


def tab(page: Page, presses: int = 1, back: bool = False) -> str:
    """The name of what has the focus after so many presses."""
    for _ in range(presses):
        page.keyboard.press("Shift+Tab" if back else "Tab")
    return str(page.evaluate(FOCUSED))


# read from a copy: Chromium warns of canvases that are drawn on and read from again and again
LIGHTEST_STREET = """() => {
  const lightest = (tile) => {
    const copy = new OffscreenCanvas(tile.width, tile.height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(tile, 0, 0);
    const { data } = copy.getImageData(0, 0, tile.width, tile.height);
    return data.reduce((most, value, i) => (i % 4 === 0 && data[i + 3] === 255 ? Math.max(most, value) : most), 0);
  };
  return Math.max(...[...document.querySelectorAll("canvas")].map(lightest));
}"""


def brightness(page: Page, path: Path) -> float:
    page.screenshot(path=path)
    return float(np.asarray(Image.open(path).convert("L")).mean())


def test_the_whole_way_by_keyboard_alone(page: Page, street_folder: Path) -> None:
    expect(page.get_by_role("button", name="Take a photo")).to_be_hidden()  # a phone's alone
    assert tab(page) == "Choose photos"
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(street_folder / "queries" / "q07.jpg")
    verdict(page)
    assert [tab(page) for _ in range(2)] == ["Copy", "OpenStreetMap"]
    assert [tab(page) for _ in range(5)] == ["GPX", "CSV", "GeoJSON", "Geotagged photo", "What mattered?"]
    names = [tab(page) for _ in range(5)]
    assert [name.split(",")[0] for name in names] == [f"Match {number}" for number in range(1, 6)]
    expect(page.locator(".pin.chosen")).to_have_text("5")  # the pin goes along with the focus
    assert tab(page) == "Map of the photos"
    page.keyboard.press("Enter")
    expect(page.locator(".photo-popup")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator(".photo-popup")).to_be_hidden()
    expect(page.locator("#map")).to_be_focused()
    assert tab(page).startswith("Match 1")
    expect(page.locator("#matches button").first).to_have_attribute("aria-pressed", "true")


def test_the_focus_is_not_lost_when_a_button_goes(visit: Visit, street_folder: Path) -> None:
    page = visit.page
    visit.context.set_offline(True)
    choose(page, street_folder / "queries" / "q07.jpg")
    page.get_by_role("button", name="Try again").focus()
    visit.context.set_offline(False)
    verdict(page)
    expect(page.locator("#verdict")).to_be_focused()


def test_events_are_announced_to_screen_readers(page: Page, street_folder: Path) -> None:
    heard = page.evaluate_handle(
        """() => {
          const heard = [];
          const status = document.getElementById("status");
          new MutationObserver(() => heard.push(status.textContent)).observe(status, { childList: true });
          return heard;
        }"""
    )
    choose(page, street_folder / "queries" / "q07.jpg")
    said = verdict(page)
    first, last = heard.json_value()[0], heard.json_value()[-1]
    assert first == "Looking for this place."
    assert last.startswith(f"{said}. At 48.85")
    expect(page.get_by_role("status")).to_have_count(1)
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, [role=button], a[href], img")].filter((one) =>
          one.offsetParent && !one.hasAttribute("alt") && !(one.ariaLabel || one.title || one.textContent.trim()))
          .map((one) => one.outerHTML)"""
    )
    assert unnamed == []


def test_a_phone_shows_map_and_answer_together_and_offers_the_camera(
    phone: Page, client: httpx.Client, street_folder: Path
) -> None:
    with Visit(phone, str(client.base_url)) as visit:
        page = visit.page
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Take a photo").tap()
        assert page.locator("#camera").get_attribute("capture") == "environment"
        chooser.value.set_files(street_folder / "queries" / "q07.jpg")
        verdict(page)
        expect(page.locator("#verdict")).to_be_in_viewport()
        page.locator("#matches button").nth(3).tap()
        expect(page.locator(".pin.chosen")).to_have_text("4")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
        circle, panel = (page.locator(name).bounding_box() for name in (".fix-circle", "#panel"))
        assert circle is not None
        assert panel is not None
        assert 0 < circle["y"] < circle["y"] + circle["height"] < panel["y"]
        buttons = [box for one in page.get_by_role("button").all() if (box := one.bounding_box()) is not None]
        assert min(min(box["width"], box["height"]) for box in buttons) >= 24  # a finger hits it


def test_dark_mode_is_dark_everywhere_and_follows_the_switch(
    desktop: Page, client: httpx.Client, tmp_path: Path
) -> None:
    desktop.emulate_media(color_scheme="dark")
    with Visit(desktop, str(client.base_url)) as visit:
        assert brightness(visit.page, tmp_path / "dark.png") < 60
        assert visit.page.evaluate(LIGHTEST_STREET) < 150
        visit.page.emulate_media(color_scheme="light")
        visit.page.wait_for_function(f"() => ({LIGHTEST_STREET})() > 200")
        assert brightness(visit.page, tmp_path / "light.png") > 180


@pytest.mark.slow
def test_the_position_is_copied(visit: Visit, street_folder: Path) -> None:
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    choose(visit.page, street_folder / "queries" / "q07.jpg")
    verdict(visit.page)
    visit.page.get_by_role("button", name="Copy").click()
    expect(visit.page.get_by_role("button", name="Copied")).to_be_visible()
    copied = visit.page.evaluate("() => navigator.clipboard.readText()")
    assert [f"{float(degree):.5f}" for degree in copied.split(", ")] == [
        f"{one:.5f}" for one in shown_position(visit.page)
    ]


@pytest.mark.slow
def test_with_motion_the_answer_is_the_same(desktop: Page, client: httpx.Client, street_folder: Path) -> None:
    desktop.emulate_media(reduced_motion="no-preference")
    with Visit(desktop, str(client.base_url)) as visit:
        choose(visit.page, street_folder / "queries" / "q07.jpg")
        verdict(visit.page)
        expect(visit.page.locator(".fix-circle")).to_be_in_viewport()


def test_tiles_come_from_where_the_server_says_and_are_credited(desktop: Page, street_folder: Path) -> None:
    serving = ServeConfig(tiles="https://tiles.example.org/{z}/{x}/{y}.png", attribution="© <b>Tile makers</b>")
    tile = (street_folder / "queries" / "q00.jpg").read_bytes()
    with running(make_app(street_folder / "street.gpkg", street_model(), config=serving)) as url:
        visit = Visit(desktop, url)
        visit.page.route(
            "https://tiles.example.org/**", lambda route: route.fulfill(body=tile, content_type="image/jpeg")
        )
        with visit:
            expect(visit.page.locator(".leaflet-tile-loaded").first).to_be_visible()
            expect(visit.page.locator(".leaflet-control-attribution")).to_contain_text("© <b>Tile makers</b>")
            assert visit.foreign
            assert all(url.startswith("https://tiles.example.org/") for url in visit.foreign)
            visit.foreign.clear()
