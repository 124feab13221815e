"""A map as a collection of Milvus: a row for each photo, the manifest and the notes as properties of the collection."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Self

import numpy as np

from sareloc.engines.milvus import Consistency, MilvusEngine
from sareloc.engines.milvus_address import MilvusAddress
from sareloc.engines.milvus_connection import Connection
from sareloc.engines.milvus_index import DEFAULT, INDEXES
from sareloc.engines.milvus_schema import create_collection
from sareloc.errors import MapError, look_up
from sareloc.place_map.areas import Area
from sareloc.place_map.matches import Floats, Ints, Vectors
from sareloc.place_map.milvus_rows import (
    ALL,
    COLUMNS,
    ENTRY,
    PLACE,
    entry_of,
    inside,
    photo_id,
    photo_of,
    row_of,
    text_list,
)
from sareloc.place_map.records import Entry, Manifest, Photo, read_manifest

PROPERTY, NOTE = "sareloc.", "sareloc.note "
FILES_AT_ONCE = 1024
ROWS_AT_ONCE = 1024


class MilvusStore:
    """An open map, from `open_milvus_store`: the `MapStore` of one collection. Safe from several threads."""

    def __init__(self, engine: MilvusEngine, manifest: Manifest) -> None:
        self.engine = engine
        self.address = engine.connection.address
        self.manifest = manifest

    @property
    def name(self) -> str:
        """See `MapStore`."""
        return str(self.address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.connection.close()

    def add(self, photos: Sequence[Photo], descriptors: Vectors) -> int:
        """See `MapStore`. First what is replaced goes, then the new comes: stopped between, the same call mends it."""
        ids = np.array([photo_id(photo.sha256) for photo in photos], dtype=np.int64)
        there = self.engine.rows(ids)
        new = list({i: row for row, i in enumerate(ids.tolist()) if i not in there}.values())
        self._drop_replaced(photos[row] for row in new)
        self._write(ids[new], [photos[row] for row in new], descriptors[new])
        return len(new)

    def update(self, entries: Sequence[Entry]) -> None:
        """See `MapStore`. Stopped between, the same call finishes it."""
        for start in range(0, len(entries), ROWS_AT_ONCE):
            part = {entry.photo_id: entry for entry in entries[start : start + ROWS_AT_ONCE]}
            rows = self.engine.rows(np.array(list(part), dtype=np.int64), [*ALL, "vector"])
            self._drop_replaced(e for e in part.values() if e.photo_id in rows and e.replaces not in part)
            photos = [_updated(photo_of(row), part[i]) for i, row in rows.items()]
            vectors = np.array([row["vector"] for row in rows.values()], dtype=np.float32)
            if photos:  # the others were removed meanwhile
                self._write(np.array(list(rows), dtype=np.int64), photos, vectors)

    def remove(self, ids: Ints) -> int:
        """See `MapStore`."""
        there = self.engine.rows(ids)
        self.engine.delete(np.array(list(there), dtype=np.int64))
        return len(there)

    def count(self) -> int:
        """See `MapStore`."""
        return self.engine.count()

    def known(self, digests: Sequence[bytes]) -> dict[bytes, Entry]:
        """See `MapStore`."""
        ids = np.array([photo_id(digest) for digest in digests], dtype=np.int64)
        return {bytes.fromhex(row["sha256"]): entry_of(row) for row in self.engine.rows(np.unique(ids), ENTRY).values()}

    def entries(self, files: Sequence[str]) -> dict[str, Entry]:
        """See `MapStore`."""
        return {
            row["file"]: entry_of(row)
            for start in range(0, len(files), FILES_AT_ONCE)
            for page in self.engine.select(f"file in {text_list(files[start : start + FILES_AT_ONCE])}", ENTRY)
            for row in page
        }

    def pages(self, area: Area | None = None) -> Iterator[tuple[Ints, Floats, Sequence[str]]]:
        """See `MapStore`."""
        for page in self.engine.select("" if area is None else inside(area.bounds()), PLACE):
            latlon = np.array([[row["lat"], row["lon"]] for row in page])
            rows = np.arange(len(page)) if area is None else area.rows(latlon)
            ids = np.array([row["id"] for row in page], dtype=np.int64)
            yield ids[rows], latlon[rows], [page[row]["file"] for row in rows]

    def records(self) -> Iterator[tuple[list[Photo], Vectors]]:
        """See `MapStore`."""
        for page in self.engine.select(fields=[*ALL, "vector"]):
            yield [photo_of(row) for row in page], np.array([row["vector"] for row in page], dtype=np.float32)

    def notes(self) -> dict[str, str]:
        """See `MapStore`."""
        return {
            key.removeprefix(NOTE): text
            for key, text in _properties(self.engine.connection).items()
            if key.startswith(NOTE)
        }

    def write_note(self, name: str, text: str) -> None:
        """See `MapStore`."""
        self.engine.connection.ask(
            "alter_collection_properties",
            collection_name=self.address.collection,
            properties={f"{NOTE}{name}": text},
        )

    def file_name(self, photo: Path) -> str:
        """The absolute path: a server has no folder that photos could lie in."""
        return Path(os.path.abspath(photo)).as_posix()

    def photo_path(self, file: str) -> Path:
        """See `MapStore`."""
        return Path(file)

    def _write(self, ids: Ints, photos: Sequence[Photo], descriptors: Vectors) -> None:
        known = [row_of(photo) for photo in photos]
        self.engine.upsert(ids, descriptors, {name: [row[name] for row in known] for name in ALL})

    def _drop_replaced(self, photos: Iterable[Photo | Entry]) -> None:
        replaced = {photo.replaces: photo.file for photo in photos if photo.replaces is not None}
        rows = self.engine.rows(np.array(list(replaced), dtype=np.int64), ["file"])
        # unless it has got another name meanwhile
        gone = [i for i, row in rows.items() if row["file"] == replaced[i]]
        self.engine.delete(np.array(gone, dtype=np.int64))


def _updated(photo: Photo, entry: Entry) -> Photo:
    size_bytes, modified_ns = entry.stamp
    return replace(photo, file=entry.file, geotag=entry.geotag, size_bytes=size_bytes, modified_ns=modified_ns)


def milvus_map_exists(address: MilvusAddress) -> bool:
    """Whether there is a collection at this address.

    Raises MapError if its server does not answer, ArgumentError if the address names an unknown index.
    """
    if address.index is not None:
        look_up(INDEXES, address.index, "Milvus index")
    if address.local and not Path(address.uri).exists():
        return False  # connecting would create the file
    connection = Connection(address)
    try:
        return bool(connection.ask("has_collection", collection_name=address.collection))
    finally:
        connection.close()


def open_milvus_store(address: MilvusAddress, *, consistency: Consistency = "Strong") -> MilvusStore:
    """Open a map; a collection that is none of ours is a MapError that says so. Who writes must read Strong."""
    connection = Connection(address)
    if not connection.ask("has_collection", collection_name=address.collection):
        raise MapError(f'map {address} does not exist: make one with "sareloc map build PHOTOS --out {address}"')
    return _store_of(connection, consistency)


def open_or_create_milvus_store(address: MilvusAddress, manifest: Manifest) -> MilvusStore:
    """Open a map; where there is none, create an empty one of this manifest.

    Several processes may do so at once: all get the map of the one that created the collection.
    """
    connection = Connection(address)
    values = asdict(replace(manifest, map_id=uuid.uuid4().hex, format=1))  # later formats differ in files alone
    properties = {f"{PROPERTY}{key}": str(value) for key, value in values.items()}
    create_collection(connection, manifest.dim, COLUMNS, address.index or DEFAULT, properties)
    return _store_of(connection, "Strong")


def _store_of(connection: Connection, consistency: Consistency) -> MilvusStore:
    manifest, engine = manifest_of(connection), MilvusEngine(connection, COLUMNS, consistency=consistency)
    address = connection.address
    if address.index not in (None, engine.index):
        raise MapError(
            f"map {address} has the index {engine.index}, asked for is {address.index}: leave that out, or copy the "
            "map to a collection that is made with it"
        )
    return MilvusStore(engine, manifest)


def _properties(connection: Connection) -> dict[str, str]:
    described = connection.ask("describe_collection", collection_name=connection.address.collection)
    properties: dict[str, str] = described.get("properties") or {}
    return properties


def manifest_of(connection: Connection) -> Manifest:
    """What the collection says it is."""
    values = {key.removeprefix(PROPERTY): text for key, text in _properties(connection).items()}
    if "fingerprint" not in values:
        raise MapError(
            f"{connection.address} is a collection but no map of sareloc's: give another name, and a map will be made"
        )
    return read_manifest(values, str(connection.address))
