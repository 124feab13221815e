"""Without base tiles, the map shows where on the Earth it is, and its photos at every zoom."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect
from tests.localize.street import street_model
from tests.localize.town import world_position
from tests.serve.page.visiting import Visit
from tests.serve.running import running

from sareloc.serve import ServeConfig, make_app

# read from a copy: Chromium warns of canvases that are drawn on and read from again and again
SEEN = """async ([[latitude, longitude], zoom]) => {
  const { mapView } = await import("/assets/app.js");
  const { map, earth, photoLayer } = mapView;
  const drawn = (layer, event) => new Promise((resolve) => (layer._loading ? layer.once("load", resolve) : resolve()));
  map.setView([latitude, longitude], zoom, { animate: false });
  await Promise.all([earth, photoLayer].filter(Boolean).map((layer) => drawn(layer)));
  const middle = map.latLngToContainerPoint([latitude, longitude]);
  const box = map.getContainer().getBoundingClientRect();
  const pixels = (pane) => {
    const copy = new OffscreenCanvas(31, 31).getContext("2d", { willReadFrequently: true });
    for (const tile of document.querySelectorAll(`.leaflet-${pane}-pane canvas`)) {
      const at = tile.getBoundingClientRect();
      const [x, y] = [at.x - box.x - middle.x + 15, at.y - box.y - middle.y + 15];
      copy.drawImage(tile, x, y, at.width, at.height);
    }
    return Array.from(copy.getImageData(0, 0, 31, 31).data);
  };
  const background = getComputedStyle(map.getContainer()).backgroundColor;
  return { photos: pixels("photos"), earth: pixels("tile"), background: background.match(/\\d+/g).map(Number) };
}"""
OCEAN, PARIS, CHUKOTKA = (40.0, -40.0), (48.8566, 2.3522), (66.5, -175.0)


def seen(page: Page, latlon: tuple[float, float], zoom: float) -> dict[str, np.ndarray]:
    """What is drawn around a position: the photos and the Earth (31, 31, 4), and the colour behind (3,)."""
    found: dict[str, Any] = page.evaluate(SEEN, [latlon, zoom])
    return {
        "photos": np.array(found["photos"]).reshape(31, 31, 4),
        "earth": np.array(found["earth"]).reshape(31, 31, 4),
        "background": np.array(found["background"][:3]),
    }


def contrast(one: np.ndarray, other: np.ndarray) -> float:
    """The contrast of two colours by WCAG 2."""

    def light(colour: np.ndarray) -> float:
        share = np.asarray(colour) / 255
        linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    high, low = sorted([light(one), light(other)], reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.fixture(scope="module")
def first_photo(shared_page: Page) -> tuple[float, float]:
    latitude, longitude = shared_page.evaluate(
        "async () => (await import('/assets/app.js')).mapView.photoLayer.photos[0].latlon"
    )
    return latitude, longitude


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dots_are_seen_at_every_zoom(page: Page, first_photo: tuple[float, float], scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    for zoom in range(0, 21, 2):
        found = seen(page, first_photo, zoom)
        opaque = found["photos"][..., 3] == 255
        assert opaque.sum() >= 9, zoom
        middle = found["photos"][15, 15]
        assert middle[3] == 255, zoom
        behind = found["earth"][15, 15]
        behind = (behind[:3] * behind[3] + found["background"] * (255 - behind[3])) / 255
        assert contrast(middle[:3], behind) >= 3, zoom  # WCAG's minimum for graphics


def test_land_and_water_are_distinguished_at_small_scales_only(shared_page: Page) -> None:
    shared_page.wait_for_function("async () => (await import('/assets/app.js')).mapView.earth.paths")
    for zoom in (2, 4, 6):
        land, water = (seen(shared_page, place, zoom)["earth"][13, 13] for place in (PARIS, OCEAN))
        assert (land[:3] == seen(shared_page, PARIS, zoom)["background"]).all()
        assert land[3] == water[3] == 255
        assert np.abs(land[:3] - water[:3]).max() > 20
    beyond = seen(shared_page, CHUKOTKA, 4)  # land on the other side of the antimeridian than the rest of its continent
    assert (beyond["earth"][13, 13][:3] == beyond["background"]).all()
    assert seen(shared_page, OCEAN, 10)["earth"][13, 13][3] == 0
    expect(shared_page.locator(".leaflet-control-attribution")).to_contain_text("Natural Earth")


def test_between_two_zooms_what_is_painted_again_is_where_it_was(
    shared_page: Page, first_photo: tuple[float, float]
) -> None:
    shared_page.wait_for_function("async () => (await import('/assets/app.js')).mapView.earth.paths")
    for zoom in (1.5, 3.5, 15.5):
        before = seen(shared_page, first_photo, zoom)
        shared_page.evaluate(
            "async () => { const { mapView: { earth, photoLayer } } = await import('/assets/app.js');"
            " earth.redraw(), photoLayer.redraw(); }"
        )
        after = seen(shared_page, first_photo, zoom)
        for layer in ("photos", "earth"):
            assert np.abs(after[layer].astype(float) - before[layer]).mean() < 1, (layer, zoom)


def test_dots_have_one_size_also_between_two_zooms(shared_page: Page, first_photo: tuple[float, float]) -> None:
    sizes = [(seen(shared_page, first_photo, zoom)["photos"][..., 3] > 127).sum() for zoom in (4, 4.5, 5, 5.5)]
    assert max(sizes) < 1.2 * min(sizes)


@pytest.mark.parametrize("longitude", [179.99, -179.99])
def test_dots_at_the_antimeridian_are_whole(page: Page, longitude: float) -> None:
    places = [(-17.7, longitude), (-17.7, 90.5)]
    page.evaluate(
        "async (places) => (await import('/assets/app.js')).mapView.photoLayer.show(places.map("
        "(latlon, id) => ({ id, latlon, heading: null, name: '', time: null, map: '' })))",
        places,
    )
    for zoom in (1, 2, 4):
        edge, inside = (seen(page, place, zoom)["photos"][..., 3] > 127 for place in places)
        assert edge.sum() == pytest.approx(inside.sum(), rel=0.1), zoom


def test_beyond_the_edges_of_the_map_are_water_and_antarctica(shared_page: Page) -> None:
    shared_page.wait_for_function("async () => (await import('/assets/app.js')).mapView.earth.paths")
    north, south = (seen(shared_page, (latitude, -40.0), 1)["earth"][..., :3] for latitude in (85.05, -85.05))
    assert (north[2, 13] == seen(shared_page, OCEAN, 1)["earth"][13, 13][:3]).all()
    assert (south[28, 13] == seen(shared_page, OCEAN, 1)["background"]).all()


@pytest.mark.parametrize("zoom", [2, 9, 14, 20])
def test_lines_of_latitude_and_longitude_are_at_every_zoom(shared_page: Page, zoom: int) -> None:
    step = shared_page.evaluate(f"async () => (await import('/assets/earth_layer.js')).stepOf({zoom})")
    assert 100 < 256 * 2**zoom * step / 360 < 1500  # pixels between two meridians
    crossing = (48.8 // step * step, 2.3 // step * step)
    drawn = seen(shared_page, crossing, zoom)["earth"].astype(float)
    plain = drawn[22:26, 4:8].mean(axis=(0, 1))  # below the line of latitude, where no label is
    assert np.abs(drawn[14:18, 4:8].mean(axis=1) - plain).max() > 5
    assert np.abs(drawn[22:26, 14:18].mean(axis=0) - plain).max() > 5


def test_base_tiles_replace_the_coastline(desktop: Page, street_folder: Path) -> None:
    serving = ServeConfig(tiles="https://tiles.example.org/{z}/{x}/{y}.png")
    tile = (street_folder / "queries" / "q00.jpg").read_bytes()
    with running(make_app(street_folder / "street.gpkg", street_model(), config=serving)) as url:
        visit = Visit(desktop, url)
        asked: list[str] = []
        visit.page.on("request", lambda request: asked.append(request.url))
        visit.page.route("https://tiles.example.org/**", lambda route: route.fulfill(body=tile))
        with visit:
            expect(visit.page.locator(".leaflet-tile-loaded").first).to_be_visible()
            expect(visit.page.locator(".leaflet-tile-pane canvas")).to_have_count(0)
            assert not [url for url in asked if "land.json" in url]
            visit.foreign.clear()


def test_the_coastline_is_small_and_inside_the_world() -> None:
    content = (files("sareloc.serve") / "page" / "land.json").read_bytes()
    assert len(content) < 40_000
    land = json.loads(content)
    rings = [np.array(ring).reshape(-1, 2).cumsum(axis=0) / land["units"] for ring in land["rings"]]
    assert len(rings) > 100
    for ring in rings:
        assert len(ring) >= 3
        assert -200 < ring[:, 0].min() < ring[:, 0].max() < 200
        assert -90 <= ring[:, 1].min() < ring[:, 1].max() < 84
    for latlon, is_land in {
        PARIS: True, OCEAN: False, (-25.0, 134.0): True, (-41.5, 172.8): True, (42.0, 50.5): False, (-80.0, 20.0): True,
        world_position(0): True,
    }.items():  # fmt: skip
        assert sum(inside(latlon, ring) for ring in rings) % 2 == is_land, latlon


def inside(latlon: tuple[float, float], ring: np.ndarray) -> bool:
    """Whether a line to the east crosses a ring an odd number of times."""
    (x0, y0), (x1, y1) = ring.T, np.roll(ring, -1, axis=0).T
    latitude, longitude = latlon
    crosses = (y0 > latitude) != (y1 > latitude)
    at = x0[crosses] + (latitude - y0[crosses]) * (x1 - x0)[crosses] / (y1 - y0)[crosses]
    return bool((at > longitude).sum() % 2)
