"""The tables of a map file: creating a file, opening one, and refusing everything that is not a map."""

from __future__ import annotations

import errno
import os
import sqlite3
import uuid
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path

from sareloc.errors import ArgumentError, MapError, look_up
from sareloc.maps import gpkg
from sareloc.maps.file import WAIT_S, MapFile, map_errors, write_change_id
from sareloc.maps.store import FORMAT, PACKINGS, MapManifest, descriptor_checksum, photo_checksum, read_manifest

SUFFIX = ".gpkg"
NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
"""Errors of file systems without hard links, such as exFAT."""
PAGE_BYTES = 16_384  # 15 descriptors of 512 dimensions fill a page; the default of 4096 would leave a quarter empty

LONGEST_VALUE = 2**24  # bytes of a text or blob
COLUMNS = {
    "photos": "fid geom file time heading_deg width height sha256 size_bytes modified_ns",
    "descriptors": "fid descriptor",
    "manifest": "key value",
    "gpkg_contents": "table_name last_change min_x min_y max_x max_y",
}
"""The columns that are read and written, of each table."""
TRIGGERED_TABLES = {"descriptors", "rtree_photos_geom", "gpkg_ogr_contents"}
TRIGGERED_FUNCTIONS = {"st_minx", "st_maxx", "st_miny", "st_maxy", "st_isempty", "lower"}

_PHOTOS = """
  file TEXT NOT NULL, time DATETIME, heading_deg DOUBLE, width INTEGER, height INTEGER,
  sha256 BLOB NOT NULL UNIQUE, size_bytes INTEGER NOT NULL, modified_ns INTEGER NOT NULL,
  descriptor_checksum INTEGER NOT NULL DEFAULT 0, photo_checksum INTEGER NOT NULL DEFAULT 0"""
_FORGET = """
  CREATE TRIGGER photos_forget AFTER DELETE ON photos BEGIN DELETE FROM descriptors WHERE fid = OLD.fid; END"""
_EDITED = """
  CREATE TRIGGER photos_edited AFTER UPDATE OF geom, file ON photos
  WHEN NEW.photo_checksum = OLD.photo_checksum AND (NEW.geom IS NOT OLD.geom OR NEW.file IS NOT OLD.file)
  BEGIN UPDATE photos SET photo_checksum = 0 WHERE fid = NEW.fid; END"""
"""A program that changes a point or a name without the checksum, such as QGIS, does so on purpose: no damage."""


def map_file_exists(path: str | Path) -> bool:
    """Whether there is a file of this name. Raises ArgumentError if there is none and the name is not one of a map."""
    path = Path(path)
    if not path.exists() and path.suffix.lower() != SUFFIX:
        raise ArgumentError(
            f"{path} is not a name for a map: a map is a GeoPackage, give a name that ends in {SUFFIX} (such as "
            f"{path.stem or 'city'}{SUFFIX}), or the address of a server (milvus://host:19530/city)"
        )
    return path.exists()


def name_in_map(map_path: str | Path, photo: Path) -> str:
    """The name of a photo in a map file: its path relative to the map's folder if it is inside, else its absolute path.

    Map and photos can so be moved together.
    """
    path, folder = Path(os.path.abspath(photo)), Path(os.path.abspath(Path(map_path).parent))
    return (path.relative_to(folder) if path.is_relative_to(folder) else path).as_posix()


def open_or_create_map_file(path: str | Path, manifest: MapManifest) -> MapFile:
    """Open a map to write to it; if there is none, create an empty one. Several processes may do so at once."""
    if not map_file_exists(path):
        create_map_file(Path(path), manifest)
    return open_map_file(path, write=True)


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


def open_map_file(path: str | Path, write: bool = False) -> MapFile:
    """Open a map for reading, or also for writing. Raises MapError if the file is not a map of sareloc."""
    path = Path(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise MapError(f'map {path} {what}: make one with "sareloc map build PHOTOS --out {path.name}"')
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
                gpkg.allow_spatial_index(connection)
                connection.set_authorizer(_authorize)
                if manifest.format < FORMAT:
                    manifest = _upgrade(path, connection)
    except BaseException:
        connection.close()
        raise
    return MapFile(path, connection, manifest)


def _write_empty(path: Path, manifest: MapManifest) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("BEGIN")
        gpkg.make_geopackage(connection)
        gpkg.make_point_layer(connection, "photos", _PHOTOS, "photos of the map, where they were taken")
        gpkg.make_attributes(
            connection,
            "descriptors",
            "fid INTEGER PRIMARY KEY, descriptor BLOB NOT NULL",
            f"descriptor of the photo with the same fid: {manifest.dim} numbers, {manifest.storage}, little-endian",
        )
        gpkg.make_attributes(
            connection,
            "manifest",
            "id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, value TEXT NOT NULL",
            "what made this map",
        )
        connection.execute(_FORGET)
        connection.execute(_EDITED)
        rows = [(key, str(value)) for key, value in asdict(manifest).items()]
        connection.executemany("INSERT INTO manifest (key, value) VALUES (?, ?)", rows)
        write_change_id(connection)
        connection.execute("COMMIT")
    finally:
        connection.close()


def _upgrade(path: Path, connection: sqlite3.Connection) -> MapManifest:
    """Give a map of format 1 the checksums and the change id of format 2, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        manifest = _read_manifest(path, connection)
        if manifest.format < FORMAT:  # else another process did it
            for column in ("descriptor_checksum", "photo_checksum"):
                connection.execute(f"ALTER TABLE photos ADD COLUMN {column} INTEGER NOT NULL DEFAULT 0")
            connection.create_function("descriptor_checksum", 1, descriptor_checksum, deterministic=True)
            connection.create_function("photo_checksum", 2, photo_checksum, deterministic=True)
            connection.execute(
                "UPDATE photos SET descriptor_checksum = descriptor_checksum(descriptor), "
                "photo_checksum = photo_checksum(geom, file) FROM descriptors WHERE descriptors.fid = photos.fid"
            )
            connection.execute(_EDITED)
            connection.execute("UPDATE manifest SET value = ? WHERE key = 'format'", (str(FORMAT),))
            write_change_id(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return replace(manifest, format=FORMAT)


def _authorize(action: int, first: str | None, second: str | None, _: str | None, trigger: str | None) -> int:
    """Of triggers, whose SQL comes with the map, allow those that delete descriptors, reset checksums, or maintain the
    tables of GIS programs.

    SQLite asks this for each action of a statement and its triggers when the statement is compiled.
    """
    if trigger is None:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_UPDATE and (first, second) == ("photos", "photo_checksum"):
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
    if wrong := [table for table in COLUMNS if kinds.get(table, "table") != "table"]:
        raise MapError(f"{path} is not a map of sareloc: its {wrong[0]} is a {kinds[wrong[0]]}, expected a table")
    layers = set()
    if "gpkg_contents" in kinds:
        _check_columns(path, connection, "gpkg_contents", set(COLUMNS["gpkg_contents"].split()))
        layers = {str(name) for (name,) in connection.execute("SELECT table_name FROM gpkg_contents LIMIT 1000")}
    if not {"photos", "descriptors", "manifest"} <= layers:
        told = ", ".join(sorted(layers)[:20]) or "none"
        raise MapError(f"{path} is a GeoPackage but not a map of sareloc: its layers are {told}")
    for table, columns in COLUMNS.items():
        if table not in kinds:
            raise MapError(f"{path} is not a map of sareloc: it lacks the table {table}")
        _check_columns(path, connection, table, set(columns.split()))


def _check_columns(path: Path, connection: sqlite3.Connection, table: str, columns: set[str]) -> None:
    found = connection.execute(f"PRAGMA table_xinfo({table})").fetchall()
    stored = {name for _, name, _, _, _, _, hidden in found if not hidden}  # others are computed by SQL in the map
    if missing := columns - stored:
        raise MapError(f"{path} is not a map of sareloc: its table {table} lacks {', '.join(sorted(missing))}")
    keys = {(name, str(kind).upper()) for _, name, kind, _, _, key, _ in found if key}
    if "fid" in columns and keys != {("fid", "INTEGER")}:
        raise MapError(f"{path} is not a map of sareloc: fid is not the INTEGER PRIMARY KEY of its table {table}")


def _read_manifest(path: Path, connection: sqlite3.Connection) -> MapManifest:
    if not gpkg.is_geopackage(connection):
        raise MapError(f"{path} is an SQLite file but not a map: maps are GeoPackages (.gpkg)")
    _check_tables(path, connection)
    keys = [field.name for field in fields(MapManifest)]
    rows = connection.execute(f"SELECT key, value FROM manifest WHERE key IN ({', '.join('?' * len(keys))})", keys)
    manifest = read_manifest(dict(rows.fetchall()), str(path))
    if manifest.format > 1:
        _check_columns(path, connection, "photos", {"descriptor_checksum", "photo_checksum"})
    return manifest
