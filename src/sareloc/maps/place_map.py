"""PlaceMap: photos with known positions, opened for searching by descriptor. `FileMap` is the one of a map file."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from sareloc.arrays import Floats, Ints, Vectors
from sareloc.errors import MapError
from sareloc.geo import Area, Positions, within_radius
from sareloc.index import ExactIndex, Index, IndexInfo, ShardedIndex
from sareloc.index.exact import find_rows
from sareloc.index.sharded import EXACT_NUMBERS, exact_below
from sareloc.maps.file import MapFile, map_file_exists, name_in_map, open_map_file, open_or_create_map_file
from sareloc.maps.listing import FileListing, FileWatch
from sareloc.maps.maintain import compact_file, file_info, index_cache, verify_file
from sareloc.maps.store import MapBackend, MapManifest, map_backend

if TYPE_CHECKING:
    from sareloc.geometry.local_features import LocalFeatures
    from sareloc.models.place_model import PlaceModel


@dataclass(frozen=True, eq=False)
class Matches:
    """The photos of a map whose descriptors are nearest to those of Q queries, the nearest first.

    K is the requested k, or the number of photos in the map (in the area) if that is smaller.
    """

    ids: Ints
    """(Q, K) ids of photos in the map."""
    distances: Vectors
    """(Q, K) Euclidean distances of descriptors, 0 to 2."""
    latlon: Floats
    """(Q, K, 2) latitude, longitude in degrees, WGS84."""
    files: tuple[tuple[str, ...], ...]
    """Q x K file names."""


class PlaceMap:
    """A map, opened for searching: the photos at that time, or at the last `refresh`. Safe from several threads.

    `PlaceMap(address)` gives a `FileMap`, or the class of the server that the address names, as `pathlib.Path` gives
    the class of the system. `exact`: compare each query with every photo, also if an index would be faster (files
    only).
    """

    path: Path
    manifest: MapManifest
    """The model that the descriptors come from, their dimension and storage."""
    notes: dict[str, str]
    """Texts that are stored in the map, such as a calibration, by name."""
    ids: Ints
    """(N,) ascending. Like `latlon`, `files` and `positions` only of a map file: they raise MapError on a server."""
    latlon: Floats
    """(N, 2) degrees, WGS84."""
    files: tuple[str, ...]
    """N names of photos in the map; see `photo_path`."""

    def __new__(cls, *given: Any, **options: Any) -> Self:
        """An object of the class of the address, which is the first argument."""
        return super().__new__(map_backend(given[0]).place_map if cls is PlaceMap else cls)  # type: ignore[return-value]

    def __init__(self, path: str | Path, *, exact: bool = False) -> None:
        self.path = Path(path)

    def __len__(self) -> int:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<PlaceMap {self.path}: {len(self):,} photos, model {self.manifest.model}>"

    def search(self, descriptors: npt.ArrayLike, k: int = 10, near: Area | None = None) -> Matches:
        """The k photos nearest to each query (Q, dim); `near`: only photos in this area."""
        raise NotImplementedError

    def descriptors(self, ids: npt.ArrayLike) -> Vectors:
        """The descriptors (n, dim) of these photos, at half precision or better."""
        raise NotImplementedError

    def local_features(self, ids: npt.ArrayLike) -> dict[int, LocalFeatures]:
        """The stored local features of those of these photos (n,) that have them, by id; a server stores none.

        Raises MapError if they are damaged, or of another extractor than this sareloc has.
        """
        raise NotImplementedError

    def headings_deg(self, ids: npt.ArrayLike) -> Floats:
        """The headings (n,) in degrees, clockwise from north, of these photos (n,); NaN if unknown."""
        raise NotImplementedError

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
        """The ids (n,) and positions (n, 2) in degrees of `count` random photos, or of all if there are fewer."""
        raise NotImplementedError

    def count_around(self, points_m: Floats, radius_m: float) -> Ints:
        """The number of photos within the radius of each of these points (Q, 3) in earth-centred metres."""
        raise NotImplementedError

    def whitening(self) -> tuple[Vectors, Vectors] | None:
        """Mean (D,) and projection (dim, D) of the map's own whitening; None if it has none, as every map on a server.

        Raises MapError if it is damaged.
        """
        return None

    def index_info(self) -> IndexInfo:
        """The index that searches this map."""
        raise NotImplementedError

    def refresh(self) -> None:
        """Read what was added to the map and removed from it since. Raises MapError if the file was replaced."""
        raise NotImplementedError

    @property
    def positions(self) -> Positions:
        """The positions of all photos, for distances in metres."""
        return Positions.from_wgs84(self.latlon)

    def photo_path(self, file: str) -> Path:
        """The path of a photo on this disk, from its name in the map."""
        return self.path.parent / file

    def check_model(self, model: PlaceModel) -> None:
        """Raise MapError unless the map's descriptors come from this model."""
        found, built = model.fingerprint(), self.manifest.fingerprint
        if found != built:
            raise MapError(
                f"map {self.path.name} was built by model {built} ({self.manifest.model}), this is model {found} "
                f'({model.name}): rebuild it with "sareloc map build"'
            )


class FileMap(PlaceMap):
    """A map file: everything but the descriptors is in memory, and the file is closed: it may be changed or moved."""

    def __init__(self, path: str | Path, *, exact: bool = False) -> None:
        super().__init__(path)
        with open_map_file(self.path) as file:
            self.manifest = file.manifest
            dim = self.manifest.dim
            self._index: Index = ExactIndex(dim) if exact else ShardedIndex(dim)
            self._held: tuple[Ints, Ints] | None = None  # ids and checksums of the index's vectors
            self._load_rows(file)

    def __len__(self) -> int:
        return len(self.ids)

    def search(self, descriptors: npt.ArrayLike, k: int = 10, near: Area | None = None) -> Matches:
        """See `PlaceMap`."""
        among = None if near is None else self.ids[near.rows(self.latlon)]
        hits = self._index.search(np.asarray(descriptors, dtype=np.float32), k, among)
        rows = np.searchsorted(self.ids, hits.ids)
        files = tuple(tuple(self.files[row] for row in line) for line in rows)
        return Matches(hits.ids, hits.distances, self.latlon[rows], files)

    def descriptors(self, ids: npt.ArrayLike) -> Vectors:
        """See `PlaceMap`."""
        return self._index.fetch(np.asarray(ids, dtype=np.int64))

    def local_features(self, ids: npt.ArrayLike) -> dict[int, LocalFeatures]:
        """See `PlaceMap`: as they are in the file now."""
        with open_map_file(self.path) as file:
            return file.local_features(np.asarray(ids, dtype=np.int64))

    def headings_deg(self, ids: npt.ArrayLike) -> Floats:
        """See `PlaceMap`: as they are in the file now."""
        wanted = np.asarray(ids, dtype=np.int64)
        with open_map_file(self.path) as file:
            known = file.headings_deg(wanted)
        return np.array([known.get(photo_id, np.nan) for photo_id in wanted.tolist()], dtype=np.float64)

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
        """See `PlaceMap`."""
        rows = rng.permutation(len(self))[:count]
        return self.ids[rows], self.latlon[rows]

    def count_around(self, points_m: Floats, radius_m: float) -> Ints:
        """See `PlaceMap`."""
        within = within_radius(self.positions.metres, points_m, radius_m)
        return np.array([len(rows) for rows in within], dtype=np.int64)

    def whitening(self) -> tuple[Vectors, Vectors] | None:
        """See `PlaceMap`: as it is in the file now."""
        with open_map_file(self.path) as file:
            return file.whitening()

    def index_info(self) -> IndexInfo:
        """See `PlaceMap`."""
        return self._index.info()

    def refresh(self) -> None:
        """See `PlaceMap`."""
        with open_map_file(self.path) as file:
            if replace(file.manifest, format=self.manifest.format) != self.manifest:  # it may have been upgraded
                raise MapError(f"{self.path} was replaced since it was opened: open it again")
            self._load_rows(file)

    def _load_rows(self, file: MapFile) -> None:
        """Update the index to the file's descriptors; those whose id and checksum it has already are not read."""
        with file.snapshot():
            ids, latlon, files = file.photos()
            checksums, change_id, notes = file.checksums(), file.change_id(), file.notes()
            if self._held is None:
                loaded = ids[:0]
                if isinstance(self._index, ShardedIndex) and len(ids) > exact_below(self.manifest.dim):
                    loaded = self._index.load(index_cache(self.manifest), ids, checksums)
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
        self.ids, self.latlon, self.files, self.notes = ids, latlon, files, notes
        self._held = ids, checksums
        if isinstance(self._index, ShardedIndex) and self._index.build_index():
            with suppress(OSError, RuntimeError):  # if the cache cannot be written, the next opening takes longer
                self._index.save(index_cache(self.manifest), ids, checksums, change_id)


def _same_rows(ids: Ints, checksums: Ints, held: Ints, held_checksums: Ints) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of these rows (n,) are in the index: the same id with the same checksum."""
    rows, found = find_rows(held, ids)
    found[found] = (held_checksums[rows[found]] == checksums[found]) & (checksums[found] != 0)
    return found


def build_file_index(path: str | Path) -> None:
    """Build the index of a map file and store it in the cache, as opening does."""
    FileMap(path)


FILES = MapBackend(
    is_file=True,
    exists=map_file_exists,
    photo_name=name_in_map,
    open_store=open_map_file,
    open_or_create_store=open_or_create_map_file,
    place_map=FileMap,
    exact_numbers=EXACT_NUMBERS,
    build_index=build_file_index,
    has_remote_writers=lambda _: False,
    info=file_info,
    verify=verify_file,
    compact=compact_file,
    listing=FileListing,
    watch=FileWatch,
)
