"""The map on disk: one GeoPackage with a layer of photos, their descriptors, and a manifest.

    photos        points in WGS84: file, time, heading, size, content hash; what QGIS shows
    descriptors   the same fid, and the descriptor as bytes (see `storage`)
    manifest      keys and values: what `Manifest` holds, and notes

A photo and its descriptor come in one transaction and go together, whoever deletes the point. Writers keep a
write-ahead log, so that others may read meanwhile, and several writers take turns; the last one to close leaves a
single file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sareloc import __version__
from sareloc.errors import MapError
from sareloc.photos import Geotag
from sareloc.place_map import gpkg
from sareloc.place_map.storage import PACKINGS, Storage, Vectors

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

FORMAT = 1
PART = 4096  # rows read at a time
WAIT_S = 30.0
NOTE = "note "


@dataclass(frozen=True)
class Manifest:
    """What a map is, and which model its descriptors come from."""

    model: str
    fingerprint: str
    dim: int
    storage: Storage = "float16"
    map_id: str = ""
    """Drawn when the map is made: by it an index knows its map."""
    made_by: str = f"sareloc {__version__}"
    format: int = FORMAT


@dataclass(frozen=True)
class Photo:
    """A photo as the map keeps it."""

    file: str
    """Its path: relative to the map's folder where it lies inside, else absolute; forward slashes."""
    geotag: Geotag
    width: int
    """Pixels, as stored in the file."""
    height: int
    sha256: bytes
    """Of the file's content: the same photo under another name is the same photo."""
    size_bytes: int
    modified_ns: int
    """The file's time stamp when it was read: one that has not changed since need not be read again."""
    replaces: int | None = None
    """The id of the photo that had this file name before."""


class MapFile:
    """An open map, from `open_map_file` or `create_map_file`; `close` it, or use it in a `with`."""

    def __init__(self, path: Path, connection: sqlite3.Connection, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._connection = connection
        self._packing = PACKINGS[manifest.storage]

    def __enter__(self) -> MapFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave one plain file where nobody else has it open."""
        with suppress(sqlite3.Error):  # somebody reads or writes: the last one to close leaves one file
            self._connection.execute("PRAGMA busy_timeout = 0")
            self._connection.execute("PRAGMA journal_mode = DELETE")
        self._connection.close()

    def add(self, photos: Sequence[Photo], descriptors: Vectors) -> int:
        """Put photos and their descriptors (n, dim) in, in one transaction; returns how many were not there yet."""
        added: list[tuple[float, float]] = []
        with self._transaction() as sql:
            for photo, blob in zip(photos, self._packing.pack(descriptors), strict=True):
                _drop_replaced(sql, photo)
                row = (None, gpkg.point_blob(photo.geotag.latlon), *_columns(photo))
                new = sql.execute(f"INSERT OR IGNORE INTO photos VALUES ({_marks(row)})", row)
                if new.rowcount == 1:  # else another process has added it meanwhile
                    sql.execute("INSERT INTO descriptors VALUES (?, ?)", (new.lastrowid, blob))
                    added.append(photo.geotag.latlon)
            gpkg.note_change(sql, "photos", np.array(added).reshape(-1, 2), grown=True)
        return len(added)

    def rename(self, photo_id: int, photo: Photo) -> None:
        """A photo that is in the map under `photo_id` has moved to another file, or its file has a new time stamp."""
        with self._transaction() as sql:
            sql.execute(
                "UPDATE photos SET file = ?, size_bytes = ?, modified_ns = ? WHERE fid = ?",
                (photo.file, photo.size_bytes, photo.modified_ns, photo_id),
            )
            if photo.replaces != photo_id:
                _drop_replaced(sql, photo)

    def remove(self, ids: Ints) -> int:
        """Forget these photos and their descriptors; returns how many there were."""
        with self._transaction() as sql:
            removed = sql.executemany("DELETE FROM photos WHERE fid = ?", [(int(i),) for i in ids]).rowcount
            gpkg.note_change(sql, "photos", self.photos()[1], grown=False)
        return removed

    def photos(self) -> tuple[Ints, Floats, tuple[str, ...]]:
        """The ids of all photos, rising, their latitudes and longitudes (N, 2), and their files."""
        rows = self.query("SELECT fid, geom, file FROM photos ORDER BY fid")
        ids = np.array([fid for fid, _, _ in rows], dtype=np.int64)
        return ids, gpkg.latlon_of_blobs([blob for _, blob, _ in rows]), tuple([file for _, _, file in rows])

    def find(self, sha256: bytes) -> tuple[int, str] | None:
        """The id and the file of the photo with this content."""
        rows = self.query("SELECT fid, file FROM photos WHERE sha256 = ?", (sha256,))
        return rows[0] if rows else None

    def stamps(self) -> dict[str, tuple[int, int, int]]:
        """For each file its id, and its size and time stamp when it was read."""
        return {
            file: tuple(rest) for file, *rest in self.query("SELECT file, fid, size_bytes, modified_ns FROM photos")
        }

    def descriptors(self, ids: Ints) -> Iterator[tuple[Ints, Vectors]]:
        """These rising ids, some thousand at a time, with their descriptors; an id without one is a MapError."""
        dim, size = self.manifest.dim, self._packing.size(self.manifest.dim)
        for part in _parts(ids):
            rows = self.query(
                f"SELECT fid, descriptor FROM descriptors WHERE fid IN ({_marks(part)}) ORDER BY fid", part
            )
            whole = {fid: blob for fid, blob in rows if len(blob) == size}
            if len(whole) != len(part):
                lost = min(set(part) - whole.keys())
                raise MapError(
                    f"map {self.path} is damaged: photo {lost} has no whole descriptor. Remove it and add it again"
                )
            yield np.array(part, dtype=np.int64), self._packing.unpack(list(whole.values()), dim)

    def notes(self) -> dict[str, str]:
        """The texts that travel with the map, by name, such as a calibration."""
        rows = self.query("SELECT key, value FROM manifest WHERE key LIKE ?", (f"{NOTE}%",))
        return {key.removeprefix(NOTE): value for key, value in rows}

    def write_note(self, name: str, text: str) -> None:
        """Keep a text under this name, in place of an earlier one."""
        with self._transaction() as sql:
            sql.execute("INSERT OR REPLACE INTO manifest (key, value) VALUES (?, ?)", (NOTE + name, text))

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """The rows of a statement that changes nothing."""
        with map_errors(self.path):
            return self._connection.execute(sql, parameters).fetchall()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All that is read inside is of one moment, whatever others write meanwhile."""
        self.query("BEGIN")
        try:
            yield
        finally:
            self.query("COMMIT")

    def compact(self) -> None:
        """Give the space of removed photos back to the disk."""
        with map_errors(self.path):
            self._connection.execute("VACUUM")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with map_errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise


@contextmanager
def map_errors(path: Path) -> Iterator[None]:
    """SQLite's errors as ours: what is wrong with the map, and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        said = str(error)
        if "locked" in said:
            said = f"another process has been writing it for {WAIT_S:.0f} s: try again when it is done"
        elif "not a database" in said:
            said = "it is no map: maps are GeoPackages (.gpkg)"
        elif "malformed" in said or "disk I/O" in said:
            said = f"it is damaged ({said}): build it again, or take it from a backup"
        raise MapError(f"map {path} cannot be used: {said}") from error


def _drop_replaced(sql: sqlite3.Connection, photo: Photo) -> None:
    if photo.replaces is not None:  # unless it has got another name meanwhile
        sql.execute("DELETE FROM photos WHERE fid = ? AND file = ?", (photo.replaces, photo.file))


def _columns(photo: Photo) -> tuple[Any, ...]:
    tag = photo.geotag
    time = None if tag.time is None else gpkg.time_text(tag.time)
    return (
        *(photo.file, time, tag.heading_deg, photo.width, photo.height),
        *(photo.sha256, photo.size_bytes, photo.modified_ns),
    )


def _parts(ids: Ints) -> Iterator[list[int]]:
    for start in range(0, len(ids), PART):
        yield ids[start : start + PART].tolist()


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))
