"""Map addresses: which backend opens the map at an address, and what an open map can do.

A map is a file, or it is on a server. The core opens both through `map_backend` and knows no server by name: `BACKENDS`
says which object to import for the scheme of an address.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from sareloc.arrays import Floats, Ints, Vectors
from sareloc.errors import MapError
from sareloc.geo import Area
from sareloc.maps.records import Entry, MapManifest, MapPhoto
from sareloc.photos.finding import is_url

if TYPE_CHECKING:
    import torch

    from sareloc.maps.listing import MapListing, MapWatch
    from sareloc.maps.maintain import MapInfo
    from sareloc.maps.place_map import PlaceMap
    from sareloc.models.place_model import PlaceModel

Address = str | Path
"""A file, or the address of a map on a server, such as milvus://host:19530/city."""

FILES = "sareloc.maps.place_map:FILES"
BACKENDS = {"milvus": "sareloc.milvus:BACKEND", "milvus-lite": "sareloc.milvus:BACKEND"}
"""Scheme of an address -> "module:object" of its `MapBackend`, imported when the first such map is opened."""


@dataclass(frozen=True)
class MapBackend:
    """What opens maps of one kind of address."""

    is_file: bool
    """Whether a map is a file: photos are named relative to its folder, and their positions fit into memory."""
    exists: Callable[[Address], bool]
    """Whether there is a map (or another file) at an address. Raises ArgumentError if no map could be created there."""
    photo_name: Callable[[Address, Path], str]
    """The name of a photo in the map at an address, which need not exist yet."""
    open_store: Callable[[Address, bool], MapStore]
    """The map at an address, to write to it if the second argument is true. Raises MapError if there is none."""
    open_or_create_store: Callable[[Address, MapManifest], MapStore]
    """The map at an address, to write to it; an empty one is created if there is none, also by several processes."""
    place_map: type[PlaceMap]
    """The class of maps that are opened for searching."""
    exact_numbers: int
    """Maps whose descriptors have at most so many numbers in all (photos x dim) are searched without an index."""
    build_index: Callable[[Address], None]
    """Build or complete the search index after photos were added, so that the next search need not."""
    has_remote_writers: Callable[[Address], bool]
    """Whether processes on other machines can write to the map."""
    info: Callable[[Address], MapInfo]
    """See `map_info`."""
    verify: Callable[[Address], list[str]]
    """See `verify_map`."""
    compact: Callable[[Address], tuple[int, int]]
    """See `compact_map`."""
    listing: Callable[[Address], MapListing]
    """The photos of the map, for a page that lists them."""
    watch: Callable[[Address], MapWatch]
    """Detects changes of the map."""


def map_backend(address: Address) -> MapBackend:
    """The backend of a map address, by its scheme; of an address without a known scheme, that of files."""
    scheme, colon, _ = str(address).partition(":")
    module, _, name = (BACKENDS.get(scheme, FILES) if colon else FILES).partition(":")
    backend: MapBackend = getattr(import_module(module), name)
    return backend


class MapStore(Protocol):
    """An open map, to read all of it and to write to. What is acknowledged is kept; everything may be done twice."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def manifest(self) -> MapManifest:
        """What it is."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def add(self, photos: Sequence[MapPhoto], descriptors: Vectors) -> int:
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

    def records(self) -> Iterator[tuple[list[MapPhoto], Vectors]]:
        """All that is known of all photos, and their descriptors, some thousand at a time."""

    def notes(self) -> dict[str, str]:
        """The texts that travel with the map, by name, such as a calibration."""

    def write_note(self, name: str, text: str) -> None:
        """Keep a text under this name, in place of an earlier one."""

    def photo_path(self, file: str) -> Path:
        """Where a file of the map lies on this disk."""


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


def open_store(address: Address, *, write: bool = False) -> MapStore:
    """Open a map to read all of it, and to write to it. Raises MapError if there is none."""
    return map_backend(address).open_store(address, write)


def build_index(address: Address) -> None:
    """Build or complete the search index of a map after photos were added, if the map is large enough to have one."""
    backend = map_backend(address)
    with backend.open_store(address, False) as store:
        numbers = store.count() * store.manifest.dim
    if numbers > backend.exact_numbers:
        backend.build_index(address)


def open_or_create_store(address: Address, manifest: MapManifest) -> MapStore:
    """Open a map to write to it; if there is none, create an empty one. Several processes may do so at once."""
    return map_backend(address).open_or_create_store(address, manifest)


def load_map_model(
    manifest: MapManifest, map_name: str, model: str | Path | None = None, device: torch.device | str | None = None
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
