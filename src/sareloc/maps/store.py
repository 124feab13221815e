"""What a map stores, what an open map can do, and which backend opens the map at an address.

A map is a file, or it is on a server. The core opens both through `map_backend` and knows no server by name: `BACKENDS`
says which object to import for the scheme of an address.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar

import numpy as np

from sareloc import __version__
from sareloc.arrays import Floats, Ints, Vectors
from sareloc.errors import ArgumentError, MapError
from sareloc.geo import Area
from sareloc.photos import Geotag, file_of
from sareloc.photos.finding import is_url

if TYPE_CHECKING:
    import torch

    from sareloc.maps.listing import MapListing, MapWatch
    from sareloc.maps.maintain import MapInfo
    from sareloc.maps.place_map import PlaceMap
    from sareloc.models.place_model import PlaceModel
    from sareloc.models.preprocess import Precision

T = TypeVar("T")
Address = str | Path
"""A file, or the address of a map on a server, such as milvus://host:19530/city."""

FILES = "sareloc.maps.place_map:FILES"
BACKENDS = {"milvus": "sareloc.milvus:BACKEND", "milvus-lite": "sareloc.milvus:BACKEND"}
"""Scheme of an address -> "module:object" of its `MapBackend`, imported when the first such map is opened."""

FORMAT = 4
"""Of map files. Format 1 had no checksums and no change id, formats 1 and 2 no local features, format 3 local features
without `features_checksum`; they are read, and upgraded when opened for writing."""
LARGEST_FEATURES = 2**20
"""Bytes of a photo's packed local features: more are not read."""
NO_WHITENING = "a server stores none. Build a map file (.gpkg), or fit the whitening into the model"
TIME_S = 1e-3  # a map file stores milliseconds
LARGEST_DIM = 2**18
LONGEST_TEXT = 1000

Storage = Literal["float16", "float32", "int8"]


@dataclass(frozen=True)
class MapManifest:
    """The model that a map's descriptors come from, and how they are stored."""

    model: str
    fingerprint: str
    dim: int
    storage: Storage = "float16"
    map_id: str = ""
    """Random, drawn when the map is created; identifies the map in the cache of search indexes."""
    made_by: str = f"sareloc {__version__}"
    format: int = FORMAT


@dataclass(frozen=True)
class MapPhoto:
    """A photo as a map stores it, without its descriptor."""

    file: str
    """Its address (see `sareloc.photos.record`): relative to the map's folder if it is inside, else absolute;
    forward slashes."""
    geotag: Geotag
    width: int
    """Pixels, as stored in the file."""
    height: int
    sha256: bytes
    """Identifies its content, whatever its name (see `content_digest`)."""
    size_bytes: int
    modified_ns: int
    """The file's modification time when it was read: a file with the same time and size is not read again."""
    replaces: int | None = None
    """The id of the photo that had this file name before."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a map stores of a photo that may change while its content, and so its descriptor, stays the same."""

    photo_id: int
    file: str
    stamp: tuple[int, int]
    """Size in bytes and modification time in ns of the file when it was read."""
    geotag: Geotag
    replaces: int | None = None
    """For `MapStore.update`: the id of the photo that had this file name before."""


class MapStore(Protocol):
    """An open map, for reading and writing. A write that returned is permanent, and every write may be repeated."""

    @property
    def name(self) -> str:
        """The map's address, for messages."""

    @property
    def manifest(self) -> MapManifest:
        """See `MapManifest`."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def add(
        self, photos: Sequence[MapPhoto], descriptors: Vectors, features: Sequence[bytes | None] | None = None
    ) -> int:
        """Add photos with their descriptors (n, dim) and packed local features (n), all of them or none of them.

        Returns how many were not in the map yet.
        """

    def update(self, entries: Sequence[Entry]) -> None:
        """Write the file names, stamps and geotags of photos in the map, in order; unknown ids are ignored.

        A photo that an entry `replaces` is removed, unless its name was changed meanwhile.
        """

    def remove(self, ids: Ints) -> int:
        """Remove these photos and their descriptors; returns how many were in the map."""

    def count(self) -> int:
        """The number of photos."""

    def known(self, digests: Sequence[bytes]) -> dict[bytes, Entry]:
        """The entries of the photos in the map with these contents (SHA-256)."""

    def entries(self, files: Sequence[str]) -> dict[str, Entry]:
        """The entries of the photos in the map with these file names; others may be among them."""

    def pages(self, area: Area | None = None) -> Iterator[tuple[Ints, Floats, Sequence[str]]]:
        """The ids (n,), positions (n, 2) and file names of all photos, or of those in an area, page by page."""

    def records(self) -> Iterator[tuple[list[MapPhoto], Vectors]]:
        """All photos and their descriptors (n, dim), some thousand at a time."""

    def photos_of(self, ids: Ints) -> dict[int, MapPhoto]:
        """The photos with these ids, by id; unknown ids are left out."""

    @property
    def holds_local_features(self) -> bool:
        """Whether local features can be stored. If not, no photo has any, and writing them has no effect."""

    def ids_without_features(self) -> Ints:
        """The ids (n,), ascending, of the photos whose local features are not stored, or are those of another photo."""

    def write_features(self, ids: Ints, blobs: Sequence[bytes]) -> int:
        """Store the packed local features of these photos; returns how many. Unknown ids are ignored."""

    def features(self, ids: Ints) -> dict[int, bytes]:
        """The packed local features of those of these photos that have them, by id.

        Raises MapError if they do not match their checksum, or are those of another photo.
        """

    def notes(self) -> dict[str, str]:
        """Texts that are stored in the map, such as a calibration, by name."""

    def write_note(self, name: str, text: str) -> None:
        """Store a text under this name; an earlier one is replaced."""

    def whitening(self) -> tuple[Vectors, Vectors] | None:
        """Mean (D,) and projection (dim, D) of the map's own whitening; None if it has none.

        Raises MapError if it is damaged.
        """

    def write_whitening(self, mean: Vectors, projection: Vectors) -> None:
        """Store the map's own whitening, unless it has one. Raises MapError if the map cannot hold one."""

    def photo_path(self, file: str) -> Path:
        """The path of a photo on this disk, from its name in the map."""


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
    """Maps with at most this many numbers (photos x dim) are searched without an index."""
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
    manifest: MapManifest,
    map_name: str,
    model: str | Path | None = None,
    device: torch.device | str | None = None,
    precision: Precision = "auto",
) -> PlaceModel:
    """The model that a map was built with.

    map_name: for errors. model: a checkpoint or the name of a packaged model; default: the packaged model with the
    map's fingerprint. device: default: the GPU if there is one. precision: as for `load_model`. Raises MapError if no
    packaged model has this fingerprint.
    """
    from sareloc.models.checkpoint import find_packaged, load_model

    model = model or find_packaged(manifest.fingerprint)
    if model is None:
        raise MapError(
            f"map {map_name} was built by model {manifest.model!r} ({manifest.fingerprint}), which does not come with "
            "this sareloc: give its checkpoint as the model (--model)"
        )
    return load_model(model, device, precision)


@dataclass(frozen=True)
class Packing:
    """Conversion of (N, dim) unit vectors to N strings of bytes, little-endian, and back."""

    pack: Callable[[Vectors], list[bytes]]
    unpack: Callable[[Sequence[bytes], int], Vectors]
    size: Callable[[int], int]
    """Dimension -> bytes of one vector."""


def descriptor_checksum(blob: bytes) -> int:
    """The first 8 bytes of the SHA-256 of a packed descriptor, as a signed integer, never 0, which means unknown.

    Packed local features have the same checksum.
    """
    return int.from_bytes(hashlib.sha256(blob).digest()[:8], "little", signed=True) or 1


def features_checksum(photo_id: int, sha256: bytes, checksum: int) -> int:
    """Binds local features, by the checksum of their bytes, to a photo, by its id and content; never 0 (none).

    The row of the photo stores it: local features under another id, or of another map, do not match it.
    """
    return descriptor_checksum(struct.pack("<qq", photo_id, checksum) + sha256)


def photo_checksum(geom: bytes, file: str) -> int:
    """The CRC-32 of a photo's position (as stored) and file name in a map file, never 0, which means unknown.

    A trigger of the map sets it to 0 if another program, such as QGIS, changes these values.
    """
    return zlib.crc32(file.encode("utf-8", "surrogatepass"), zlib.crc32(geom)) or 1


def _plain(dtype: str) -> Packing:
    return Packing(
        lambda vectors: [row.tobytes() for row in vectors.astype(dtype)],
        lambda blobs, dim: np.frombuffer(b"".join(blobs), dtype=dtype).reshape(-1, dim).astype(np.float32),
        lambda dim: np.dtype(dtype).itemsize * dim,
    )


def _int8_rows(dim: int) -> np.dtype[np.void]:
    return np.dtype([("scale", "<f4"), ("steps", "i1", (dim,))])


def _pack_int8(vectors: Vectors) -> list[bytes]:
    rows = np.zeros(len(vectors), dtype=_int8_rows(vectors.shape[1]))
    rows["scale"] = np.abs(vectors).max(axis=1) / 127
    rows["steps"] = np.rint(vectors / np.maximum(rows["scale"], 1e-30)[:, None])
    return [row.tobytes() for row in rows]


def _unpack_int8(blobs: Sequence[bytes], dim: int) -> Vectors:
    rows = np.frombuffer(b"".join(blobs), dtype=_int8_rows(dim))
    with np.errstate(invalid="ignore", over="ignore"):  # a scale that is not finite gives such numbers
        vectors = rows["scale"][:, None] * rows["steps"].astype(np.float32)
        # rounding changed the length of unit vectors
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit: Vectors = (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return unit


PACKINGS: dict[str, Packing] = {
    "float16": _plain("<f2"),
    "float32": _plain("<f4"),
    "int8": Packing(_pack_int8, _unpack_int8, lambda dim: dim + 4),
}


def entry_of(photo: MapPhoto, photo_id: int) -> Entry:
    """The entry of a photo whose content is in a map under `photo_id`."""
    stamp = (photo.size_bytes, photo.modified_ns)
    return Entry(photo_id, photo.file, stamp, photo.geotag, photo.replaces)


def same_geotag(one: Geotag, other: Geotag) -> bool:
    """Whether two geotags are equal as stored in a map: time to the millisecond."""
    if (one.latlon, one.heading_deg) != (other.latlon, other.heading_deg):
        return False
    if one.time is None or other.time is None:
        return one.time is other.time
    return abs(one.time - other.time) <= TIME_S


def same_entry(one: Entry, other: Entry) -> bool:
    """Whether two entries are equal as stored in a map."""
    return (one.file, one.stamp) == (other.file, other.stamp) and same_geotag(one.geotag, other.geotag)


def read_manifest(values: Mapping[str, Any], name: str) -> MapManifest:
    """The manifest of the map `name`, from stored keys and values. Raises MapError if it is malformed or too new."""
    texts = {key: value for key, value in values.items() if isinstance(value, str) and len(value) <= LONGEST_TEXT}
    if not _is_number(texts.get("format", ""), FORMAT):
        made_by = texts.get("made_by", "an unknown program")
        raise MapError(
            f"map {name} has format {shown(values.get('format'))} (made by {made_by}), this sareloc reads formats up "
            f"to {FORMAT}: install a newer sareloc, or build the map again"
        )
    for key, (expected, is_valid) in _EXPECTED.items():
        if not is_valid(texts.get(key, "")):
            found = shown(values[key]) if key in values else "nothing"
            raise MapError(
                f"map {name} is damaged: its manifest has {found} as {key}, expected {expected}. Restore a backup, or "
                "build it again"
            )
    known: dict[str, Any] = {field.name: texts[field.name] for field in fields(MapManifest)}
    return MapManifest(**known | {"dim": int(texts["dim"]), "format": int(texts["format"])})


def _is_number(text: str, largest: int) -> bool:
    return re.fullmatch("[0-9]{1,9}", text) is not None and 1 <= int(text) <= largest


_EXPECTED: dict[str, tuple[str, Callable[[str], object]]] = {
    **dict.fromkeys(("model", "fingerprint", "made_by"), ("a short text", bool)),
    "dim": (f"a number from 1 to {LARGEST_DIM}", lambda text: _is_number(text, LARGEST_DIM)),
    "storage": (f"one of {', '.join(PACKINGS)}", PACKINGS.__contains__),
    "map_id": ("32 hexadecimal digits", re.compile("[0-9a-f]{32}").fullmatch),  # it becomes the name of a folder
}


def read_note(store: MapStore, name: str, parse: Callable[[Any], T]) -> T | None:
    """What `parse` makes of a map's note in JSON; None if there is no such note.

    Raises MapError if the note is not JSON, or if `parse` raises: maps come from anywhere.
    """
    text = store.notes().get(name)
    if text is None:
        return None
    try:
        return parse(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ArgumentError) as wrong:
        raise MapError(
            f"map {store.name} is damaged: its note {name!r} is {shown(text)}. Restore a backup, or build it again"
        ) from wrong


def shown(value: object) -> str:
    """A value of a map for an error message: unprintable text is quoted, long text is cut."""
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= 100 else f"{text[:90]}... ({len(text)} characters)"
