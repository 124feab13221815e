"""A real browser, and the page of the street's service in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from tests.serve.page.visiting import PHONE, Visit, open_window

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


# for the package, not the session: while it is open, no other test of this process can run an event loop
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no browser to see the page with: no chromium on the PATH")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="package")
def shared_page(browser: Browser, client: httpx.Client) -> Iterator[Page]:
    """One page for all tests that only call its functions, or look at parts of its map, which each of them chooses."""
    with Visit(open_window(browser), str(client.base_url)) as visit:
        yield visit.page


@pytest.fixture(scope="package")
def desktop(browser: Browser) -> Page:
    """The window of a desktop, for all visits: to open one takes longer than to load the page into it."""
    return open_window(browser)


@pytest.fixture(scope="package")
def phone(browser: Browser) -> Page:
    """The window of a phone, for all visits."""
    return open_window(browser, **PHONE)


@pytest.fixture
def visit(desktop: Page, client: httpx.Client) -> Iterator[Visit]:
    """The page on a desktop, the map open."""
    with Visit(desktop, str(client.base_url)) as visit:
        yield visit


@pytest.fixture
def page(visit: Visit) -> Page:
    return visit.page
