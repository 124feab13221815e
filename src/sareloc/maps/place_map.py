"""PlaceMap: photos with known positions, opened for searching by search vector."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from sareloc.arrays import Bools, Floats, Ints, Vectors
from sareloc.errors import MapError
from sareloc.geo import Area, Positions, within_radius
from sareloc.index import ExactIndex, Index, IndexInfo, ShardedIndex
from sareloc.index.exact import find_rows
from sareloc.index.sharded import exact_below
from sareloc.maps.file import MapFile
from sareloc.maps.notes import read_keypoints
from sareloc.maps.records import (
    ListedPhoto,
    ListedPhotos,
    MapManifest,
    Matches,
    PhotoTable,
    check_aggregate,
    read_adaptation,
)
from sareloc.maps.store import Address, MapStore, map_class
from sareloc.wording import plural

if TYPE_CHECKING:
    from sareloc.geometry.adaptation import Adaptation
    from sareloc.geometry.local_features import LocalFeatures
    from sareloc.models.place_model import PlaceModel

log = logging.getLogger("sareloc.maps")

MEAN_OF = 2_048  # photos
_OF_PARENT: list[MapFile | None] = []
"""Connections of the process that this one was forked from: SQLite forbids to use and to close them."""


class PlaceMap:
    """A map, opened for searching: the photos at that time, or at the last `refresh`. Safe from several threads.

    This class is that of map files: everything but the local features is in memory; they are read when they are needed.
    One connection to the file is held, which follows changes (see `SharedFile`) and ends with the object or by `close`.
    `PlaceMap(address)` gives the subclass of the server that the address names, as `pathlib.Path` gives the class of
    the system; it overrides all that reads the file.
    """

    store_class: ClassVar[type[MapStore]] = MapFile
    """The class of the map's rows, for writing."""
    path: Path
    manifest: MapManifest
    """The model that the descriptors come from, dimensions and storage of the search vectors."""
    notes: dict[str, str]
    """Texts that are stored in the map, such as a calibration, by name."""
    _mean: tuple[object, Vectors] | None = None
    _unusable = 0

    def __new__(cls, path: Address, *, exact: bool = False) -> Self:
        """An object of the class of the address."""
        return super().__new__(map_class(path) if cls is PlaceMap else cls)  # type: ignore[return-value]

    def __init__(self, path: Address, *, exact: bool = False) -> None:
        """Open a map.

        Args:
            path: a file, or the address of a server.
            exact: compare each query with every photo, also if an index would be faster (files only).
        """
        self.path = Path(path)
        self._file = SharedFile(self.path)
        weakref.finalize(self, self._file.close)
        self._listed_version = self._features_checked = 0  # versions of the file
        with self._file.use() as file:
            self.manifest = file.manifest
            check_aggregate(self.manifest, str(self.path), file.notes())
            dim = self.manifest.vector_dim
            self._index: Index = ExactIndex(dim) if exact else ShardedIndex(dim)
            self._held: tuple[Ints, Ints] | None = None  # ids and checksums of the index's vectors
            self._load_rows(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection to the map; that to a file is opened again if it is needed."""
        self._file.close()

    def __len__(self) -> int:
        return len(self._searched.ids)

    def __repr__(self) -> str:
        return f"<PlaceMap {self.path}: {len(self):,} photos, model {self.manifest.model}>"

    @property
    def ids(self) -> Ints:
        """(N,) ascending. Like `latlon`, `files` and `positions` only of a map file: they raise MapError on a
        server."""
        return self._photos().ids

    @property
    def latlon(self) -> Floats:
        """(N, 2) degrees, WGS84."""
        return self._photos().latlon

    @property
    def files(self) -> tuple[str, ...]:
        """N names of photos in the map; see `photo_path`."""
        return self._photos().files

    @property
    def positions(self) -> Positions:
        """The positions of all photos, for distances in metres."""
        return Positions.from_wgs84(self.latlon)

    def _photos(self) -> PhotoTable:
        return self._searched

    def search(self, vectors: npt.ArrayLike, k: int = 10, near: Area | None = None) -> Matches:
        """The photos nearest to each query.

        Args:
            vectors: search vectors of the queries (Q, vector_dim), see `Encoded`.
            k: how many photos.
            near: only photos in this area.
        """
        photos = self._searched
        among = None if near is None else photos.ids[near.rows(photos.latlon)]
        hits = self._index.search(np.asarray(vectors, dtype=np.float32), k, among)
        rows = np.searchsorted(photos.ids, hits.ids)
        files = tuple(tuple(photos.files[row] for row in line) for line in rows)
        return Matches(hits.ids, hits.distances, photos.latlon[rows], files)

    def descriptors(self, ids: npt.ArrayLike) -> Vectors:
        """The search vectors (n, vector_dim) of these photos, at half precision or better."""
        return self._index.fetch(np.asarray(ids, dtype=np.int64))

    def features_and_headings(
        self, ids: npt.ArrayLike, best: int | None = None
    ) -> tuple[dict[int, LocalFeatures], Floats]:
        """What verification needs of these photos (n,), as they are in the map now, by one query of the file.

        Args:
            ids: of the photos.
            best: read only the best keypoints of each photo, so many; their bytes are then not compared with the
                checksum of all. Default: all keypoints.

        Returns:
            The local features of those that have them, by id, and the headings (n,) in degrees, clockwise from north;
            NaN if unknown.

        Raises:
            MapError: if local features are damaged, or of another extractor than this sareloc has.
        """
        wanted = np.asarray(ids, dtype=np.int64)
        with self._reading() as file:
            if self._features_checked != self._file.version:
                read_keypoints(file)  # raises MapError if they are of another extractor
                self._features_checked = self._file.version
            rows = file.feature_rows(wanted, best)
        features: dict[int, LocalFeatures] = {}
        for row in rows:
            try:
                if not row.is_empty:
                    features[row.photo_id] = row.unpack()
            except ValueError as wrong:
                raise row.damage(self.path, wrong) from wrong
        known = {row.photo_id: row.heading_deg for row in rows if row.heading_deg is not None}
        headings = [known.get(photo_id, np.nan) for photo_id in wanted.tolist()]
        return features, np.array(headings, dtype=np.float64)

    def local_features(self, ids: npt.ArrayLike) -> dict[int, LocalFeatures]:
        """The local features of those of these photos (n,) that have them; see `features_and_headings`."""
        return self.features_and_headings(ids)[0]

    def headings_deg(self, ids: npt.ArrayLike) -> Floats:
        """The headings (n,) of these photos (n,), NaN if unknown; see `features_and_headings`."""
        return self.features_and_headings(ids)[1]

    def photo_path(self, file: str) -> Path:
        """The path of a photo on this disk, from its name in the map."""
        return self.path.parent / file

    def mean_vector(self) -> Vectors:
        """The mean (vector_dim,) of the search vectors of 2,048 random photos, always the same ones, or of all.

        It is computed once, and again after a refresh that changed the map.
        """
        state = self._state()
        if self._mean is None or self._mean[0] != state:
            ids, _ = self.sample(MEAN_OF, np.random.default_rng(0))
            self._mean = state, self.descriptors(np.sort(ids)).mean(axis=0, dtype=np.float64).astype(np.float32)
        return self._mean[1]

    def _state(self) -> object:
        """Differs from an earlier one if a refresh changed the photos."""
        return self._searched

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
        """The ids (n,) and positions (n, 2) in degrees of `count` random photos, or of all if there are fewer."""
        rows = rng.permutation(len(self))[:count]
        return self.ids[rows], self.latlon[rows]

    def count_around(self, points_m: Floats, radius_m: float) -> Ints:
        """The number of photos within the radius of each of these points (Q, 3) in earth-centred metres."""
        within = within_radius(self.positions.metres, points_m, radius_m)
        return np.array([len(rows) for rows in within], dtype=np.int64)

    def whitening(self) -> tuple[Vectors, Vectors] | None:
        """Mean (D,) and projection (dim, D) of the map's own whitening; None if it has none, as every map on a server.

        Raises MapError if it is damaged.
        """
        with self._reading() as file:
            return file.whitening()

    def adaptation(self) -> Adaptation | None:
        """The linear map that is applied to the search vectors of its photos and queries; None if it has none.

        Raises MapError if it is damaged.
        """
        return read_adaptation(self.notes, self.manifest, str(self.path))

    def index_info(self) -> IndexInfo:
        """The index that searches this map."""
        return self._index.info()

    def check_model(self, model: PlaceModel) -> None:
        """Raise MapError unless the map's descriptors come from this model."""
        found, built = model.fingerprint(), self.manifest.fingerprint
        if found != built:
            raise MapError(
                f"map {self.path.name} was built by model {built} ({self.manifest.model}), this is model {found} "
                f'({model.name}): rebuild it with "sareloc map build"'
            )

    def version(self) -> int:
        """A number that differs from an earlier one if the map may have changed in between, by any process."""
        with self._reading():
            return self._file.version

    def current_count(self) -> int:
        """The number of photos that are in the map now."""
        return len(self._current().ids)

    def current_files(self) -> Sequence[str]:
        """The names of all photos that are in the map now; of a map on a server, of a sample of them."""
        return self._current().files

    def current_file(self, photo_id: int) -> str | None:
        """The name of a photo that is in the map now; None if the map has no photo of this id."""
        return self._current().file_of(photo_id)

    def list_photos(self, area: Area | None, limit: int) -> ListedPhotos:
        """The photos that are in the map now, in an area or anywhere; if they are more than `limit`, a sample.

        The sample is every n-th photo in the order of ids.
        """
        table = self._current()
        inside = np.arange(len(table.ids)) if area is None else area.rows(table.latlon)
        chosen = inside if len(inside) <= limit else inside[np.arange(limit) * len(inside) // limit]
        with self._reading() as file:
            details = file.details(table.ids[chosen])
        photos = [
            ListedPhoto(photo_id, (lat, lon), table.files[row], *details[photo_id])
            for row, photo_id, (lat, lon) in zip(
                chosen.tolist(), table.ids[chosen].tolist(), table.latlon[chosen].tolist(), strict=True
            )
            if photo_id in details  # else it was removed after the table was read
        ]
        return ListedPhotos(photos, inside=len(inside), total=len(table.ids), extent=table.extent)

    def _current(self) -> PhotoTable:
        """The photos that are in the map now: read again if the file has changed."""
        with self._reading() as file:
            if self._listed_version != self._file.version:
                self._listed, self._listed_version = PhotoTable(*file.photos()), self._file.version
            return self._listed

    def refresh(self) -> None:
        """Read what was added to the map and removed from it since. Raises MapError if the file was replaced."""
        with self._reading() as file:
            self._load_rows(file)

    @contextmanager
    def _reading(self) -> Iterator[MapFile]:
        """The file, for this thread alone. Raises MapError if another map has its name now."""
        with self._file.use() as file:
            if replace(file.manifest, format=self.manifest.format) != self.manifest:  # it may have been upgraded
                raise MapError(f"{self.path} was replaced since it was opened: open it again")
            yield file

    def _log_unusable(self, file: MapFile, used: int) -> None:
        """Log a warning that names a photo whose row cannot be read, once for each number of them."""
        unusable = file.unusable() if file.count() != used else ()
        if len(unusable) != self._unusable and unusable:
            log.warning(
                f"map {self.path}: {plural(len(unusable), 'photo', ('is', 'are'))} left out because the row or the "
                f'descriptor cannot be read, such as {unusable[0]}. All: "sareloc map verify"; the positions of the '
                'files again: "sareloc map sync --restore"'
            )
        self._unusable = len(unusable)

    def _load_rows(self, file: MapFile) -> None:
        """Update the index to the file's descriptors; those whose id and checksum it has already are not read."""
        with file.snapshot():
            ids, latlon, files = file.photos()
            checksums, change_id, notes = file.checksums(ids), file.change_id(), file.notes()
            if self._held is None:
                loaded = ids[:0]
                if isinstance(self._index, ShardedIndex) and len(ids) > exact_below(self.manifest.vector_dim):
                    loaded = self._index.load(file.index_cache(), ids, checksums)
                kept = np.isin(ids, loaded, assume_unique=True)
            else:
                kept = _same_rows(ids, checksums, *self._held)
                self._index.delete(np.setdiff1d(self._held[0], ids[kept], assume_unique=True))
            new = ids[~kept]
            self._held = ids[kept], checksums[kept]
            try:
                with tqdm(total=len(new), desc="index", unit="photo", disable=None, leave=False) as bar:
                    for part, vectors in file.descriptors(new):
                        self._index.upsert(part, vectors)
                        bar.update(len(part))
            except BaseException:
                self._index.delete(new)  # search the photos of before until a refresh succeeds
                raise
            self._log_unusable(file, len(ids))
        self._searched, self.notes = PhotoTable(ids, latlon, files), notes
        self._listed, self._listed_version = self._searched, self._file.version
        self._held = ids, checksums
        if isinstance(self._index, ShardedIndex) and self._index.build_index():
            with suppress(OSError, RuntimeError):  # if the cache cannot be written, the next opening takes longer
                self._index.save(file.index_cache(), ids, checksums, change_id)


def _same_rows(ids: Ints, checksums: Ints, held: Ints, held_checksums: Ints) -> Bools:
    """Which of these rows (n,) are in the index: the same id with the same checksum."""
    rows, found = find_rows(held, ids)
    found[found] = (held_checksums[rows[found]] == checksums[found]) & (checksums[found] != 0)
    return found


class SharedFile:
    """One connection to a map file for reading, which threads share: one uses it at a time.

    It is opened when it is needed, and again after each change of the file by anyone: SQLite counts exactly what other
    connections commit (`data_version`), and size, time stamp and inode tell that a file was overwritten or replaced.
    Opening checks the tables, so that they are checked after each change. A forked process opens its own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.version = 0
        """Differs from an earlier value if the file may have changed in between."""
        self._lock = Lock()
        self._pid = os.getpid()
        self._file: MapFile | None = None
        self._seen: tuple[int, ...] = ()

    @contextmanager
    def use(self) -> Iterator[MapFile]:
        """The map as it is now, for this thread alone. Raises MapError if the file cannot be read."""
        self._leave_to_parent()
        with self._lock:
            if self._file is not None and self._state(self._file) != self._seen:
                self._file.abandon()
                self._file = None
            if self._file is None:
                self.version += 1
                self._file = MapFile.open(self.path)
                self._seen = self._state(self._file)
            yield self._file

    def close(self) -> None:
        """Close the connection, until the next use; a single file is left if no other process has it open."""
        self._leave_to_parent()
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _leave_to_parent(self) -> None:
        """In a forked process: forget the connection, and the lock, which a thread of the parent may have held."""
        if self._pid != os.getpid():
            _OF_PARENT.append(self._file)
            self._file, self._lock, self._pid = None, Lock(), os.getpid()

    def _state(self, file: MapFile) -> tuple[int, ...]:
        return (*self._stamp(), *file.query("PRAGMA data_version")[0])

    def _stamp(self) -> tuple[int, ...]:
        try:
            status = os.stat(self.path)
        except (OSError, ValueError) as gone:
            reason = gone.strerror if isinstance(gone, OSError) else gone
            raise MapError(f"map {self.path} cannot be read: {reason}") from gone
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
