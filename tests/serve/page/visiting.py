"""Visiting the page as a person with a browser does."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect

PATIENCE_MS = 300_000.0  # ends a test that hangs
# nothing moves unless a test wants it to: where a thing is, is then where it stays
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce"}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
GIVEN_FILES = """(files) => {
  const given = new DataTransfer();
  for (const [name, bytes] of files) {
    given.items.add(new File([Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0))], name, { type: "image/jpeg" }));
  }
  return given;
}"""

expect.set_options(timeout=PATIENCE_MS)


def open_window(browser: Browser, **options: Any) -> Page:
    """A window, that of a desktop by default; the pages of many visits are loaded into it one after the other."""
    context = browser.new_context(**{**DESKTOP, **options})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    # from the start: a dialog that opens before playwright has begun to listen is never seen
    page.on("filechooser", lambda chooser: None)
    return page


class Visit:
    """A page that is loaded anew into a window. When it is left, nothing may have gone wrong in it unseen.

    The window is then as it was: online, without routes and other pages, in light colours, of its size. Only
    `page.clock` stays: a test that sets it opens a window of its own.

    errors: what the console said and what was thrown, failed requests excepted; foreign: requests to any other server;
    failed: requests that were refused or lost, which a test has to expect.
    """

    def __init__(self, window: Page, url: str) -> None:
        self.page, self.context = window, window.context
        self.url = url
        self.size = window.viewport_size
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self.failed: list[str] = []
        self.listeners: dict[Any, Callable[[Any], None]] = {
            "pageerror": lambda error: self.errors.append(str(error)),
            "console": lambda message: self._hear(message.type, message.text),
            "request": lambda request: self._ask(request.url),
        }

    def __enter__(self) -> Visit:
        for name, listener in self.listeners.items():
            self.page.on(name, listener)
        self.page.once("framenavigated", lambda _: self._forget())
        self.page.goto(self.url)
        self.page.wait_for_selector("body[data-state]")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, listener in self.listeners.items():
            self.page.remove_listener(name, listener)
        self.page.unroute_all()
        self.context.unroute_all()
        self.context.set_offline(False)
        self.context.clear_permissions()
        for other in self.context.pages:
            if other is not self.page:
                other.close()
        self.page.emulate_media(color_scheme="light", reduced_motion="reduce")
        self.page.mouse.move(0, 0)
        if self.page.viewport_size != self.size and self.size is not None:
            self.page.set_viewport_size(self.size)
        if kind is None:
            assert self.errors == []
            assert self.foreign == []

    def _forget(self) -> None:
        """What the page of the visit before did until this one's came."""
        for heard in (self.errors, self.foreign, self.failed):
            heard.clear()

    def _hear(self, kind: str, text: str) -> None:
        if text.startswith("Failed to load resource"):
            self.failed.append(text)
        elif kind in {"error", "warning"}:
            self.errors.append(text)

    def _ask(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"blob", "data"} and parts.netloc != urlsplit(self.url).netloc:
            self.foreign.append(url)


def choose(page: Page, *photos: Path) -> None:
    """Give photos by the button."""
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose photos").click()
    chooser.value.set_files(photos)


def given_files(*photos: Path) -> tuple[str, list[list[str]]]:
    """Script and argument of what a browser hands over when photos are dropped or pasted."""
    return GIVEN_FILES, [[photo.name, base64.b64encode(photo.read_bytes()).decode()] for photo in photos]


def drop(page: Page, *photos: Path) -> None:
    """Give photos from a folder of the desktop."""
    given = page.evaluate_handle(*given_files(*photos))
    page.dispatch_event("body", "dragenter", {"dataTransfer": given})
    expect(page.get_by_text("Drop to see where they were taken")).to_be_visible()
    page.dispatch_event("body", "drop", {"dataTransfer": given})
    expect(page.get_by_text("Drop to see where they were taken")).to_be_hidden()


def verdict(page: Page) -> str:
    """What the page says as soon as it has an answer."""
    page.wait_for_selector("body[data-state=answer]")
    return page.locator("#verdict").inner_text()


def shown_position(page: Page) -> tuple[float, float]:
    """The position that the panel shows."""
    found = re.fullmatch(r"(-?[\d.]+), (-?[\d.]+)", page.locator("#latlon").inner_text())
    assert found is not None
    return float(found[1]), float(found[2])
