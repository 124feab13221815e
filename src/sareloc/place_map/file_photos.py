"""The photos of a map file, in memory, and their descriptors in the embedded engine."""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from sareloc.engines import ApproximateEngine, Engine, EngineInfo, ExactEngine
from sareloc.engines.exact import find_rows
from sareloc.engines.index_file import IndexCache
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

    def searched_by(self, engine: Engine) -> FilePhotos:
        """The same photos with other descriptors of theirs."""
        other = copy.copy(self)
        other._engine = engine
        return other

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
