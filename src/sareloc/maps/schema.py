"""The tables of a map file: creating a file, opening it with SQLite, its checks, and bringing it to the present format.

A map may come from an untrusted source: other files are refused, and triggers in a map may do little.
"""

from __future__ import annotations

import errno
import os
import secrets
import shlex
import shutil
import sqlite3
import stat
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from sareloc.errors import MapError, look_up
from sareloc.maps import gpkg
from sareloc.maps.records import FORMAT, MapManifest, shown
from sareloc.maps.rows import PACKINGS, descriptor_checksum, features_checksum, photo_checksum, read_manifest

WAIT_S = 30.0
CHANGE_ID = "change_id"
FULL_BYTES = 2**18  # free space below which a failed write means a full disk: files grow by pages and by 32 kB
NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
"""Errors of file systems without hard links, such as exFAT."""
PAGE_BYTES = 16_384  # 15 descriptors of 512 dimensions fill a page; the default of 4096 would leave a quarter empty
FEATURES = "local_features"
WHITENING = "whitening"
STAGED = "staged_vectors"
"""Search vectors that will replace those of the map, of an upgrade that has not finished."""

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
STAGED_COLUMNS = {"fid", "vector", "checksum", "source"}
GEOTAGS = "file_geotags"
"""Of each photo that sareloc wrote, its content and its geotag by its file (or table, sidecar, track).

A photo whose geotag in the map differs was edited by another program, such as QGIS: writing the map keeps that. A row
without a photo is of one that was removed from the map, by another program or by `remove_photos`: it is not added again
unless that is asked for (`MapConfig.restore`)."""
GEOTAGS_COLUMNS = {"fid", "sha256", "geom", "heading_deg", "time"}
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

SQLITE_SUFFIXES = ("-wal", "-shm", "-journal")
"""Of the files that SQLite keeps beside a map while it is open, and after a kill."""
REGULAR = "a file"
KINDS = {
    stat.S_IFREG: REGULAR,
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


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


def kind_of(path: Path) -> str | None:
    """What is at a path, such as "a folder"; None if nothing is. Raises MapError if that cannot be determined."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # the latter: a NUL character
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise MapError(f"map {shown(str(path))} cannot be opened: {str(reason).lower()}") from error
    return KINDS.get(stat.S_IFMT(mode), "not a regular file")


def connect(path: Path, write: bool) -> tuple[sqlite3.Connection, MapManifest]:
    """Open a map file with SQLite; returns the connection and the manifest. Raises MapError if it is not a map."""
    kind = kind_of(path)
    if kind is None:
        raise MapError(f'map {path} does not exist: build one with "sareloc map build PHOTOS --out {path.name}"')
    if kind != REGULAR:
        raise MapError(f"map {path} is {kind}, expected a file (.gpkg)")
    for beside in (Path(f"{path}{suffix}") for suffix in SQLITE_SUFFIXES):
        if (kind := kind_of(beside)) not in (None, REGULAR):
            raise MapError(f"map {path} cannot be opened: {beside} is {kind}, expected a file of SQLite: move it away")
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
    """The system's error of reading a file, which SQLite does not report; None if it can be read or does not exist."""
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
    write_values(sql, {CHANGE_ID: secrets.token_hex(16)})


def write_values(sql: sqlite3.Connection, values: Mapping[str, str]) -> None:
    """Write values to the manifest; earlier ones of the same keys are replaced."""
    sql.executemany(
        "INSERT INTO manifest (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        values.items(),
    )


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
        gpkg.make_geopackage(connection)
        gpkg.make_point_layer(connection, "photos", _PHOTOS, "photos of the map, where they were taken")
        gpkg.make_attributes(
            connection,
            "descriptors",
            "fid INTEGER PRIMARY KEY, descriptor BLOB NOT NULL",
            describe_vectors(manifest),
        )
        gpkg.make_attributes(
            connection,
            "manifest",
            "id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, value TEXT NOT NULL",
            "what made this map",
        )
        connection.execute(_FORGET)
        connection.execute(_EDITED)
        _make_features_table(connection)
        _make_geotags_table(connection)
        gpkg.make_rtree(connection, "photos")
        write_values(connection, {key: str(value) for key, value in asdict(manifest).items()})
        write_change_id(connection)
        connection.execute("COMMIT")
    finally:
        connection.close()


def describe_vectors(manifest: MapManifest) -> str:
    """What the table of search vectors holds, for readers of the file."""
    parts = f"{manifest.dim} of the descriptor, {manifest.aggregate_dim} of the aggregated local features"
    return (
        f"search vector of the photo with the same fid: {manifest.vector_dim} numbers ({parts}), {manifest.storage}, "
        "little-endian"
    )


def _make_features_table(connection: sqlite3.Connection) -> None:
    """Create the table of local features, and the trigger that deletes those of a deleted photo."""
    gpkg.make_attributes(
        connection,
        FEATURES,
        "fid INTEGER PRIMARY KEY, features BLOB NOT NULL, checksum INTEGER NOT NULL",
        "local features of the photo with the same fid, as packed by sareloc.geometry.pack_features",
    )
    # lists the photos that have features: the table itself is some hundred times as large
    connection.execute(f"CREATE INDEX {FEATURES}_checksum ON {FEATURES} (checksum)")
    connection.execute(_FORGET_FEATURES)


def _make_geotags_table(connection: sqlite3.Connection) -> None:
    """Create the table of geotags by files, with a row for each photo of the map.

    The position by the file is unknown (NULL) of those whose checksum says that they were edited before.
    """
    gpkg.make_attributes(
        connection,
        GEOTAGS,
        "fid INTEGER PRIMARY KEY, sha256 BLOB NOT NULL UNIQUE, geom BLOB, heading_deg DOUBLE, time DATETIME",
        "geotag of the photo with the same fid by its file: in photos it differs if it was edited; without a photo: "
        "removed from the map",
    )
    connection.execute(
        f"INSERT OR IGNORE INTO {GEOTAGS} (fid, sha256, geom, heading_deg, time) SELECT fid, sha256, "
        "CASE WHEN photo_checksum != 0 THEN geom END, heading_deg, time FROM photos WHERE typeof(sha256) = 'blob'"
    )


def write_aggregate(connection: sqlite3.Connection, manifest: MapManifest) -> None:
    """Write which aggregated local features are in the search vectors."""
    write_values(connection, {"aggregate": manifest.aggregate, "aggregate_dim": str(manifest.aggregate_dim)})
    described = (describe_vectors(manifest), "descriptors")
    connection.execute("UPDATE gpkg_contents SET description = ? WHERE table_name = ?", described)


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

    Format 2 has checksums and the change id, format 3 the table of local features, which is empty then, format 4 the
    checksums that bind them to their photos, format 5 says which aggregated local features are in the search vectors,
    none, and format 6 has the geotags by files and an R-tree.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        manifest = _read_manifest(path, connection)
        if manifest.format < 2:
            _add_checksums(connection)
        if manifest.format < 3:
            _make_features_table(connection)
        if manifest.format < 4:
            _bind_features(connection)
        if manifest.format < 5:
            write_aggregate(connection, manifest)
        if manifest.format < 6:  # else another process did it
            _make_geotags_table(connection)
            gpkg.make_rtree(connection, "photos")
            write_values(connection, {"format": str(FORMAT)})
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
    if wrong := [
        table for table in (*COLUMNS, FEATURES, WHITENING, STAGED, GEOTAGS) if kinds.get(table, "table") != "table"
    ]:
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
    for table, needed in ((WHITENING, WHITENING_COLUMNS), (STAGED, STAGED_COLUMNS), (GEOTAGS, GEOTAGS_COLUMNS)):
        if table in kinds:
            _check_columns(path, connection, table, needed)


def _format_of_tables(connection: sqlite3.Connection) -> int:
    """The format whose tables a map has, by the latest addition."""
    photos, features = (
        {name for _, name, *_ in connection.execute(f"PRAGMA table_xinfo({table})")} for table in ("photos", FEATURES)
    )
    if gpkg.has_table(connection, GEOTAGS):
        return 6
    if connection.execute("SELECT 1 FROM manifest WHERE key = 'aggregate_dim'").fetchall():
        return 5
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
    if not gpkg.is_geopackage(connection):
        raise MapError(f"{path} is an SQLite file but not a map: maps are GeoPackages (.gpkg)")
    _check_tables(path, connection)
    keys = [field.name for field in fields(MapManifest)]
    rows = connection.execute(f"SELECT key, value FROM manifest WHERE key IN ({marks(keys)})", keys)
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
    if manifest.format > 5:
        _check_columns(path, connection, GEOTAGS, GEOTAGS_COLUMNS)
    return manifest


def marks(values: Sequence[Any]) -> str:
    """A parameter of SQL for each value."""
    return ", ".join("?" * len(values))
