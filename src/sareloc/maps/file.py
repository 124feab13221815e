"""MapFile: a map on disk, one GeoPackage (see `sareloc.maps.file_reader`), for reading and writing.

A photo, its search vector and its local features are added in one transaction; triggers delete all of them together.
Each transaction that changes the map also draws a new change id. Writers use a write-ahead log, so that other processes
can read meanwhile; several writers take turns. After each transaction the log is copied into the file, as far as
readers allow without waiting, so that the file alone has all committed photos; the last process that closes the map
leaves a single file.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from sareloc.arrays import Ints, Vectors
from sareloc.errors import ArgumentError, MapError
from sareloc.maps import gpkg, schema
from sareloc.maps.file_reader import NOTE, FileReader
from sareloc.maps.records import OTHER_VECTORS, Entry, MapInfo, MapManifest, MapPhoto, complete_vectors, read_adaptation
from sareloc.maps.rows import (
    BAD_VALUE,
    INSERTED,
    ROW,
    descriptor_checksum,
    features_checksum,
    photo_checksum,
    photo_of,
    row_of,
    whitening_rows,
)
from sareloc.maps.schema import FEATURES, GEOTAGS, STAGED, WHITENING, marks
from sareloc.maps.store import Address
from sareloc.photos import Geotag

if TYPE_CHECKING:
    from sareloc.geometry.adaptation import Adaptation

ID_GAP = 2**32
"""A writer's ids begin after a random gap of up to this size: two maps that continue one backup share no new ids."""
LAST_ID = 2**62
SUFFIX = ".gpkg"


def open_map_file(path: Address, write: bool = False) -> MapFile:
    """Open a map for reading, or also for writing. Raises MapError if the file is not a map of sareloc."""
    return MapFile.open(path, write)


class MapFile(FileReader):
    """An open map file, from `open_map_file`. `close` it, or use it in a `with`."""

    _left_gap = False

    @classmethod
    def exists(cls, address: Address) -> bool:
        """See `MapStore`. Raises ArgumentError if there is no file and the name is not one of a map."""
        path = Path(address)
        exists = schema.kind_of(path) is not None
        if not exists and path.suffix.lower() != SUFFIX:
            raise ArgumentError(
                f"{path} is not a name for a map: a map is a GeoPackage, give a name that ends in {SUFFIX} (such as "
                f"{path.stem or 'city'}{SUFFIX}), or the address of a server (milvus://host:19530/city)"
            )
        return exists

    @classmethod
    def photo_name(cls, address: Address, photo: Path) -> str:
        """See `MapStore`: its path relative to the map's folder if it is inside, else its absolute path.

        Map and photos can so be moved together.
        """
        path, folder = Path(os.path.abspath(photo)), Path(os.path.abspath(Path(address).parent))
        return (path.relative_to(folder) if path.is_relative_to(folder) else path).as_posix()

    @classmethod
    def open(cls, address: Address, write: bool = False) -> Self:
        """See `MapStore`. Raises MapError if the file is not a map of sareloc."""
        path = Path(address)
        return cls(path, *schema.connect(path, write))

    @classmethod
    def open_or_create(cls, address: Address, manifest: MapManifest) -> Self:
        """See `MapStore`."""
        if not cls.exists(address):
            schema.create_map_file(Path(address), manifest)
        return cls.open(address, write=True)

    def add(self, photos: Sequence[MapPhoto], vectors: Vectors, features: Sequence[bytes | None] | None = None) -> int:
        """See `MapStore`; one transaction."""
        added: list[bytes] = []
        removed: list[bytes] = []
        with self._transaction() as sql:
            if not self._left_gap:
                self._leave_gap(sql)
            blobs = zip(self._packing.pack(vectors), features or [None] * len(photos), strict=True)
            for photo, (blob, packed) in zip(photos, blobs, strict=True):
                removed += _drop_replaced(sql, photo) + _drop_unreadable(sql, photo.sha256)
                geom = gpkg.point_blob(photo.geotag.latlon)
                row = (geom, *row_of(photo), descriptor_checksum(blob), photo_checksum(geom, photo.file))
                new = sql.execute(f"INSERT OR IGNORE INTO photos ({INSERTED}) VALUES ({marks(row)})", row)
                if new.rowcount == 1:  # else another process added it meanwhile
                    photo_id = int(new.lastrowid or 0)
                    sql.execute("INSERT INTO descriptors VALUES (?, ?)", (photo_id, blob))
                    _write_source(sql, photo_id, photo.sha256, photo.source or photo.geotag)
                    if packed is not None:
                        _insert_features(sql, photo_id, packed)
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
                found = sql.execute("SELECT geom, sha256 FROM photos WHERE fid = ?", (entry.photo_id,)).fetchall()
                for before, sha256 in found:
                    _write_source(sql, entry.photo_id, sha256, entry.source or tag)
                    if before != geom:
                        added.append(geom)
                        removed.append(before)
                sql.execute(
                    "UPDATE photos SET geom = ?, file = ?, photo_checksum = ?, time = ?, heading_deg = ?, "
                    "size_bytes = ?, modified_ns = ? WHERE fid = ?",
                    (*named, gpkg.time_text(tag.time), tag.heading_deg, *entry.stamp, entry.photo_id),
                )
                if entry.replaces != entry.photo_id:
                    removed += _drop_replaced(sql, entry)
            _note_change(sql, added, removed)

    def remove(self, ids: Ints, *, remember: bool = False) -> int:
        """See `MapStore`; one transaction."""
        with self._transaction() as sql:
            removed = [blob for i in ids for blob in _drop(sql, "fid = ?", (int(i),), remember)]
            _note_change(sql, [], removed)
        return len(removed)

    def remember_removed(self, digests: Collection[bytes]) -> None:
        """See `MapStore`; one transaction."""
        forget = (
            f"INSERT OR IGNORE INTO {GEOTAGS} (fid, sha256) "
            f"SELECT min(0, coalesce(min(fid), 0)) - 1, ? FROM {GEOTAGS}"  # ids below 0, as no photo's is
        )
        with self._transaction() as sql:
            sql.executemany(forget, [(digest,) for digest in sorted(digests)])

    def write_features(self, ids: Ints, blobs: Sequence[bytes]) -> int:
        """See `MapStore`; one transaction."""
        written, adaptation = 0, read_adaptation(self.notes(), self.manifest, str(self.path))
        with self._transaction() as sql:
            for fid, blob in zip(ids.tolist(), blobs, strict=True):
                written += _insert_features(sql, fid, blob)
                self._complete_vector(sql, fid, blob, adaptation)
        return written

    def _complete_vector(
        self, sql: sqlite3.Connection, photo_id: int, features: bytes, adaptation: Adaptation | None
    ) -> None:
        """Give a photo's search vector its aggregated local features, see `complete_vectors`."""
        for _, before, checksum in self.blobs([photo_id]) if self.manifest.aggregate_dim else ():
            if self.bad_blob(before, checksum) is None:
                vectors = self._packing.unpack([before], self.manifest.vector_dim)
                completed = complete_vectors(vectors, [features], self.manifest, adaptation)
                if not np.array_equal(completed, vectors):
                    (blob,) = self._packing.pack(completed)
                    sql.execute("UPDATE descriptors SET descriptor = ? WHERE fid = ?", (blob, photo_id))
                    changed = (descriptor_checksum(blob), photo_id)
                    sql.execute("UPDATE photos SET descriptor_checksum = ? WHERE fid = ?", changed)

    def unstaged_photos(self, made: MapManifest) -> dict[int, int]:
        """The photos whose search vectors for the manifest `made` are not staged, or were of other content.

        Returns:
            By ascending id a number that stands for what a search vector is computed from: the stored one, the local
            features and the constants.
        """
        held = {fid: checksum for checksum, fid in self.query(f"SELECT checksum, fid FROM {FEATURES}")}
        rows = self.query("SELECT fid, descriptor_checksum, features_checksum FROM photos ORDER BY fid")
        staged: dict[int, int] = {}
        if gpkg.has_table(self._connection, STAGED):
            size = self._packing.size(made.vector_dim)
            whole = f"typeof(vector) = 'blob' AND length(vector) = {size}"
            staged = dict(self.query(f"SELECT fid, source FROM {STAGED} WHERE {whole}"))
        known = (made.aggregate, made.aggregate_dim)
        sources = {
            fid: descriptor_checksum(repr((*known, *checksums, held.get(fid))).encode()) for fid, *checksums in rows
        }
        return {fid: source for fid, source in sources.items() if staged.get(fid) != source}

    def stage_vectors(self, sources: Mapping[int, int], vectors: Vectors) -> None:
        """Write new search vectors of photos beside the present ones, in one transaction.

        Args:
            sources: of n photos, from `unstaged_photos`.
            vectors: (n, dim + aggregate_dim of the new manifest).
        """
        rows = [
            (fid, blob, descriptor_checksum(blob), source)
            for (fid, source), blob in zip(sources.items(), self._packing.pack(vectors), strict=True)
        ]
        with self._transaction() as sql:
            if not gpkg.has_table(sql, STAGED):
                gpkg.make_attributes(
                    sql,
                    STAGED,
                    "fid INTEGER PRIMARY KEY, vector BLOB NOT NULL, checksum INTEGER NOT NULL, source INTEGER NOT NULL",
                    "search vectors of an upgrade that has not finished: repeat sareloc map upgrade",
                )
            insert = f"INSERT OR REPLACE INTO {STAGED} (fid, vector, checksum, source) VALUES (?, ?, ?, ?)"
            sql.executemany(insert, rows)

    def replace_vectors(self, made: MapManifest, forget: Callable[[str], bool]) -> list[str] | None:
        """Replace all search vectors by the staged ones, in one transaction.

        Args:
            made: the manifest of the map from then on.
            forget: whether a note of this name was fitted on the former vectors: it is removed.

        Returns:
            The names of the removed notes; None if a photo was added or changed since it was staged, and nothing was
            replaced.
        """
        with self._transaction() as sql:
            if self.unstaged_photos(made):
                return None
            of_same_photo = f"FROM {STAGED} AS new WHERE new.fid ="
            sql.execute(f"UPDATE descriptors SET descriptor = new.vector {of_same_photo} descriptors.fid")
            sql.execute(f"UPDATE photos SET descriptor_checksum = new.checksum {of_same_photo} photos.fid")
            sql.execute(f"DROP TABLE IF EXISTS {STAGED}")
            sql.execute("DELETE FROM gpkg_contents WHERE table_name = ?", (STAGED,))
            schema.write_aggregate(sql, made)
            removed = sorted(name for name in self.notes() if forget(name))
            sql.executemany("DELETE FROM manifest WHERE key = ?", [(NOTE + name,) for name in removed])
        self.manifest = replace(made, format=self.manifest.format)
        return removed

    def write_note(self, name: str, text: str) -> None:
        """See `MapStore`."""
        with self._transaction() as sql:
            schema.write_values(sql, {NOTE + name: text})

    def write_whitening(self, mean: Vectors, projection: Vectors) -> None:
        """See `MapStore`."""
        with self._transaction() as sql:
            if not gpkg.has_table(sql, WHITENING):
                gpkg.make_attributes(
                    sql,
                    WHITENING,
                    "fid INTEGER PRIMARY KEY, numbers BLOB NOT NULL, checksum INTEGER NOT NULL",
                    "whitening of this map's descriptors: mean (fid 1, float32) and rows of the projection (float16)",
                )
            if not sql.execute(f"SELECT 1 FROM {WHITENING} LIMIT 1").fetchall():
                rows = whitening_rows(mean, projection)
                sql.executemany(f"INSERT INTO {WHITENING} (fid, numbers, checksum) VALUES (?, ?, ?)", rows)

    def seal(self) -> None:
        """See `MapStore`: nothing to do."""

    def info(self) -> MapInfo:
        """See `MapStore`."""
        from sareloc.maps.maintain import file_info

        return file_info(self)

    def verify(self) -> list[str]:
        """See `MapStore`."""
        from sareloc.maps.maintain import verify_file

        return verify_file(self)

    def compact(self) -> None:
        """See `MapStore`."""
        with schema.map_errors(self.path):
            self._connection.execute("VACUUM")

    def _check_vectors(self) -> None:
        """Raise MapError if another process has changed the search vectors of the map since it was opened."""
        rows = self._connection.execute("SELECT value FROM manifest WHERE key = 'aggregate'").fetchall()
        if (rows[0][0] if rows else "") != self.manifest.aggregate:
            raise MapError(OTHER_VECTORS.format(self.path))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with schema.map_errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            before = self._connection.total_changes
            try:
                self._check_vectors()
                yield self._connection
                if self._connection.total_changes != before:
                    schema.write_change_id(self._connection)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite has rolled back already if the disk is full
                    self._connection.execute("ROLLBACK")
                raise
        with suppress(sqlite3.Error):  # the log has the transaction
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


def _write_source(sql: sqlite3.Connection, photo_id: int, sha256: bytes, geotag: Geotag) -> None:
    """Write the geotag of a photo by its file; a removed photo of the same content is forgotten."""
    row = (photo_id, sha256, gpkg.point_blob(geotag.latlon), geotag.heading_deg, gpkg.time_text(geotag.time))
    columns = "fid, sha256, geom, heading_deg, time"
    sql.execute(f"INSERT OR REPLACE INTO {GEOTAGS} ({columns}) VALUES ({marks(row)})", row)


def _insert_features(sql: sqlite3.Connection, photo_id: int, blob: bytes) -> int:
    """Write the local features of a photo, and bind them to it; returns 1, or 0 if there is no such photo."""
    written, checksum = 0, descriptor_checksum(blob)
    for (sha256,) in sql.execute("SELECT sha256 FROM photos WHERE fid = ?", (photo_id,)).fetchall():
        insert = f"INSERT OR REPLACE INTO {FEATURES} (fid, features, checksum) VALUES (?, ?, ?)"
        written += sql.execute(insert, (photo_id, blob, checksum)).rowcount
        bound = features_checksum(photo_id, sha256, checksum)
        sql.execute("UPDATE photos SET features_checksum = ? WHERE fid = ?", (bound, photo_id))
    return written


def _drop_replaced(sql: sqlite3.Connection, photo: MapPhoto | Entry) -> list[bytes]:
    if photo.replaces is None:
        return []
    return _drop(sql, "fid = ? AND file = ?", (photo.replaces, photo.file))  # unless its name was changed meanwhile


def _drop_unreadable(sql: sqlite3.Connection, sha256: bytes) -> list[bytes]:
    """Delete the photo of this content if its row cannot be read: it is added again."""
    of_content = f"SELECT {ROW}, photo_checksum, NULL, NULL, NULL FROM photos WHERE sha256 = ?"
    for row in sql.execute(of_content, (sha256,)).fetchall():
        try:
            photo_of(row)
        except BAD_VALUE:
            return _drop(sql, "fid = ?", row[:1])
    return []


def _drop(sql: sqlite3.Connection, condition: str, values: Sequence[Any], remember: bool = False) -> list[bytes]:
    """Delete the photos that meet the condition; returns their points. `remember`: that they were removed."""
    found = sql.execute(f"SELECT fid, geom FROM photos WHERE {condition}", values).fetchall()
    sql.execute(f"DELETE FROM photos WHERE {condition}", values)
    if not remember:
        sql.executemany(f"DELETE FROM {GEOTAGS} WHERE fid = ?", [(fid,) for fid, _ in found])
    return [blob for _, blob in found]


def _note_change(sql: sqlite3.Connection, added: Sequence[bytes], removed: Sequence[bytes]) -> None:
    gone = gpkg.latlon_of_blobs(gpkg.readable_points(removed))
    gpkg.note_change(sql, "photos", gpkg.latlon_of_blobs(added), gone)
