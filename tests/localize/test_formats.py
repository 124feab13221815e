"""Fixes as GeoJSON, CSV and GPX, and as a line for people."""

from __future__ import annotations

import csv
import io
import json
from xml.etree import ElementTree

from sareloc.localize import Fix, Match
from sareloc.localize.formats import csv_table, geojson, geotags_csv, gpx, sentence

FOUND = Fix((48.85841234567, -2.2945), 12.34, 0.91234, (Match(7, "a,b.jpg", (48.85, -2.29), 0.98765),))
LOST = Fix(None, None, 0.12, (), "not in this map: the best guess has confidence 0.12, below 0.50")
ANSWERS = [('q "1".jpg', FOUND), ("<q2>.jpg", LOST)]


def test_a_line_for_people() -> None:
    assert sentence("q.jpg", FOUND) == (
        "q.jpg: 48.858412, -2.294500 within 12 m, confidence 0.91, most like a,b.jpg"
    )  # fmt: skip
    assert sentence("q.jpg", LOST).startswith("q.jpg: not in this map")


def test_geojson_has_longitude_first_and_null_for_nowhere() -> None:
    found, lost = json.loads(geojson(ANSWERS))["features"]
    assert found["geometry"] == {"type": "Point", "coordinates": [-2.2945, 48.85841234567]}
    assert list(found["properties"]) == ["photo", "radius_m", "confidence", "heading_deg", "matches"]
    assert lost["geometry"] is None
    assert lost["properties"]["reason"] == LOST.reason


def test_csv_leaves_nowhere_empty() -> None:
    found, lost = csv.DictReader(io.StringIO(csv_table(ANSWERS)))
    assert (found["photo"], found["lat"], found["lon"]) == ('q "1".jpg', "48.8584123", "-2.2945")
    assert (found["radius_m"], found["confidence"], found["match"], found["distance"]) == (
        "12.3",
        "0.9123",
        "a,b.jpg",
        "0.9877",
    )
    assert (lost["lat"], lost["lon"], lost["radius_m"], lost["match"], lost["distance"]) == ("", "", "", "", "")
    assert lost["confidence"] == "0.12"


def test_tables_of_geotags_hold_only_what_was_found() -> None:
    (row,) = csv.DictReader(io.StringIO(geotags_csv(ANSWERS)))
    assert (row["file"], row["lat"], row["lon"]) == ('q "1".jpg', "48.8584123", "-2.2945")
    root = ElementTree.fromstring(gpx(ANSWERS))
    (point,) = root
    assert (point.get("lat"), point.get("lon")) == ("48.8584123", "-2.2945000")
    assert [child.text for child in point] == ['q "1".jpg', "within 12 m, confidence 0.91"]
