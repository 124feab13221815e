"""Whatever goes wrong or takes long has its own clear state, and the way on from it."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import httpx
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect
from tests.localize.street import street_model
from tests.serve.page.visiting import Visit, choose, open_window, verdict
from tests.serve.running import DEADLINE_S, HeldLocalizer, running

from sareloc.maps import Box, MapConfig, add_photos, copy_map, remove_photos
from sareloc.serve import ServeConfig, make_app


def test_a_file_that_is_not_a_photo_is_reported_in_the_servers_words(visit: Visit, tmp_path: Path) -> None:
    text = tmp_path / "notes.jpg"
    text.write_text("no photo at all")
    choose(visit.page, text)
    expect(visit.page.get_by_role("heading", name="This photo cannot be used")).to_be_visible()
    expect(visit.page.locator("#error-detail")).to_contain_text("Not a JPEG, PNG")
    expect(visit.page.get_by_role("button", name="Try again")).to_be_hidden()
    expect(visit.page.locator("#status")).to_contain_text("This photo cannot be used")
    assert len(visit.failed) == 1


@pytest.mark.slow
def test_after_a_bad_file_a_good_one_is_found(page: Page, street_folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes((street_folder / "queries" / "q07.jpg").read_bytes()[:400])
    choose(page, broken)
    expect(page.get_by_role("heading", name="This photo cannot be used")).to_be_visible()
    choose(page, street_folder / "queries" / "q07.jpg")
    assert verdict(page) != "Not in this map"
    expect(page.locator("#error-title")).to_be_hidden()


def test_a_photo_that_the_browser_cannot_show_is_shown_by_the_server(
    visit: Visit, street_folder: Path, tmp_path: Path
) -> None:
    page = visit.page
    with Image.open(street_folder / "queries" / "q07.jpg") as photo:
        photo.save(tmp_path / "photo.tiff")
        width, height = photo.size
    choose(page, tmp_path / "photo.tiff", street_folder / "queries" / "q03.jpg")
    assert verdict(page) != "Not in this map"
    expect(page.locator("#query")).to_be_visible()
    expect(page.get_by_role("button", name="What mattered?")).to_be_visible()
    shown = page.locator("#query").evaluate(
        "async (image) => (await image.decode(), [image.naturalWidth, image.naturalHeight])"
    )
    assert shown == [width, height]
    expect(page.locator("#queue-list canvas")).to_have_count(2)
    assert visit.failed == []


def test_a_photo_that_no_browser_shows_is_localized(visit: Visit, street_folder: Path, tmp_path: Path) -> None:
    page = visit.page
    with Image.open(street_folder / "queries" / "q07.jpg") as photo:
        photo.save(tmp_path / "photo.tiff")
    page.route("**/preview*", lambda route: route.abort())
    choose(page, tmp_path / "photo.tiff")
    assert verdict(page) != "Not in this map"
    expect(page.get_by_text("This browser cannot show this kind of photo.")).to_be_visible()
    expect(page.get_by_role("button", name="What mattered?")).to_be_hidden()


def test_a_photo_that_is_too_large_is_not_sent(desktop: Page, street_folder: Path, tmp_path: Path) -> None:
    limits = ServeConfig(max_bytes=2_000_000)
    large = tmp_path / "large.jpg"
    large.write_bytes((street_folder / "queries" / "q07.jpg").read_bytes() + bytes(2_500_000))
    app = make_app(street_folder / "street.gpkg", street_model(), config=limits)
    with running(app, limits) as url, Visit(desktop, url) as visit:
        asked: list[str] = []
        visit.page.on("request", lambda request: asked.append(request.url))
        choose(visit.page, large)
        expect(visit.page.get_by_role("heading", name="This photo is too large")).to_be_visible()
        expect(visit.page.locator("#error-detail")).to_contain_text(
            "large.jpg has 2.5 MB; this server accepts up to 2.0 MB."
        )
        assert not [url for url in asked if "localize" in url]
        large.write_bytes(large.read_bytes()[: limits.max_bytes + 1])  # the sizes are told apart all the same
        choose(visit.page, large)
        expect(visit.page.locator("#error-detail")).to_contain_text(
            "2.000001 MB; this server accepts up to 2.000000 MB"
        )


def test_an_empty_file_is_reported_in_plain_words(visit: Visit, tmp_path: Path) -> None:
    (tmp_path / "IMG_1.jpg").touch()
    choose(visit.page, tmp_path / "IMG_1.jpg")
    expect(visit.page.get_by_role("heading", name="This file is empty")).to_be_visible()
    expect(visit.page.locator("#error-detail")).to_contain_text("IMG_1.jpg has 0 bytes")
    assert visit.failed == []  # it was not sent


STALE_FILE = """async () => {
  const folder = await navigator.storage.getDirectory();
  const handle = await folder.getFileHandle("stale.jpg", { create: true });
  const write = async (text) => {
    const stream = await handle.createWritable();
    await stream.write(text);
    await stream.close();
  };
  await write("a photo");
  const file = await handle.getFile();
  await write("another photo");
  const given = new DataTransfer();
  given.items.add(file);
  return given;
}"""


def test_a_file_that_cannot_be_read_is_reported(visit: Visit) -> None:
    """And not that the server does not answer, which is what it looks like to who sends it."""
    asked: list[str] = []
    visit.page.on("request", lambda request: asked.append(request.url))
    given = visit.page.evaluate_handle(STALE_FILE)
    visit.page.dispatch_event("body", "drop", {"dataTransfer": given})
    expect(visit.page.get_by_role("heading", name="This file cannot be read")).to_be_visible()
    expect(visit.page.locator("#error-detail")).to_contain_text("stale.jpg")
    assert not [url for url in asked if "localize" in url]


@pytest.mark.slow
def test_photos_that_are_not_shown_leave_their_numbers(desktop: Page, street_folder: Path, tmp_path: Path) -> None:
    copy_map(street_folder / "street.gpkg", tmp_path / "street.gpkg", progress=False)  # away from its photos
    with running(make_app(tmp_path / "street.gpkg", street_model())) as url, Visit(desktop, url) as visit:
        page = visit.page
        choose(page, street_folder / "queries" / "q07.jpg")
        assert verdict(page) != "Not in this map"
        expect(page.get_by_text("The picture of this photo is not on this server.")).to_be_visible()
        expect(page.locator("#matches button")).to_have_text(["1", "2", "3", "4", "5"])
        expect(page.locator("#matches img")).to_have_count(0)
        expect(page.locator("#match")).to_be_hidden()
        page.locator("#map").focus()
        page.keyboard.press("Enter")
        expect(page.locator(".photo-popup").get_by_text("The picture is not on this server.")).to_be_visible()
        assert len(visit.failed) == 7


def test_a_slow_model_is_waited_for_and_can_be_cancelled(browser: Browser, street_folder: Path) -> None:
    held = HeldLocalizer(street_folder / "street.gpkg")
    with running(make_app(held)) as url, Visit(open_window(browser), url) as visit:
        page = visit.page
        page.clock.install()
        choose(page, street_folder / "queries" / "q07.jpg")
        assert held.begun.wait(60)
        expect(page.get_by_role("heading", name="Looking for this place…")).to_be_visible()
        expect(page.get_by_role("progressbar")).to_be_hidden()
        page.clock.fast_forward(1_000)
        expect(page.get_by_role("progressbar")).to_be_visible()
        page.clock.fast_forward(7_000)
        expect(page.get_by_role("heading", name="Still looking…")).to_be_visible()
        expect(page.locator("#status")).to_have_text("Still looking…")

        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("body")).to_have_attribute("data-state", "start")
        held.gate.set()
        choose(page, street_folder / "queries" / "q07.jpg")
        verdict(page)


def test_a_busy_server_is_asked_again(desktop: Page, street_folder: Path) -> None:
    held = HeldLocalizer(street_folder / "street.gpkg")
    limits = ServeConfig(queue=1, max_files=1)
    photo = street_folder / "queries" / "q07.jpg"
    with running(make_app(held, config=limits), limits) as url, Visit(desktop, url) as visit:
        ask = partial(httpx.post, f"{url}/localize", content=photo.read_bytes(), timeout=DEADLINE_S)
        first = threading.Thread(target=ask)
        first.start()
        assert held.begun.wait(60)
        choose(visit.page, photo)
        expect(visit.page.get_by_role("heading", name="The server is busy")).to_be_visible()
        expect(visit.page.locator("#working-detail")).to_contain_text("Trying again")
        held.gate.set()
        first.join()
        assert verdict(visit.page) != "Not in this map"
        assert any("503" in text for text in visit.failed)


def test_a_lost_server_is_reported(desktop: Page, street_folder: Path) -> None:
    with running(make_app(street_folder / "street.gpkg", street_model())) as url:
        visit = Visit(desktop, url).__enter__()
    choose(visit.page, street_folder / "queries" / "q07.jpg")
    expect(visit.page.get_by_role("heading", name="The server does not answer")).to_be_visible()
    expect(visit.page.get_by_role("button", name="Try again")).to_be_visible()
    visit.__exit__(None, None, None)


@pytest.mark.parametrize("pressed", [pytest.param(True, marks=pytest.mark.slow), False], ids=["pressed", "by itself"])
def test_a_photo_is_asked_about_again_when_the_server_is_back(visit: Visit, street_folder: Path, pressed: bool) -> None:
    page = visit.page
    visit.context.set_offline(True)
    choose(page, street_folder / "queries" / "q07.jpg")
    retry = page.get_by_role("button", name="Try again")
    expect(retry).to_be_visible()
    if pressed:  # too early: the same is told again
        retry.click()
        expect(page.get_by_role("heading", name="The server does not answer")).to_be_visible()
    visit.context.set_offline(False)
    assert verdict(page) != "Not in this map"


def test_an_empty_map_says_what_to_do_and_notices_photos(desktop: Page, own_folder: Path) -> None:
    path = own_folder / "street.gpkg"
    remove_photos(path, area=Box(-90, -180, 90, 180))
    with running(make_app(path, street_model())) as url, Visit(desktop, url) as visit:
        page = visit.page
        expect(page.get_by_role("heading", name="This map has no photos yet")).to_be_visible()
        expect(page.get_by_role("button", name="Choose photos")).to_be_hidden()
        expect(page.locator("#about")).to_contain_text("0 photos")
        add_photos(own_folder / "photos", path, street_model(), config=MapConfig(progress=False, restore=True))
        page.get_by_role("button", name="Look again").click()
        choose(page, own_folder / "queries" / "q07.jpg")
        assert verdict(page) != "Not in this map"
