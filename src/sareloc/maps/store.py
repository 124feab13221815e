"""MapStore, the rows of an open map for reading and writing; and the registry, which finds the classes of an address.

A map is a file, or it is on a server. The core opens both by their address and names no server: `MAPS` has the class
to import for a scheme.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

from sareloc.arrays import Floats, Ints, Vectors
from sareloc.errors import ArgumentError, MapError
from sareloc.geo import Area
from sareloc.maps.records import Entry, MapInfo, MapManifest, MapPhoto
from sareloc.photos import file_of, is_url

if TYPE_CHECKING:
    import torch

    from sareloc.maps.place_map import PlaceMap
    from sareloc.models.place_model import PlaceModel
    from sareloc.models.preprocess import Precision

T = TypeVar("T")
Address = str | Path
"""A file, or the address of a map on a server, such as milvus://host:19530/city."""

FILES = "sareloc.maps.place_map:PlaceMap"
MAPS = {"milvus": "sareloc.milvus:MilvusMap", "milvus-lite": "sareloc.milvus:MilvusMap"}
"""Scheme of an address -> "module:class" of its `PlaceMap`, imported when the first such map is opened."""
NO_WHITENING = "a server stores none. Build a map file (.gpkg), or fit the whitening into the model"


class MapStore(ABC):
    """The rows of an open map, for reading and writing. Use it in a `with`, or `close` it.

    A write that returned is permanent, and every write may be repeated. The methods that are not abstract are those of
    a store that holds no whitening.
    """

    is_file: ClassVar[bool] = False
    """Whether a map is a file: photos are named relative to its folder, and their positions fit into memory."""
    holds_local_features: bool = True
    """Whether local features can be stored, as in all but collections of earlier versions on a server. If not, no photo
    has any, and writing them has no effect."""
    most_keypoints: ClassVar[int | None] = None
    """Of a photo's local features; None: any number."""
    name: str
    """The map's address, for messages."""
    manifest: MapManifest

    @classmethod
    @abstractmethod
    def exists(cls, address: Address) -> bool:
        """Whether there is a map (or another file) at an address.

        Raises ArgumentError if no map could be created there.
        """

    @classmethod
    @abstractmethod
    def photo_name(cls, address: Address, photo: Path) -> str:
        """The name of a photo in the map at an address, which need not exist yet."""

    @classmethod
    @abstractmethod
    def open(cls, address: Address, write: bool = False) -> Self:
        """The map at an address, to write to it if `write`. Raises MapError if there is none."""

    @classmethod
    @abstractmethod
    def open_or_create(cls, address: Address, manifest: MapManifest) -> Self:
        """The map at an address, to write to it; an empty one is created if there is none, also by several processes
        at once."""

    @classmethod
    def has_remote_writers(cls, address: Address) -> bool:
        """Whether processes on other machines can write to the map."""
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close the map."""

    @abstractmethod
    def add(self, photos: Sequence[MapPhoto], vectors: Vectors, features: Sequence[bytes | None] | None = None) -> int:
        """Add photos, all of them or none of them; returns how many were not in the map yet.

        Args:
            photos: the photos (n).
            vectors: their search vectors (n, vector_dim).
            features: packed local features (n); None: a photo has none.
        """

    @abstractmethod
    def update(self, entries: Sequence[Entry]) -> None:
        """Write the file names, stamps and geotags of photos in the map, in order; unknown ids are ignored.

        A photo that an entry `replaces` is removed, unless its name was changed meanwhile.
        """

    @abstractmethod
    def remove(self, ids: Ints, *, remember: bool = False) -> int:
        """Remove these photos and their search vectors; returns how many were in the map.

        Args:
            ids: of the photos; unknown ones are ignored.
            remember: so that `removed` names their contents, until photos of these contents are added.
        """

    @abstractmethod
    def removed(self, digests: Sequence[bytes]) -> set[bytes]:
        """Those of these contents (SHA-256) that a user has removed from the map."""

    def all_removed(self) -> set[bytes]:
        """All contents that a user has removed from the map, as far as they are known: a server stores only ids."""
        return set()

    @abstractmethod
    def remember_removed(self, digests: Collection[bytes]) -> None:
        """Remember that photos of these contents, which are not in the map, were removed from it."""

    @abstractmethod
    def count(self) -> int:
        """The number of photos."""

    @abstractmethod
    def known(self, digests: Sequence[bytes]) -> dict[bytes, Entry]:
        """The entries of the photos in the map with these contents (SHA-256)."""

    @abstractmethod
    def entries(self, files: Sequence[str]) -> dict[str, Entry]:
        """The entries of the photos in the map with these file names; others may be among them."""

    @abstractmethod
    def pages(self, area: Area | None = None) -> Iterator[tuple[Ints, Floats, Sequence[str]]]:
        """The ids (n,), positions (n, 2) and file names of all photos, or of those in an area, page by page."""

    @abstractmethod
    def records(self) -> Iterator[tuple[list[MapPhoto], Vectors]]:
        """All photos and their search vectors (n, vector_dim), some thousand at a time."""

    @abstractmethod
    def photos_of(self, ids: Ints) -> dict[int, MapPhoto]:
        """The photos with these ids, by id; unknown ids are left out."""

    @abstractmethod
    def ids_without_features(self) -> Ints:
        """The ids (n,), ascending, of the photos whose local features are not stored, or are those of another photo."""

    @abstractmethod
    def write_features(self, ids: Ints, blobs: Sequence[bytes]) -> int:
        """Store the packed local features of these photos; returns how many. Unknown ids are ignored.

        If the map's search vectors have aggregated local features, those of photos that had none are completed.
        """

    @abstractmethod
    def features(self, ids: Ints) -> dict[int, bytes]:
        """The packed local features of those of these photos that have them, by id.

        Raises MapError if they do not match their checksum, or are those of another photo.
        """

    @abstractmethod
    def notes(self) -> dict[str, str]:
        """Texts that are stored in the map, such as a calibration, by name."""

    @abstractmethod
    def write_note(self, name: str, text: str) -> None:
        """Store a text under this name; an earlier one is replaced."""

    def whitening(self) -> tuple[Vectors, Vectors] | None:
        """Mean (D,) and projection (dim, D) of the map's own whitening; None if it has none.

        Raises MapError if it is damaged.
        """
        return None

    def write_whitening(self, mean: Vectors, projection: Vectors) -> None:
        """Store the map's own whitening, unless it has one. Raises MapError if the map cannot hold one."""
        raise MapError(f"map {self.name} cannot hold a whitening: {NO_WHITENING}")

    @abstractmethod
    def photo_path(self, file: str) -> Path:
        """The path of a photo on this disk, from its name in the map."""

    @abstractmethod
    def info(self) -> MapInfo:
        """See `map_info`."""

    @abstractmethod
    def verify(self) -> list[str]:
        """See `verify_map`."""

    def compact(self) -> None:
        """Free the disk space of removed photos. Raises ArgumentError if the map is on a server."""
        raise ArgumentError(f"map {self.name} is on a server, which reclaims the space of removed photos automatically")

    @abstractmethod
    def seal(self) -> None:
        """Ask a server to index what was added last. A map file is indexed when it is opened for searching."""


def map_class(address: Address) -> type[PlaceMap]:
    """The class that opens the map at an address for searching, by the scheme; without a known one, that of files."""
    scheme, colon, _ = str(address).partition(":")
    module, _, name = (MAPS.get(scheme, FILES) if colon else FILES).partition(":")
    found: type[PlaceMap] = getattr(import_module(module), name)
    return found


def is_map_address(address: Address) -> bool:
    """Whether this is the name of a map file (.gpkg) or the address of a server, not that of a photo or folder."""
    scheme, colon, _ = str(address).partition(":")
    return bool(colon and scheme in MAPS) or Path(address).suffix.lower() == ".gpkg"


def store_class(address: Address) -> type[MapStore]:
    """The class of the rows of the map at an address."""
    return map_class(address).store_class


def open_store(address: Address, *, write: bool = False) -> MapStore:
    """Open a map to read all of it, and to write to it. Raises MapError if there is none."""
    return store_class(address).open(address, write)


def open_or_create_store(address: Address, manifest: MapManifest) -> MapStore:
    """Open a map to write to it; if there is none, create an empty one. Several processes may do so at once."""
    return store_class(address).open_or_create(address, manifest)


def is_gone(path: str | Path) -> bool:
    """Whether the file at an address does not exist; False if that cannot be determined, such as without permission."""
    try:
        os.stat(file_of(path))
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False
    return False


def gone_photos(store: MapStore) -> Iterator[tuple[int, str]]:
    """The ids and names of the photos of a map whose files no longer exist; URLs are not checked.

    Reads the names of all photos and looks each up in the file system.
    """
    for ids, _, files in store.pages():
        for photo_id, file in zip(ids.tolist(), files, strict=True):
            if not is_url(file) and is_gone(store.photo_path(file)):
                yield photo_id, file


def load_map_model(
    manifest: MapManifest,
    map_name: str,
    model: str | Path | None = None,
    device: torch.device | str | None = None,
    precision: Precision = "auto",
) -> PlaceModel:
    """The model that a map was built with.

    Args:
        manifest: of the map.
        map_name: for errors.
        model: a checkpoint or the name of a packaged model; default: the packaged model with the map's fingerprint.
        device: default: the GPU if there is one.
        precision: as for `load_model`.

    Raises:
        MapError: if no packaged model has this fingerprint.
    """
    from sareloc.models.checkpoint import find_packaged, load_model

    model = model or find_packaged(manifest.fingerprint)
    if model is None:
        raise MapError(
            f"map {map_name} was built by model {manifest.model!r} ({manifest.fingerprint}), which does not come with "
            "this sareloc: give its checkpoint as the model (--model)"
        )
    return load_model(model, device, precision)


def load_map_models(
    maps: Iterable[PlaceMap],
    model: PlaceModel | str | Path | None,
    device: torch.device | str | None,
    precision: Precision,
) -> Iterator[tuple[PlaceMap, PlaceModel]]:
    """Each map with its model, which maps of the same model share.

    Args:
        maps: the maps.
        model: the model of all, or as for `load_map_model`.
        device: as for `load_map_model`.
        precision: as for `load_map_model`.
    """
    loaded: dict[str, PlaceModel] = {}
    for place_map in maps:
        made = place_map.manifest
        if made.fingerprint not in loaded:
            if model is None or isinstance(model, str | Path):
                loaded[made.fingerprint] = load_map_model(made, place_map.path.name, model, device, precision)
            else:
                loaded[made.fingerprint] = model
        yield place_map, loaded[made.fingerprint]


def map_model(model: PlaceModel, place: MapStore | PlaceMap) -> PlaceModel:
    """The model that computes descriptors as a map holds them: this one, with the map's own whitening if it needs one.

    Raises MapError if the map lacks it, or has that of another model.
    """
    import torch

    from sareloc.models.place_model import Whitening, with_whitening

    dim = place.manifest.dim
    if not needs_whitening(model, dim):
        return model
    stored, name = place.whitening(), place.name if isinstance(place, MapStore) else place.path
    if stored is None:
        raise MapError(
            f"map {name} has descriptors of {dim} dimensions; model {model.name} has {model.dim} and no whitening, and "
            "the map holds none: build it again"
        )
    mean, projection = (torch.from_numpy(part) for part in stored)
    if len(mean) != model.dim:
        raise MapError(
            f"map {name} is damaged: its whitening is of {len(mean)} dimensions, those of model {model.name} are "
            f"{model.dim}. Restore a backup, or build it again"
        )
    return with_whitening(model, Whitening(mean, projection))


def needs_whitening(model: PlaceModel, dim: int) -> bool:
    """Whether a map of `dim` dimensions needs its own whitening of this model's descriptors."""
    return model.whitening is None and 1 <= dim < model.dim
