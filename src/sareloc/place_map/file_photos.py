"""The photos of a map file, in memory, and their descriptors in the embedded engine."""

from __future__ import annotations

import copy
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from sareloc.engines import ApproximateEngine, Engine, EngineInfo, ExactEngine
from sareloc.errors import MapError
from sareloc.geo import Positions, within_radius
from sareloc.place_map.areas import Area
from sareloc.place_map.map_file import MapFile
from sareloc.place_map.matches import Floats, Ints, Matches, Vectors
from sareloc.place_map.opening import open_map_file
from sareloc.place_map.records import Manifest


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
            self._engine: Engine
            self._held: Ints = np.zeros(0, dtype=np.int64)
            if exact:
                self._engine = ExactEngine(self.manifest.dim)
            else:
                self._engine = ApproximateEngine(self.manifest.dim)
                self._held = self._engine.load(index_path(path), index_key(self.manifest))
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

    def searched_by(self, engine: Engine) -> FilePhotos:
        """The same photos with other descriptors of theirs."""
        other = copy.copy(self)
        other._engine = engine
        return other

    def refresh(self) -> None:
        """See `MapPhotos`."""
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
