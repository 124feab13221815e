"""A dataset from a CSV file: columns, splits, roles, and an error that names the line for everything wrong."""

from __future__ import annotations

import numpy as np
import pytest

from sareloc.datasets import load_dataset, load_table
from sareloc.errors import ArgumentError, DatasetError

FULL = """\
file,lat,lon,role,split,time,heading_deg,place_id
a.jpg,48.8566,2.3522,database,test,2024-05-31T12:00:00+02:00,370,7
b.jpg,48.8567,2.3522,db,test,,,7;8
c.jpg,48.8568,2.3523,query,test,1717149600,12.5,
d.jpg,48.8569,2.3523,queries,train,2024-05-31T10:00:00,0,8
e.jpg,48.8570,2.3523,db,,,,9
"""


def write(tmp_path, text, name="meta.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_every_column(tmp_path):
    places = load_table(write(tmp_path, FULL))
    assert (places.name, places.split, places.protocol) == (tmp_path.name, "test", "radius")
    assert places.database.files == ("a.jpg", "b.jpg")
    assert places.queries.files == ("c.jpg",)
    assert places.database.folder == tmp_path
    np.testing.assert_allclose(places.queries.positions.latlon(), [[48.8568, 2.3523]], atol=1e-9)
    np.testing.assert_array_equal(places.database.times, [1717149600, np.nan])
    np.testing.assert_array_equal(places.queries.times, [1717149600])
    np.testing.assert_array_equal(places.database.headings_deg, [10, np.nan])
    assert list(places.database.place_ids) == [(7,), (7, 8)]
    assert list(places.queries.place_ids) == [()]
    assert load_table(tmp_path / "meta.csv", "train").queries.times.tolist() == [1717149600]


def test_unknown_split_lists_the_known(tmp_path):
    with pytest.raises(ArgumentError, match=r"unknown split 'val' of .*meta.csv: known are test, train$"):
        load_table(write(tmp_path, FULL), "val")


def test_local_metres_and_other_names(tmp_path):
    table = "filename;x_east_m;y_north_m;geo_split\nsub\\a.jpg;1,5;2;test\n"
    for text in (table, "\ufeff" + table.replace("1,5", "1.5")):
        places = load_table(write(tmp_path, text))
        assert places.database.files == ("sub/a.jpg",)
        assert places.database.positions.frame == "local"
        assert places.database.positions.metres.tolist() == [[1.5, 2]]
    with pytest.raises(DatasetError, match=r"line 2: x_m '1,234' is not a number"):  # a thousand, or one
        load_table(write(tmp_path, 'file,x_m,y_m\na.jpg,"1,234",2\n'))


def test_spellings_that_people_use(tmp_path):
    places = load_table(write(tmp_path, "Image Name;Latitude;Lng\na.jpg;48,5;2° 30' E\n"))
    assert places.database.files == ("a.jpg",)
    np.testing.assert_allclose(places.database.positions.latlon(), [[48.5, 2.5]], atol=1e-9)


def test_rows_without_a_position_are_left_out(tmp_path):
    places = load_table(write(tmp_path, "file,lat,lon,role\na.jpg,1,2,db\nb.jpg,,,query\nc.jpg,1,2,query\n"))
    assert (places.database.files, places.queries.files) == (("a.jpg",), ("c.jpg",))
    assert places.left_out == (str(tmp_path / "b.jpg"),)
    assert "b.jpg" in places.notes[0]
    with pytest.raises(DatasetError, match="no photos with a position"):
        load_table(write(tmp_path, "file,lat,lon\nb.jpg,,\n"))


def test_all_bad_rows_are_in_one_error(tmp_path):
    rows = "a,95,2,db\nb,1\nc,1,2,gallery\na,1,2,db\n,1,2,db\nd,nan,2,db\ne,1,2,db\n"
    with pytest.raises(DatasetError, match="6 bad rows") as error:
        load_table(write(tmp_path, "file,lat,lon,role\n" + rows))
    assert [line.split(":")[0].strip() for line in str(error.value).splitlines()[1:]] == [
        f"line {line}" for line in (2, 3, 4, 5, 6, 7)
    ]
    with pytest.raises(DatasetError, match="80 bad rows") as error:
        load_table(write(tmp_path, "file,lat,lon,role\n" + "".join(f"{row},north,2,db\n" for row in range(80))))
    assert str(error.value).splitlines()[10:] == ["  line 11: latitude 'north' is not a number", "  ... and 70 more"]


def test_degrees_are_preferred_to_metres(tmp_path):
    places = load_table(write(tmp_path, "file,x_m,y_m,lat,lon\na.jpg,1,2,48,2\n"))
    assert places.database.positions.frame == "ecef"


def test_without_a_role_all_are_the_database(tmp_path):
    places = load_table(write(tmp_path, "file,lat,lon\na.jpg,1,2\nb.jpg,1,2\n", "walk.csv"), "val")
    assert (places.name, places.split) == ("walk", "all")
    assert (len(places.database), len(places.queries)) == (2, 0)


def test_columns_by_argument(tmp_path):
    table = write(
        tmp_path, "photo,building,half,role,lat,lon\na.jpg,Dom,1,db,1,2\nb.jpg,Tor,2,db,1,2\nc.jpg,Dom,1,query,1,2\n"
    )
    columns = {"file": "photo", "place_id": "building", "split": "half", "lat": None}
    places = load_table(table, "1", columns=columns)
    assert places.protocol == "place-id"
    assert places.database.positions is None
    assert list(places.database.place_ids) == list(places.queries.place_ids) == [(0,)]
    assert list(load_table(table, "2", columns=columns).database.place_ids) == [(1,)]  # one numbering for all splits
    assert load_table(table, "1", columns={**columns, "lat": "lat"}, protocol="place-id").protocol == "place-id"
    with pytest.raises(ArgumentError, match="unknown column 'building': known are file, lat"):
        load_table(table, columns={"building": "building"})
    with pytest.raises(DatasetError, match="no column 'bilding'"):
        load_table(table, "1", columns={**columns, "place_id": "bilding"})


def test_photos_elsewhere(tmp_path):
    places = load_dataset(write(tmp_path, "file,lat,lon\na.jpg,1,2\n"), root=tmp_path / "photos")
    assert places.database.path(0) == tmp_path / "photos" / "a.jpg"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("which,lat,lon\na,1,2\n", "no column 'file': found which, lat, lon"),
        ("file,lat\na,1\n", "neither positions nor place ids"),
        ("file,lat,lon\na,1,2\nb,north,2\n", "line 3: latitude 'north' is not a number"),
        ("file,lat,lon\na,1,\n", "line 2: longitude '' is not a number"),
        ("file,lat,lon\na,nan,2\n", "line 2: latitude 'nan' is not a number"),
        ("file,lat,lon\na,95,2\n", r"line 2: latitude 95 is outside -90..90"),
        ("file,lat,lon\na,5,181\n", r"line 2: longitude 181 is outside -180..180"),
        ("file,lat,lon\na,1,2\n\nb,1,2\na,3,4\n", "line 5: a is listed twice, first in line 2"),
        ("file,lat,lon\na,1,2\nb,1\n", "line 3: 2 values for 3 columns"),
        ("file,lat,lon\n,1,2\n", "line 2: no file name"),
        ("file,lat,lon,role\na,1,2,gallery\n", "line 2: role is 'gallery', not one of database, db, query, queries"),
        ("file,lat,lon,time\na,1,2,noon\n", "line 2: time 'noon'"),
        ("file,lat,lon,heading\na,1,2,east\n", "line 2: heading_deg 'east' is not a number"),
        ("file,lat,lon\n", "no photos"),
        ("", "is empty: its first line must name the columns"),
        ('file,lat,lon\na,1,2\n"b,1,2\nc,1,2\n', "line 4: 1 values for 3 columns"),
    ],
)
def test_what_is_wrong_is_reported_with_its_line(tmp_path, table, message):
    with pytest.raises(DatasetError, match=message):
        load_table(write(tmp_path, table))


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "meta.csv").write_bytes(b"file,lat,lon\n\xff\0,1,2\n")
    with pytest.raises(DatasetError, match="not text"):
        load_table(tmp_path / "meta.csv")


def test_latin_1_is_read_and_noted(tmp_path):
    (tmp_path / "meta.csv").write_bytes(b"file,lat,lon\ncaf\xe9.jpg,1,2\n")
    places = load_table(tmp_path / "meta.csv")
    assert places.database.files == ("caf\u00e9.jpg",)
    assert "Latin-1" in places.notes[0]


@pytest.mark.data
def test_cambridge_is_as_its_readme_says(shared_data):
    positions = {"train": 508, "val": 164, "test": 253}
    for split, count in positions.items():
        places = load_dataset(shared_data / "cambridge", split=split)
        assert len(places.database) + len(places.queries) == 4 * count
        assert places.database.path(0).is_file()
        assert set(places.database.headings_deg.tolist()) == {0, 90, 180, 270}
    test = load_dataset(shared_data / "cambridge")
    assert (len(test.database), len(test.queries)) == (796, 216)
