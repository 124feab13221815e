"""The reading half of a map file: one GeoPackage with a layer of photos, descriptors, local features and a manifest.

photos          points in WGS84: file, time, heading, size, content hash, checksums; the layer that QGIS shows
descriptors     the same fid, and the search vector as bytes (see `PACKINGS`); before format 5 the descriptor
local_features  the same fid, local features as bytes (see `pack_features`), their checksum; since format 3. Since
                format 4 `features_checksum` of photos says which local features are those of a photo
whitening       mean and projection of the map's own whitening, if it has one (see `prepare_whitening`)
manifest        keys and values: the fields of `MapManifest`, the change id, and notes
"""

from __future__ import annotations

import shlex
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from sareloc.arrays import Floats, Ints, Vectors
from sareloc.errors import MapError
from sareloc.geo import Area
from sareloc.index.cache import IndexCache
from sareloc.maps import gpkg, schema
from sareloc.maps.records import LARGEST_DIM, LARGEST_FEATURES, Entry, MapManifest, MapPhoto, shown
from sareloc.maps.rows import (
    BAD_VALUE,
    ENTRY,
    MISMATCH,
    PACKINGS,
    ROW,
    descriptor_checksum,
    entries_of,
    features_checksum,
    geotag_of,
    ids_of,
    photo_checksum,
    photo_of,
    whitening_of,
)
from sareloc.maps.store import MapStore

if TYPE_CHECKING:
    from sareloc.geometry.local_features import LocalFeatures

T = TypeVar("T")

PART = 4096  # rows read at a time
NOTE = "note "
HEADER_BYTES, PLACE_BYTES, STEPS_BYTES = 8, 3, 32  # of packed local features and of each keypoint: `pack_features`
LARGEST_NUMBER = 60_000.0  # of a descriptor: indexes store half precision


class FeatureRow(NamedTuple):
    """What verification needs of a photo: its heading and its local features, as stored, or the best of them."""

    photo_id: int
    file: str
    heading_deg: float | None
    blob: Any
    """The packed local features, or their first bytes; None if the photo has none."""
    size: Any
    """Bytes of the whole."""
    checksum: Any
    sha256: Any
    bound: Any
    """The photo's checksum of its local features; None in a map of format 3, which has none."""

    @property
    def is_empty(self) -> bool:
        """Whether the photo has no local features."""
        return self.blob is None and self.checksum is None

    @property
    def is_own(self) -> bool:
        """Whether the local features are those of this photo."""
        return is_bound(self.photo_id, self.sha256, self.checksum, self.bound)

    def check(self) -> bytes:
        """The packed local features, or their first bytes. Raises ValueError if they do not match their checksums.

        First bytes alone have none: that they are of this photo, by this extractor, is checked.
        """
        if not isinstance(self.blob, bytes):
            raise ValueError(f"are not bytes, or more than {LARGEST_FEATURES:,}")
        if len(self.blob) == self.size and descriptor_checksum(self.blob) != self.checksum:
            raise ValueError("do not match their checksum")
        if not self.is_own:
            raise ValueError("are those of another photo")
        return self.blob

    def unpack(self) -> LocalFeatures:
        """The local features. Raises ValueError if they are damaged."""
        from sareloc.geometry.local_features import unpack_features

        try:
            return unpack_features(self.check(), size=self.size)
        except MapError as error:
            raise ValueError(f"cannot be unpacked ({error})") from error

    def damage(self, path: Path, wrong: ValueError) -> MapError:
        """The error of a map with damaged local features, and what to do."""
        delete = f"sqlite3 {shlex.quote(str(path))} 'DELETE FROM {schema.FEATURES} WHERE fid = {self.photo_id}'"
        return MapError(
            f"map {path} is damaged: the local features of photo {self.photo_id} ({shown(self.file)}) {wrong}. "
            f'List all damage with "sareloc map verify", delete them ({delete}) and compute them again with "sareloc '
            'map upgrade"'
        )


class FileReader(MapStore):
    """What `MapFile` reads."""

    is_file = True

    def __init__(self, path: Path, connection: sqlite3.Connection, manifest: MapManifest) -> None:
        self.path = path
        self.name = str(path)
        self.manifest = manifest
        self._connection = connection
        self._packing = PACKINGS[manifest.storage]

    def close(self) -> None:
        """Close the map; a single file is left if no other process has it open."""
        with suppress(sqlite3.Error):  # another process has it open
            self._connection.execute("PRAGMA busy_timeout = 0")
            self._connection.execute("PRAGMA journal_mode = DELETE")
        self._connection.close()

    def abandon(self) -> None:
        """Close the connection to a file that was replaced: what is beside the new file is not touched."""
        self._connection.close()

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
        for part in parts(digests):
            rows = self.query(f"SELECT {ENTRY}, sha256 FROM photos WHERE sha256 IN ({marks(part)})", part)
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
        for part in parts(np.unique(ids).tolist()):
            chosen = f"FROM photos WHERE fid IN ({marks(part)}) ORDER BY fid"
            rows = self.query(f"SELECT {ROW}, {self._photo_checksum} {chosen}", part)
            with self._reading_values():
                found |= {row[0]: photo_of(row) for row in rows}
        return found

    def has_images_of(self, file: str) -> bool:
        """Whether the map has the photo of this name, or a view or frame of it."""
        find = "SELECT 1 FROM photos WHERE file = ? OR (file > ? AND file < ?) LIMIT 1"
        return bool(self.query(find, (file, f"{file}#", f"{file}$")))  # "$" follows "#": names of views are between

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
        rows = self.query("SELECT value FROM manifest WHERE key = ?", (schema.CHANGE_ID,))
        return str(rows[0][0]) if rows else ""

    def checksums(self) -> Ints:
        """The checksum (N,) of each photo's descriptor, in the order of `photos`; 0 if it is unknown.

        A map of format 1 stores none: they are computed, which reads all descriptors.
        """
        if self.manifest.format > 1:
            rows = self.query("SELECT descriptor_checksum FROM photos ORDER BY fid")
            return np.array([value if isinstance(value, int) else 0 for (value,) in rows], dtype=np.int64)
        ids = [fid for (fid,) in self.query("SELECT fid FROM photos ORDER BY fid")]
        found = {fid: descriptor_checksum(blob) for part in parts(ids) for fid, blob, _ in self.blobs(part) if blob}
        return np.array([found.get(fid, 0) for fid in ids], dtype=np.int64)

    def blobs(self, ids: Sequence[int]) -> list[tuple[int, bytes, int | None]]:
        """These photos' ids, ascending, packed descriptors and checksums; None in a map of format 1, which has none."""
        stored = "descriptor_checksum" if self.manifest.format > 1 else "NULL"
        return self.query(
            f"SELECT fid, descriptor, {stored} FROM descriptors JOIN photos USING (fid) WHERE fid IN ({marks(ids)}) "
            "ORDER BY fid",
            ids,
        )

    def bad_blob(self, blob: object, checksum: int | None) -> str | None:
        """What is wrong with a packed descriptor; None if it is valid."""
        size = self._packing.size(self.manifest.vector_dim)
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
        for part in parts(ids.tolist()):
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
            vectors = self._packing.unpack(list(whole.values()), self.manifest.vector_dim)
            small = (np.abs(vectors) <= LARGEST_NUMBER).all(axis=1)
            if not small.all():
                first = part[int(np.argmin(small))]
                raise MapError(
                    f"map {self.path} is damaged: the descriptor of photo {first} ({self._file_of(first)}) holds "
                    "numbers that are not finite or too large. Remove the photo and add it again"
                )
            yield np.array(part, dtype=np.int64), vectors

    def ids_without_features(self) -> Ints:
        """See `MapStore`."""
        rows = self.query(f"SELECT fid, sha256, {self._features_checksum} FROM photos")
        held = dict(self.query(f"SELECT fid, checksum FROM {schema.FEATURES}")) if self.manifest.format > 2 else {}
        with self._reading_values():
            ids = np.sort(ids_of([fid for fid, _, _ in rows]))
        own = [fid for fid, sha256, bound in rows if fid in held and is_bound(fid, sha256, held[fid], bound)]
        return np.setdiff1d(ids, np.array(own, dtype=np.int64), assume_unique=True)

    def features(self, ids: Ints) -> dict[int, bytes]:
        """See `MapStore`."""
        found: dict[int, bytes] = {}
        for row in self.feature_rows(ids):
            if row.is_empty:
                continue
            try:
                found[row.photo_id] = row.check()
            except ValueError as wrong:
                raise row.damage(self.path, wrong) from wrong
        return found

    def feature_rows(self, ids: Ints, best: int | None = None) -> list[FeatureRow]:
        """The headings and local features of these photos, by ascending id; the latter are not checked yet.

        One statement reads both. A photo without local features has a row that `is_empty`.

        Args:
            ids: of the photos.
            best: read the first bytes, of so many best keypoints (see `packed_prefix`); default: all.
        """
        keypoints = f"(length(features) - {HEADER_BYTES}) / {PLACE_BYTES + STEPS_BYTES}"
        prefix = f"{HEADER_BYTES} + {PLACE_BYTES} * ({keypoints}) + {STEPS_BYTES} * min({best}, {keypoints})"
        wanted = "features" if best is None else f"substr(features, 1, {prefix})"
        # an expression over the column, so that only a part of long ones is read
        read = f"CASE WHEN length(features) <= {LARGEST_FEATURES} THEN {wanted} END, length(features), checksum"
        source = f"photos LEFT JOIN {schema.FEATURES} USING (fid)"
        if self.manifest.format < 3:
            read, source = "NULL, NULL, NULL", "photos"
        found: list[FeatureRow] = []
        for part in parts(np.unique(ids).tolist()):
            rows = self.query(
                f"SELECT fid, file, heading_deg, {read}, sha256, {self._features_checksum} FROM {source} "
                f"WHERE fid IN ({marks(part)}) ORDER BY fid",
                part,
            )
            with self._reading_values():
                for fid, file, heading_deg, *stored in rows:
                    found.append(FeatureRow(fid, file, geotag_of((0.0, 0.0), heading_deg, None).heading_deg, *stored))
        return found

    @property
    def _features_checksum(self) -> str:
        """The column that binds local features to photos; NULL in a map of an earlier format, which has none."""
        return "features_checksum" if self.manifest.format > 3 else "NULL"

    def _file_of(self, photo_id: int) -> str:
        rows = self.query("SELECT file FROM photos WHERE fid = ?", (photo_id,))
        return shown(rows[0][0]) if rows else "unknown file"

    def notes(self) -> dict[str, str]:
        """See `MapStore`."""
        rows = self.query("SELECT key, value FROM manifest WHERE key LIKE ?", (f"{NOTE}%",))
        return {key.removeprefix(NOTE): value for key, value in rows if isinstance(key, str) and isinstance(value, str)}

    def whitening(self) -> tuple[Vectors, Vectors] | None:
        """See `MapStore`."""
        if not schema.has_table(self._connection, schema.WHITENING):
            return None
        read = f"CASE WHEN length(numbers) <= {4 * LARGEST_DIM} THEN numbers END"
        dim = self.manifest.dim
        rows = self.query(f"SELECT fid, {read}, checksum FROM {schema.WHITENING} ORDER BY fid LIMIT ?", (dim + 2,))
        try:
            return whitening_of(rows, dim)
        except ValueError as wrong:
            raise MapError(
                f"map {self.path} is damaged: its whitening cannot be used: {wrong}. Restore a backup, or build it "
                "again"
            ) from wrong

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """The rows of a statement that changes nothing."""
        with schema.map_errors(self.path):
            return self._connection.execute(sql, parameters).fetchall()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads inside see the map at one point in time, whatever other processes write."""
        self.query("BEGIN")
        try:
            yield
        finally:
            self.query("ROLLBACK")  # nothing was written; a damaged file may refuse COMMIT

    def index_cache(self) -> IndexCache:
        """The index of this map in the user's cache folder: it may be deleted at any time."""
        return IndexCache(self.manifest.map_id, self.manifest.vector_dim, self.manifest.storage)


def is_bound(photo_id: int, sha256: object, checksum: object, bound: object) -> bool:
    """Whether local features with this checksum are those of the photo; True if `bound` is None, as in format 3."""
    if bound is None:
        return True
    if not (isinstance(sha256, bytes) and isinstance(checksum, int)):
        return False
    return features_checksum(photo_id, sha256, checksum) == bound


def parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """The values, `PART` at a time."""
    for start in range(0, len(values), PART):
        yield values[start : start + PART]


def marks(values: Sequence[Any]) -> str:
    """A parameter of SQL for each value."""
    return ", ".join("?" * len(values))
