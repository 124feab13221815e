"""The reading half of a map file: one GeoPackage with a layer of photos, descriptors, local features and a manifest.

photos          points in WGS84: file, time, heading, size, content hash, checksums; the layer that QGIS shows, with
                the R-tree that GIS programs use
file_geotags    the same fid, content hash and geotag by the file, which tell what other programs have edited or removed
                (see `GEOTAGS` in `sareloc.maps.schema`); since format 6
descriptors     the same fid, and the search vector as bytes (see `PACKINGS`); before format 5 the descriptor
local_features  the same fid, local features as bytes (see `pack_features`), their checksum; since format 3. Since
                format 4 `features_checksum` of photos says which local features are those of a photo
whitening       mean and projection of the map's own whitening, if it has one (see `prepare_whitening`)
manifest        keys and values: the fields of `MapManifest`, the change id, and notes
"""

from __future__ import annotations

import math
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
    PACKINGS,
    ROW,
    SOURCE,
    descriptor_checksum,
    entries_of,
    features_checksum,
    ids_of,
    photo_of,
    places_of,
    whitening_of,
)
from sareloc.maps.schema import FEATURES, GEOTAGS, WHITENING, marks
from sareloc.maps.store import MapStore

if TYPE_CHECKING:
    from sareloc.geometry.local_features import LocalFeatures

T = TypeVar("T")

PART = 4096  # rows read at a time
PLACES = "SELECT fid, geom, file, {} FROM photos ORDER BY fid"
REMOVED = f"SELECT source.sha256 FROM {GEOTAGS} AS source LEFT JOIN photos USING (fid)"
LOST = "SELECT fid FROM photos WHERE fid NOT IN (SELECT fid FROM descriptors)"
NO_DESCRIPTOR = "it has no descriptor: remove it and add it again"
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
        delete = f"sqlite3 {shlex.quote(str(path))} 'DELETE FROM {FEATURES} WHERE fid = {self.photo_id}'"
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
        """The ids (N,) of all photos, ascending, their latitudes and longitudes (N, 2), and their file names.

        Photos whose rows cannot be read, or that have no descriptor, are left out, see `unusable`.
        """
        rows, lost = self.query(PLACES.format(self._photo_checksum)), self._lost()
        if lost:
            rows = [row for row in rows if row[0] not in lost]
        try:
            return places_of(rows)
        except BAD_VALUE:
            return places_of([row for row in rows if _problem(row) is None])

    def unusable(self) -> tuple[str, ...]:
        """The photos that `photos` leaves out, each with the reason."""
        lost = self._lost()
        found = (
            (row, _problem(row) or (NO_DESCRIPTOR if row[0] in lost else None))
            for row in self.query(PLACES.format(self._photo_checksum))
        )
        return tuple(f"photo {row[0]} ({shown(row[2])}): {wrong}" for row, wrong in found if wrong is not None)

    def _lost(self) -> set[int]:
        return {fid for (fid,) in self.query(LOST)}

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
            found |= entries_of(self._entry_rows(f"WHERE photos.sha256 IN ({marks(part)})", part))
        return found

    def entries(self, files: Sequence[str] = ()) -> dict[str, Entry]:
        """See `MapStore`: all entries, as one query of the table is faster than one for each name."""
        return {entry.file: entry for _, entry in entries_of(self._entry_rows())}

    def _entry_rows(self, where: str = "", values: Sequence[Any] = ()) -> list[Any]:
        return self.query(f"SELECT {ENTRY}, photos.sha256, {self._photo_checksum}, {self._source} {where}", values)

    @property
    def _source(self) -> str:
        """The columns of the geotag by the file, and the tables; NULL in a map of an earlier format, which has none."""
        if self.manifest.format < 6:
            return "NULL, NULL, NULL FROM photos"
        return f"{SOURCE} FROM photos LEFT JOIN {GEOTAGS} AS source USING (fid)"

    def removed(self, digests: Sequence[bytes]) -> set[bytes]:
        """See `MapStore`."""
        if self.manifest.format < 6:
            return set()
        return {
            digest
            for part in parts(digests)
            for (digest,) in self.query(
                f"{REMOVED} WHERE photos.fid IS NULL AND source.sha256 IN ({marks(part)})", part
            )
        }

    def all_removed(self) -> set[bytes]:
        """See `MapStore`."""
        rows = [] if self.manifest.format < 6 else self.query(f"{REMOVED} WHERE photos.fid IS NULL")
        return {digest for (digest,) in rows}

    def records(self) -> Iterator[tuple[list[MapPhoto], Vectors]]:
        """See `MapStore`; from one snapshot."""
        with self.snapshot():
            for ids, vectors in self.descriptors(self.photos()[0]):
                photos = self.photos_of(ids)
                yield list(photos.values()), vectors[[row for row, i in enumerate(ids.tolist()) if i in photos]]

    def photos_of(self, ids: Ints) -> dict[int, MapPhoto]:
        """See `MapStore`; by ascending id."""
        found: dict[int, MapPhoto] = {}
        for part in parts(np.unique(ids).tolist()):
            for row in self._photo_rows(f"WHERE fid IN ({marks(part)})", part):
                with suppress(*BAD_VALUE):  # left out, as by `photos`
                    found[row[0]] = photo_of(row)
        return found

    def _photo_rows(self, where: str = "", values: Sequence[Any] = ()) -> list[Any]:
        return self.query(f"SELECT {ROW}, {self._photo_checksum}, {self._source} {where} ORDER BY fid", values)

    def details(self, ids: Ints) -> dict[int, tuple[float | None, str | None]]:
        """The headings in degrees and the times of those of these photos that are in the map; None if invalid."""
        found: dict[int, tuple[float | None, str | None]] = {}
        for part in parts(ids.tolist()):
            rows = self.query(f"SELECT fid, heading_deg, time FROM photos WHERE fid IN ({marks(part)})", part)
            for photo_id, heading_deg, time in rows:
                known = isinstance(heading_deg, int | float) and math.isfinite(heading_deg)
                found[photo_id] = heading_deg if known else None, time if isinstance(time, str) else None
        return found

    def has_images_of(self, file: str) -> bool:
        """Whether the map has the photo of this name, or a view or frame of it."""
        find = "SELECT 1 FROM photos WHERE file = ? OR (file > ? AND file < ?) LIMIT 1"
        return bool(self.query(find, (file, f"{file}#", f"{file}$")))  # "$" follows "#": names of views are between

    def bad_values(self) -> Iterator[tuple[int, str]]:
        """The ids of photos with invalid values, and what is wrong."""
        for row in self._photo_rows():
            try:
                ids_of([row[0]])
                photo_of(row)
            except BAD_VALUE as wrong:
                yield row[0], f"{wrong} (file {shown(row[2])})"

    @property
    def _photo_checksum(self) -> str:
        """The column of photo checksums; 0 in a map of format 1, which has none."""
        return "photo_checksum" if self.manifest.format > 1 else "0"

    def photo_path(self, file: str) -> Path:
        """See `MapStore`."""
        return self.path.parent / file

    def change_id(self) -> str:
        """32 random hex digits, drawn by each transaction that changes the map; "" in a map of format 1."""
        rows = self.query("SELECT value FROM manifest WHERE key = ?", (schema.CHANGE_ID,))
        return str(rows[0][0]) if rows else ""

    def checksums(self, ids: Ints) -> Ints:
        """The checksum (n,) of the descriptor of each of these photos (n,), those of `photos`; 0 if it is unknown.

        A map of format 1 stores none: they are computed, which reads all descriptors.
        """
        found: dict[int, Any] = {}
        if self.manifest.format > 1:
            found = dict(self.query("SELECT fid, descriptor_checksum FROM photos"))
        else:
            for part in parts(ids.tolist()):
                found |= {fid: descriptor_checksum(blob) for fid, blob, _ in self.blobs(part) if blob}
        known = (found.get(fid) for fid in ids.tolist())
        return np.array([value if isinstance(value, int) else 0 for value in known], dtype=np.int64)

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
        held = dict(self.query(f"SELECT fid, checksum FROM {FEATURES}")) if self.manifest.format > 2 else {}
        ids = np.sort(np.array([fid for fid, _, _ in rows if fid >= 0], dtype=np.int64))
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
        source = f"photos LEFT JOIN {FEATURES} USING (fid)"
        if self.manifest.format < 3:
            read, source = "NULL, NULL, NULL", "photos"
        found: list[FeatureRow] = []
        for part in parts(np.unique(ids).tolist()):
            rows = self.query(
                f"SELECT fid, file, heading_deg, {read}, sha256, {self._features_checksum} FROM {source} "
                f"WHERE fid IN ({marks(part)}) ORDER BY fid",
                part,
            )
            for fid, file, heading_deg, *stored in rows:
                known = isinstance(heading_deg, int | float) and 0 <= heading_deg < 360
                found.append(FeatureRow(fid, file, heading_deg if known else None, *stored))
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
        if not gpkg.has_table(self._connection, WHITENING):
            return None
        read = f"CASE WHEN length(numbers) <= {4 * LARGEST_DIM} THEN numbers END"
        dim = self.manifest.dim
        rows = self.query(f"SELECT fid, {read}, checksum FROM {WHITENING} ORDER BY fid LIMIT ?", (dim + 2,))
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


def _problem(row: Sequence[Any]) -> str | None:
    """Why a row of `PLACES` cannot be read; None if it can."""
    try:
        places_of([row])
    except BAD_VALUE as wrong:
        return str(wrong)
    return None


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
