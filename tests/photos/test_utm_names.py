from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sareloc.errors import ArgumentError
from sareloc.geo import distance_m, utm_from_wgs84
from sareloc.photos import Geotag, UtmName, make_utm_name, parse_utm_name

PITTSBURGH = "@0585055.75@4476646.92@17@T@040.43612@-079.99716@003213@00@270@012@-01@1.5@20140600@pitch1_yaw1@.jpg"


def test_every_field() -> None:
    name = parse_utm_name(PITTSBURGH.replace("20140600", "20140615_143005"))
    assert name == UtmName(
        east_north=(585055.75, 4476646.92),
        epsg=32617,
        latlon=(40.43612, -79.99716),
        pano_id="003213",
        tile="00",
        heading_deg=270.0,
        pitch_deg=12.0,
        roll_deg=-1.0,
        height_m=1.5,
        time=datetime(2014, 6, 15, 14, 30, 5, tzinfo=UTC).timestamp(),
        note="pitch1_yaw1",
    )


def test_the_geotag_has_the_centimetres_of_the_metres() -> None:
    name = parse_utm_name(PITTSBURGH)
    assert name is not None
    geotag = name.geotag()
    assert geotag is not None
    east_north = utm_from_wgs84([geotag.latlon], 32617)[0]
    assert east_north == pytest.approx((585055.75, 4476646.92), abs=1e-4)
    assert distance_m(geotag.latlon, (40.43612, -79.99716)) < 1.5  # five decimals of a degree are a metre
    assert geotag.heading_deg == 270


@pytest.mark.parametrize(
    ("file", "epsg", "latlon"),
    [
        ("@0@0002.3@@@@@7@@@@@@@@.jpg", None, None),  # Nordland: made-up metres, no place on Earth
        ("@585001.06@4476761.8@.jpg", None, None),
        ("@585001.06@4476761.8@17@T@.jpg", 32617, None),
        ("@334873@6252266@56@H@-033.85700@0151.21500@@@@@@@@@.jpg", 32756, (-33.857, 151.215)),
        ("@334873@6252266@56@@-033.85700@0151.21500@@@@@@@@@.jpg", 32756, (-33.857, 151.215)),
        ("@334873@6252266@56@@@@@@@@@@@@.jpg", None, None),  # no band and no latitude: which hemisphere?
        ("@334873@6252266@61@H@@@@@@@@@@@.jpg", None, None),
        ("@1@2@17@T@40.4@@x@@@@@@@@.png", 32617, None),
    ],
)
def test_empty_fields(file: str, epsg: int | None, latlon: tuple[float, float] | None) -> None:
    name = parse_utm_name(file)
    assert name is not None
    assert name.epsg == epsg
    assert name.latlon == latlon
    assert (name.geotag() is None) == (epsg is None and latlon is None)


@pytest.mark.parametrize(
    "file",
    [
        "",
        "photo.jpg",
        "@.jpg",
        "@1@.jpg",
        "@east@north@.jpg",
        "IMG@1@2@.jpg",
        "@nan@1@.jpg",
        "@1@inf@.jpg",
        "@1_0@2@.jpg",
        "@@@@.jpg",
    ],
)
def test_other_names(file: str) -> None:
    assert parse_utm_name(file) is None


@pytest.mark.parametrize(
    ("stamp", "begins"),
    [
        ("2014", datetime(2014, 1, 1)),
        ("201406", datetime(2014, 6, 1)),
        ("20140615", datetime(2014, 6, 15)),
        ("20140615_14", datetime(2014, 6, 15, 14)),
        ("20140615_1430", datetime(2014, 6, 15, 14, 30)),
        ("", None),
        ("20149915", None),
        ("yesterday", None),
        ("0000", None),
    ],
)
def test_time_stamps(stamp: str, begins: datetime | None) -> None:
    name = parse_utm_name(f"@1@2@@@@@@@@@@@{stamp}@@.jpg")
    assert name is not None
    assert name.time == (None if begins is None else begins.replace(tzinfo=UTC).timestamp())


def test_metres_that_no_zone_holds_fall_back_on_degrees() -> None:
    name = parse_utm_name("@1e30@1e30@17@T@040.43612@-079.99716@@@@@@@@@.jpg")
    assert name is not None
    geotag = name.geotag()
    assert geotag is not None
    assert geotag.latlon == (40.43612, -79.99716)


def test_a_made_name_keeps_the_fields_widths() -> None:
    geotag = Geotag((40.43612, -79.99716), 5.25, datetime(2014, 6, 15, 14, 30, 5, tzinfo=UTC).timestamp())
    assert make_utm_name(geotag, pano_id="p-1", tile=3, note="night") == (
        "@0585055.75@4476646.92@17@T@040.43612@-079.99716@p-1@03@005.25@@@@20140615_143005@night@.jpg"
    )


@settings(max_examples=200, deadline=None)
@given(
    st.floats(-80, 84),
    st.floats(-180, 180),
    st.none() | st.floats(0, 359.99),
    st.none() | st.integers(-(10**9), 10**10),
)
def test_made_names_say_what_they_were_made_of(
    latitude: float, longitude: float, heading: float | None, time: int | None
) -> None:
    made = Geotag((latitude, longitude), heading, time)
    name = parse_utm_name(make_utm_name(made, pano_id="a_b-c", tile=0))
    assert name is not None
    geotag = name.geotag()
    assert geotag is not None
    assert distance_m(geotag.latlon, made.latlon) < 0.01
    assert geotag.time == time
    assert geotag.heading_deg == (None if heading is None else pytest.approx(heading, abs=0.005001))


@pytest.mark.parametrize("part", ["a@b", "a/b"])
def test_separators_inside_a_part_are_refused(part: str) -> None:
    with pytest.raises(ArgumentError, match="must not contain"):
        make_utm_name(Geotag((0, 0)), note=part)
