from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sareloc.errors import ArgumentError, DatasetError
from sareloc.photos import Geotag, parse_degrees, read_geotag_table

NOON = datetime(2024, 5, 31, 12, tzinfo=UTC).timestamp()
EXPECTED = {
    "a.jpg": Geotag((55.7, 13.19), 90.0, NOON),
    "sub/b.jpg": Geotag((-33.85, 151.2), None, None),
    "c d.jpg": Geotag((0.0, -180.0), 0.0, 1.5),
}


def write(folder: Path, name: str, text: str, encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_text(text, encoding=encoding)
    return path


CSV = """file,lat,lon,heading,time
a.jpg,55.7,13.19,90,2024-05-31T14:00:00+02:00
sub\\b.jpg,-33.85,151.2,,

./c d.jpg, 0 ,-180,360,1.5
"""


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (CSV, "utf-8"),
        (CSV, "utf-8-sig"),
        (CSV.replace(",", ";"), "utf-8"),
        (CSV.replace(",", "\t"), "utf-8"),
        (CSV.replace("\n", "\r\n"), "utf-8"),
        (CSV.replace("file,lat,lon,heading,time", " File , LAT,Lon,Heading,TIME"), "utf-8"),
        (CSV.replace("a.jpg,", '"a.jpg",'), "utf-8"),
    ],
    ids=["plain", "byte-order mark", "semicolons", "tabs", "windows", "capitals", "quotes"],
)
def test_csv(text: str, encoding: str, tmp_path: Path) -> None:
    table = read_geotag_table(write(tmp_path, "geotags.csv", text, encoding))
    assert (table.tags, table.untagged, table.problems) == (EXPECTED, (), ())


def test_csv_with_only_what_is_needed(tmp_path: Path) -> None:
    table = write(tmp_path, "t.CSV", "lon,extra,file,lat\n2,x,é.jpg,1\n")
    assert read_geotag_table(table).tags == {"é.jpg": Geotag((1.0, 2.0))}
    assert read_geotag_table(write(tmp_path, "empty.csv", "file,lat,lon\n")).tags == {}


NOON_TAG = Geotag((52.2025, -0.125), 90.0, NOON)


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("filename,latitude,lng,bearing,timestamp", f"a.jpg,52.2025,-0.125,90,{NOON}"),
        ("File Name,Latitude,Longitude,Heading_deg,DateTime", "a.jpg,52.2025,-0.125,90,2024-05-31 12:00:00"),
        ("image_name,LAT,LONG,compass,date", "a.jpg,52.2025,-0.125,90,2024-05-31T12:00:00Z"),
        ("Photo;lat (deg);lon (deg);direction;time", "a.jpg;52,2025;-0,125;90,0;2024-05-31T12:00"),
        ("image\tlatitude\tlongitude\theading\ttime", "a.jpg\t52,2025\t-0,125\t90\t2024-05-31T12:00"),
        ("path,lat,lon,heading,time", f'"a.jpg","52,2025","-0,125",90,{NOON}'),
        ("sep=;\nname;lat;lon;heading;time", f"a.jpg;52.2025;-0.125;90;{NOON}"),
        (
            "SourceFile,GPSLatitude,GPSLongitude,GPSImgDirection,DateTimeOriginal",
            './a.jpg,"52 deg 12\' 9.00"" N","0 deg 7\' 30.00"" W",90,2024:05:31 12:00:00',
        ),
        (
            "FileName,SourceFile,GPSLatitude,GPSLongitude,GPSImgDirection,DateTimeOriginal",
            "b.jpg,a.jpg,52.2025,-0.125,90,2024:05:31 12:00:00",
        ),
        (
            "SourceFile,EXIF:GPSLatitude,EXIF:GPSLongitude,GPSLongitudeRef,GPSImgDirection,DateTimeOriginal",
            "a.jpg,52.2025,0.125,West,90,2024:05:31 12:00:00",
        ),
    ],
)
def test_spellings_that_people_use(header: str, row: str, tmp_path: Path) -> None:
    table = read_geotag_table(write(tmp_path, "geotags.csv", f"{header}\n{row}\n"))
    assert table.problems == ()
    assert list(table.tags) == ["a.jpg"]
    assert table.tags["a.jpg"].latlon == pytest.approx(NOON_TAG.latlon, abs=1e-12)
    assert (table.tags["a.jpg"].heading_deg, table.tags["a.jpg"].time) == (90, NOON)


@pytest.mark.parametrize(("encoding", "said"), [("utf-16", False), ("cp1252", True)])
def test_other_encodings(encoding: str, said: bool, tmp_path: Path) -> None:
    table = read_geotag_table(write(tmp_path, "geotags.csv", "file;lat;lon\ncafé.jpg;1,5;2\n", encoding))
    assert table.tags == {"café.jpg": Geotag((1.5, 2.0))}
    assert any("Latin-1" in problem for problem in table.problems) == said


@pytest.mark.parametrize(
    ("text", "degrees"),
    [
        ("52.5", 52.5),
        ("+52,5", 52.5),
        ("5.25e1", 52.5),
        ("52.5°", 52.5),
        ("52.5 s", -52.5),
        ("S52.5", -52.5),
        ("52° 30'", None),
        ("-52° 30'", -52.5),
        ("52 30 N", 52.5),
        ("52° 30′ 36″ N", 52.51),
        ("N 52°30.6'", 52.51),
        ("52 deg 30' 36.00\" S", -52.51),
        ("52° 30' E", None),
        ("-52.5 S", None),
        ("N 52.5 N", None),
        ("52° 60' N", None),
        ("52 30", None),
        ("1,234,5", None),
        ("1_0", None),
        ("nan", None),
        ("inf", None),
        ("95", None),
        ("five", None),
    ],
)
def test_degrees(text: str, degrees: float | None) -> None:
    if degrees is None:
        with pytest.raises(ValueError, match="latitude"):
            parse_degrees(text, "NS")
    else:
        assert parse_degrees(text, "NS") == pytest.approx(degrees, abs=1e-12)


SEVEN_BAD = """file,lat,lon,heading
good.jpg,52.2025,0.1218,10
north.jpg,95,0.1218,
comma.jpg,52,2025,0,1218
empty.jpg,,,
nan.jpg,nan,0.1218,
minutes.jpg,52 12 9,0.1218,
good.jpg,52.3,0.1218,
short.jpg,52.2025
,52.2,0.1,
half.jpg,52.2,,
null.jpg,0,0.0,
swapped.jpg,151.2,-33.85,
too.jpg,52.2026,0.1219,west
again.jpg,52.2025,0.1218,
again.jpg,52.2025,0.1218,
"""


def test_bad_rows_are_listed_at_once_and_the_good_are_used(tmp_path: Path) -> None:
    table = read_geotag_table(write(tmp_path, "geotags.csv", SEVEN_BAD))
    assert table.tags == {
        "good.jpg": Geotag((52.2025, 0.1218), 10.0),
        "too.jpg": Geotag((52.2026, 0.1219)),
        "again.jpg": Geotag((52.2025, 0.1218)),
    }
    assert table.untagged == ("empty.jpg",)
    said = [problem.removeprefix(f"{table.path} ") for problem in table.problems]
    expected = [
        ("line 3 (north.jpg)", "95"),
        ("line 4 (comma.jpg)", "5 values for 4 columns"),
        ("line 6 (nan.jpg)", "not a number"),
        ("line 7 (minutes.jpg)", "hemisphere"),
        ("line 8 (good.jpg)", "another position than in line 2"),
        ("line 9 (short.jpg)", "2 values for 4 columns"),
        ("line 10", "no file"),
        ("line 11 (half.jpg)", "lon is empty"),
        ("line 12 (null.jpg)", "0, 0"),
        ("line 13 (swapped.jpg)", "swapped?"),
        (f"{table.path}", "heading"),
    ]
    assert len(said) == len(expected)
    for line, (where, what) in zip(said, expected, strict=True):
        assert line.startswith(f"{where}:")
        assert what in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("which,lat,lon\na,1,2\n", "no column 'file': found which, lat, lon.*filename"),
        ("a.jpg,52.1,0.1\n", "no column 'file': found a.jpg"),
        ("file,lat\na,1\n", "no column 'lon': found file, lat"),
        ("file,x,y\na,1,2\n", "has no column 'lat'"),
    ],
)
def test_a_csv_without_the_columns_is_one_error(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=message):
        read_geotag_table(write(tmp_path, "geotags.csv", text))


def positions(rows: dict[str, tuple[float, float]]) -> str:
    return "file,lat,lon\n" + "".join(f"{file},{lat},{lon}\n" for file, (lat, lon) in rows.items())


def test_positions_far_from_the_others_are_reported(tmp_path: Path) -> None:
    town = {f"{number}.jpg": (52.2 + number / 1000, 0.12) for number in range(20)}
    odd = {"swapped.jpg": (0.12, 52.2), "far.jpg": (12.0, -50.0)}
    table = read_geotag_table(write(tmp_path, "geotags.csv", positions({**town, **odd})))
    assert table.tags.keys() == town.keys() | odd.keys()  # said, and used
    swapped, far = table.problems
    assert "line 22 (swapped.jpg)" in swapped
    assert "swapped" in swapped.partition("(swapped.jpg)")[2]
    assert "line 23 (far.jpg)" in far
    assert "far.jpg" not in swapped
    # more than half the rows swapped, or a second town: not odd
    two = {**town, **{f"b{number}.jpg": (55.7 + number / 1000, 13.19) for number in range(10)}}
    assert read_geotag_table(write(tmp_path, "geotags.csv", positions(two))).problems == ()
    around = {f"{number}.jpg": (number - 40.0, 17.0 * number - 170) for number in range(20)}
    assert read_geotag_table(write(tmp_path, "geotags.csv", positions(around))).problems == ()


def feature(coordinates: object, kind: str = "Point", **properties: object) -> dict[str, object]:
    return {"type": "Feature", "geometry": {"type": kind, "coordinates": coordinates}, "properties": properties}


@pytest.mark.parametrize("name", ["geotags.geojson", "geotags.JSON"])
def test_geojson(name: str, tmp_path: Path) -> None:
    collection = {
        "type": "FeatureCollection",
        "features": [
            feature([13.19, 55.7, 40.0], file="a.jpg", heading=90, time="2024-05-31T12:00:00Z"),
            feature([[0, 0], [1, 1]], kind="LineString", name="the walk"),
            {"type": "Feature", "geometry": None, "properties": None},
            feature([151.2, -33.85], file="sub/b.jpg", heading=None),
            feature([-180, 0], file="c d.jpg", heading=360, time=1.5),
        ],
    }
    table = read_geotag_table(write(tmp_path, name, json.dumps(collection)))
    assert (table.tags, table.problems) == (EXPECTED, ())


def test_bad_features_are_listed_at_once_and_the_good_are_used(tmp_path: Path) -> None:
    features = [
        feature([0.1, 52.2], Filename="a.jpg", Bearing=90),
        3,
        feature([0.1], Filename="b.jpg"),
        feature([[0, 0], [1, 1]], kind="LineString", Filename="c.jpg"),
        feature([2, 91], Filename="d.jpg"),
        feature(["x", 1], Filename="e.jpg"),
        {"type": "Feature", "geometry": None, "properties": {"Filename": "f.jpg"}},
        feature([0, 0], Filename="g.jpg"),
        feature([float("nan"), 1], Filename="h.jpg"),
    ]
    table = read_geotag_table(write(tmp_path, "geotags.geojson", json.dumps({"features": features})))
    assert table.tags == {"a.jpg": Geotag((52.2, 0.1), 90.0)}
    assert table.untagged == ("f.jpg",)
    said = [problem.removeprefix(f"{table.path} feature ") for problem in table.problems]
    assert [line[0] for line in said] == ["1", "2", "3", "4", "5", "7", "8"]
    for line, what in zip(said, ["object", "coordinates", "Point", "91", "'x'", "0, 0", "nan"], strict=True):
        assert what in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a GeoJSON FeatureCollection"),
        ("[]", "is not a GeoJSON FeatureCollection"),
        ('{"type": "Feature"}', "is not a GeoJSON FeatureCollection"),
        ('{"features": 3}', "is not a GeoJSON FeatureCollection"),
        ("[" * 100_000, "is not a GeoJSON FeatureCollection"),
        (json.dumps({"features": [feature([1, 2], which="a")]}), "no property 'file': found which"),
    ],
)
def test_what_is_no_geojson_is_one_error(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=message):
        read_geotag_table(write(tmp_path, "geotags.geojson", text))


def test_files_that_are_no_table(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"\.csv, \.geojson or \.json"):
        read_geotag_table(tmp_path / "geotags.xlsx")
    with pytest.raises(DatasetError, match="cannot be read"):
        read_geotag_table(tmp_path / "missing.csv")
    (tmp_path / "excel.csv").write_bytes(b"PK\x03\x04\0\0file,lat,lon\n")
    with pytest.raises(DatasetError, match="not text"):
        read_geotag_table(tmp_path / "excel.csv")
    (tmp_path / "cut.csv").write_bytes("file,lat,lon\né.jpg,1,2\n".encode("utf-16")[:-1])
    with pytest.raises(DatasetError, match="utf-16"):
        read_geotag_table(tmp_path / "cut.csv")


def description(filename: object, latitude: object, longitude: object, **others: object) -> dict[str, object]:
    return {"filename": filename, "MAPLatitude": latitude, "MAPLongitude": longitude, "filetype": "image", **others}


def test_image_descriptions_of_mapillary(tmp_path: Path) -> None:
    compass = {"TrueHeading": 450.0, "MagneticHeading": 88.0}
    time = "2024_05_31_12_00_00_250"
    descriptions = [
        description("/home/me/a.jpg", 52.2, 0.1, MAPCaptureTime=time, MAPCompassHeading=compass),
        {"error": {"type": "MapillaryGeoTaggingError", "message": "no GPS"}, "filename": "/home/me/b.jpg"},
        {"filename": "/home/me/c.mp4", "filetype": "video", "MAPGPSTrack": [[0, 0.1, 52.2, None, None, None]]},
        3,
        description("d.jpg", 91, 0.1),
        description("e.jpg", 52.3, 0.1, MAPCaptureTime="soon", MAPCompassHeading=[]),
        description("f.jpg", [52.3], 0.1),
        {"MAPLatitude": 1, "MAPLongitude": 2},
    ]
    table = read_geotag_table(write(tmp_path, "mapillary_image_description.json", json.dumps(descriptions)))
    assert table.tags == {"/home/me/a.jpg": Geotag((52.2, 0.1), 90.0, 1717156800.25), "e.jpg": Geotag((52.3, 0.1))}
    assert table.untagged == ("/home/me/b.jpg",)
    said = "\n".join(table.problems)
    for what in ("description 3: expected an object", "(d.jpg): latitude 91", "(f.jpg)", "7: no file", "time cannot"):
        assert what in said
    assert read_geotag_table(write(tmp_path, "geotags.json", "[]")).tags == {}
    with pytest.raises(DatasetError, match="no image descriptions"):
        read_geotag_table(write(tmp_path, "geotags.json", "[1, 2]"))


@pytest.mark.data
def test_descriptions_have_the_fields_of_mapillarys_schema(shared_data: Path) -> None:
    schema = json.loads((shared_data / "inputs" / "image_description_schema.json").read_text())
    image = schema["oneOf"][1]["properties"]
    made = description("a.jpg", 52.2, 0.1, MAPCaptureTime="2024_05_31_12_00_00_250", MAPCompassHeading={})
    assert made.keys() <= image.keys()
    assert "TrueHeading" in image["MAPCompassHeading"]["properties"]
    assert re.fullmatch(image["MAPCaptureTime"]["pattern"], made["MAPCaptureTime"])


@pytest.mark.parametrize(
    ("header", "row"),
    [
        (
            "file;lat;lon;capture_time;Exif.GPSInfo.GPSImgDirection",
            "a.jpg;52.2;0.1;2024-05-31T12:00:00Z;90",
        ),  # Panoramax
        ("name,lat,lng,heading,shotDate", "a.jpg,52.2,0.1,90,2024-05-31 12:00:00"),
        ("filename,latitude,longitude,compass_angle,captured_at", "a.jpg,52.2,0.1,90,2024-05-31T12:00:00Z"),
    ],
)
def test_columns_of_street_level_services(header: str, row: str, tmp_path: Path) -> None:
    table = read_geotag_table(write(tmp_path, "geotags.csv", f"{header}\n{row}\n"))
    assert (table.tags, table.problems) == ({"a.jpg": Geotag((52.2, 0.1), 90.0, 1717156800.0)}, ())


def test_geojson_as_kartaview_takes_it(tmp_path: Path) -> None:
    about = {"order": "1", "path": "x\\a.jpg", "direction": 90.0, "Lat": 52.2, "Lon": 0.1}
    collection = {"features": [feature([0.1, 52.2], **about, Timestamp="2024-05-31T12:00:00Z")]}
    table = read_geotag_table(write(tmp_path, "a_file.geojson", json.dumps(collection)))
    assert table.tags == {"x/a.jpg": Geotag((52.2, 0.1), 90.0, 1717156800.0)}


@pytest.mark.timeout(60)  # patterns would need squared time: minutes
@pytest.mark.parametrize("value", ["1" + " " * 100_000 + "x", "1" * 1_000_000, "1 " * 100_000])
def test_an_absurdly_long_value_is_a_bad_row_at_once(tmp_path: Path, value: str) -> None:
    (tmp_path / "a.csv").write_text(f"file,lat,lon,heading,time\na.jpg,{value},8,,\nb.jpg,47,8,{value},{value}\n")
    table = read_geotag_table(tmp_path / "a.csv")
    assert table.tags["b.jpg"] == Geotag((47.0, 8.0))
    assert "characters is not a number" in table.problems[0]
    assert max(map(len, table.problems)) < 500


@pytest.mark.parametrize("text", ["[" * 200_000, '{"features": ' * 100_000, '{"features": [%s]}' % ("[" * 200_000)])
def test_deep_nesting_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.geojson").write_text(text)
    with pytest.raises(DatasetError, match="not a GeoJSON"):
        read_geotag_table(tmp_path / "a.geojson")


def test_a_large_json_is_an_error_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.write(b" ")
        file.seek(10**12)  # a sparse file
        file.write(b" ")
    with pytest.raises(DatasetError, match="not text"):
        read_geotag_table(tmp_path / "a.json")
