"""PlaceMap: photos with known positions, found again by their descriptors."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from sareloc.arrays import Floats, Ints, Vectors
from sareloc.errors import MapError
from sareloc.geo import Area, Positions, within_radius
from sareloc.index import ApproximateEngine, Engine, EngineInfo, ExactEngine
from sareloc.index.cache import IndexCache
from sareloc.index.exact import find_rows
from sareloc.maps.file import MapFile
from sareloc.maps.records import Manifest
from sareloc.maps.schema import open_map_file
from sareloc.milvus.connection import is_milvus_address, read_milvus_address

if TYPE_CHECKING:
    from sareloc.models.place_model import PlaceModel


# What a search of a map gives, and the seam beneath it: the photos of a map, opened for searching.


@dataclass(frozen=True, eq=False)
class Matches:
    """The photos of a map that look most like each of Q queries, the most alike first.

    K is the k that was asked for, or the number of photos in the map (in the area) where that is smaller.
    """

    ids: Ints
    """(Q, K) ids of photos in the map."""
    distances: Vectors
    """(Q, K) Euclidean distances of descriptors, 0 to 2."""
    latlon: Floats
    """(Q, K, 2) latitude, longitude in degrees, WGS84."""
    files: tuple[tuple[str, ...], ...]
    """Q x K file names."""


class MapPhotos(Protocol):
    """The photos of a map, wherever they are: in memory, or on a server that is asked. Safe from several threads."""

    manifest: Manifest
    notes: dict[str, str]

    def __len__(self) -> int: ...

    def search(self, descriptors: Vectors, k: int, near: Area | None) -> Matches:
        """The k photos most like each query (Q, dim), from the area `near` alone where it is given."""

    def descriptors(self, ids: Ints) -> Vectors:
        """The descriptors (n, dim) of these photos, at half precision or better."""

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
        """The ids (n,) and positions (n, 2) of so many photos drawn at random, or of all where there are no more."""

    def count_around(self, points_m: Floats, radius_m: float) -> Ints:
        """How many photos stand within the radius of each of these points (Q, 3) in earth-centred metres."""

    def settle(self) -> None:
        """Do now what makes searching what was added as fast and good as it can be."""

    def engine_info(self) -> EngineInfo:
        """How this map is searched."""

    def refresh(self) -> None:
        """Take in what has been added and removed since."""


# The photos of a map file, in memory, and their descriptors in the embedded engine.


class FilePhotos:
    """Everything but the descriptors is in memory, and the file is closed again: others may add to it, or move it."""

    ids: Ints
    """(N,) rising."""
    latlon: Floats
    """(N, 2) degrees, WGS84."""
    files: tuple[str, ...]
    notes: dict[str, str]

    def __init__(self, path: Path, *, exact: bool = False) -> None:
        self.path = path
        with open_map_file(path) as file:
            self.manifest = file.manifest
            dim = self.manifest.dim
            self._engine: Engine = ExactEngine(dim) if exact else ApproximateEngine(dim)
            self._held: tuple[Ints, Ints] | None = None  # ids and checksums of the engine's vectors
            self._take_in(file)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def positions(self) -> Positions:
        """Where the photos stand, for distances in metres."""
        return Positions.from_wgs84(self.latlon)

    def search(self, descriptors: Vectors, k: int, near: Area | None) -> Matches:
        """See `MapPhotos`."""
        among = None if near is None else self.ids[near.rows(self.latlon)]
        hits = self._engine.search(descriptors, k, among)
        rows = np.searchsorted(self.ids, hits.ids)
        files = tuple(tuple(self.files[row] for row in line) for line in rows)
        return Matches(hits.ids, hits.distances, self.latlon[rows], files)

    def descriptors(self, ids: Ints) -> Vectors:
        """See `MapPhotos`."""
        return self._engine.fetch(ids)

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
        """See `MapPhotos`."""
        rows = rng.permutation(len(self))[:count]
        return self.ids[rows], self.latlon[rows]

    def count_around(self, points_m: Floats, radius_m: float) -> Ints:
        """See `MapPhotos`."""
        within = within_radius(self.positions.metres, points_m, radius_m)
        return np.array([len(rows) for rows in within], dtype=np.int64)

    def settle(self) -> None:
        """See `MapPhotos`; opening has done it."""

    def engine_info(self) -> EngineInfo:
        """See `MapPhotos`."""
        return self._engine.info()

    def refresh(self) -> None:
        """See `MapPhotos`."""
        with open_map_file(self.path) as file:
            if replace(file.manifest, format=self.manifest.format) != self.manifest:  # it may have been upgraded
                raise MapError(f"{self.path} has become another map since it was opened: open it again")
            self._take_in(file)

    def _take_in(self, file: MapFile) -> None:
        """Make the engine hold the file's descriptors: those whose id and checksum it holds already are not read."""
        with file.snapshot():
            ids, latlon, files = file.photos()
            checksums, change_id, notes = file.checksums(), file.change_id(), file.notes()
            if self._held is None:
                loaded = ids[:0]
                if isinstance(self._engine, ApproximateEngine):
                    loaded = self._engine.load(index_cache(self.manifest), ids, checksums)
                kept = np.isin(ids, loaded, assume_unique=True)
            else:
                kept = _same_rows(ids, checksums, *self._held)
                self._engine.delete(np.setdiff1d(self._held[0], ids[kept], assume_unique=True))
            new = ids[~kept]
            self._held = ids[kept], checksums[kept]
            try:
                with tqdm(total=len(new), desc="index", unit="photo", disable=None, leave=False) as bar:
                    for part, vectors in file.descriptors(new):
                        self._engine.upsert(part, vectors)
                        bar.update(len(part))
            except BaseException:
                self._engine.delete(new)  # what is held is what is searched, until a refresh succeeds
                raise
        self.ids, self.latlon, self.files, self.notes = ids, latlon, files, notes
        self._held = ids, checksums
        if isinstance(self._engine, ApproximateEngine) and self._engine.settle():
            with suppress(OSError, RuntimeError):  # without a cache that can be written the next opening takes longer
                self._engine.save(index_cache(self.manifest), ids, checksums, change_id)


def _same_rows(ids: Ints, checksums: Ints, held: Ints, held_checksums: Ints) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of these rows (n,) are held: the same id with the same checksum."""
    rows, found = find_rows(held, ids)
    found[found] = (held_checksums[rows[found]] == checksums[found]) & (checksums[found] != 0)
    return found


def index_cache(manifest: Manifest) -> IndexCache:
    """Where the index of a map is kept, in the user's cache folder: it may be deleted at any time."""
    return IndexCache(manifest.map_id, manifest.dim, manifest.storage)


class PlaceMap:
    """A map, opened for searching: it shows the photos of that moment, or of the last `refresh`.

    `path`: a file, or an address of Milvus such as milvus://host:19530/city. Of a file, everything but the descriptors
    is in memory, and the file is closed again: others may add to it, move or replace it. Of a map on Milvus nothing is
    in memory, and what others add is found within seconds. Searching is safe from several threads. `exact`: compare
    each query with every photo, also where an index would be faster (files alone).
    """

    path: Path

    def __init__(self, path: str | Path, *, exact: bool = False) -> None:
        self.path = Path(path)
        self._photos: MapPhotos
        if is_milvus_address(path):
            from sareloc.milvus.store import MilvusPhotos

            self._photos = MilvusPhotos(read_milvus_address(path))
        else:
            self._photos = FilePhotos(self.path, exact=exact)

    def __len__(self) -> int:
        return len(self._photos)

    @property
    def manifest(self) -> Manifest:
        """What the map is, and which model its descriptors come from."""
        return self._photos.manifest

    @property
    def notes(self) -> dict[str, str]:
        """Texts that travel with the map, such as a calibration."""
        return self._photos.notes

    @property
    def in_memory(self) -> FilePhotos:
        """The photos as they are in memory; MapError where they are not, as those of a map on Milvus."""
        if not isinstance(self._photos, FilePhotos):
            raise MapError(
                f"the photos of map {self.path.name} are on a server, not in memory, and this needs all of them: copy "
                f'the map to a file with "sareloc map copy"'
            )
        return self._photos

    @property
    def ids(self) -> Ints:
        """(N,) rising. Like `latlon`, `files` and `positions` only where the photos are in memory."""
        return self.in_memory.ids

    @property
    def latlon(self) -> Floats:
        """(N, 2) degrees, WGS84."""
        return self.in_memory.latlon

    @property
    def files(self) -> tuple[str, ...]:
        """N paths: relative to the map's folder where they lie inside it, else absolute; see `photo_path`."""
        return self.in_memory.files

    @property
    def positions(self) -> Positions:
        """Where the photos stand, for distances in metres."""
        return self.in_memory.positions

    def photo_path(self, file: str) -> Path:
        """Where a file of the map lies on this disk."""
        return self.path.parent / file

    def search(self, descriptors: npt.ArrayLike, k: int = 10, near: Area | None = None) -> Matches:
        """The k photos most like each query (Q, dim), from the area `near` alone where it is given."""
        return self._photos.search(np.asarray(descriptors, dtype=np.float32), k, near)

    def descriptors(self, ids: npt.ArrayLike) -> Vectors:
        """The descriptors (n, dim) of these photos, at half precision or better."""
        return self._photos.descriptors(np.asarray(ids, dtype=np.int64))

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
        """The ids (n,) and positions (n, 2) in degrees of so many photos at random, or of all if there are no more."""
        return self._photos.sample(count, rng)

    def count_around(self, points_m: Floats, radius_m: float) -> Ints:
        """How many photos stand within the radius of each of these points (Q, 3) in earth-centred metres."""
        return self._photos.count_around(points_m, radius_m)

    def settle(self) -> None:
        """Do now, and not at the first search, what makes searching what was added as good as it can be."""
        self._photos.settle()

    def engine_info(self) -> EngineInfo:
        """How this map is searched."""
        return self._photos.engine_info()

    def check_model(self, model: PlaceModel) -> None:
        """Raise MapError unless the map's descriptors come from this very model."""
        found, built = model.fingerprint(), self.manifest.fingerprint
        if found != built:
            raise MapError(
                f"map {self.path.name} was built by model {built} ({self.manifest.model}), this is model {found} "
                f'({model.name}): rebuild it with "sareloc map build"'
            )

    def refresh(self) -> None:
        """Take in what has been added to the map and removed from it since."""
        self._photos.refresh()
