"""The model that goes with a map: the one that is asked for, or the packaged one that the map was built by."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from sareloc.arrays import Floats, Ints, Vectors
from sareloc.errors import ArgumentError, MapError
from sareloc.geo import Area
from sareloc.maps.examine import name_in_map
from sareloc.maps.records import Entry, Manifest, Photo
from sareloc.maps.schema import create_map_file, open_map_file
from sareloc.milvus.connection import is_milvus_address, read_milvus_address
from sareloc.photos.finding import is_url

if TYPE_CHECKING:
    import torch

    from sareloc.models.place_model import PlaceModel

# The seam beneath building, removing and copying: what keeps a map's photos and descriptors, a file or a server.

SUFFIX = ".gpkg"


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

    def update(self, entries: Sequence[Entry]) -> None:
        """Write the files, stamps and geotags of photos that are in the map, in order; ids that are not are ignored.

        A photo that an entry `replaces` is removed, unless it has got another name meanwhile.
        """

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


def map_exists(where: str | Path) -> bool:
    """Whether there is something under this name; raises ArgumentError if not and no map could be created there."""
    if is_milvus_address(where):
        from sareloc.milvus.store import milvus_map_exists

        return milvus_map_exists(read_milvus_address(where))
    path = Path(where)
    if not path.exists() and path.suffix.lower() != SUFFIX:
        raise ArgumentError(
            f"{where} is no name for a map: a map is a GeoPackage, give a name that ends in {SUFFIX} (such as "
            f"{path.stem or 'city'}{SUFFIX}), or an address of Milvus (milvus://host:19530/city)"
        )
    return path.exists()


def photo_name(where: str | Path, photo: Path) -> str:
    """What the map at `where`, which need not exist yet, calls a file: see `name_in_map`; on Milvus its path."""
    return Path(os.path.abspath(photo)).as_posix() if is_milvus_address(where) else name_in_map(photo, Path(where))


def is_gone(path: str | Path) -> bool:
    """Whether a file does not exist; one that cannot be looked at, as for lack of rights, is not known to be gone."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False
    return False


def gone_photos(store: MapStore) -> Iterator[tuple[int, str]]:
    """The ids and files of the photos of a map whose files no longer exist; URLs are not looked at.

    Reads the names of all photos, and asks the file system about each.
    """
    for ids, _, files in store.pages():
        for photo_id, file in zip(ids.tolist(), files, strict=True):
            if not is_url(file) and is_gone(store.photo_path(file)):
                yield photo_id, file


def open_store(where: str | Path, *, write: bool = False) -> MapStore:
    """Open the map in this file, or at this address of Milvus (see `milvus_address`)."""
    if is_milvus_address(where):
        from sareloc.milvus.store import open_milvus_store

        return open_milvus_store(read_milvus_address(where))
    return open_map_file(Path(where), write=write)


def open_or_create_store(where: str | Path, manifest: Manifest) -> MapStore:
    """Open a map to write to; if there is none, create an empty one. Several processes may do so at once."""
    if is_milvus_address(where):
        from sareloc.milvus.store import open_or_create_milvus_store

        return open_or_create_milvus_store(read_milvus_address(where), manifest)
    if not map_exists(where):
        create_map_file(Path(where), manifest)
    return open_map_file(Path(where), write=True)


def load_map_model(
    manifest: Manifest, map_name: str, model: str | Path | None = None, device: torch.device | str | None = None
) -> PlaceModel:
    """The model of a map. By default it is found by the map's fingerprint, since a name may come to mean another model.

    map_name: what an error calls the map. model: a checkpoint or a packaged model's name. device: by default the GPU
    where there is one.
    """
    from sareloc.models.checkpoint import find_packaged, load_model

    model = model or find_packaged(manifest.fingerprint)
    if model is None:
        raise MapError(
            f"map {map_name} was built by model {manifest.model!r} ({manifest.fingerprint}), which does not come with "
            "this sareloc: give its checkpoint as the model (--model)"
        )
    return load_model(model, device)
