"""What matched: lines between the local features of a photo and its match; where the photo looks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from playwright.sync_api import Page, expect
from tests.localize.town import HEADING_DEG
from tests.serve.page.visiting import Visit, choose, verdict

ENDS = """() => [...document.querySelectorAll("#matched-lines line")].map((line) => {
  const box = document.getElementById("matched-lines").getBoundingClientRect();
  return ["x1", "y1", "x2", "y2"].map((name, i) => +line.getAttribute(name) + (i % 2 ? box.top : box.left));
})"""
PICTURES = """() => ["matched-query", "matched-photo"].map((id) => {  // 224 x 160, as large as fits into its element
  const { left, top, width, height } = document.getElementById(id).getBoundingClientRect();
  const scale = Math.min(width / 224, height / 160);
  return [left + (width - 224 * scale) / 2, top + (height - 160 * scale) / 2, scale];
})"""
SHIFT_PX = {"07_0.jpg": 20, "07_1.jpg": 12}
"""How much farther to the right the query shows the wall than each photo of the map does."""


@pytest.fixture
def answered(desktop: Page, town_client: httpx.Client, town_folder: Path) -> Iterator[Visit]:
    """The answer to the query of the town."""
    with Visit(desktop, str(town_client.base_url)) as visit:
        choose(visit.page, town_folder / "query.jpg")
        verdict(visit.page)
        yield visit


def moved_px(page: Page) -> np.ndarray:
    """How far (n, 2) the ends of the lines are apart, in pixels of the photos, once they are drawn."""
    page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    ends = np.array(page.evaluate(ENDS)).reshape(-1, 2, 2)
    places = [(ends[:, i] - (left, top)) / scale for i, (left, top, scale) in enumerate(page.evaluate(PICTURES))]
    for place in places:
        assert (place.min() >= 0, (place <= (224, 160)).all()) == (True, True)
    return np.asarray(places[1] - places[0])


def test_lines_connect_the_same_points_of_both_photos(answered: Visit) -> None:
    page = answered.page
    button = page.get_by_role("button", name="What matched?")
    button.focus()
    with page.expect_response(lambda response: "/inliers" in response.url) as asked:
        page.keyboard.press("Enter")
    told = asked.value.json()
    dialog = page.get_by_role("dialog", name="What matched?")
    expect(dialog).to_be_visible()
    lines = page.locator("#matched-lines g")
    expect(lines).to_have_count(min(told["inliers"], 100))
    expect(page.get_by_role("img", name=f"{told['inliers']} local features agree")).to_be_visible()
    expect(page.locator("#matched-note")).to_contain_text(f"{told['inliers']} local features agree.")
    colours = lines.evaluate_all("groups => groups.map((group) => group.getAttribute('stroke'))")
    assert all(a != b for a, b in pairwise(colours))
    name = re.search(r"07_\d.jpg", page.locator("#matched-photo").get_attribute("alt") or "")
    assert name is not None
    np.testing.assert_allclose(np.median(moved_px(page), axis=0), (SHIFT_PX[name[0]], 0), atol=0.7)

    page.set_viewport_size({"width": 900, "height": 500})  # now there is room beside the photos
    page.wait_for_function("() => document.getElementById('matched-lines').getBoundingClientRect().width < 870")
    np.testing.assert_allclose(np.median(moved_px(page), axis=0), (SHIFT_PX[name[0]], 0), atol=0.7)

    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(button).to_be_focused()


def test_another_match_has_lines_of_its_own(answered: Visit) -> None:
    page = answered.page
    counts = []
    for number in (1, 5):  # the other place's photo agrees in few points
        page.locator("#matches button").nth(number - 1).click()
        with page.expect_response(lambda response: "/inliers" in response.url) as asked:
            page.get_by_role("button", name="What matched?").click()
        counts.append(asked.value.json()["inliers"])
        expect(page.locator("#matched-lines g")).to_have_count(min(counts[-1], 100))
        expect(page.locator("#matched-caption")).to_have_text(f"Match {number}")
        page.get_by_role("button", name="Close").click()
    assert counts[0] > 2 * counts[1]
    page.get_by_role("button", name="What matched?").click()  # asked once: it is still there
    expect(page.locator("#matched-lines g")).to_have_count(min(counts[1], 100))


def test_on_a_phone_one_photo_is_above_the_other(phone: Page, town_client: httpx.Client, town_folder: Path) -> None:
    with Visit(phone, str(town_client.base_url)) as visit:
        choose(visit.page, town_folder / "query.jpg")
        verdict(visit.page)
        visit.page.get_by_role("button", name="What matched?").tap()
        expect(visit.page.locator("#matched-lines g")).not_to_have_count(0)
        query, photo, dialog = (
            visit.page.locator(f"#matched{part}").bounding_box() for part in ("-query", "-photo", "")
        )
        assert query is not None
        assert photo is not None
        assert dialog is not None
        assert query["y"] + query["height"] <= photo["y"]
        assert photo["y"] + photo["height"] <= dialog["y"] + dialog["height"] <= 844  # all in view
        assert abs(np.median(moved_px(visit.page)[:, 1])) < 1


def test_a_server_that_does_not_answer_is_reported_in_the_dialog(answered: Visit) -> None:
    page = answered.page
    page.route("**/inliers*", lambda route: route.abort(), times=1)
    page.get_by_role("button", name="What matched?").click()
    expect(page.locator("#matched-note")).to_contain_text("The server does not answer")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="What matched?").click()
    expect(page.locator("#matched-note")).to_contain_text("local features agree")


def test_matches_that_are_not_verified_cannot_be_asked_about(page: Page, street_folder: Path) -> None:
    choose(page, street_folder / "queries" / "q07.jpg")
    verdict(page)
    expect(page.locator("#match")).to_be_visible()
    expect(page.locator("#matched-button")).to_be_hidden()
    expect(page.locator("#heading")).to_be_hidden()
    expect(page.locator(".cone")).to_have_count(0)


def test_a_match_whose_picture_is_not_on_this_server_cannot_be_asked_about(
    desktop: Page, town_client: httpx.Client, town_folder: Path
) -> None:
    with Visit(desktop, str(town_client.base_url)) as visit:
        visit.page.route("**/thumbnail*", lambda route: route.fulfill(status=404))
        choose(visit.page, town_folder / "query.jpg")
        verdict(visit.page)
        expect(visit.page.locator("#no-match")).to_be_visible()
        expect(visit.page.locator("#matched-button")).to_be_hidden()


def middle(box: dict[str, Any] | None) -> complex:
    assert box is not None
    return complex(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def test_the_heading_is_a_cone_and_words(answered: Visit, town_client: httpx.Client, town_folder: Path) -> None:
    page = answered.page
    heading = town_client.post("/localize", content=(town_folder / "query.jpg").read_bytes()).json()["heading_deg"]
    assert abs((heading - HEADING_DEG + 180) % 360 - 180) < 20
    expect(page.locator("#heading")).to_have_text(f"Looking north, {round(heading) % 360}°")
    expect(page.locator("#status")).to_contain_text("Looking north")
    for _ in range(2):
        seen = middle(page.locator(".cone").bounding_box()) - middle(page.locator(".fix-point").bounding_box())
        assert abs(seen) > 25
        found = np.degrees(np.angle(seen)) + 90  # from north, clockwise: y goes down
        assert abs((found - heading + 180) % 360 - 180) < 10
        page.get_by_role("button", name="Zoom out").click()
    choose(page, town_folder / "photos" / "03_0.jpg")
    expect(page.locator(".cone")).to_have_count(1)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("agreement(0)", "No local features agree"),
        ("agreement(1)", "1 local feature agrees"),
        ("agreement(1234)", "1,234 local features agree"),
        ("linesDrawn(150, 100)", "150 local features agree. Each line connects the same point in both photos. "
         "100 of them are drawn."),
        ("linesDrawn(0, 100)", "No local features agree: only the descriptors of these photos are alike."),
        ("headingOf({heading_deg: 48.2})", "Looking north-east, 48°"),
        ("headingOf({heading_deg: 359.8})", "Looking north, 0°"),
        ("headingOf({heading_deg: null})", ""),
    ],
)  # fmt: skip
def test_words(shared_page: Page, script: str, expected: str) -> None:
    assert shared_page.evaluate(f"async () => (await import('/assets/text.js')).{script}") == expected
