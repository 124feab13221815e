from __future__ import annotations

import contextlib
import io
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.ExifTags import GPS, IFD, Base
from PIL.TiffImagePlugin import IFDRational

from sareloc.errors import PhotoError, PositionError
from sareloc.photos import Geotag, decode, exif_bytes, geotag_from_exif, read_exif_geotag, read_geotag

LUND: dict[int, Any] = {
    GPS.GPSLatitudeRef: "N",
    GPS.GPSLatitude: (55.0, 41.0, 53.4),
    GPS.GPSLongitudeRef: "E",
    GPS.GPSLongitude: (13.0, 11.0, 43.4),
}
NOON = datetime(2024, 5, 31, 12, 0, 0, tzinfo=UTC).timestamp()


def exif_with(gps: dict[int, Any], camera: dict[int, Any] | None = None) -> Image.Exif:
    """An EXIF object that holds just these values, however odd (encoders refuse to write most of the odd ones)."""
    exif = Image.Exif()
    exif.get_ifd(IFD.GPSInfo).update(gps)
    exif.get_ifd(IFD.Exif).update(camera or {})
    return exif


def photo_with(gps: dict[int, Any], camera: dict[int, Any] | None = None, format: str = "JPEG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, format, exif=exif_with(gps, camera).tobytes())
    return stream.getvalue()


@pytest.mark.parametrize(
    ("north_south", "east_west", "signs"), [("N", "E", (1, 1)), ("S", "W", (-1, -1)), ("n", "w", (1, -1))]
)
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "AVIF", "TIFF", "HEIF"])
def test_position_with_its_hemispheres(north_south: str, east_west: str, signs: tuple[int, int], format: str) -> None:
    pytest.importorskip("pillow_heif").register_heif_opener()  # for saving
    gps = LUND | {GPS.GPSLatitudeRef: north_south, GPS.GPSLongitudeRef: east_west}
    geotag = read_exif_geotag(photo_with(gps, format=format))
    assert geotag is not None
    expected = (signs[0] * (55 + 41 / 60 + 53.4 / 3600), signs[1] * (13 + 11 / 60 + 43.4 / 3600))
    assert geotag.latlon == pytest.approx(expected, abs=1e-9)
    assert geotag.heading_deg is None
    assert geotag.time is None


@pytest.mark.parametrize(
    ("value", "degrees"),
    [
        ((55.5,), 55.5),
        (55.5, 55.5),
        ((55.0, 30.0), 55.5),
        ([55, 29, 60], 55.5),
        ((IFDRational(555, 10), IFDRational(0, 1), IFDRational(0, 1)), 55.5),
        ((90, 0, 0), 90),
    ],
)
def test_degrees_in_every_shape_that_cameras_write(value: object, degrees: float) -> None:
    geotag = geotag_from_exif(exif_with(LUND | {GPS.GPSLatitude: value}))
    assert geotag is not None
    assert geotag.latlon[0] == pytest.approx(degrees, abs=1e-12)


NAN, INF = math.nan, math.inf
BROKEN = IFDRational(0, 0)


@pytest.mark.parametrize(
    "change",
    [
        {GPS.GPSLatitude: None},
        {GPS.GPSLongitude: None},
        {GPS.GPSLatitudeRef: None},
        {GPS.GPSLongitudeRef: None},
        {GPS.GPSLatitudeRef: ""},
        {GPS.GPSLatitudeRef: "\0"},
        {GPS.GPSLatitudeRef: "X"},
        {GPS.GPSLatitudeRef: "E"},
        {GPS.GPSLatitudeRef: 78},
        {GPS.GPSLatitude: (BROKEN, BROKEN, BROKEN)},
        {GPS.GPSLatitude: (55.0, 41.0, BROKEN)},
        {GPS.GPSLatitude: (IFDRational(1, 0), 0, 0)},
        {GPS.GPSLatitude: (NAN, 0, 0)},
        {GPS.GPSLatitude: (INF, 0, 0)},
        {GPS.GPSLatitude: ()},
        {GPS.GPSLatitude: (1, 2, 3, 4)},
        {GPS.GPSLatitude: (-55, 0, 0)},
        {GPS.GPSLatitude: (90, 0, 0.1)},
        {GPS.GPSLatitude: (55, 61, 0)},
        {GPS.GPSLatitude: (55, 0, 5340)},
        {GPS.GPSLatitude: "55.7"[::-1] + "x"},
        {GPS.GPSLatitude: b"\xff\xfe"},
        {GPS.GPSLongitude: (180, 0, 1)},
        {GPS.GPSLatitude: (0, 0, 0), GPS.GPSLongitude: (0, 0, 0)},  # a receiver without a fix
    ],
)
def test_no_position_rather_than_a_wrong_one(change: dict[int, Any]) -> None:
    assert geotag_from_exif(exif_with(LUND)) is not None
    gps = {tag: value for tag, value in (LUND | change).items() if value is not None}
    assert geotag_from_exif(exif_with(gps)) is None


@pytest.mark.parametrize(
    ("direction", "heading"),
    [
        (0, 0),
        (271.5, 271.5),
        (360, 0),
        (361, None),
        (-1, None),
        (NAN, None),
        (BROKEN, None),
        ("north", None),
        ((1, 2), None),
    ],
)
def test_heading(direction: object, heading: float | None) -> None:
    geotag = geotag_from_exif(exif_with(LUND | {GPS.GPSImgDirection: direction}))
    assert geotag is not None
    assert geotag.heading_deg == heading


SHOWN = {Base.DateTimeOriginal: "2024:05:31 14:00:00"}
SATELLITES = {GPS.GPSDateStamp: "2024:05:31", GPS.GPSTimeStamp: (12.0, 0.0, 7.25)}


@pytest.mark.parametrize(
    ("camera", "gps", "after_noon_s"),
    [
        (SHOWN | {Base.OffsetTimeOriginal: "+02:00"}, {}, 0),
        (SHOWN | {Base.OffsetTimeOriginal: "+02:00"}, SATELLITES, 0),
        (SHOWN | {Base.OffsetTimeOriginal: "-09:30"}, {}, (2 + 9.5) * 3600),
        (SHOWN | {Base.OffsetTimeOriginal: "+02:00", Base.SubsecTimeOriginal: "375"}, {}, 0.375),
        (SHOWN | {Base.OffsetTimeOriginal: "   :  "}, SATELLITES, 7.25),  # how an unset clock is written
        (SHOWN, SATELLITES, 7.25),
        (SHOWN, {}, 2 * 3600),  # no zone: as if it showed UTC
        ({}, SATELLITES, 7.25),
        ({}, SATELLITES | {GPS.GPSDateStamp: "2024-05-31\0"}, 7.25),
        ({}, {}, None),
        ({Base.DateTimeOriginal: "0000:00:00 00:00:00"}, {}, None),
        ({Base.DateTimeOriginal: b"\xff\xff"}, {}, None),
        ({Base.DateTimeOriginal: "2024:13:41 25:00:00"}, {}, None),
        ({}, SATELLITES | {GPS.GPSTimeStamp: (BROKEN, 0, 0)}, None),
        ({}, SATELLITES | {GPS.GPSTimeStamp: (12, 0)}, None),
        ({}, SATELLITES | {GPS.GPSTimeStamp: 12}, None),
        ({}, {GPS.GPSTimeStamp: (12.0, 0.0, 0.0)}, None),
    ],
)
def test_time(camera: dict[int, Any], gps: dict[int, Any], after_noon_s: float | None) -> None:
    geotag = geotag_from_exif(exif_with(LUND | gps, camera))
    assert geotag is not None
    assert geotag.time == (None if after_noon_s is None else NOON + after_noon_s)


def test_time_survives_a_real_file() -> None:
    camera = SHOWN | {Base.OffsetTimeOriginal: "+02:00"}
    geotag = read_exif_geotag(photo_with(LUND, camera))
    assert geotag is not None
    assert geotag.time == NOON


def test_photos_without_a_geotag_and_files_without_a_photo(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "JPEG")
    assert read_exif_geotag(stream.getvalue()) is None
    assert read_exif_geotag(b"not a photo") is None
    assert read_exif_geotag(tmp_path / "missing.jpg") is None
    assert read_geotag(tmp_path) is None


def test_exif_goes_before_the_name(tmp_path: Path) -> None:
    name = "@0386248.27@6174175.70@33@U@055.70000@0013.19000@@@@@@@@@.jpg"
    (tmp_path / name).write_bytes(photo_with({}))
    geotag = read_geotag(tmp_path / name)
    assert geotag is not None
    assert geotag.latlon == pytest.approx((55.7, 13.19), abs=1e-7)
    (tmp_path / name).write_bytes(photo_with(LUND | {GPS.GPSLatitude: (12.0, 0.0, 0.0)}))
    geotag = read_geotag(tmp_path / name)
    assert geotag is not None
    assert geotag.latlon[0] == 12


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"latlon": (91, 0)}, "latitude 91"),
        ({"latlon": (0, math.nan)}, "invalid coordinates"),
        ({"latlon": (0, 0), "heading_deg": 360}, "heading"),
        ({"latlon": (0, 0), "time": 1e15}, "time"),
        ({"latlon": (0, 0), "time": math.nan}, "time"),
    ],
)
def test_a_geotag_checks_itself(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(PositionError, match=message):
        Geotag(**wrong)


GEOTAGGED = exif_bytes(Geotag((55.7, 13.19), 123.0, NOON))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(6, len(GEOTAGGED) - 1), st.integers(0, 255)), max_size=5), st.booleans())
def test_mutated_exif_gives_a_geotag_or_none(changes: list[tuple[int, int]], cut: bool) -> None:
    block = bytearray(GEOTAGGED)
    for at, value in changes:
        block[at] = value
    if cut and changes:
        del block[changes[0][0] :]
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "JPEG", exif=bytes(block))
    geotag = read_exif_geotag(stream.getvalue())
    assert geotag is None or isinstance(geotag, Geotag)
    with contextlib.suppress(PhotoError):
        decode(stream.getvalue())


@pytest.mark.data
def test_camera_originals(shared_data: Path) -> None:
    """Nine photos as cameras wrote them; positions checked against what exiftool-like readers print of their EXIF."""
    photos = sorted((shared_data / "exif").glob("*.jpg"))
    assert len(photos) == 9
    for photo in photos:
        geotag = read_geotag(photo)
        assert geotag is not None
        town = (52.5189, 13.4003) if photo.name.startswith("berlin") else (55.6990, 13.1949)
        assert geotag.latlon == pytest.approx(town, abs=2e-3)
        image = decode(photo, size=lambda height, width: (240, 320))
        assert image.shape == (240, 320, 3)
        assert image.std() > 20
