"""PlaceMap: photos with known positions, found again by their descriptors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sareloc.engines import EngineInfo
from sareloc.engines.milvus_address import is_milvus_address, read_milvus_address
from sareloc.errors import MapError
from sareloc.geo import Positions
from sareloc.place_map.areas import Area
from sareloc.place_map.file_photos import FilePhotos
from sareloc.place_map.matches import Floats, Ints, MapPhotos, Matches, Vectors
from sareloc.place_map.records import Manifest

if TYPE_CHECKING:
    from sareloc.models.place_model import PlaceModel


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
            from sareloc.place_map.milvus_photos import MilvusPhotos

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
