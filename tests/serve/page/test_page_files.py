"""Answers are saved as files: those of other programs agree with the command line's, photos have their position."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import gpxpy
from PIL import Image
from playwright.sync_api import Page, expect
from tests.localize.street import position
from tests.serve.page.visiting import Visit, choose, verdict

from sareloc.geo import distance_m
from sareloc.localize import Fix, Match
from sareloc.localize.formats import Answer, csv_table, geojson, gpx
from sareloc.photos import read_geotag

WRITE = """async ([name, answers]) => (await import("/assets/formats.js"))[name](answers)"""
ZIP = """async (files) => {
  const { zip } = await import("/assets/zip.js");
  const time = new Date(2024, 4, 31, 12, 30, 10).getTime();
  const archive = await zip(files.map(([name, text]) => ({ name, blob: new Blob([text]), time })));
  return Array.from(new Uint8Array(await archive.arrayBuffer()));
}"""
MATCH = Match(7, 'photos/"07", left.jpg', (48.8584, 2.2945), 0.412345, 87, 52)
FIXES = {
    "found.jpg": Fix((48.858412345, 2.294534567), 12.44, 0.93456, (MATCH,), heading_deg=231.26),
    'a, "b"\n<&>.jpg': Fix((-41.28664, 174.77557), 8.0, 1.0, (MATCH,)),
    "not found.jpg": Fix(None, None, 0.1, (MATCH,), "not in this map", (48.0, 2.0), 90.0),
    "no matches.jpg": Fix(None, None, 0.0, (), "this map holds no photos yet"),
}


def saved(page: Page, button: str) -> tuple[str, bytes]:
    """The name and the content of the file that a button saves."""
    with page.expect_download() as download:
        page.get_by_role("button", name=button).click()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def written(page: Page, function: str) -> str:
    """What the page writes of `FIXES`, which it gets as the service's JSON."""
    answers = [{"name": name, "fix": json.loads(json.dumps(fix.to_json(name)))} for name, fix in FIXES.items()]
    return str(page.evaluate(WRITE, [function, answers]))


def numbers(row: dict[str, str]) -> dict[str, Any]:
    """A row whose numbers are compared as such: 8 and 8.0 are equal."""
    return {
        key: float(value) if value.replace(".", "").removeprefix("-").isdigit() else value for key, value in row.items()
    }


ANSWERS = [Answer(name, None, fix) for name, fix in FIXES.items()]


def test_csv_is_that_of_the_command_line(shared_page: Page) -> None:
    ours, page = (
        [numbers(row) for row in csv.DictReader(io.StringIO(text))]
        for text in (csv_table(ANSWERS), written(shared_page, "toCsv"))
    )
    assert page == ours


def test_geojson_is_that_of_the_command_line(shared_page: Page) -> None:
    ours, page = json.loads(geojson(ANSWERS)), json.loads(written(shared_page, "toGeojson"))
    for feature in ours["features"]:
        del feature["properties"]["time"]  # the page does not know it
    assert page == ours


def test_gpx_is_that_of_the_command_line(shared_page: Page) -> None:
    ours, page = (gpxpy.parse(text) for text in (gpx(ANSWERS), written(shared_page, "toGpx")))

    def content(document: Any) -> list[Any]:
        return [
            (one.name, one.latitude, one.longitude, {part.tag: float(part.text) for part in one.extensions})
            for one in document.waypoints
        ]

    def said(point: Any) -> str:  # "12 m" does not break on the page; a place is named by the service
        return "; ".join(str(point.description).replace("\u00a0", " ").split("; ")[-2:])

    assert len(page.waypoints) == 2
    assert content(page) == content(ours)
    assert [said(one) for one in page.waypoints] == [said(one) for one in ours.waypoints]
    assert page.version == "1.1"


def test_a_zip_is_read_by_others_and_its_names_are_safe(shared_page: Page) -> None:
    files = [["Straße.jpg", "one"], ["../../etc/passwd", "two"], ["a.jpg", "three"], ["A.jpg", ""], ["", "five"]]
    with zipfile.ZipFile(io.BytesIO(bytes(shared_page.evaluate(ZIP, files)))) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["Straße.jpg", "__.._etc_passwd", "a.jpg", "A (2).jpg", "photo"]
        assert [archive.read(name).decode() for name in archive.namelist()] == [text for _, text in files]
        assert {one.date_time for one in archive.infolist()} == {(2024, 5, 31, 12, 30, 10)}


def test_one_photo_is_saved_with_its_position(visit: Visit, street_folder: Path, tmp_path: Path) -> None:
    choose(visit.page, street_folder / "queries" / "q07.jpg")
    verdict(visit.page)
    name, content = saved(visit.page, "Geotagged photo")
    assert name == "q07.jpg"
    (tmp_path / name).write_bytes(content)
    found = read_geotag(tmp_path / name)
    assert found is not None
    assert float(distance_m(found.latlon, position(7, 3.0))) < 10
    expect(visit.page.locator("#save-note")).to_have_text("1 photo geotagged.")
    name, content = saved(visit.page, "GPX")
    assert name == "positions.gpx"
    assert [point.name for point in gpxpy.parse(content.decode()).waypoints] == ["q07.jpg"]
    assert visit.failed == []


def test_several_photos_are_saved_as_a_zip_of_those_found(visit: Visit, street_folder: Path, tmp_path: Path) -> None:
    page = visit.page
    for name in ("q03.png", "q05.avif"):
        with Image.open(street_folder / "queries" / f"{name[:3]}.jpg") as photo:
            photo.save(tmp_path / name)
    elsewhere = street_folder / "elsewhere.jpg"
    choose(page, street_folder / "queries" / "q07.jpg", elsewhere, tmp_path / "q03.png", tmp_path / "q05.avif")
    expect(page.locator("#queue-count")).to_have_text("3 of 4 found")
    name, content = saved(page, "Geotagged photos")
    assert name == "geotagged.zip"
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.namelist() == ["q07.jpg", "q03.png", "q05.avif", "q05.avif.xmp"]
        assert archive.read("q05.avif") == (tmp_path / "q05.avif").read_bytes()
        archive.extractall(tmp_path / "saved")
    for name, place in (("q07.jpg", 7), ("q03.png", 3), ("q05.avif", 5)):
        found = read_geotag(tmp_path / "saved" / name)
        assert found is not None
        assert float(distance_m(found.latlon, position(place, 3.0))) < 10
    rows = list(csv.DictReader(io.StringIO(saved(page, "CSV")[1].decode())))
    assert [(row["photo"], bool(row["lat"])) for row in rows] == [
        ("q07.jpg", True),
        ("elsewhere.jpg", False),
        ("q03.png", True),
        ("q05.avif", True),
    ]


def test_nothing_is_offered_where_nothing_was_found(page: Page, street_folder: Path) -> None:
    choose(page, street_folder / "elsewhere.jpg")
    assert verdict(page) == "Not in this map"
    expect(page.get_by_role("button", name="GPX")).to_be_hidden()


def test_a_place_is_named_where_the_answer_has_one(shared_page: Page) -> None:
    answer = """async (fix) => {
      const { showAnswer, spokenAnswer } = await import("/assets/answer.js");
      showAnswer(fix, () => "", () => {});
      return [document.getElementById("place").hidden, document.getElementById("place").textContent, spokenAnswer(fix)];
    }"""
    fix = FIXES["found.jpg"].to_json("found.jpg")
    hidden, text, spoken = shared_page.evaluate(answer, fix | {"place": "Cambridge, GB"})
    assert (hidden, text) == (False, "Cambridge, GB")
    assert (
        "At 48.85841, 2.29453, Cambridge, GB. 9 of 10 such answers are within 12 m. Looking south-west, 231°" in spoken
    )
    hidden, _, spoken = shared_page.evaluate(answer, fix | {"place": None})
    assert hidden
    assert "At 48.85841, 2.29453. 9 of 10" in spoken
