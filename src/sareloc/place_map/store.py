"""The seam beneath building, removing and copying: what keeps a map's photos and descriptors, a file or a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from sareloc.engines.milvus_address import is_milvus_address, read_milvus_address
from sareloc.place_map.areas import Area
from sareloc.place_map.opening import create_map_file, open_map_file
from sareloc.place_map.records import Entry, Manifest, Photo
from sareloc.place_map.storage import Vectors

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class MapStore(Protocol):
    """An open map, to read all of it and to write to. What is acknowledged is kept; everything may be done twice."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def manifest(self) -> Manifest:
        """What it is."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def add(self, photos: Sequence[Photo], descriptors: Vectors) -> int:
        """Put photos and their descriptors (n, dim) in; returns how many were not there yet."""

    def rename(self, photo_id: int, photo: Photo) -> None:
        """A photo that is in the map under `photo_id` has moved to another file, or its file has a new time stamp."""

    def remove(self, ids: Ints) -> int:
        """Forget these photos and their descriptors; returns how many there were."""

    def count(self) -> int:
        """How many photos there are."""

    def known(self, digests: Sequence[bytes]) -> dict[bytes, Entry]:
        """The photos of these contents (SHA-256) that are in the map."""

    def entries(self, files: Sequence[str]) -> dict[str, Entry]:
        """The photos of these files that are in the map; there may be others among them."""

    def pages(self, area: Area | None = None) -> Iterator[tuple[Ints, Floats, Sequence[str]]]:
        """The ids, positions (n, 2) and files of all photos, or of those in an area, as many at a time as is good."""

    def records(self) -> Iterator[tuple[list[Photo], Vectors]]:
        """All that is known of all photos, and their descriptors, some thousand at a time."""

    def notes(self) -> dict[str, str]:
        """The texts that travel with the map, by name, such as a calibration."""

    def write_note(self, name: str, text: str) -> None:
        """Keep a text under this name, in place of an earlier one."""

    def file_name(self, photo: Path) -> str:
        """What the map calls this file."""

    def photo_path(self, file: str) -> Path:
        """Where a file of the map lies on this disk."""


def open_store(where: str | Path, *, write: bool = False) -> MapStore:
    """Open the map in this file, or at this address of Milvus (see `milvus_address`)."""
    if is_milvus_address(where):
        from sareloc.place_map.milvus_store import open_milvus_store

        return open_milvus_store(read_milvus_address(where))
    return open_map_file(Path(where), write=write)


def open_or_create_store(where: str | Path, manifest: Manifest) -> MapStore:
    """Open a map to write to; where there is none, make an empty one of this manifest."""
    if is_milvus_address(where):
        from sareloc.place_map.milvus_store import open_or_create_milvus_store

        return open_or_create_milvus_store(read_milvus_address(where), manifest)
    if not Path(where).exists():
        create_map_file(Path(where), manifest)
    return open_map_file(Path(where), write=True)
