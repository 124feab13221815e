"""The map on disk: one GeoPackage with a layer of photos, their descriptors and local features, and a manifest.

    photos          points in WGS84: file, time, heading, size, content hash, checksums; the layer that QGIS shows
    descriptors     the same fid, and the descriptor as bytes (see `PACKINGS`)
    local_features  the same fid, local features as bytes (see `pack_features`), their checksum; since format 3. Since
                    format 4 `features_checksum` of photos says which local features are those of a photo
    whitening       mean and projection of the map's own whitening, if it has one (see `sareloc.maps.whitening`)
    manifest        keys and values: the fields of `MapManifest`, the change id, and notes

A photo, its descriptor and its local features are added in one transaction, and triggers delete all of them together.
Each transaction that changes the map also draws a new change id. Writers use a write-ahead log, so that other processes
can read meanwhile; several writers take turns. After each transaction the log is copied into the file, as far as
readers allow without waiting, so that the file alone has all committed photos; the last process that closes the map
leaves a single file.
"""

from __future__ import annotations

import os
import secrets
import shlex
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from sareloc.arrays import Floats, Ints, Vectors
from sareloc.errors import ArgumentError, MapError
from sareloc.geo import Area
from sareloc.maps import gpkg
from sareloc.maps.features import read_keypoints
from sareloc.maps.rows import (
    BAD_VALUE,
    ENTRY,
    INSERTED,
    MISMATCH,
    ROW,
    entries_of,
    geotag_of,
    ids_of,
    photo_of,
    row_of,
    time_of,
    whitening_of,
    whitening_rows,
)
from sareloc.maps.store import (
    LARGEST_DIM,
    LARGEST_FEATURES,
    PACKINGS,
    Entry,
    MapManifest,
    MapPhoto,
    descriptor_checksum,
    features_checksum,
    photo_checksum,
    shown,
)

if TYPE_CHECKING:
    from sareloc.geometry.local_features import LocalFeatures

T = TypeVar("T")

PART = 4096  # rows read at a time
NOTE = "note "
ID_GAP = 2**32
"""A writer's ids begin after a random gap of up to this size: two maps that continue one backup share no new ids."""
LAST_ID = 2**62
SUFFIX = ".gpkg"
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
LARGEST_NUMBER = 60_000.0  # of a descriptor: indexes store half precision


def map_file_exists(path: str | Path) -> bool:
    """Whether there is a file of this name. Raises ArgumentError if there is none and the name is not one of a map."""
    path = Path(path)
    exists = _kind_of(path) is not None
    if not exists and path.suffix.lower() != SUFFIX:
        raise ArgumentError(
            f"{path} is not a name for a map: a map is a GeoPackage, give a name that ends in {SUFFIX} (such as "
            f"{path.stem or 'city'}{SUFFIX}), or the address of a server (milvus://host:19530/city)"
        )
    return exists


def name_in_map(map_path: str | Path, photo: Path) -> str:
    """The name of a photo in a map file: its path relative to the map's folder if it is inside, else its absolute path.

    Map and photos can so be moved together.
    """
    path, folder = Path(os.path.abspath(photo)), Path(os.path.abspath(Path(map_path).parent))
    return (path.relative_to(folder) if path.is_relative_to(folder) else path).as_posix()


def open_map_file(path: str | Path, write: bool = False) -> MapFile:
    """Open a map for reading, or also for writing. Raises MapError if the file is not a map of sareloc."""
    path = Path(path)
    kind = _kind_of(path)
    if kind is None:
        raise MapError(f'map {path} does not exist: build one with "sareloc map build PHOTOS --out {path.name}"')
    if kind != REGULAR:
        raise MapError(f"map {path} is {kind}, expected a file (.gpkg)")
    for beside in (Path(f"{path}{suffix}") for suffix in SQLITE_SUFFIXES):
        if (kind := _kind_of(beside)) not in (None, REGULAR):
            raise MapError(f"map {path} cannot be opened: {beside} is {kind}, expected a file of SQLite: move it away")
    return MapFile(path, *gpkg.connect(path, write))


def _kind_of(path: Path) -> str | None:
    """What is at a path, such as "a folder"; None if nothing is. Raises MapError if that cannot be determined."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # the latter: a NUL character
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise MapError(f"map {shown(str(path))} cannot be opened: {str(reason).lower()}") from error
    return KINDS.get(stat.S_IFMT(mode), "not a regular file")


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

    def add(
        self, photos: Sequence[MapPhoto], descriptors: Vectors, features: Sequence[bytes | None] | None = None
    ) -> int:
        """See `MapStore`; one transaction."""
        added: list[bytes] = []
        removed: list[bytes] = []
        with self._transaction() as sql:
            if not self._left_gap:
                self._leave_gap(sql)
            blobs = zip(self._packing.pack(descriptors), features or [None] * len(photos), strict=True)
            for photo, (blob, packed) in zip(photos, blobs, strict=True):
                removed += _drop_replaced(sql, photo)
                geom = gpkg.point_blob(photo.geotag.latlon)
                row = (geom, *row_of(photo), descriptor_checksum(blob), photo_checksum(geom, photo.file))
                new = sql.execute(f"INSERT OR IGNORE INTO photos ({INSERTED}) VALUES ({_marks(row)})", row)
                if new.rowcount == 1:  # else another process added it meanwhile
                    sql.execute("INSERT INTO descriptors VALUES (?, ?)", (new.lastrowid, blob))
                    if packed is not None:
                        _insert_features(sql, int(new.lastrowid or 0), packed)
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
                    (*named, time_of(tag), tag.heading_deg, *entry.stamp, entry.photo_id),
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
            return ids_of([fid for fid, _, _, _ in rows]), latlon, files

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
            rows = self.query(f"SELECT {ENTRY}, sha256 FROM photos WHERE sha256 IN ({_marks(part)})", part)
            with self._reading_values():
                found |= zip([row[-1] for row in rows], entries_of(rows), strict=True)
        return found

    def entries(self, files: Sequence[str] = ()) -> dict[str, Entry]:
        """See `MapStore`: all entries, as one query of the table is faster than one for each name."""
        rows = self.query(f"SELECT {ENTRY} FROM photos")
        with self._reading_values():
            return {entry.file: entry for entry in entries_of(rows)}

    def records(self) -> Iterator[tuple[list[MapPhoto], Vectors]]:
        """See `MapStore`; from one snapshot."""
        with self.snapshot():
            for ids, vectors in self.descriptors(self.photos()[0]):
                yield list(self.photos_of(ids).values()), vectors

    def photos_of(self, ids: Ints) -> dict[int, MapPhoto]:
        """See `MapStore`; by ascending id."""
        found: dict[int, MapPhoto] = {}
        for part in _parts(np.unique(ids).tolist()):
            chosen = f"FROM photos WHERE fid IN ({_marks(part)}) ORDER BY fid"
            rows = self.query(f"SELECT {ROW}, {self._photo_checksum} {chosen}", part)
            with self._reading_values():
                found |= {row[0]: photo_of(row) for row in rows}
        return found

    def has_images_of(self, file: str) -> bool:
        """Whether the map has the photo of this name, or a view or frame of it."""
        find = "SELECT 1 FROM photos WHERE file = ? OR (file > ? AND file < ?) LIMIT 1"
        return bool(self.query(find, (file, f"{file}#", f"{file}$")))  # "$" follows "#": names of views are between

    def headings_deg(self, ids: Ints) -> dict[int, float]:
        """The headings of those of these photos whose heading is known, by id."""
        found: dict[int, float] = {}
        for part in _parts(np.unique(ids).tolist()):
            chosen = f"FROM photos WHERE fid IN ({_marks(part)}) AND heading_deg IS NOT NULL"
            rows = self.query(f"SELECT fid, heading_deg {chosen}", part)
            with self._reading_values():
                tags = {fid: geotag_of((0.0, 0.0), heading_deg, None) for fid, heading_deg in rows}
                found |= {fid: float(tag.heading_deg) for fid, tag in tags.items() if tag.heading_deg is not None}
        return found

    def bad_values(self) -> Iterator[tuple[int, str]]:
        """The ids of photos with invalid values, and what is wrong."""
        for row in self.query(f"SELECT {ROW}, {self._photo_checksum} FROM photos ORDER BY fid"):
            try:
                ids_of([row[0]])
                photo_of(row)
            except BAD_VALUE as wrong:
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
        except BAD_VALUE as error:
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

    @property
    def holds_local_features(self) -> bool:
        """See `MapStore`."""
        return True

    def ids_without_features(self) -> Ints:
        """See `MapStore`."""
        rows = self.query(f"SELECT fid, sha256, {self._features_checksum} FROM photos")
        held = dict(self.query(f"SELECT fid, checksum FROM {gpkg.FEATURES}")) if self.manifest.format > 2 else {}
        with self._reading_values():
            ids = np.sort(ids_of([fid for fid, _, _ in rows]))
        own = [fid for fid, sha256, bound in rows if fid in held and is_bound(fid, sha256, held[fid], bound)]
        return np.setdiff1d(ids, np.array(own, dtype=np.int64), assume_unique=True)

    def write_features(self, ids: Ints, blobs: Sequence[bytes]) -> int:
        """See `MapStore`; one transaction."""
        written = 0
        with self._transaction() as sql:
            for fid, blob in zip(ids.tolist(), blobs, strict=True):
                written += _insert_features(sql, fid, blob)
        return written

    def features(self, ids: Ints) -> dict[int, bytes]:
        """See `MapStore`."""
        found: dict[int, bytes] = {}
        for fid, blob, wrong in self.feature_blobs(ids):
            if wrong is not None:
                raise self._damaged_features(fid, wrong)
            found[fid] = blob
        return found

    def local_features(self, ids: Ints) -> dict[int, LocalFeatures]:
        """The local features of those of these photos that have them, by id.

        Raises MapError if they are damaged, or of another extractor than this sareloc has.
        """
        read_keypoints(self)
        blobs = self.features(ids)
        if not blobs:
            return {}
        from sareloc.geometry.local_features import unpack_features

        found: dict[int, LocalFeatures] = {}
        for fid, blob in blobs.items():
            try:
                found[fid] = unpack_features(blob)
            except MapError as error:
                raise self._damaged_features(fid, f"cannot be unpacked ({error})") from error
        return found

    def feature_blobs(self, ids: Ints) -> Iterator[tuple[int, bytes, str | None]]:
        """The ids and packed local features of those of these photos that have them, and what is wrong with them."""
        read = f"CASE WHEN length(features) <= {LARGEST_FEATURES} THEN features END"
        for part in _parts(np.unique(ids).tolist() if self.manifest.format > 2 else []):
            chosen = f"FROM {gpkg.FEATURES} JOIN photos USING (fid) WHERE fid IN ({_marks(part)}) ORDER BY fid"
            rows = self.query(f"SELECT fid, {read}, checksum, sha256, {self._features_checksum} {chosen}", part)
            for fid, blob, checksum, sha256, bound in rows:
                wrong = None
                if not isinstance(blob, bytes):
                    wrong = f"are not bytes, or more than {LARGEST_FEATURES:,}"
                elif descriptor_checksum(blob) != checksum:
                    wrong = "do not match their checksum"
                elif not is_bound(fid, sha256, checksum, bound):
                    wrong = "are those of another photo"
                yield fid, blob, wrong

    @property
    def _features_checksum(self) -> str:
        """The column that binds local features to photos; NULL in a map of an earlier format, which has none."""
        return "features_checksum" if self.manifest.format > 3 else "NULL"

    def _damaged_features(self, photo_id: int, wrong: str) -> MapError:
        delete = f"sqlite3 {shlex.quote(str(self.path))} 'DELETE FROM {gpkg.FEATURES} WHERE fid = {photo_id}'"
        return MapError(
            f"map {self.path} is damaged: the local features of photo {photo_id} ({self._file_of(photo_id)}) {wrong}. "
            f'List all damage with "sareloc map verify", delete them ({delete}) and compute them again with "sareloc '
            'map upgrade"'
        )

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

    def whitening(self) -> tuple[Vectors, Vectors] | None:
        """See `MapStore`."""
        if not self.query("SELECT 1 FROM sqlite_master WHERE name = ?", (gpkg.WHITENING,)):
            return None
        read = f"CASE WHEN length(numbers) <= {4 * LARGEST_DIM} THEN numbers END"
        dim = self.manifest.dim
        rows = self.query(f"SELECT fid, {read}, checksum FROM {gpkg.WHITENING} ORDER BY fid LIMIT ?", (dim + 2,))
        try:
            return whitening_of(rows, dim)
        except ValueError as wrong:
            raise MapError(
                f"map {self.path} is damaged: its whitening cannot be used: {wrong}. Restore a backup, or build it "
                "again"
            ) from wrong

    def write_whitening(self, mean: Vectors, projection: Vectors) -> None:
        """See `MapStore`."""
        with self._transaction() as sql:
            gpkg.make_whitening_table(sql)
            if not sql.execute(f"SELECT 1 FROM {gpkg.WHITENING} LIMIT 1").fetchall():
                rows = whitening_rows(mean, projection)
                sql.executemany(f"INSERT INTO {gpkg.WHITENING} (fid, numbers, checksum) VALUES (?, ?, ?)", rows)

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


def is_bound(photo_id: int, sha256: object, checksum: object, bound: object) -> bool:
    """Whether local features with this checksum are those of the photo; True if `bound` is None, as in format 3."""
    if bound is None:
        return True
    if not (isinstance(sha256, bytes) and isinstance(checksum, int)):
        return False
    return features_checksum(photo_id, sha256, checksum) == bound


def _insert_features(sql: sqlite3.Connection, photo_id: int, blob: bytes) -> int:
    """Write the local features of a photo, and bind them to it; returns 1, or 0 if there is no such photo."""
    written, checksum = 0, descriptor_checksum(blob)
    for (sha256,) in sql.execute("SELECT sha256 FROM photos WHERE fid = ?", (photo_id,)).fetchall():
        insert = f"INSERT OR REPLACE INTO {gpkg.FEATURES} (fid, features, checksum) VALUES (?, ?, ?)"
        written += sql.execute(insert, (photo_id, blob, checksum)).rowcount
        bound = features_checksum(photo_id, sha256, checksum)
        sql.execute("UPDATE photos SET features_checksum = ? WHERE fid = ?", (bound, photo_id))
    return written


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


def _parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), PART):
        yield values[start : start + PART]


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))
