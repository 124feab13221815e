"""Folders of photos: the field's format with and without splits, and a plain folder of geotagged photos."""

from __future__ import annotations

import numpy as np
import pytest

from sareloc.datasets import load_dataset
from sareloc.errors import ArgumentError, DatasetError
from sareloc.geo import distance_m, wgs84_from_utm
from sareloc.photos import Geotag, make_utm_name

PARIS = (48.8566, 2.3522)


def named(latlon, **more):
    return make_utm_name(Geotag(latlon, heading_deg=90.0, time=1.5e9), **more)


def make_split(holder, make_photo, database=3, queries=2, origin=PARIS):
    for role, count in (("database", database), ("queries", queries)):
        for number in range(count):
            make_photo(holder / role / named((origin[0] + number * 1e-4, origin[1]), pano_id=f"p{number}"))


@pytest.mark.parametrize("above", ["images", "."])
def test_splits_of_the_fields_format(tmp_path, make_photo, above):
    for split, count in (("train", 5), ("val", 4), ("test", 3)):
        make_split(tmp_path / above / split, make_photo, database=count)
    for split, count in (("train", 5), ("val", 4), ("test", 3)):
        places = load_dataset(tmp_path, split=split)
        assert (places.split, len(places.database), len(places.queries)) == (split, count, 2)
        assert all(places.database.path(row).is_file() for row in range(count))
        assert all("/database/" in places.database.path(row).as_posix() for row in range(count))
    with pytest.raises(ArgumentError, match=r"unknown split of .* 'night': known are test, train, val"):
        load_dataset(tmp_path, split="night")


def test_names_in_one_zone_keep_the_metres_they_say(tmp_path, make_photo):
    make_photo(tmp_path / "database" / "@0448300.25@5411900.50@31@U@@@@@@@@@@@.jpg")
    make_photo(tmp_path / "queries" / "@0448310.25@5411900.50@31@U@@@@@045@@@@20190607@@.jpg")
    places = load_dataset(tmp_path)
    assert places.split == "all"
    assert places.database.positions.frame == "utm"
    assert places.database.positions.epsg == 32631
    assert places.database.positions.metres.tolist() == [[448300.25, 5411900.5]]
    assert places.queries.positions.metres.tolist() == [[448310.25, 5411900.5]]
    assert places.queries.headings_deg.tolist() == [45]
    assert places.queries.times.tolist() == [1559865600]  # 2019-06-07, 00:00 UTC
    # columns are read for both roles together: what one of them leaves out is NaN
    assert np.isnan(places.database.headings_deg).all()


def test_names_in_two_zones_are_compared_on_the_earth(tmp_path, make_photo):
    # 12 degrees east is the border of the zones 32 and 33: ten metres on either side of it
    west, east = (50.0, 12 - 1.4e-4), (50.0, 12 + 1.4e-4)
    make_photo(tmp_path / "database" / named(west))
    make_photo(tmp_path / "queries" / named(east))
    places = load_dataset(tmp_path)
    assert places.database.positions.frame == places.queries.positions.frame == "ecef"
    apart = np.linalg.norm(places.database.positions.metres - places.queries.positions.metres)
    assert apart == pytest.approx(distance_m(west, east), abs=0.02)
    assert apart < 25


def test_names_without_a_zone_are_local_metres(tmp_path, make_photo):
    make_photo(tmp_path / "database" / "@100.0@0.0@@@@@@@@@@@@@.jpg")
    places = load_dataset(tmp_path)
    assert places.database.positions.frame == "local"
    assert len(places.queries) == 0
    make_photo(tmp_path / "queries" / named(PARIS))
    with pytest.raises(DatasetError, match=r"1 of 2 .* UTM zone"):
        load_dataset(tmp_path)


def test_own_photos_with_exif_in_database_and_queries(tmp_path, make_photo):
    make_photo(tmp_path / "database" / "a.jpg", Geotag(PARIS, heading_deg=12.0))
    make_photo(tmp_path / "database" / "deeper" / "b.jpg", Geotag(PARIS))
    untagged = make_photo(tmp_path / "database" / "c.jpg")
    make_photo(tmp_path / "queries" / named((48.857, 2.3522)))
    places = load_dataset(tmp_path)
    assert places.database.files == ("a.jpg", "deeper/b.jpg")
    assert places.left_out == (str(untagged),)
    np.testing.assert_allclose(places.database.positions.latlon(), [PARIS, PARIS], atol=1e-7)
    np.testing.assert_allclose(places.queries.positions.latlon(), [[48.857, 2.3522]], atol=1e-6)
    np.testing.assert_array_equal(places.database.headings_deg, [12, np.nan])


def test_plain_folder_is_a_database(tmp_path, make_photo):
    make_photo(tmp_path / "walk" / "1.jpg", Geotag(PARIS, time=1e9))
    make_photo(tmp_path / "2.jpg")
    places = load_dataset(tmp_path)
    assert places.name == tmp_path.name
    assert places.split == "all"
    assert places.database.files == ("walk/1.jpg",)
    assert places.database.times.tolist() == [1e9]
    assert len(places.queries) == 0
    assert places.left_out == (str(tmp_path / "2.jpg"),)


def test_plain_folder_with_geotags_beside_the_photos(tmp_path, make_photo):
    make_photo(tmp_path / "1.png")
    make_photo(tmp_path / "2.jpg", Geotag((48.0, 2.0)))
    (tmp_path / "geotags.csv").write_text("file,lat,lon\n1.png,48.8566,2.3522\n")
    database = load_dataset(tmp_path).database
    assert database.files == ("1.png", "2.jpg")  # the table speaks for some photos, EXIF for the others
    np.testing.assert_allclose(database.positions.latlon(), [PARIS, (48.0, 2.0)], atol=1e-7)


def test_photos_that_say_nothing(tmp_path, make_photo):
    for name in ("1.jpg", "2.jpg"):
        make_photo(tmp_path / name)
    with pytest.raises(DatasetError, match=r"none of the 2 photos .*CSV"):
        load_dataset(tmp_path)
    make_photo(tmp_path / "database" / "1.jpg")
    with pytest.raises(DatasetError, match="none of the 1 photos"):
        load_dataset(tmp_path)


def test_empty_database(tmp_path, make_photo):
    make_photo(tmp_path / "test" / "queries" / named(PARIS))
    (tmp_path / "test" / "database").mkdir()
    with pytest.raises(DatasetError, match="no photos"):
        load_dataset(tmp_path)


def test_the_metres_of_names_lie_where_their_degrees_do(tmp_path, make_photo):
    make_split(tmp_path, make_photo)
    positions = load_dataset(tmp_path).database.positions
    np.testing.assert_allclose(
        wgs84_from_utm(positions.metres, positions.epsg)[:, 0], [48.8566, 48.8567, 48.8568], atol=1e-6
    )
