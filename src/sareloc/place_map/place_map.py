"""PlaceMap: photos with known positions, found again by their descriptors."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from sareloc.engines import ApproximateEngine, Engine, EngineInfo, ExactEngine
from sareloc.errors import MapError
from sareloc.geo import Positions
from sareloc.place_map.areas import Area
from sareloc.place_map.map_file import Manifest, MapFile
from sareloc.place_map.opening import open_map_file

if TYPE_CHECKING:
    from sareloc.models.place_model import PlaceModel

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Vectors = npt.NDArray[np.float32]


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


class PlaceMap:
    """A map, opened for searching: it shows the photos of that moment, or of the last `refresh`.

    Everything but the descriptors is in memory, and the file is closed again: others may add to it, move or replace
    it. Searching is safe from several threads. `exact`: compare each query with every photo, also where an index
    would be faster.
    """

    path: Path
    manifest: Manifest
    ids: Ints
    """(N,) rising."""
    latlon: Floats
    """(N, 2) degrees, WGS84."""
    files: tuple[str, ...]
    """N paths: relative to the map's folder where they lie inside it, else absolute; see `photo_path`."""
    notes: dict[str, str]
    """Texts that travel with the map, such as a calibration."""

    def __init__(self, path: str | Path, *, exact: bool = False) -> None:
        self.path = Path(path)
        with open_map_file(self.path) as file:
            self.manifest = file.manifest
            self._engine: Engine
            self._held: Ints = np.zeros(0, dtype=np.int64)
            if exact:
                self._engine = ExactEngine(self.manifest.dim)
            else:
                self._engine = ApproximateEngine(self.manifest.dim)
                self._held = self._engine.load(index_path(self.path), index_key(self.manifest))
            self._take_in(file)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def positions(self) -> Positions:
        """Where the photos stand, for distances in metres."""
        return Positions.from_wgs84(self.latlon)

    def photo_path(self, file: str) -> Path:
        """Where a file of the map lies on this disk."""
        return self.path.parent / file

    def search(self, descriptors: npt.ArrayLike, k: int = 10, near: Area | None = None) -> Matches:
        """The k photos most like each query (Q, dim), from the area `near` alone where it is given."""
        among = None if near is None else self.ids[near.rows(self.latlon)]
        hits = self._engine.search(np.asarray(descriptors, dtype=np.float32), k, among)
        rows = np.searchsorted(self.ids, hits.ids)
        files = tuple(tuple(self.files[row] for row in line) for line in rows)
        return Matches(hits.ids, hits.distances, self.latlon[rows], files)

    def descriptors(self, ids: npt.ArrayLike) -> Vectors:
        """The descriptors (n, dim) of these photos, at half precision or better."""
        return self._engine.fetch(np.asarray(ids, dtype=np.int64))

    def engine_info(self) -> EngineInfo:
        """How this map is searched."""
        return self._engine.info()

    def check_model(self, model: PlaceModel) -> None:
        """Raise MapError unless the map's descriptors come from this very model."""
        found, built = model.fingerprint(), self.manifest.fingerprint
        if found != built:
            raise MapError(
                f"map {self.path.name} was built by model {built} ({self.manifest.model}), this is model {found} "
                f'({model.name}): rebuild it with "sareloc map build"'
            )

    def refresh(self) -> None:
        """Take in what has been added to the file and removed from it since."""
        with open_map_file(self.path) as file:
            if file.manifest != self.manifest:
                raise MapError(f"{self.path} has become another map since it was opened: open it again")
            self._take_in(file)

    def _take_in(self, file: MapFile) -> None:
        with file.snapshot():
            self.ids, self.latlon, self.files = file.photos()
            self.notes = file.notes()
            self._engine.delete(np.setdiff1d(self._held, self.ids, assume_unique=True))
            new = np.setdiff1d(self.ids, self._held, assume_unique=True)
            with tqdm(total=len(new), desc="index", unit="photo", disable=None, leave=False) as bar:
                for ids, vectors in file.descriptors(new):
                    self._engine.upsert(ids, vectors)
                    bar.update(len(ids))
        self._held = self.ids
        if isinstance(self._engine, ApproximateEngine) and self._engine.settle():
            with suppress(OSError, RuntimeError):  # faiss's word for a folder that may not be written to
                self._engine.save(index_path(self.path), index_key(self.manifest))


def index_path(path: Path) -> Path:
    """The folder where the index of a map is kept: a cache that may be deleted."""
    return path.with_name(f"{path.name}.index")


def index_key(manifest: Manifest) -> dict[str, Any]:
    """What an index says it belongs to."""
    return {"map": manifest.map_id, "dim": manifest.dim}
