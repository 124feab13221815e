"""Google Takeout's JSON files: found under the names that Takeout gives them, and nothing in them is trusted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sareloc.photos import (
    SOURCES,
    Geotag,
    exif_bytes,
    find_geotag,
    find_geotagged,
    find_takeout_json,
    read_geotag,
    read_geotags,
    read_takeout_geotag,
    read_time,
    sidecar_path,
    sidecar_with_geotag,
)
from sareloc.photos import sidecars as module
from sareloc.photos.sidecars import LONGEST_STEM, takeout_names

HERE = (48.8584, 2.2945)


def takeout(latlon: tuple[float, float] | None = HERE, title: str | None = None, time: object = "1700000000") -> str:
    """A JSON as Takeout writes it; without a position both are 0, 0."""
    latitude, longitude = latlon or (0.0, 0.0)
    position = {"latitude": latitude, "longitude": longitude, "altitude": 0.0, "latitudeSpan": 0.0}
    about = {} if title is None else {"title": title}
    return json.dumps(
        about
        | {
            "photoTakenTime": {"timestamp": time, "formatted": "Nov 14, 2023, 10:13:20 PM UTC"},
            "geoData": position,
            "geoDataExif": position,
        }
    )


@pytest.mark.parametrize(
    ("photo", "name"),
    [
        ("IMG_1.jpg", "IMG_1.jpg.json"),
        ("IMG_1.jpg", "IMG_1.jpg.supplemental-metadata.json"),
        ("IMG_1(1).jpg", "IMG_1.jpg(1).json"),
        ("IMG_1(12).jpg", "IMG_1.jpg.supplemental-metadata(12).json"),
        ("IMG_1(1).jpg", "IMG_1(1).jpg.json"),  # the number is in the title
        ("img(18).jpg", "img(18).jpg.supplemental-metadata(18).json"),
        ("IMG_1-edited.jpg", "IMG_1.jpg.json"),
        ("IMG_1-edited(1).jpg", "IMG_1.jpg.supplemental-metadata(1).json"),
        ("IMG_1-bearbeitet.jpg", "IMG_1.jpg.supplemental-metadata.json"),
        ("IMG_1-modifie\u0301.jpg", "IMG_1.jpg.json"),
        # names of real exports
        ("Screenshot_2017-07-05-10-05-26.png", "Screenshot_2017-07-05-10-05-26.png.supplementa.json"),
        ("Screenshot_20241227_105539_Edge.jpg", "Screenshot_20241227_105539_Edge.jpg.supplement.json"),
        ("D7157814-D2D5-4A62-AFCE-9CF465CB7D66.jpeg", "D7157814-D2D5-4A62-AFCE-9CF465CB7D66.jpeg.supp.json"),
        ("Screenshot_20220207_102421_com.snapchat.android.jpg", "Screenshot_20220207_102421_com.snapchat.androi.json"),
        (
            "Urlaub in Knaufspesch in der Schneifel (38).JPG",
            "Urlaub in Knaufspesch in der Schneifel (38).JP.json",
        ),
    ],
)
def test_names_of_takeout(tmp_path: Path, photo: str, name: str) -> None:
    (tmp_path / name).write_text(takeout())
    assert find_takeout_json(tmp_path / photo) == tmp_path / name
    assert read_takeout_geotag(tmp_path / photo) == Geotag(HERE, None, 1.7e9)


@pytest.mark.parametrize(
    "name", ["IMG_12.jpg.json", "IMG_1.png.json", "metadata.json", "IMG_1.jpg(1).json", "IMG_1.json"]
)
def test_a_json_of_another_photo_is_not_used(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(takeout())
    assert find_takeout_json(tmp_path / "IMG_1.jpg") is None
    assert read_takeout_geotag(tmp_path / "IMG_1.jpg") is None


@given(st.text("ab(1).-", min_size=1, max_size=60))
def test_names_are_never_longer_than_takeout_makes_them(stem: str) -> None:
    for name in takeout_names(f"{stem}.jpg"):
        number = name.removesuffix(".json").rpartition("(")[2] if name.endswith(").json") else ""
        assert len(name) <= LONGEST_STEM + len(".json") + len(f"({number}")


def test_long_names_that_takeout_cuts_to_the_same_are_distinguished_by_title(tmp_path: Path) -> None:
    start = "wedding of two people in the old town hall, no"
    assert len(start) == LONGEST_STEM
    photos = [f"{start} {word}.jpg" for word in ("1", "2", "3", "4")]
    for number, (name, title) in enumerate(zip(("", "(1)", "(2)"), photos[:3], strict=True)):
        replaced = title.replace(",", "_")  # the title has characters that file names need not have
        (tmp_path / f"{start}{name}.json").write_text(takeout((10.0 + number, 20.0), title))
        (tmp_path / replaced).touch()
    assert [read_takeout_geotag(tmp_path / name).latlon[0] for name in photos[:3]] == [10, 11, 12]
    assert read_takeout_geotag(tmp_path / photos[3]) is None


def test_no_position_is_none_and_a_time_remains(tmp_path: Path) -> None:
    file = tmp_path / "a.jpg.json"
    file.write_text(takeout(None))
    assert read_takeout_geotag(tmp_path / "a.jpg") is None
    assert read_time(tmp_path / "a.jpg") == 1.7e9
    content = json.loads(takeout(None))
    content["geoDataExif"] = {"latitude": 10.0, "longitude": 20.0}
    file.write_text(json.dumps(content))
    assert read_takeout_geotag(tmp_path / "a.jpg").latlon == (10, 20)
    file.write_text(takeout((0.0, 20.0)))
    assert read_takeout_geotag(tmp_path / "a.jpg").latlon == (0, 20)  # on the equator


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not JSON",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b"[]",
        b"null",
        b'"geoData"',
        b'{"geoData": []}',
        b'{"geoData": {"latitude": "x", "longitude": 1}}',
        b'{"geoData": {"latitude": true, "longitude": true}}',
        b'{"geoData": {"latitude": NaN, "longitude": 1}}',
        b'{"geoData": {"latitude": 1e999, "longitude": 1}}',
        b'{"geoData": {"latitude": 91, "longitude": 1}}',
        b'{"geoData": {"latitude": ' + b"9" * 400 + b', "longitude": 1}}',
        b'{"geoData": {"latitude": 10, "longitude": 20}}' + b" " * 1_000_000,
    ],
)
def test_hostile_files_are_no_geotag(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.jpg.json").write_bytes(content)
    (tmp_path / f"{'a' * LONGEST_STEM}.json").write_bytes(content)
    assert read_takeout_geotag(tmp_path / "a.jpg") is None
    assert read_time(tmp_path / "a.jpg") is None
    assert read_takeout_geotag(tmp_path / f"{'a' * 60}.jpg") is None


@pytest.mark.parametrize("time", ["soon", None, [], "1e300", "nan", -1e300])
def test_a_position_with_a_bad_time_is_kept(tmp_path: Path, time: object) -> None:
    (tmp_path / "a.jpg.json").write_text(takeout(time=time))
    assert read_takeout_geotag(tmp_path / "a.jpg") == Geotag(HERE)


def test_a_folder_is_listed_once_and_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = []
    real = os.listdir
    monkeypatch.setattr(module.os, "listdir", lambda folder: listed.append(folder) or real(folder))
    (tmp_path / "0.jpg.json").write_text(takeout())
    os.utime(tmp_path, (1e9, 1e9))
    assert [find_takeout_json(tmp_path / f"{number}.jpg") is not None for number in range(50)] == [True] + [False] * 49
    assert len(listed) == 1
    (tmp_path / "1.jpg.json").write_text(takeout())
    assert find_takeout_json(tmp_path / "1.jpg") is not None
    stamp = tmp_path.stat().st_mtime_ns
    (tmp_path / "1.jpg.json").unlink()
    os.utime(tmp_path, ns=(stamp, stamp))  # a change so soon after the last that the stamp is the same
    assert find_takeout_json(tmp_path / "1.jpg") is None


def save(path: Path, **options: object) -> Path:
    Image.new("RGB", (8, 8)).save(path, **options)
    return path


def xmp(latitude: float, longitude: float) -> bytes:
    return sidecar_with_geotag("none.jpg", Geotag((latitude, longitude)))


def test_the_order_of_sources(tmp_path: Path) -> None:
    name = "@0386248.27@6174175.70@33@U@055.70000@0013.19000@@@@@@@@@.jpg"
    photo = save(tmp_path / name, exif=exif_bytes(Geotag((1.0, 1.0))), xmp=xmp(2, 2))
    sidecar_path(photo).write_bytes(xmp(3, 3))
    (tmp_path / f"{name[:LONGEST_STEM]}.json").write_text(takeout((4.0, 4.0)))
    found = read_geotags(photo)
    assert list(found) == [source for source, _ in SOURCES]
    assert [round(tag.latlon[0], 6) for tag in found.values()][:4] == [1, 2, 3, 4]
    assert find_geotag(photo)[0] == "EXIF"
    save(photo, xmp=xmp(2, 2))
    assert find_geotag(photo)[0] == "embedded XMP"
    save(photo)
    assert find_geotag(photo)[0] == "XMP sidecar"
    sidecar_path(photo).unlink()
    assert find_geotag(photo) == ("Takeout JSON", read_takeout_geotag(photo))
    (tmp_path / f"{name[:LONGEST_STEM]}.json").unlink()
    assert find_geotag(photo)[0] == "file name"
    (tmp_path / "geotags.csv").write_text(f"file,lat,lon\n{name},5,5\n")
    result = find_geotagged(tmp_path)
    assert (result.sources, result.geotags[0].latlon) == (("table",), (5, 5))


def test_a_position_in_a_sidecar_has_the_time_of_the_photo(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0x9003] = "2024:05:31 12:00:00"
    exif.get_ifd(0x8769)[0x9011] = "+00:00"
    photo = save(tmp_path / "a.jpg", exif=exif)
    sidecar_path(photo).write_bytes(xmp(3, 3))
    assert read_geotag(photo) == Geotag((3.0, 3.0), None, 1717156800.0)
