"""Ids of a map on Milvus have 63 bits: the page asks for just those thumbnails."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.localize.street import street_model
from tests.serve.page.visiting import Visit, drop, verdict
from tests.serve.running import running

from sareloc.maps import copy_map
from sareloc.serve import ServeConfig, make_app

pytest.importorskip("milvus_lite")


@pytest.mark.slow
def test_thumbnails_of_a_map_on_milvus_are_shown(desktop: Page, street_folder: Path, tmp_path: Path) -> None:
    there = f"milvus-lite:{tmp_path}/lite.db/street"
    copy_map(street_folder / "street.gpkg", there, progress=False)
    app = make_app(there, street_model(), config=ServeConfig(photos=(street_folder,)))
    with running(app) as url, Visit(desktop, url) as visit:
        drop(visit.page, street_folder / "queries" / "q07.jpg")
        verdict(visit.page)
        thumbnails = visit.page.locator("img[src*='/thumbnail']")
        expect(thumbnails).to_have_count(6)  # five in the strip, the first also beside the photo
        for number in range(6):
            expect(thumbnails.nth(number)).not_to_have_js_property("naturalWidth", 0)
        assert visit.failed == []
