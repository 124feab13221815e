"""The map on disk: one GeoPackage with a layer of photos, their descriptors, and a manifest.

    photos        points in WGS84: file, time, heading, size, content hash, checksums; the layer that QGIS shows
    descriptors   the same fid, and the descriptor as bytes (see `PACKINGS`)
    manifest      keys and values: the fields of `MapManifest`, the change id, and notes

A photo and its descriptor are added in one transaction, and a trigger deletes both together. Each transaction that
changes the map also draws a new change id. Writers use a write-ahead log, so that other processes can read meanwhile;
several writers take turns. After each transaction the log is copied into the file, as far as readers allow without
waiting, so that the file alone has all committed photos; the last process that closes the map leaves a single file.
"""

from __future__ import annotations

import os
import secrets
import shlex
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sareloc.arrays import Floats, Ints, Vectors
from sareloc.errors import ArgumentError, MapError, PositionError
from sareloc.geo import Area
from sareloc.maps import gpkg
from sareloc.maps.store import PACKINGS, Entry, MapManifest, MapPhoto, descriptor_checksum, photo_checksum, shown
from sareloc.photos import Geotag

T = TypeVar("T")

PART = 4096  # rows read at a time
NOTE = "note "
ID_GAP = 2**32
"""A writer's ids begin after a random gap of up to this size: two maps that continue one backup share no new ids."""
LAST_ID = 2**62
SUFFIX = ".gpkg"
LARGEST_NUMBER = 60_000.0  # of a descriptor: indexes store half precision
_ENTRY = "fid, geom, file, time, heading_deg, size_bytes, modified_ns"
_ROW = "fid, geom, file, time, heading_deg, width, height, sha256, size_bytes, modified_ns"
_INSERTED = _ROW.removeprefix("fid, ") + ", descriptor_checksum, photo_checksum"
MISMATCH = "its position or file name does not match its checksum"
_BAD_VALUE = (ValueError, TypeError, OverflowError, PositionError)


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


def open_map_file(path: str | Path, write: bool = False) -> MapFile:
    """Open a map for reading, or also for writing. Raises MapError if the file is not a map of sareloc."""
    path = Path(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise MapError(f'map {path} {what}: build one with "sareloc map build PHOTOS --out {path.name}"')
    return MapFile(path, *gpkg.connect(path, write))


def open_or_create_map_file(path: str | Path, manifest: MapManifest) -> MapFile:
    """Open a map to write to it; if there is none, create an empty one. Several processes may do so at once."""
    if not map_file_exists(path):
        gpkg.create_map_file(Path(path), manifest)
    return open_map_file(path, write=True)


class MapFile:
    """An open map, from `open_map_file`: the `MapStore` of one file. `close` it, or use it in a `with`."""

    def __init__(self, path: Path, connection: sqlite3.Connection, manifest: MapManifest) -> None:
        self.path = path
        self.manifest = manifest
        self._connection = connection
        self._packing = PACKINGS[manifest.storage]
        self._left_gap = False

    @property
    def name(self) -> str:
        """See `MapStore`."""
        return str(self.path)

    def __enter__(self) -> MapFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the map; a single file is left if no other process has it open."""
        with suppress(sqlite3.Error):  # another process has it open
            self._connection.execute("PRAGMA busy_timeout = 0")
            self._connection.execute("PRAGMA journal_mode = DELETE")
        self._connection.close()

    def add(self, photos: Sequence[MapPhoto], descriptors: Vectors) -> int:
        """See `MapStore`; one transaction."""
        added: list[bytes] = []
        removed: list[bytes] = []
        with self._transaction() as sql:
            if not self._left_gap:
                self._leave_gap(sql)
            for photo, blob in zip(photos, self._packing.pack(descriptors), strict=True):
                removed += _drop_replaced(sql, photo)
                geom = gpkg.point_blob(photo.geotag.latlon)
                row = (geom, *_columns(photo), descriptor_checksum(blob), photo_checksum(geom, photo.file))
                new = sql.execute(f"INSERT OR IGNORE INTO photos ({_INSERTED}) VALUES ({_marks(row)})", row)
                if new.rowcount == 1:  # else another process added it meanwhile
                    sql.execute("INSERT INTO descriptors VALUES (?, ?)", (new.lastrowid, blob))
                    added.append(geom)
            _note_change(sql, added, removed)
        self._left_gap = True
        return len(added)

    def _leave_gap(self, sql: sqlite3.Connection) -> None:
        """Skip a random number of ids, unless the map never had a photo."""
        rows = sql.execute("SELECT seq FROM sqlite_sequence WHERE name = 'photos'").fetchall()
        if not rows:
            return
        last = rows[0][0]
        if not isinstance(last, int) or not 0 <= last < LAST_ID:
            raise MapError(f"map {self.path} is damaged: its last photo id is {last!r}. Copy it with sareloc map copy")
        sql.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'photos'", (last + secrets.randbelow(ID_GAP),))

    def update(self, entries: Sequence[Entry]) -> None:
        """See `MapStore`; one transaction."""
        added: list[bytes] = []
        removed: list[bytes] = []
        with self._transaction() as sql:
            for entry in entries:
                geom, tag = gpkg.point_blob(entry.geotag.latlon), entry.geotag
                named = (geom, entry.file, photo_checksum(geom, entry.file))
                for (before,) in sql.execute("SELECT geom FROM photos WHERE fid = ?", (entry.photo_id,)).fetchall():
                    if before != geom:
                        added.append(geom)
                        removed.append(before)
                sql.execute(
                    "UPDATE photos SET geom = ?, file = ?, photo_checksum = ?, time = ?, heading_deg = ?, "
                    "size_bytes = ?, modified_ns = ? WHERE fid = ?",
                    (*named, _time(tag), tag.heading_deg, *entry.stamp, entry.photo_id),
                )
                if entry.replaces != entry.photo_id:
                    removed += _drop_replaced(sql, entry)
            _note_change(sql, added, removed)

    def remove(self, ids: Ints) -> int:
        """See `MapStore`; one transaction."""
        with self._transaction() as sql:
            removed = [blob for i in ids for blob in _drop(sql, "fid = ?", (int(i),))]
            _note_change(sql, [], removed)
        return len(removed)

    def photos(self) -> tuple[Ints, Floats, tuple[str, ...]]:
        """The ids (N,) of all photos, ascending, their latitudes and longitudes (N, 2), and their file names."""
        rows = self.query(f"SELECT fid, geom, file, {self._photo_checksum} FROM photos ORDER BY fid")
        with self._reading_values():
            files = tuple([file for _, _, file, _ in rows])
            if not all(files) or "\0" in "".join(files):
                raise ValueError("an empty file name, or a NUL in one")
            latlon = gpkg.latlon_of_blobs([geom for _, geom, _, _ in rows])
            if any(checksum and photo_checksum(geom, file) != checksum for _, geom, file, checksum in rows):
                raise ValueError(MISMATCH)
            return _ids([fid for fid, _, _, _ in rows]), latlon, files

    def pages(self, area: Area | None = None) -> Iterator[tuple[Ints, Floats, tuple[str, ...]]]:
        """See `MapStore`; all at once."""
        ids, latlon, files = self.photos()
        rows = np.arange(len(ids)) if area is None else area.rows(latlon)
        yield ids[rows], latlon[rows], tuple(files[row] for row in rows)

    def count(self) -> int:
        """See `MapStore`."""
        return int(self.query("SELECT count(*) FROM photos")[0][0])

    def known(self, digests: Sequence[bytes]) -> dict[bytes, Entry]:
        """See `MapStore`."""
        found: dict[bytes, Entry] = {}
        for part in _parts(digests):
            rows = self.query(f"SELECT {_ENTRY}, sha256 FROM photos WHERE sha256 IN ({_marks(part)})", part)
            with self._reading_values():
                found |= zip([row[-1] for row in rows], _entries(rows), strict=True)
        return found

    def entries(self, files: Sequence[str] = ()) -> dict[str, Entry]:
        """See `MapStore`: all entries, as one query of the table is faster than one for each name."""
        rows = self.query(f"SELECT {_ENTRY} FROM photos")
        with self._reading_values():
            return {entry.file: entry for entry in _entries(rows)}

    def records(self) -> Iterator[tuple[list[MapPhoto], Vectors]]:
        """See `MapStore`; from one snapshot."""
        with self.snapshot():
            for ids, vectors in self.descriptors(self.photos()[0]):
                part = ids.tolist()
                found = f"FROM photos WHERE fid IN ({_marks(part)}) ORDER BY fid"
                rows = self.query(f"SELECT {_ROW}, {self._photo_checksum} {found}", part)
                with self._reading_values():
                    photos = [_photo(row) for row in rows]
                yield photos, vectors

    def bad_values(self) -> Iterator[tuple[int, str]]:
        """The ids of photos with invalid values, and what is wrong."""
        for row in self.query(f"SELECT {_ROW}, {self._photo_checksum} FROM photos ORDER BY fid"):
            try:
                _ids([row[0]])
                _photo(row)
            except _BAD_VALUE as wrong:
                yield row[0], f"{wrong} (file {shown(row[2])})"

    @property
    def _photo_checksum(self) -> str:
        """The column of photo checksums; 0 in a map of format 1, which has none."""
        return "photo_checksum" if self.manifest.format > 1 else "0"

    @contextmanager
    def _reading_values(self) -> Iterator[None]:
        """Values of photos are read inside; an invalid one raises a MapError that names the photo."""
        try:
            yield
        except _BAD_VALUE as error:
            for photo_id, wrong in self.bad_values():
                raise MapError(
                    f"map {self.path} is damaged: photo {photo_id}: {wrong}. Restore a backup, or delete the photo: "
                    f"sqlite3 {shlex.quote(str(self.path))} 'DELETE FROM photos WHERE fid = {photo_id}'"
                ) from error
            raise MapError(f"map {self.path} cannot be read ({error}): is another program writing it?") from error

    def photo_path(self, file: str) -> Path:
        """See `MapStore`."""
        return self.path.parent / file

    def change_id(self) -> str:
        """32 random hex digits, drawn by each transaction that changes the map; "" in a map of format 1."""
        rows = self.query("SELECT value FROM manifest WHERE key = ?", (gpkg.CHANGE_ID,))
        return str(rows[0][0]) if rows else ""

    def checksums(self) -> Ints:
        """The checksum (N,) of each photo's descriptor, in the order of `photos`; 0 if it is unknown.

        A map of format 1 stores none: they are computed, which reads all descriptors.
        """
        if self.manifest.format > 1:
            rows = self.query("SELECT descriptor_checksum FROM photos ORDER BY fid")
            return np.array([value if isinstance(value, int) else 0 for (value,) in rows], dtype=np.int64)
        ids = [fid for (fid,) in self.query("SELECT fid FROM photos ORDER BY fid")]
        found = {fid: descriptor_checksum(blob) for part in _parts(ids) for fid, blob, _ in self.blobs(part) if blob}
        return np.array([found.get(fid, 0) for fid in ids], dtype=np.int64)

    def blobs(self, ids: Sequence[int]) -> list[tuple[int, bytes, int | None]]:
        """These photos' ids, ascending, packed descriptors and checksums; None in a map of format 1, which has none."""
        stored = "descriptor_checksum" if self.manifest.format > 1 else "NULL"
        return self.query(
            f"SELECT fid, descriptor, {stored} FROM descriptors JOIN photos USING (fid) WHERE fid IN ({_marks(ids)}) "
            "ORDER BY fid",
            ids,
        )

    def bad_blob(self, blob: object, checksum: int | None) -> str | None:
        """What is wrong with a packed descriptor; None if it is valid."""
        size = self._packing.size(self.manifest.dim)
        if not isinstance(blob, bytes) or len(blob) != size:
            found = f"{len(blob)} bytes" if isinstance(blob, bytes) else f"a {type(blob).__name__}"
            return f"is {found}, expected {size} bytes"
        if checksum is not None and descriptor_checksum(blob) != checksum:
            return "does not match its checksum"
        return None

    def descriptors(self, ids: Ints) -> Iterator[tuple[Ints, Vectors]]:
        """The descriptors of these photos, `PART` at a time, with their ids, which must be ascending.

        Raises MapError if a descriptor is missing or does not match its checksum.
        """
        for part in _parts(ids.tolist()):
            whole = dict[int, bytes]()
            for fid, blob, checksum in self.blobs(part):
                if (wrong := self.bad_blob(blob, checksum)) is not None:
                    raise MapError(
                        f"map {self.path} is damaged: the descriptor of photo {fid} ({self._file_of(fid)}) {wrong}. "
                        f'List all damage with "sareloc map verify", remove those photos and add them again'
                    )
                whole[fid] = blob
            if len(whole) != len(part):
                lost = min(set(part) - whole.keys())
                raise MapError(
                    f"map {self.path} is damaged: photo {lost} ({self._file_of(lost)}) has no descriptor. Remove it "
                    "and add it again"
                )
            vectors = self._packing.unpack(list(whole.values()), self.manifest.dim)
            small = (np.abs(vectors) <= LARGEST_NUMBER).all(axis=1)
            if not small.all():
                first = part[int(np.argmin(small))]
                raise MapError(
                    f"map {self.path} is damaged: the descriptor of photo {first} ({self._file_of(first)}) holds "
                    "numbers that are not finite or too large. Remove the photo and add it again"
                )
            yield np.array(part, dtype=np.int64), vectors

    def _file_of(self, photo_id: int) -> str:
        rows = self.query("SELECT file FROM photos WHERE fid = ?", (photo_id,))
        return shown(rows[0][0]) if rows else "unknown file"

    def notes(self) -> dict[str, str]:
        """See `MapStore`."""
        rows = self.query("SELECT key, value FROM manifest WHERE key LIKE ?", (f"{NOTE}%",))
        return {key.removeprefix(NOTE): value for key, value in rows if isinstance(key, str) and isinstance(value, str)}

    def write_note(self, name: str, text: str) -> None:
        """See `MapStore`."""
        with self._transaction() as sql:
            sql.execute("INSERT OR REPLACE INTO manifest (key, value) VALUES (?, ?)", (NOTE + name, text))

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """The rows of a statement that changes nothing."""
        with gpkg.map_errors(self.path):
            return self._connection.execute(sql, parameters).fetchall()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads inside see the map at one point in time, whatever other processes write."""
        self.query("BEGIN")
        try:
            yield
        finally:
            self.query("ROLLBACK")  # nothing was written; a damaged file may refuse COMMIT

    def compact(self) -> None:
        """Give the space of removed photos back to the disk."""
        with gpkg.map_errors(self.path):
            self._connection.execute("VACUUM")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with gpkg.map_errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            before = self._connection.total_changes
            try:
                yield self._connection
                if self._connection.total_changes != before:
                    gpkg.write_change_id(self._connection)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite has rolled back already if the disk is full
                    self._connection.execute("ROLLBACK")
                raise
        with suppress(sqlite3.Error):  # the log has the transaction
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


def _drop_replaced(sql: sqlite3.Connection, photo: MapPhoto | Entry) -> list[bytes]:
    if photo.replaces is None:
        return []
    return _drop(sql, "fid = ? AND file = ?", (photo.replaces, photo.file))  # unless its name was changed meanwhile


def _drop(sql: sqlite3.Connection, condition: str, values: Sequence[Any]) -> list[bytes]:
    """Delete the photos that meet the condition; returns their points."""
    points = [blob for (blob,) in sql.execute(f"SELECT geom FROM photos WHERE {condition}", values).fetchall()]
    sql.execute(f"DELETE FROM photos WHERE {condition}", values)
    return points


def _note_change(sql: sqlite3.Connection, added: Sequence[bytes], removed: Sequence[bytes]) -> None:
    gone = gpkg.latlon_of_blobs(gpkg.readable_points(removed))
    gpkg.note_change(sql, "photos", gpkg.latlon_of_blobs(added), gone)


def _columns(photo: MapPhoto) -> tuple[Any, ...]:
    tag = photo.geotag
    return (
        *(photo.file, _time(tag), tag.heading_deg, photo.width, photo.height),
        *(photo.sha256, photo.size_bytes, photo.modified_ns),
    )


def _time(tag: Geotag) -> str | None:
    return None if tag.time is None else gpkg.time_text(tag.time)


def _geotag(latlon: Sequence[float], heading_deg: float | None, time: str | None) -> Geotag:
    if not (time is None or isinstance(time, str)):
        raise TypeError(f"its time is a {type(time).__name__}, expected a text")
    if not (heading_deg is None or isinstance(heading_deg, int | float)):
        raise TypeError(f"its heading is a {type(heading_deg).__name__}, expected a number")
    return Geotag((latlon[0], latlon[1]), heading_deg, None if time is None else gpkg.seconds_of(time))


def _photo(row: Sequence[Any]) -> MapPhoto:
    """The photo of a row: `_ROW` and its checksum. Raises one of `_BAD_VALUE` if a value is invalid."""
    _, geom, file, time, heading, width, height, sha256, size, modified, checksum = row
    (latlon,) = gpkg.latlon_of_blobs([geom]).tolist()
    if not isinstance(file, str) or not file or "\0" in file:
        raise ValueError("its file name is empty, has a NUL, or is not a text")
    if not isinstance(sha256, bytes) or len(sha256) != 32:
        raise ValueError(f"its SHA-256 is {shown(sha256)}, expected 32 bytes")
    if not all(type(number) is int for number in (width, height, size, modified)):
        raise TypeError(f"its width, height, size and time stamp are {shown((width, height, size, modified))}")
    if checksum and photo_checksum(geom, file) != checksum:
        raise ValueError(MISMATCH)
    return MapPhoto(file, _geotag(latlon, heading, time), width, height, sha256, size, modified)


def _ids(ids: Sequence[int]) -> Ints:
    if not all(type(photo_id) is int and photo_id >= 0 for photo_id in ids):
        raise ValueError("its id is not a whole number from 0 up")
    return np.array(ids, dtype=np.int64)


def _entries(rows: Sequence[Sequence[Any]]) -> Iterator[Entry]:
    """The entries of rows that start with the columns `_ENTRY`."""
    latlon = gpkg.latlon_of_blobs([row[1] for row in rows]).tolist()
    for point, (photo_id, _, file, time, heading, size_bytes, modified_ns, *_) in zip(latlon, rows, strict=True):
        if not isinstance(file, str):
            raise TypeError("a file name is not a text")
        yield Entry(photo_id, file, (size_bytes, modified_ns), _geotag(point, heading, time))


def _parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), PART):
        yield values[start : start + PART]


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))
