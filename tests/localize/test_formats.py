"""Fixes as GeoJSON, CSV, GPX and KML, which other programs read, and as a line for people."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import gpxpy
import numpy as np
import pytest

from sareloc.localize import Fix, Match
from sareloc.localize.formats import (
    EXTENSIONS,
    KML,
    Answer,
    answer_line,
    answer_text,
    csv_table,
    geojson,
    geotags_csv,
    gpx,
    heading_sentence,
    iso_time,
    kml,
)
from sareloc.photos import read_geotag_table

FOUND = Fix((48.85841234567, -2.2945), 12.34, 0.91234, (Match(7, "a,b.jpg", (48.85, -2.29), 0.98765),))
LOST = Fix(None, None, 0.12, (), "not in this map: the best position has confidence 0.12, below 0.50")
NOON = 1717156800.0  # 2024-05-31T12:00:00Z
ANSWERS = [Answer('q "1".jpg', None, FOUND), Answer("<q2>.jpg", NOON, LOST)]
TURNED = replace(FOUND, latlon=(48.8585, -2.2946), heading_deg=278.12)
WALK = [*ANSWERS, Answer("é & \x01.jpg", NOON + 0.25, TURNED), Answer("q4.jpg", NOON + 1, TURNED)]


def test_an_answer_for_people() -> None:
    assert answer_text("q.jpg", TURNED) == (
        "q.jpg\n"
        "  position    48.858500, -2.294600  "
        "https://www.openstreetmap.org/?mlat=48.858500&mlon=-2.294600#map=18/48.858500/-2.294600\n"
        "  place       26 km north of Saint-Cast-le-Guildo, FR\n"
        "  radius      9 of 10 such answers are within 12 m\n"
        "  confidence  91 % sure that it is within 25 m\n"
        "  heading     looks west, 278°\n"
        "  most like   a,b.jpg"
    )
    assert "heading" not in answer_text("q.jpg", FOUND)


def test_without_a_position_the_low_confidence_position_is_named_as_such() -> None:
    unsure = replace(LOST, guess=(52.2, 0.12), guess_radius_m=40.0)
    lines = answer_text("q.jpg", unsure).splitlines()
    assert lines[1].startswith("  not in this map; low-confidence position  52.200000, 0.120000  https://")
    assert lines[2:] == ["  place       Cambridge, GB", "  confidence  12 % sure that it is within 25 m"]
    assert answer_text("q.jpg", LOST).splitlines() == ["q.jpg", f"  {LOST.reason}"]


@pytest.mark.parametrize(
    ("confidence", "said", "number"),
    [
        (0.0, "less than 1 %", "less than 0.01"),
        (0.05, "5 %", "0.05"),
        (0.994, "99 %", "0.99"),
        (0.996, "more than 99 %", "more than 0.99"),
    ],
)
def test_no_answer_is_called_certain(confidence: float, said: str, number: str) -> None:
    fix = replace(FOUND, confidence=confidence)
    assert f"  {said} sure" in answer_text("q.jpg", fix)
    assert f", confidence {number}; most like a,b.jpg" in answer_line("q.jpg", fix)


@pytest.mark.parametrize(("heading", "said"), [(359.7, "looks north, 0°"), (231.2, "looks south-west, 231°")])
def test_headings_in_words(heading: float, said: str) -> None:
    assert heading_sentence(heading) == said


def test_answers_without_a_table_of_place_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sareloc.localize.place_names.find_town", lambda latlon: None)
    assert "  place " not in answer_text("q.jpg", FOUND)
    assert next(csv.DictReader(io.StringIO(csv_table(ANSWERS))))["place"] == ""
    assert FOUND.to_json("q.jpg")["place"] is None


def test_places_in_every_format() -> None:
    place = "25 km north of Saint-Cast-le-Guildo, FR"
    assert FOUND.to_json("q.jpg")["place"] == place
    assert replace(LOST, guess=(52.2, 0.12)).to_json("q.jpg")["place"] == "Cambridge, GB"
    assert LOST.to_json("q.jpg")["place"] is None
    assert [row["place"] for row in csv.DictReader(io.StringIO(csv_table(ANSWERS)))] == [place, ""]
    assert [row["place"] for row in csv.DictReader(io.StringIO(geotags_csv(ANSWERS)))] == [place]


def test_geojson_has_longitude_first_and_null_for_nowhere() -> None:
    found, lost = json.loads(geojson(ANSWERS))["features"]
    assert found["geometry"] == {"type": "Point", "coordinates": [-2.2945, 48.85841234567]}
    assert list(found["properties"]) == ["photo", "radius_m", "confidence", "heading_deg", "place", "matches", "time"]
    assert (found["properties"]["time"], lost["properties"]["time"]) == (None, "2024-05-31T12:00:00Z")
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


def test_csv_has_heading_and_time() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_table(WALK))))
    assert list(rows[0])[-4:] == ["heading_deg", "time", "place", "map"]
    assert [(row["heading_deg"], row["time"]) for row in rows] == [
        ("", ""),
        ("", "2024-05-31T12:00:00Z"),
        ("278.1", "2024-05-31T12:00:00.250Z"),
        ("278.1", "2024-05-31T12:00:01Z"),
    ]


@pytest.mark.parametrize("written", [geotags_csv, geojson])
def test_tables_of_geotags_are_read_again(written, tmp_path: Path) -> None:
    table = tmp_path / ("geotags.csv" if written is geotags_csv else "geotags.geojson")
    table.write_text(written(WALK))
    tags = read_geotag_table(table).tags
    assert list(tags) == ['q "1".jpg', WALK[2].name, "q4.jpg"]
    assert tags["q4.jpg"].latlon == pytest.approx(TURNED.latlon, abs=1e-7)
    assert tags["q4.jpg"].heading_deg == pytest.approx(278.12, abs=0.05)
    assert tags["q4.jpg"].time == NOON + 1
    assert (tags['q "1".jpg'].heading_deg, tags['q "1".jpg'].time) == (None, None)


def test_times() -> None:
    assert iso_time(None) is None
    assert iso_time(0) == "1970-01-01T00:00:00Z"
    assert iso_time(-0.5) == "1969-12-31T23:59:59.500Z"
    assert iso_time(1717156799.9999) == "2024-05-31T12:00:00Z"


def test_gpxpy_reads_waypoints() -> None:
    read = gpxpy.parse(gpx(WALK))
    assert [point.name for point in read.waypoints] == ['q "1".jpg', "é & \ufffd.jpg", "q4.jpg"]
    assert (read.waypoints[0].latitude, read.waypoints[0].longitude) == (48.8584123, -2.2945)
    assert [point.time and point.time.timestamp() for point in read.waypoints] == [None, NOON + 0.25, NOON + 1]
    assert read.waypoints[0].description.endswith(
        "; 9 of 10 such answers are within 12 m; 91 % sure that it is within 25 m"
    )
    told = {element.tag: element.text for element in read.waypoints[1].extensions}
    names = {"heading_deg": "278.1", "radius_m": "12.3", "confidence": "0.9123"}
    assert told == {f"{{{EXTENSIONS}}}{name}": value for name, value in names.items()}
    assert len(read.waypoints[0].extensions) == 2  # no heading
    assert read.tracks == []


def test_gpxpy_reads_the_track_of_a_walk() -> None:
    read = gpxpy.parse(gpx(WALK, track=True))
    assert read.waypoints == []
    (track,) = read.tracks
    (segment,) = track.segments
    assert [point.name for point in segment.points] == ['q "1".jpg', "é & \ufffd.jpg", "q4.jpg"]
    assert segment.points[2].time.timestamp() == NOON + 1


def children(element: ElementTree.Element, space: str) -> list[str]:
    return [child.tag.removeprefix(f"{{{space}}}") for child in element]


def test_elements_are_in_the_order_of_the_schemas() -> None:
    point = ElementTree.fromstring(gpx(WALK))[1]
    assert children(point, "http://www.topografix.com/GPX/1/1") == ["time", "name", "desc", "extensions"]
    (document,) = ElementTree.fromstring(kml(WALK))
    order = ["name", "description", "Camera", "TimeStamp", "ExtendedData", "Point"]
    assert children(document[1], KML) == order
    assert children(document[0], KML) == [name for name in order if name not in ("Camera", "TimeStamp")]
    camera = ["longitude", "latitude", "altitude", "heading", "tilt", "altitudeMode"]
    assert children(document[1].find(f"{{{KML}}}Camera"), KML) == camera
    line, *points = ElementTree.fromstring(kml(WALK, track=True))[0]
    assert children(line, KML) == ["name", "LineString"]
    assert len(points) == 3
    assert len(ElementTree.fromstring(kml(ANSWERS, track=True))[0]) == 1  # one position: no line


@pytest.mark.parametrize("written", [geojson, gpx, kml])
def test_gdal_reads_points(written, tmp_path: Path) -> None:
    pyogrio = pytest.importorskip("pyogrio")
    file = tmp_path / f"walk.{written.__name__}"
    file.write_text(written(WALK), encoding="utf-8")
    layer = None if written is geojson else pyogrio.list_layers(file)[0, 0]
    meta, _, shapes, fields = pyogrio.raw.read(file, layer=layer)
    values = dict(zip(meta["fields"], fields, strict=True))
    kept = [row for row, shape in enumerate(shapes) if shape is not None]
    points = np.array([np.frombuffer(shapes[row][5:21], "<f8") for row in kept])  # WKB: order, type, x, y
    np.testing.assert_allclose(points[:, ::-1], [FOUND.latlon, TURNED.latlon, TURNED.latlon], atol=1e-7)
    heading = next(values[name] for name in values if name.endswith("heading_deg"))
    assert [float(heading[row]) for row in kept[1:]] == pytest.approx([278.1, 278.1], abs=0.03)
    time = next(values[name] for name in values if name in ("time", "timestamp", "begin", "when"))
    assert str(time[kept[2]]).startswith("2024-05-31")


@pytest.mark.parametrize(("written", "layer"), [(gpx, "tracks"), (kml, None)])
def test_gdal_reads_the_line_of_a_walk(written, layer: str | None, tmp_path: Path) -> None:
    pyogrio = pytest.importorskip("pyogrio")
    file = tmp_path / f"walk.{written.__name__}"
    file.write_text(written(WALK, track=True), encoding="utf-8")
    _, _, shapes, _ = pyogrio.raw.read(file, layer=layer or pyogrio.list_layers(file)[0, 0])
    assert shapes[0][1] in (2, 5)  # WKB: LineString or MultiLineString
