"""The file format, read by GDAL (through pyogrio) and written to as QGIS leaves it."""

from __future__ import annotations

import math
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import numpy as np
import pyogrio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sareloc.maps import gpkg


@pytest.fixture
def town(tmp_path: Path) -> tuple[Path, sqlite3.Connection]:
    path = tmp_path / "town.gpkg"
    connection = sqlite3.connect(path, isolation_level=None)
    gpkg.make_geopackage(connection)
    gpkg.make_point_layer(connection, "trees", "kind TEXT, planted DATETIME", "trees of the town")
    gpkg.make_attributes(connection, "kinds", "id INTEGER PRIMARY KEY, name TEXT", "what grows")
    return path, connection


NONE = np.zeros((0, 2))


def plant(connection: sqlite3.Connection, *latlon: tuple[float, float]) -> None:
    for point in latlon:
        row = (gpkg.point_blob(point), "oak", gpkg.time_text(1.7e9))
        connection.execute("INSERT INTO trees VALUES (NULL, ?, ?, ?)", row)
    gpkg.note_change(connection, "trees", np.array(latlon).reshape(-1, 2), NONE)


def test_gdal_reads_layers_points_times_and_extent(town: tuple[Path, sqlite3.Connection]) -> None:
    path, connection = town
    plant(connection, (48.5, 2.25), (-33.0, 151.5))
    plant(connection, (60.0, -5.0))
    connection.close()
    assert pyogrio.list_layers(path).tolist() == [["trees", "Point"], ["kinds", None]]
    info = pyogrio.read_info(path, layer="trees", force_feature_count=True, force_total_bounds=True)
    assert info["crs"] == "EPSG:4326"
    assert info["features"] == 3
    assert info["fid_column"] == "fid"
    np.testing.assert_allclose(info["total_bounds"], (-5.0, -33.0, 151.5, 60.0))
    meta, fids, geometry, (kinds, planted) = pyogrio.raw.read(path, layer="trees", return_fids=True)
    assert fids.tolist() == [1, 2, 3]
    assert [struct.unpack("<dd", wkb[5:]) for wkb in geometry] == [(2.25, 48.5), (151.5, -33.0), (-5.0, 60.0)]
    assert kinds.tolist() == ["oak"] * 3
    assert meta["geometry_type"] == "Point"
    assert str(planted[0]).startswith("2023-11-14T22:13:20")


def extent(connection: sqlite3.Connection) -> tuple[float | None, ...]:
    row: tuple[float | None, ...] = connection.execute(
        "SELECT min_x, min_y, max_x, max_y FROM gpkg_contents WHERE table_name = 'trees'"
    ).fetchone()
    return row


def test_extent_grows_shrinks_and_vanishes(town: tuple[Path, sqlite3.Connection]) -> None:
    _, connection = town
    assert extent(connection) == (None,) * 4
    plant(connection)
    assert extent(connection) == (None,) * 4
    plant(connection, (10, 20))
    plant(connection, (12, 15), (11, 16))
    assert extent(connection) == (15, 10, 20, 12)
    plant(connection, (11.5, 17))
    connection.execute("DELETE FROM trees WHERE fid = 4")
    gpkg.note_change(connection, "trees", NONE, np.array([[11.5, 17.0]]))
    assert extent(connection) == (15, 10, 20, 12)
    connection.execute("DELETE FROM trees WHERE fid <= 2")
    gpkg.note_change(connection, "trees", NONE, np.array([[10.0, 20.0], [12.0, 15.0]]))
    assert extent(connection) == (16, 11, 16, 11)
    connection.execute("DELETE FROM trees")
    gpkg.note_change(connection, "trees", NONE, np.array([[11.0, 16.0]]))
    assert extent(connection) == (None,) * 4
    connection.close()


def test_the_file_says_what_it_is(town: tuple[Path, sqlite3.Connection]) -> None:
    path, connection = town
    assert gpkg.is_geopackage(connection)
    assert path.read_bytes()[68:72] == b"GPKG"
    assert connection.execute("PRAGMA user_version").fetchone() == (10300,)
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    assert not gpkg.is_geopackage(sqlite3.connect(":memory:"))
    connection.close()


@given(st.lists(st.tuples(st.floats(-90, 90), st.floats(-180, 180)), max_size=5))
def test_points_come_back_from_their_bytes(points: list[tuple[float, float]]) -> None:
    found = gpkg.latlon_of_blobs([gpkg.point_blob(point) for point in points])
    assert found.shape == (len(points), 2)
    assert found.tolist() == [list(point) for point in points]


def test_points_of_other_writers_are_read_too() -> None:
    envelope = struct.pack("<4d", 2.0, 2.0, 48.0, 48.0)
    boxed = struct.pack("<2sBBi", b"GP", 0, 0b0011, 4326) + envelope + struct.pack("<BIdd", 1, 1, 2.0, 48.0)
    big_endian = struct.pack(">2sBBi", b"GP", 0, 0b0000, 4326) + struct.pack(">BIdd", 0, 1, 3.0, 49.0)
    high = struct.pack("<2sBBi", b"GP", 0, 0b0001, 4326) + struct.pack("<BIddd", 1, 1001, 4.0, 50.0, 120.0)
    found = gpkg.latlon_of_blobs([gpkg.point_blob((47.0, 1.0)), boxed, big_endian, high])
    assert found.tolist() == [[47.0, 1.0], [48.0, 2.0], [49.0, 3.0], [50.0, 4.0]]


def test_times_are_written_as_the_standard_says() -> None:
    assert gpkg.time_text(0) == "1970-01-01T00:00:00.000Z"
    assert gpkg.time_text(-1.5) == "1969-12-31T23:59:58.500Z"
    assert gpkg.time_text(1.7e9 + 0.25) == "2023-11-14T22:13:20.250Z"


SPATIAL_INDEX = """
CREATE VIRTUAL TABLE rtree_trees_geom USING rtree(id, minx, maxx, miny, maxy);
CREATE TRIGGER rtree_trees_geom_insert AFTER INSERT ON trees
  WHEN (NEW.geom NOT NULL AND NOT ST_IsEmpty(NEW.geom))
  BEGIN INSERT OR REPLACE INTO rtree_trees_geom VALUES
    (NEW.fid, ST_MinX(NEW.geom), ST_MaxX(NEW.geom), ST_MinY(NEW.geom), ST_MaxY(NEW.geom)); END;
"""  # as the standard's extension gpkg_rtree_index has it, and QGIS writes it


def test_a_layer_with_a_spatial_index_from_qgis_can_still_be_written(town: tuple[Path, sqlite3.Connection]) -> None:
    _, connection = town
    connection.executescript(SPATIAL_INDEX)
    with pytest.raises(sqlite3.OperationalError, match="no such function: ST_"):
        plant(connection, (48.0, 2.0))
    gpkg.allow_spatial_index(connection)
    plant(connection, (48.0, 2.0))
    found = connection.execute("SELECT * FROM rtree_trees_geom").fetchone()
    assert [math.floor(number + 0.5) for number in found] == [1, 2, 2, 48, 48]
    connection.close()


@pytest.mark.parametrize("geometry", [b"", b"GP", b"no geometry at all", gpkg.point_blob((95.0, 2.0)), 7, "text", None])
def test_coordinates_of_a_geometry_that_cannot_be_read_are_null(geometry: object) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        gpkg.allow_spatial_index(connection)
        query = "SELECT ST_MinX(?1), ST_MaxX(?1), ST_MinY(?1), ST_MaxY(?1), ST_IsEmpty(?1)"
        assert connection.execute(query, (geometry,)).fetchone() == (None, None, None, None, 1)
