"""Take the pictures of the page in the documentation: page.png, page-dark.png, page-phone.png, page-matched.jpg and
page-world.png, beside this file.

    python docs/photograph_page.py MAP PHOTOS [--world WORLD_MAP] [--out FOLDER]

MAP is served by `sareloc serve`, and the photos are given to its page, in chromium, by playwright: the map of the first
tutorial, its holiday.jpg, queries of the same town, and elsewhere.jpg. WORLD_MAP is a map of photos in several parts of
the world, such as drawn photos whose positions are in a geotags.csv.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PATIENCE_MS = 120_000


@contextmanager
def serving(place_map: Path) -> Iterator[str]:
    """The address of a service of a map."""
    command = [sys.executable, "-m", "sareloc", "serve", str(place_map), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            found = re.search(r"http://\S+", service.stdout.readline())
            if found is None:
                raise SystemExit(f"the service of {place_map} did not start")
            yield found[0]
        finally:
            service.terminate()


@contextmanager
def visiting(browser: Browser, url: str, **window: Any) -> Iterator[Page]:
    """The page in a window of its own, without movements."""
    with browser.new_context(reduced_motion="reduce", **window) as context:
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto(url)
        page.wait_for_selector("body[data-state]")
        page.wait_for_load_state("networkidle")
        yield page


def ask(page: Page, photos: list[Path]) -> None:
    """Give photos to the page and wait for all answers."""
    page.set_input_files("#file", photos)
    page.wait_for_selector("body[data-state=answer]")
    if len(photos) > 1:
        page.wait_for_function("() => document.getElementById('queue-count').textContent.endsWith('found')")
    page.wait_for_load_state("networkidle")


def write_png(path: Path, shot: bytes) -> None:
    """Write a screenshot with 256 colours, a third of its size."""
    Image.open(io.BytesIO(shot)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0] if __doc__ else "")
    parser.add_argument("map", type=Path)
    parser.add_argument("photos", type=Path, nargs="+")
    parser.add_argument("--world", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    given = parser.parse_args()
    chromium = shutil.which("chromium")
    with sync_playwright() as playwright, serving(given.map) as url:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        with visiting(browser, url, **DESKTOP) as page:
            ask(page, given.photos)
            write_png(given.out / "page.png", page.screenshot())
            page.emulate_media(color_scheme="dark")
            page.wait_for_timeout(500)
            write_png(given.out / "page-dark.png", page.screenshot())
            page.emulate_media(color_scheme="light")
            if page.locator("#matched-button").is_visible():
                page.locator("#matched-button").click()
                page.wait_for_selector("#matched-lines line")
                shot = io.BytesIO(page.locator("#matched").screenshot())
                Image.open(shot).convert("RGB").save(given.out / "page-matched.jpg", quality=85, optimize=True)
        with visiting(browser, url, **PHONE) as page:
            ask(page, given.photos[:1])
            write_png(given.out / "page-phone.png", page.screenshot())
        if given.world is not None:
            with serving(given.world) as world, visiting(browser, world, **DESKTOP) as page:
                page.wait_for_timeout(500)
                write_png(given.out / "page-world.png", page.screenshot())
        browser.close()
    for picture in sorted(given.out.glob("page*.*g")):
        print(picture, os.path.getsize(picture))


if __name__ == "__main__":
    main()
