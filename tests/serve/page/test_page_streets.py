"""The page's pure functions, run by the browser: streets from photos, pins that keep apart, words for numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page
from tests.localize.street import START

from sareloc.geo import wgs84_from_enu

JOIN = """async ([latitudes, longitudes]) => {
  const { findSpots, joinSpots } = await import("/assets/streets.js");
  const spots = findSpots(latitudes, longitudes);
  const { joined } = joinSpots(spots);
  const ordered = (a, b) => [Math.min(a, b), Math.max(a, b)];
  return { photos: spots.photos, pairs: joined.flatMap((others, a) => others.map((b) => ordered(a, b))) };
}"""


def join(page: Page, enu: list[tuple[float, float]] | np.ndarray) -> dict[str, Any]:
    """Spots and joined pairs of photos taken at these metres east and north."""
    latlon = wgs84_from_enu(np.asarray(enu, dtype=float).reshape(-1, 2), START)
    found: dict[str, Any] = page.evaluate(JOIN, [latlon[:, 0].tolist(), latlon[:, 1].tolist()])
    return found


def pairs(page: Page, enu: list[tuple[float, float]]) -> set[tuple[int, int]]:
    return {(a, b) for a, b in join(page, enu)["pairs"]}


def twin(points: np.ndarray, reach: float, slack: float) -> set[tuple[int, int]]:
    """Every pair within reach that no third point is nearer to on both sides, by looking at all of them.

    slack: with 1.01, pairs that are joined though it be missed by 1 %; with 0.99, only those that are by as much.
    """
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(apart, np.inf)  # a point does not lie between itself and another
    return {
        (a, b)
        for a in range(len(points))
        for b in range(a + 1, len(points))
        if apart[a, b] <= reach * slack and not (np.maximum(apart[a], apart[b]) < apart[a, b] / slack).any()
    }


def test_a_street_is_a_chain_and_parallel_streets_stay_apart(shared_page: Page) -> None:
    near, far = [(12.0 * i, 0.0) for i in range(6)], [(12.0 * i, 40.0) for i in range(6)]
    chain = {(i, i + 1) for i in range(5)}
    assert pairs(shared_page, near + far) == chain | {(a + 6, b + 6) for a, b in chain}


def test_a_crossing_joins_its_streets(shared_page: Page) -> None:
    along = [(15.0 * i, 0.0) for i in range(-2, 3)]
    across = [(0.0, 15.0 * i) for i in (-2, -1, 1, 2)]
    assert pairs(shared_page, along + across) == {(0, 1), (1, 2), (2, 3), (3, 4), (5, 6), (2, 6), (2, 7), (7, 8)}


def test_photos_of_one_panorama_are_one_spot(shared_page: Page) -> None:
    found = join(shared_page, [(0.0, 0.0), (0.1, 0.1), (12.0, 0.0), (0.0, 0.0)])
    assert found["photos"] == [[0, 1, 3], [2]]
    assert found["pairs"] == [[0, 1]]


def test_joining_agrees_with_looking_at_every_pair(shared_page: Page) -> None:
    points = np.random.default_rng(3).uniform(0, 120, (150, 2))
    points = points[[all(np.linalg.norm(p - q) > 3 for q in points[:i]) for i, p in enumerate(points)]]
    found = join(shared_page, points)
    assert len(found["photos"]) == len(points)
    joined = {tuple(pair) for pair in found["pairs"]}
    assert twin(points, 25.0, 0.99) <= joined <= twin(points, 25.0, 1.01)  # a map's metres are not quite the Earth's
    assert len(twin(points, 25.0, 0.99)) > 100


@pytest.mark.parametrize("count", [0, 1])
def test_few_photos_make_no_street(shared_page: Page, count: int) -> None:
    assert join(shared_page, [(0.0, 0.0)] * count)["pairs"] == []


@pytest.mark.slow
def test_a_hundred_thousand_photos_are_joined_and_drawn(page: Page) -> None:
    rng = np.random.default_rng(0)
    street, number = np.divmod(np.arange(100_000), 1000)
    along = number * 20.0 + rng.normal(0, 3, 100_000)
    across = (street % 50) * 400.0 + rng.normal(0, 2, 100_000)
    enu = np.where((street < 50)[:, None], np.stack([along, across], 1), np.stack([across, along], 1))
    assert len(join(page, enu)["pairs"]) > 99_000
    drawn = page.evaluate(
        """async ([latitudes, longitudes]) => {
          const { mapView } = await import("/assets/app.js");
          const photo = (latitude, id) => ({ id, latlon: [latitude, longitudes[id]], heading: 90 });
          mapView.showPhotos(latitudes.map(photo));
          mapView.viewBox([Math.min(...longitudes.slice(0, 999)), Math.min(...latitudes.slice(0, 999)),
                          Math.max(...longitudes.slice(0, 999)), Math.max(...latitudes.slice(0, 999))]);
          const inked = (tile) => tile.getContext("2d").getImageData(0, 0, tile.width, tile.height).data.some(Boolean);
          return [...document.querySelectorAll(".leaflet-photos-pane canvas")].some(inked);
        }""",
        [list(column) for column in wgs84_from_enu(enu, START).T.tolist()],
    )
    assert drawn


def test_pins_keep_apart_and_stay_near(shared_page: Page) -> None:
    points = [[100, 100], [100, 100], [101, 100], [130, 90], [400, 300]]
    found = np.array(
        shared_page.evaluate(
            """async (points) => (await import("/assets/pins.js")).spreadPins(points, 30, [[100, 110]])""", points
        )
    )
    everything = np.concatenate([found, [[100, 110]]])
    apart = np.linalg.norm(everything[:, None] - everything[None], axis=2)[np.triu_indices(6, 1)]
    assert apart.min() > 24
    assert np.linalg.norm(found - points, axis=1).max() < 90
    assert np.linalg.norm(found[4] - points[4]) < 30


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("verdictOf({latlon: [1, 2], confidence: 0.97})", "Very likely here"),
        ("verdictOf({latlon: [1, 2], confidence: 0.8})", "Likely here"),
        ("verdictOf({latlon: [1, 2], confidence: 0.5})", "Perhaps here"),
        ("verdictOf({latlon: null, confidence: 0.97})", "Not in this map"),
        ("percent(0.9999)", "more than 99\u00a0%"),
        ("percent(0.974)", "97\u00a0%"),
        ("percent(0.001)", "less than 1\u00a0%"),
        ("metres(0.4)", "under 1 m"),
        ("metres(12.6)", "13 m"),
        ("metres(1234)", "1.2 km"),
        ("metres(123456)", "123 km"),
        ("metres(12345678)", "12,346 km"),
        (
            "confidenceOf({latlon: [1, 2], confidence: 0.951, matches: []})",
            "95\u00a0% sure that it is within 25\u00a0m",
        ),
        ("radiusOf({radius_m: 18.3})", "9 of 10 such answers are within 18 m"),
        ("radiusOf({radius_m: 0.2})", "9 of 10 such answers are within 1 m"),
        ("headingOf({heading_deg: 231.2})", "Looking south-west, 231°"),
        ("gridLabel(50, -10, 10)", "50° N, 10° W"),
        ("gridLabel(0, 190, 10)", "0°, 170° W"),
        ("gridLabel(-30, -180, 30)", "30° S, 180°"),
        ("gridLabel(48.85, 2.2, 0.05)", "48.85° N, 2.20° E"),
        ("compass(359)", "north"),
        ("compass(181)", "south"),
        ("count(1, 'photo')", "1 photo"),
        ("count(12345, 'photo')", "12,345 photos"),
        ("degrees([48.858412, -2.29])", "48.85841, -2.29000"),
        ("fileName('a/b\\\\c.jpg')", "c.jpg"),
    ],
)
def test_numbers_in_words(shared_page: Page, call: str, said: str) -> None:
    assert shared_page.evaluate(f"async () => (await import('/assets/text.js')).{call}") == said
