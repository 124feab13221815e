"""GeoPackage (OGC 12-128r18, version 1.3): tables, layers of points, their R-tree, binary points and times."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

import numpy as np

from sareloc.arrays import Floats
from sareloc.photos.record import seconds_since_1970

APPLICATION_ID = int.from_bytes(b"GPKG", "big")
USER_VERSION = 10300
WGS84 = 4326

_WGS84_WKT = (
    'GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563,AUTHORITY["EPSG","7030"]],'
    'AUTHORITY["EPSG","6326"]],PRIMEM["Greenwich",0,AUTHORITY["EPSG","8901"]],UNIT["degree",0.0174532925199433,'
    'AUTHORITY["EPSG","9122"]],AXIS["Latitude",NORTH],AXIS["Longitude",EAST],AUTHORITY["EPSG","4326"]]'
)
_NOW = "strftime('%Y-%m-%dT%H:%M:%fZ','now')"
_TABLES = f"""
CREATE TABLE gpkg_spatial_ref_sys (
  srs_name TEXT NOT NULL, srs_id INTEGER PRIMARY KEY, organization TEXT NOT NULL,
  organization_coordsys_id INTEGER NOT NULL, definition TEXT NOT NULL, description TEXT);
CREATE TABLE gpkg_contents (
  table_name TEXT NOT NULL PRIMARY KEY, data_type TEXT NOT NULL, identifier TEXT UNIQUE, description TEXT DEFAULT '',
  last_change DATETIME NOT NULL DEFAULT ({_NOW}), min_x DOUBLE, min_y DOUBLE, max_x DOUBLE, max_y DOUBLE,
  srs_id INTEGER, CONSTRAINT fk_gc_r_srs_id FOREIGN KEY (srs_id) REFERENCES gpkg_spatial_ref_sys(srs_id));
CREATE TABLE gpkg_geometry_columns (
  table_name TEXT NOT NULL, column_name TEXT NOT NULL, geometry_type_name TEXT NOT NULL, srs_id INTEGER NOT NULL,
  z TINYINT NOT NULL, m TINYINT NOT NULL, CONSTRAINT pk_geom_cols PRIMARY KEY (table_name, column_name),
  CONSTRAINT uk_gc_table_name UNIQUE (table_name),
  CONSTRAINT fk_gc_tn FOREIGN KEY (table_name) REFERENCES gpkg_contents(table_name),
  CONSTRAINT fk_gc_srs FOREIGN KEY (srs_id) REFERENCES gpkg_spatial_ref_sys (srs_id));
"""
_REFERENCE_SYSTEMS = (
    ("Undefined Cartesian SRS", -1, "NONE", -1, "undefined", "undefined Cartesian coordinate reference system"),
    ("Undefined geographic SRS", 0, "NONE", 0, "undefined", "undefined geographic coordinate reference system"),
    ("WGS 84 geodetic", WGS84, "EPSG", WGS84, _WGS84_WKT, "longitude/latitude in degrees, WGS 84"),
)

# A point as GeoPackage binary: "GP", version 0, flags (little endian, no envelope), reference system, then WKB.
_POINT = struct.Struct("<2sBBiBIdd")
_OUR_HEADER = _POINT.pack(b"GP", 0, 1, WGS84, 1, 1, 0, 0)[:13]
_POINT_ROWS = np.dtype([("head", "V13"), ("lonlat", "<f8", 2)])
_ENVELOPE_NUMBERS = {0: 0, 1: 4, 2: 6, 3: 6, 4: 8}


def make_geopackage(connection: sqlite3.Connection) -> None:
    """Make an empty database a GeoPackage without layers."""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {USER_VERSION}")
    for statement in _TABLES.split(";")[:-1]:
        connection.execute(statement)
    connection.executemany("INSERT INTO gpkg_spatial_ref_sys VALUES (?, ?, ?, ?, ?, ?)", _REFERENCE_SYSTEMS)


def is_geopackage(connection: sqlite3.Connection) -> bool:
    """Whether a database is a GeoPackage, of any version, with any layers."""
    return bool(connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID)


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    """Whether there is a table, view, index or trigger of this name."""
    return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchall())


def make_point_layer(connection: sqlite3.Connection, name: str, columns: str, description: str) -> None:
    """Create a layer of WGS84 points: a table with `fid` (never reused), `geom` and more columns.

    Args:
        connection: to a GeoPackage.
        name: of the table.
        columns: the others, in SQL.
        description: for readers of the file.
    """
    connection.execute(f"CREATE TABLE {name} (fid INTEGER PRIMARY KEY AUTOINCREMENT, geom POINT NOT NULL, {columns})")
    connection.execute(
        "INSERT INTO gpkg_contents (table_name, data_type, identifier, description, srs_id) VALUES (?, ?, ?, ?, ?)",
        (name, "features", name, description, WGS84),
    )
    connection.execute("INSERT INTO gpkg_geometry_columns VALUES (?, 'geom', 'POINT', ?, 0, 0)", (name, WGS84))


_EXTENSIONS = """
CREATE TABLE IF NOT EXISTS gpkg_extensions (
  table_name TEXT, column_name TEXT, extension_name TEXT NOT NULL, definition TEXT NOT NULL, scope TEXT NOT NULL,
  CONSTRAINT ge_tce UNIQUE (table_name, column_name, extension_name))"""
_RTREE = ("gpkg_rtree_index", "http://www.geopackage.org/spec120/#extension_rtree", "write-only")
_INDEXED = "(NEW.geom NOT NULL AND NOT ST_IsEmpty(NEW.geom))"
_NOT_INDEXED = "(NEW.geom ISNULL OR ST_IsEmpty(NEW.geom))"
_INDEX = """INSERT OR REPLACE INTO {0} VALUES
  (NEW.fid, ST_MinX(NEW.geom), ST_MaxX(NEW.geom), ST_MinY(NEW.geom), ST_MaxY(NEW.geom));"""
_RTREE_TRIGGERS = {
    "insert": f"INSERT ON {{1}} WHEN {_INDEXED} BEGIN {_INDEX}",
    "update1": f"UPDATE OF geom ON {{1}} WHEN OLD.fid = NEW.fid AND {_INDEXED} BEGIN {_INDEX}",
    "update2": f"UPDATE OF geom ON {{1}} WHEN OLD.fid = NEW.fid AND {_NOT_INDEXED} "
    "BEGIN DELETE FROM {0} WHERE id = OLD.fid;",
    "update3": f"UPDATE ON {{1}} WHEN OLD.fid != NEW.fid AND {_INDEXED} "
    f"BEGIN DELETE FROM {{0}} WHERE id = OLD.fid; {_INDEX}",
    "update4": f"UPDATE ON {{1}} WHEN OLD.fid != NEW.fid AND {_NOT_INDEXED} "
    "BEGIN DELETE FROM {0} WHERE id IN (OLD.fid, NEW.fid);",
    "delete": "DELETE ON {1} WHEN OLD.geom NOT NULL BEGIN DELETE FROM {0} WHERE id = OLD.fid;",
}
"""Of the extension gpkg_rtree_index: name -> the trigger after AFTER, of the R-tree {0} of the layer {1}."""


def make_rtree(connection: sqlite3.Connection, name: str) -> None:
    """Give a point layer the R-tree of the extension gpkg_rtree_index, unless it has one or SQLite was built without.

    The triggers call functions that GIS programs define, and `allow_spatial_index`; deleting rows needs none.
    """
    rtree = f"rtree_{name}_geom"
    if has_table(connection, rtree):
        return
    if not connection.execute("SELECT 1 FROM pragma_module_list WHERE name = 'rtree'").fetchall():
        return
    connection.execute(f"CREATE VIRTUAL TABLE {rtree} USING rtree(id, minx, maxx, miny, maxy)")
    for trigger, body in _RTREE_TRIGGERS.items():
        connection.execute(f"CREATE TRIGGER {rtree}_{trigger} AFTER {body.format(rtree, name)} END")
    connection.execute(_EXTENSIONS)
    connection.execute("INSERT OR IGNORE INTO gpkg_extensions VALUES (?, 'geom', ?, ?, ?)", (name, *_RTREE))
    rows = connection.execute(f"SELECT fid, geom FROM {name}").fetchall()
    readable = [(fid, blob) for fid, blob in rows if point_problem(blob) is None]
    latlon = latlon_of_blobs([blob for _, blob in readable]).tolist()
    boxes = [(fid, lon, lon, lat, lat) for (fid, _), (lat, lon) in zip(readable, latlon, strict=True)]
    connection.executemany(f"INSERT INTO {rtree} VALUES (?, ?, ?, ?, ?)", boxes)


def make_attributes(connection: sqlite3.Connection, name: str, columns: str, description: str) -> None:
    """Create a table without geometry.

    Args:
        connection: to a GeoPackage.
        name: of the table.
        columns: in SQL; the standard requires an INTEGER PRIMARY KEY as the first.
        description: for readers of the file.
    """
    connection.execute(f"CREATE TABLE {name} ({columns})")
    connection.execute(
        "INSERT INTO gpkg_contents (table_name, data_type, identifier, description) VALUES (?, 'attributes', ?, ?)",
        (name, name, description),
    )


def note_change(connection: sqlite3.Connection, name: str, added: Floats, removed: Floats) -> None:
    """Update the time of change and the extent of a point layer in `gpkg_contents`.

    The layer is read only if a removed point was on the border of the extent.

    Args:
        connection: to a GeoPackage.
        name: of the layer.
        added: latitudes and longitudes (N, 2) of new points; a moved point is in both.
        removed: those of removed ones.
    """
    corner = ("min_y", "min_x", "max_y", "max_x")
    numbers = " AND ".join(f"typeof({column}) IN ('real', 'integer')" for column in corner)
    query = f"SELECT {', '.join(corner)} FROM gpkg_contents WHERE table_name = ? AND {numbers}"
    border = np.array(connection.execute(query, (name,)).fetchall(), dtype=np.float64).reshape(-1, 2)
    if len(border) and ((removed <= border[0]) | (removed >= border[1])).any():
        corners = latlon_of_blobs(readable_points([blob for (blob,) in connection.execute(f"SELECT geom FROM {name}")]))
    else:
        corners = np.concatenate([added, border])
    extent = [*corners.min(axis=0)[::-1], *corners.max(axis=0)[::-1]] if len(corners) else [None] * 4
    connection.execute(
        f"UPDATE gpkg_contents SET last_change = {_NOW}, min_x = ?, min_y = ?, max_x = ?, max_y = ? "
        "WHERE table_name = ?",
        (*extent, name),
    )


def point_blob(latlon: Sequence[float]) -> bytes:
    """A point in the GeoPackage's binary form (29 bytes), from latitude, longitude in degrees."""
    latitude, longitude = latlon
    return _POINT.pack(b"GP", 0, 1, WGS84, 1, 1, longitude, latitude)


def latlon_of_blobs(blobs: Sequence[bytes]) -> Floats:
    """Latitude, longitude (N, 2) in degrees of binary points of any program. Raises ValueError if one is invalid."""
    if all(type(blob) is bytes and len(blob) == _POINT.size and blob[:13] == _OUR_HEADER for blob in blobs):
        lonlat = np.frombuffer(b"".join(blobs), dtype=_POINT_ROWS)["lonlat"]
    else:
        lonlat = np.array([_lonlat(blob) for blob in blobs])
    latlon = np.ascontiguousarray(lonlat.reshape(-1, 2)[:, ::-1], dtype=np.float64)
    outside = ~(np.abs(latlon) <= (90, 180)).all(axis=1)
    if outside.any():
        latitude, longitude = latlon[outside][0]
        raise ValueError(f"latitude {latitude:g}, longitude {longitude:g} are invalid coordinates")
    return latlon


def readable_points(blobs: Sequence[bytes]) -> list[bytes]:
    """The points that `latlon_of_blobs` can read."""
    return [blob for blob in blobs if point_problem(blob) is None]


def point_problem(blob: object) -> str | None:
    """Why `latlon_of_blobs` cannot read a point; None if it can."""
    try:
        latlon_of_blobs([blob])  # type: ignore[list-item]
    except ValueError as wrong:
        return str(wrong)
    return None


def _lonlat(blob: bytes) -> tuple[float, float]:
    if type(blob) is not bytes:
        raise ValueError(f"its geometry is a {type(blob).__name__}, expected a point as bytes")
    if len(blob) < 8 or blob[:2] != b"GP":
        raise ValueError(f"its geometry of {len(blob)} bytes is not GeoPackage binary")
    (srs,) = struct.unpack_from("<i" if blob[3] & 1 else ">i", blob, 4)
    if srs != WGS84:
        raise ValueError(f"its geometry is in reference system {srs}, expected {WGS84} (WGS84)")
    wkb = 8 + 8 * _ENVELOPE_NUMBERS.get((blob[3] >> 1) & 7, len(blob))
    if len(blob) < wkb + 21:
        raise ValueError(f"its geometry of {len(blob)} bytes is too short for a point")
    order = "<" if blob[wkb] == 1 else ">"
    kind, longitude, latitude = struct.unpack_from(f"{order}Idd", blob, wkb + 1)
    if kind % 1000 != 1:
        raise ValueError(f"its geometry is of type {kind}, expected a point (1)")
    return longitude, latitude


def time_text(seconds: float | None) -> str | None:
    """A DATETIME of the standard, from seconds since 1970 in UTC; None if the time is unknown."""
    if seconds is None:
        return None
    moment = datetime(1970, 1, 1) + timedelta(seconds=seconds)
    return moment.isoformat(timespec="milliseconds") + "Z"


def seconds_of(text: str) -> float:
    """Seconds since 1970 in UTC, from a DATETIME."""
    try:
        return seconds_since_1970(datetime.fromisoformat(text))
    except ValueError as error:
        raise ValueError(f"its time {text!r} is not one such as 2024-05-31T12:00:00Z") from error


def allow_spatial_index(connection: sqlite3.Connection) -> None:
    """Define the functions that the triggers of an R-tree call, so that a layer with one can be changed.

    SQLite has no such functions. A geometry that is not a valid point counts as empty: it is not in the R-tree.
    """
    for name, column in {"ST_MinX": 1, "ST_MaxX": 1, "ST_MinY": 0, "ST_MaxY": 0}.items():
        connection.create_function(name, 1, partial(_coordinate, column=column), deterministic=True)
    connection.create_function("ST_IsEmpty", 1, lambda blob: int(point_problem(blob) is not None), deterministic=True)


def _coordinate(blob: object, column: int) -> float | None:
    """Latitude (column 0) or longitude (1) of a point; None (NULL) if it cannot be read, as in GIS programs."""
    return None if point_problem(blob) else float(latlon_of_blobs([blob])[0, column])  # type: ignore[list-item]
