from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sareloc.errors import ArgumentError, DatasetError
from sareloc.photos import Geotag, read_geotag_table

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
    assert read_geotag_table(write(tmp_path, "geotags.csv", text, encoding)) == EXPECTED


def test_csv_with_only_what_is_needed(tmp_path: Path) -> None:
    table = write(tmp_path, "t.CSV", "lon,extra,file,lat\n2,x,é.jpg,1\n")
    assert read_geotag_table(table) == {"é.jpg": Geotag((1.0, 2.0))}
    assert read_geotag_table(write(tmp_path, "empty.csv", "file,lat,lon\n")) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column 'file': it has no columns"),
        ("name,lat,lon\na,1,2\n", "has no column 'file': it has name, lat, lon"),
        ("file,lat\na,1\n", "has no column 'lon'"),
        ("file,lat,lon\na,1,2\nb,x,2\n", r"line 3 \(b\): lat must be a number, found 'x'"),
        ("file,lat,lon\na,1\n", r"line 2 \(a\): lon must be a number, found None"),
        ("file,lat,lon\na,nan,2\n", "lat must be a number, found 'nan'"),
        ("file,lat,lon\na,1,inf\n", "lon must be a number, found 'inf'"),
        ("file,lat,lon\na,91,2\n", r"line 2 \(a\): latitude 91.0, longitude 2.0 is no place on Earth"),
        ("file,lat,lon\na,1,2\n./a,1,2\n", "line 3: a is there twice"),
        ("file,lat,lon,time\na,1,2,noon\n", "time must be seconds since 1970 or like"),
        ("file,lat,lon,time\na,1,2,1e300\n", "a time is in seconds since 1970"),
        ("file,lat,lon,heading\na,1,2,north\n", "heading must be a number, found 'north'"),
        ("file,lat,lon\n,1,2\n", "line 2: no file is named"),
    ],
)
def test_csv_errors_name_the_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=message):
        read_geotag_table(write(tmp_path, "geotags.csv", text))


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
    assert read_geotag_table(write(tmp_path, name, json.dumps(collection))) == EXPECTED


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a GeoJSON FeatureCollection of Points"),
        ("[]", "is not a GeoJSON FeatureCollection of Points"),
        ('{"type": "Feature"}', "is not a GeoJSON FeatureCollection of Points"),
        ('{"features": [3]}', "is not a GeoJSON FeatureCollection of Points"),
        (json.dumps({"features": [feature([1], file="a")]}), "is not a GeoJSON FeatureCollection of Points"),
        ("[" * 100_000, "is not a GeoJSON FeatureCollection of Points"),
        (
            json.dumps({"features": [feature([[0, 0], [1, 1]], kind="LineString", file="a")]}),
            "feature 0: a photo stands on a Point, found LineString",
        ),
        (json.dumps({"features": [feature([2, 91], file="a")]}), r"feature 0 \(a\): latitude 91.0"),
        (json.dumps({"features": [feature(["x", 1], file="a")]}), r"feature 0 \(a\): lon must be a number, found 'x'"),
    ],
)
def test_geojson_errors_name_the_feature(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=message):
        read_geotag_table(write(tmp_path, "geotags.geojson", text))


def test_files_that_are_no_table(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"ends in \.csv, \.geojson or \.json"):
        read_geotag_table(tmp_path / "geotags.xlsx")
    with pytest.raises(DatasetError, match="cannot be read as UTF-8 text"):
        read_geotag_table(tmp_path / "missing.csv")
    (tmp_path / "latin.csv").write_bytes(b"file,lat,lon\n\xe9.jpg,1,2\n")
    with pytest.raises(DatasetError, match="cannot be read as UTF-8 text"):
        read_geotag_table(tmp_path / "latin.csv")
