"""The GeoPackage of a map (OGC 12-128r18, version 1.3): its tables, creating and opening a file, points and times.

A map may come from an untrusted source: other files are refused, and triggers in a map may do little.
"""

from __future__ import annotations

import errno
import os
import secrets
import shlex
import shutil
import sqlite3
import struct
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from sareloc.arrays import Floats
from sareloc.errors import MapError, look_up
from sareloc.maps.store import (
    FORMAT,
    PACKINGS,
    MapManifest,
    descriptor_checksum,
    features_checksum,
    photo_checksum,
    read_manifest,
)
from sareloc.photos.record import seconds_since_1970

WAIT_S = 30.0
CHANGE_ID = "change_id"
FULL_BYTES = 2**18  # free space below which a failed write means a full disk: files grow by pages and by 32 kB
NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
"""Errors of file systems without hard links, such as exFAT."""
PAGE_BYTES = 16_384  # 15 descriptors of 512 dimensions fill a page; the default of 4096 would leave a quarter empty
FEATURES = "local_features"
WHITENING = "whitening"

LONGEST_VALUE = 2**24  # bytes of a text or blob
COLUMNS = {
    "photos": "fid geom file time heading_deg width height sha256 size_bytes modified_ns",
    "descriptors": "fid descriptor",
    "manifest": "key value",
    "gpkg_contents": "table_name last_change min_x min_y max_x max_y",
}
"""The columns that are read and written, of each table of every format."""
FEATURES_COLUMNS = {"fid", "features", "checksum"}  # since format 3
WHITENING_COLUMNS = {"fid", "numbers", "checksum"}  # of maps with a whitening of their own
TRIGGERED_TABLES = {"descriptors", "rtree_photos_geom", "gpkg_ogr_contents"}
TRIGGERED_FUNCTIONS = {"st_minx", "st_maxx", "st_miny", "st_maxy", "st_isempty", "lower"}

_PHOTOS = """
  file TEXT NOT NULL, time DATETIME, heading_deg DOUBLE, width INTEGER, height INTEGER,
  sha256 BLOB NOT NULL UNIQUE, size_bytes INTEGER NOT NULL, modified_ns INTEGER NOT NULL,
  descriptor_checksum INTEGER NOT NULL DEFAULT 0, photo_checksum INTEGER NOT NULL DEFAULT 0,
  features_checksum INTEGER NOT NULL DEFAULT 0"""
_FORGET = """
  CREATE TRIGGER photos_forget AFTER DELETE ON photos BEGIN DELETE FROM descriptors WHERE fid = OLD.fid; END"""
_FORGET_FEATURES = f"""
  CREATE TRIGGER photos_forget_features AFTER DELETE ON photos
  BEGIN DELETE FROM {FEATURES} WHERE fid = OLD.fid; END"""
_EDITED = """
  CREATE TRIGGER photos_edited AFTER UPDATE OF geom, file ON photos
  WHEN NEW.photo_checksum = OLD.photo_checksum AND (NEW.geom IS NOT OLD.geom OR NEW.file IS NOT OLD.file)
  BEGIN UPDATE photos SET photo_checksum = 0 WHERE fid = NEW.fid; END"""
"""A program that changes a point or a name without the checksum, such as QGIS, does so on purpose: no damage."""

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


def create_map_file(path: Path, manifest: MapManifest) -> None:
    """Create an empty map. If the file exists, as when another process was faster, it is not changed.

    The map is written to a temporary file and then linked: there is never an incomplete map. Raises MapError if the
    file cannot be written.
    """
    look_up(PACKINGS, manifest.storage, "storage")
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise MapError(f"map {path} cannot be created: {error.filename}: {str(reason).lower()}") from error
    try:
        with map_errors(path):
            _write_empty(beside, replace(manifest, map_id=uuid.uuid4().hex, format=FORMAT))
        _place(beside, path)
    except OSError as error:
        raise MapError(f"map {path} cannot be created: {str(error.strerror).lower()}") from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def connect(path: Path, write: bool) -> tuple[sqlite3.Connection, MapManifest]:
    """Open a map file with SQLite; returns the connection and the manifest. Raises MapError if it is not a map."""
    where = f"{path.resolve().as_uri()}?mode=rw"  # also for reading: the log of a killed writer must be applied
    with map_errors(path):
        connection = sqlite3.connect(where, uri=True, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
    try:
        with map_errors(path):
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
            connection.execute("PRAGMA cell_size_check = ON")
            if not write:
                connection.execute("PRAGMA query_only = ON")
                connection.execute("PRAGMA trusted_schema = OFF")
            manifest = _read_manifest(path, connection)
            if write:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute(
                    "PRAGMA synchronous = NORMAL"
                )  # a power cut may lose the last batches, but not the file
                allow_spatial_index(connection)
                connection.set_authorizer(_authorize)
                if manifest.format < FORMAT:
                    manifest = _upgrade(path, connection)
    except BaseException:
        connection.close()
        raise
    return connection, manifest


@contextmanager
def map_errors(path: Path) -> Iterator[None]:
    """Raise MapError for an error of SQLite: what is wrong with the map, and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise MapError(f"map {path} cannot be used: {_cause(path, error)}") from error
    except UnicodeDecodeError as error:  # in a name of the schema, or in a message about one
        raise MapError(f"map {path} cannot be used: it is damaged ({error}): restore a backup") from error


def _cause(path: Path, error: sqlite3.Error) -> str:
    said, name = str(error), getattr(error, "sqlite_errorname", "")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return f"another process has been writing it for {WAIT_S:.0f} s: try again when it is done"
    if name.startswith(("SQLITE_CANTOPEN", "SQLITE_IOERR")) and (reason := _why_unreadable(path)) is not None:
        return f"it cannot be read: {reason}. Check its permissions and the disk"
    if name == "SQLITE_FULL" or (name.startswith("SQLITE_IOERR") and _is_full(path)):
        return "the disk is full. All committed photos are kept: free some space and run the same command again"
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")):
        return f"the file or its folder is read-only ({said}): make it writable, or copy the map elsewhere"
    if name == "SQLITE_TOOBIG":
        return "it holds a value larger than 16 MiB, as no map of sareloc does: restore a backup, or build it again"
    if name == "SQLITE_AUTH":
        return "a trigger in it does more than maintain an index of a GIS program: remove it, or copy the map"
    if name == "SQLITE_NOTADB":
        return "it is not a map: maps are GeoPackages (.gpkg)"
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_IOERR")):
        return f"it is damaged, or the disk is ({said}): build it again, or restore a backup"
    return said


def _why_unreadable(path: Path) -> str | None:
    """The system's error of reading a file, which SQLite does not tell; None if it can be read or does not exist."""
    try:
        with path.open("rb") as file:
            file.read(16)
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(error.strerror).lower()
    return None


def _is_full(path: Path) -> bool:
    with suppress(OSError):
        return shutil.disk_usage(path.parent).free < FULL_BYTES
    return False


def write_change_id(sql: sqlite3.Connection) -> None:
    """Draw a new change id: two states of a map never have the same one, also if they continue the same backup."""
    sql.execute(
        "INSERT INTO manifest (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (CHANGE_ID, secrets.token_hex(16)),
    )


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


def make_point_layer(connection: sqlite3.Connection, name: str, columns: str, description: str) -> None:
    """Create a layer of WGS84 points: a table with `fid` (never reused), `geom` and these columns."""
    connection.execute(f"CREATE TABLE {name} (fid INTEGER PRIMARY KEY AUTOINCREMENT, geom POINT NOT NULL, {columns})")
    connection.execute(
        "INSERT INTO gpkg_contents (table_name, data_type, identifier, description, srs_id) VALUES (?, ?, ?, ?, ?)",
        (name, "features", name, description, WGS84),
    )
    connection.execute("INSERT INTO gpkg_geometry_columns VALUES (?, 'geom', 'POINT', ?, 0, 0)", (name, WGS84))


def make_attributes(connection: sqlite3.Connection, name: str, columns: str, description: str) -> None:
    """Create a table without geometry; the standard requires an INTEGER PRIMARY KEY as its first column."""
    connection.execute(f"CREATE TABLE {name} ({columns})")
    connection.execute(
        "INSERT INTO gpkg_contents (table_name, data_type, identifier, description) VALUES (?, 'attributes', ?, ?)",
        (name, name, description),
    )


def note_change(connection: sqlite3.Connection, name: str, added: Floats, removed: Floats) -> None:
    """Update the time of change and the extent of a point layer in `gpkg_contents`.

    `added`, `removed` (N, 2): latitudes and longitudes; a moved point is in both. The layer is read only if a removed
    point was on the border of the extent.
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
    wkb = 8 + 8 * _ENVELOPE_NUMBERS.get((blob[3] >> 1) & 7, len(blob))
    if len(blob) < wkb + 21:
        raise ValueError(f"its geometry of {len(blob)} bytes is too short for a point")
    order = "<" if blob[wkb] == 1 else ">"
    kind, longitude, latitude = struct.unpack_from(f"{order}Idd", blob, wkb + 1)
    if kind % 1000 != 1:
        raise ValueError(f"its geometry is of type {kind}, expected a point (1)")
    return longitude, latitude


def time_text(seconds: float) -> str:
    """A DATETIME of the standard, from seconds since 1970 in UTC."""
    moment = datetime(1970, 1, 1) + timedelta(seconds=seconds)
    return moment.isoformat(timespec="milliseconds") + "Z"


def seconds_of(text: str) -> float:
    """Seconds since 1970 in UTC, from a DATETIME."""
    return seconds_since_1970(datetime.fromisoformat(text))


def allow_spatial_index(connection: sqlite3.Connection) -> None:
    """Define the functions that the triggers of a spatial index call, so that a layer with one can be changed.

    QGIS and GDAL add such an index on request; SQLite has no such functions.
    """
    functions = {"ST_MinX": 1, "ST_MaxX": 1, "ST_MinY": 0, "ST_MaxY": 0}
    for name, column in functions.items():
        connection.create_function(
            name, 1, lambda blob, column=column: float(latlon_of_blobs([blob])[0, column]), deterministic=True
        )
    connection.create_function("ST_IsEmpty", 1, lambda blob: int(blob is None), deterministic=True)


def _place(beside: Path, path: Path) -> None:
    """Give a new file its name, unless another process has created a file of that name meanwhile."""
    try:
        os.link(beside, path)  # unlike a rename it never replaces a file
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if not path.exists():
            os.replace(beside, path)


def _write_empty(path: Path, manifest: MapManifest) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("BEGIN")
        make_geopackage(connection)
        make_point_layer(connection, "photos", _PHOTOS, "photos of the map, where they were taken")
        make_attributes(
            connection,
            "descriptors",
            "fid INTEGER PRIMARY KEY, descriptor BLOB NOT NULL",
            f"descriptor of the photo with the same fid: {manifest.dim} numbers, {manifest.storage}, little-endian",
        )
        make_attributes(
            connection,
            "manifest",
            "id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, value TEXT NOT NULL",
            "what made this map",
        )
        connection.execute(_FORGET)
        connection.execute(_EDITED)
        _make_features_table(connection)
        rows = [(key, str(value)) for key, value in asdict(manifest).items()]
        connection.executemany("INSERT INTO manifest (key, value) VALUES (?, ?)", rows)
        write_change_id(connection)
        connection.execute("COMMIT")
    finally:
        connection.close()


def _make_features_table(connection: sqlite3.Connection) -> None:
    """Create the table of local features, and the trigger that deletes those of a deleted photo."""
    make_attributes(
        connection,
        FEATURES,
        "fid INTEGER PRIMARY KEY, features BLOB NOT NULL, checksum INTEGER NOT NULL",
        "local features of the photo with the same fid, as packed by sareloc.geometry.pack_features",
    )
    # lists the photos that have features: the table itself is some hundred times as large
    connection.execute(f"CREATE INDEX {FEATURES}_checksum ON {FEATURES} (checksum)")
    connection.execute(_FORGET_FEATURES)


def make_whitening_table(connection: sqlite3.Connection) -> None:
    """Create the table of the map's own whitening, if there is none."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (WHITENING,)).fetchall():
        make_attributes(
            connection,
            WHITENING,
            "fid INTEGER PRIMARY KEY, numbers BLOB NOT NULL, checksum INTEGER NOT NULL",
            "whitening of this map's descriptors: mean (fid 1, float32) and rows of the projection (float16)",
        )


def _add_checksums(connection: sqlite3.Connection) -> None:
    """Compute the checksums of a map of format 1, which has none."""
    for column in ("descriptor_checksum", "photo_checksum"):
        connection.execute(f"ALTER TABLE photos ADD COLUMN {column} INTEGER NOT NULL DEFAULT 0")
    connection.create_function("descriptor_checksum", 1, descriptor_checksum, deterministic=True)
    connection.create_function("photo_checksum", 2, photo_checksum, deterministic=True)
    connection.execute(
        "UPDATE photos SET descriptor_checksum = descriptor_checksum(descriptor), "
        "photo_checksum = photo_checksum(geom, file) FROM descriptors WHERE descriptors.fid = photos.fid"
    )
    connection.execute(_EDITED)


def _bind_features(connection: sqlite3.Connection) -> None:
    """Bind the local features of a map of format 3 to the photos that they are stored for."""
    connection.execute("ALTER TABLE photos ADD COLUMN features_checksum INTEGER NOT NULL DEFAULT 0")
    connection.create_function("features_checksum", 3, features_checksum, deterministic=True)
    held = connection.execute(f"SELECT checksum, fid FROM {FEATURES} WHERE typeof(checksum) = 'integer'").fetchall()
    connection.executemany(
        "UPDATE photos SET features_checksum = features_checksum(fid, sha256, ?) "
        "WHERE fid = ? AND typeof(sha256) = 'blob'",
        held,
    )


def _upgrade(path: Path, connection: sqlite3.Connection) -> MapManifest:
    """Bring a map to the present format, in one transaction.

    Format 2 has checksums and the change id, format 3 the table of local features, which is empty then, and format 4
    the checksums that bind them to their photos.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        manifest = _read_manifest(path, connection)
        if manifest.format < 2:
            _add_checksums(connection)
        if manifest.format < 3:
            _make_features_table(connection)
        if manifest.format < 4:  # else another process did it
            _bind_features(connection)
            connection.execute("UPDATE manifest SET value = ? WHERE key = 'format'", (str(FORMAT),))
            write_change_id(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return replace(manifest, format=FORMAT)


def _authorize(action: int, first: str | None, second: str | None, _: str | None, trigger: str | None) -> int:
    """Of triggers, whose SQL comes with the map, allow those that delete descriptors and local features, reset
    checksums, or maintain the tables of GIS programs.

    SQLite asks this for each action of a statement and its triggers when the statement is compiled.
    """
    if trigger is None:
        return sqlite3.SQLITE_OK
    resets_checksum = action == sqlite3.SQLITE_UPDATE and (first, second) == ("photos", "photo_checksum")
    if resets_checksum or (action == sqlite3.SQLITE_DELETE and first == FEATURES):
        allowed = True
    elif action in (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE):
        allowed = str(first).lower() in TRIGGERED_TABLES
    elif action == sqlite3.SQLITE_FUNCTION:
        allowed = str(second).lower() in TRIGGERED_FUNCTIONS
    else:
        allowed = action == sqlite3.SQLITE_READ  # no SELECT: each trigger does little work
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _check_tables(path: Path, connection: sqlite3.Connection) -> None:
    """Raise MapError unless the needed tables exist with their columns; a view may never end."""
    query = "SELECT lower(name), type, rootpage FROM sqlite_master WHERE type IN ('table', 'view')"
    kinds = {
        name: "virtual table" if kind == "table" and not page else kind
        for name, kind, page in connection.execute(query)
    }
    if wrong := [table for table in (*COLUMNS, FEATURES, WHITENING) if kinds.get(table, "table") != "table"]:
        raise MapError(f"{path} is not a map of sareloc: its {wrong[0]} is a {kinds[wrong[0]]}, expected a table")
    layers = set()
    if "gpkg_contents" in kinds:
        _check_columns(path, connection, "gpkg_contents", set(COLUMNS["gpkg_contents"].split()))
        layers = {str(name) for (name,) in connection.execute("SELECT table_name FROM gpkg_contents LIMIT 1000")}
    if not {"photos", "descriptors", "manifest"} <= layers:
        found = ", ".join(sorted(layers)[:20]) or "none"
        raise MapError(f"{path} is a GeoPackage but not a map of sareloc: its layers are {found}")
    for table, columns in COLUMNS.items():
        if table not in kinds:
            raise MapError(f"{path} is not a map of sareloc: it lacks the table {table}")
        _check_columns(path, connection, table, set(columns.split()))
    if WHITENING in kinds:
        _check_columns(path, connection, WHITENING, WHITENING_COLUMNS)


def _format_of_tables(connection: sqlite3.Connection) -> int:
    """The format whose tables a map has, by the latest addition."""
    photos, features = (
        {name for _, name, *_ in connection.execute(f"PRAGMA table_xinfo({table})")} for table in ("photos", FEATURES)
    )
    if "features_checksum" in photos:
        return 4
    if features >= FEATURES_COLUMNS:
        return 3
    return 2 if "photo_checksum" in photos else 1


def _check_columns(path: Path, connection: sqlite3.Connection, table: str, columns: set[str]) -> None:
    found = connection.execute(f"PRAGMA table_xinfo({table})").fetchall()
    stored = {name for _, name, _, _, _, _, hidden in found if not hidden}  # others are computed by SQL in the map
    if missing := columns - stored:
        raise MapError(f"{path} is not a map of sareloc: its table {table} lacks {', '.join(sorted(missing))}")
    keys = {(name, str(kind).upper()) for _, name, kind, _, _, key, _ in found if key}
    if "fid" in columns and keys != {("fid", "INTEGER")}:
        raise MapError(f"{path} is not a map of sareloc: fid is not the INTEGER PRIMARY KEY of its table {table}")


def _read_manifest(path: Path, connection: sqlite3.Connection) -> MapManifest:
    if not is_geopackage(connection):
        raise MapError(f"{path} is an SQLite file but not a map: maps are GeoPackages (.gpkg)")
    _check_tables(path, connection)
    keys = [field.name for field in fields(MapManifest)]
    rows = connection.execute(f"SELECT key, value FROM manifest WHERE key IN ({', '.join('?' * len(keys))})", keys)
    manifest = read_manifest(dict(rows.fetchall()), str(path))
    if manifest.format < (found := _format_of_tables(connection)):
        raise MapError(
            f"map {path} is damaged: its manifest says format {manifest.format}, and its tables are of format {found}. "
            f"Restore a backup, or correct the manifest: sqlite3 {shlex.quote(str(path))} "
            f"\"UPDATE manifest SET value = '{found}' WHERE key = 'format'\""
        )
    if manifest.format > 1:
        _check_columns(path, connection, "photos", {"descriptor_checksum", "photo_checksum"})
    if manifest.format > 2:
        _check_columns(path, connection, FEATURES, FEATURES_COLUMNS)
    if manifest.format > 3:
        _check_columns(path, connection, "photos", {"features_checksum"})
    return manifest
