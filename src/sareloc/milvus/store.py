"""A map as a collection of Milvus: a row for each photo, the manifest and the notes as properties of the collection.

The id of a photo is the first 63 bits of the SHA-256 of its content, so that every process writes the same row for it.
(Of 100 million photos, two have the same id with a probability of 1 in 1,800: the later one is not added.)
"""

from __future__ import annotations

import base64
import json
import os
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Self

import numpy as np
from tqdm import tqdm

from sareloc.arrays import Floats, Ints, Vectors
from sareloc.errors import MapError, look_up
from sareloc.geo import Area, Box
from sareloc.maps import Entry, MapInfo, MapManifest, MapPhoto, MapStore
from sareloc.maps.file_reader import HEADER_BYTES, PLACE_BYTES, STEPS_BYTES
from sareloc.maps.gpkg import time_text
from sareloc.maps.maintain import UNIT
from sareloc.maps.notes import read_features_note, read_keypoints, read_note
from sareloc.maps.records import FORMAT, FeaturesInfo, complete_vectors, entry_of, read_calibrations
from sareloc.maps.rows import read_manifest
from sareloc.maps.store import Address
from sareloc.milvus.collection import DEFAULT, INDEXES, Column, Consistency, MilvusCollection, Row, create_collection
from sareloc.milvus.connection import Connection, read_milvus_address
from sareloc.photos import Geotag
from sareloc.photos.record import FIRST_S, LAST_S

UNKNOWN = -1e18
"""The value of an unknown time or heading: old servers have no nullable fields."""
COLUMNS = (
    Column("lat", "DOUBLE", 0.0),
    Column("lon", "DOUBLE", 0.0),
    Column("file", "VARCHAR", ""),
    Column("sha256", "VARCHAR", ""),
    Column("time", "DOUBLE", UNKNOWN),
    Column("heading_deg", "DOUBLE", UNKNOWN),
    Column("width", "INT64", 0),
    Column("height", "INT64", 0),
    Column("size_bytes", "INT64", 0),
    Column("modified_ns", "INT64", 0),
)
ALL = [column.name for column in COLUMNS]
LONGEST_FEATURES = 65_535  # bytes of the longest text that Milvus stores
FEATURES = Column("features", "VARCHAR", "", LONGEST_FEATURES)
"""Packed local features as base64; "": none. Collections of earlier versions lack it."""
PLACE = ["lat", "lon", "file"]


def photo_id(sha256: bytes) -> int:
    """The id of the photo with this content."""
    return int.from_bytes(sha256[:8], "big") >> 1


def inside(box: Box) -> str:
    """The condition, in Milvus's syntax, that a photo is in a box, borders included."""
    between = "and" if box.west <= box.east else "or"  # the latter across the antimeridian
    return (
        f"lat >= {float(box.south)!r} and lat <= {float(box.north)!r} "
        f"and (lon >= {float(box.west)!r} {between} lon <= {float(box.east)!r})"
    )


def row_of(photo: MapPhoto) -> Row:
    """The columns of a photo, without its id and its descriptor."""
    tag = photo.geotag
    return {
        "lat": float(tag.latlon[0]),
        "lon": float(tag.latlon[1]),
        "file": photo.file,
        "sha256": photo.sha256.hex(),
        "time": UNKNOWN if tag.time is None else float(tag.time),
        "heading_deg": UNKNOWN if tag.heading_deg is None else float(tag.heading_deg),
        "width": photo.width,
        "height": photo.height,
        "size_bytes": photo.size_bytes,
        "modified_ns": photo.modified_ns,
    }


def photo_of(row: Row) -> MapPhoto:
    """The photo of a row with all columns."""
    heading, time = (None if row[name] == UNKNOWN else row[name] for name in ("heading_deg", "time"))
    geotag, sha256 = Geotag((row["lat"], row["lon"]), heading, time), bytes.fromhex(row["sha256"])
    return MapPhoto(row["file"], geotag, row["width"], row["height"], sha256, row["size_bytes"], row["modified_ns"])


def latlon_of(rows: Iterable[Row]) -> Floats:
    """The positions (n, 2) of rows with the columns `PLACE`."""
    return np.array([(row["lat"], row["lon"]) for row in rows], dtype=np.float64).reshape(-1, 2)


def text_list(values: Sequence[str]) -> str:
    """Texts as a list in a condition."""
    return json.dumps(list(values), ensure_ascii=False)


PROPERTY, NOTE = "sareloc.", "sareloc.note "
REMOVED = "removed photos"
"""The note of the ids of the photos that were removed last: the size of a property of a collection is limited."""
MOST_REMOVED = 20_000
FILES_AT_ONCE = 1024
ROWS_AT_ONCE = 256
DEGREES, SECONDS = 1e-9, 1e-3  # how exactly extremes are found


class MilvusStore(MapStore):
    """The rows of a map on Milvus. Safe from several threads."""

    most_keypoints = (LONGEST_FEATURES // 4 * 3 - HEADER_BYTES) // (PLACE_BYTES + STEPS_BYTES)

    def __init__(self, connection: Connection, consistency: Consistency = "Strong") -> None:
        """The map of a connection, whose collection exists. Raises MapError if it is not a map."""
        self.address = connection.address
        self.name = str(self.address)
        self.manifest = manifest_of(connection)
        self.collection = MilvusCollection(connection, (*COLUMNS, FEATURES), consistency=consistency)
        self.holds_local_features = FEATURES in self.collection.columns
        if self.collection.dim != self.manifest.vector_dim:
            raise MapError(
                f"map {self.name} is damaged: its vectors have {self.collection.dim} dimensions, its manifest says "
                f"{self.manifest.vector_dim}. Build it again"
            )
        if self.address.index not in (None, self.collection.index):
            raise MapError(
                f"map {self.name} has the index {self.collection.index}, the address says {self.address.index}: omit "
                "that, or copy the map to a new collection with this index"
            )

    @classmethod
    def exists(cls, address: Address) -> bool:
        """See `MapStore`.

        Raises MapError if its server does not answer, ArgumentError if the address is malformed or names an unknown
        index.
        """
        where = read_milvus_address(address)
        if where.index is not None:
            look_up(INDEXES, where.index, "Milvus index")
        if where.local and not Path(where.uri).exists():
            return False  # connecting would create the file
        connection = Connection(where)
        try:
            return bool(connection.ask("has_collection", collection_name=where.collection))
        finally:
            connection.close()

    @classmethod
    def photo_name(cls, address: Address, photo: Path) -> str:
        """See `MapStore`: its absolute path."""
        return Path(os.path.abspath(photo)).as_posix()

    @classmethod
    def open(cls, address: Address, write: bool = False, *, consistency: Consistency = "Strong") -> Self:
        """See `MapStore`. Raises MapError if the collection is not a map.

        Args:
            address: the address of the map.
            write: whether to write.
            consistency: what a read sees of earlier writes, as Milvus names it; writers must read Strong.
        """
        where = read_milvus_address(address)
        connection = Connection(where)
        if not connection.ask("has_collection", collection_name=where.collection):
            connection.close()
            raise MapError(f'map {where} does not exist: build one with "sareloc map build PHOTOS --out {where}"')
        return cls(connection, consistency)

    @classmethod
    def open_or_create(cls, address: Address, manifest: MapManifest) -> Self:
        """See `MapStore`: all processes get the map of the one that created the collection."""
        where = read_milvus_address(address)
        connection = Connection(where)
        values = asdict(replace(manifest, map_id=uuid.uuid4().hex, format=FORMAT))
        properties = {f"{PROPERTY}{key}": str(value) for key, value in values.items()}
        create_collection(connection, manifest.vector_dim, (*COLUMNS, FEATURES), where.index or DEFAULT, properties)
        return cls(connection)

    @classmethod
    def has_remote_writers(cls, address: Address) -> bool:
        """See `MapStore`: not to milvus-lite's file."""
        return not read_milvus_address(address).local

    def close(self) -> None:
        """See `MapStore`."""
        self.collection.connection.close()

    def add(self, photos: Sequence[MapPhoto], vectors: Vectors, features: Sequence[bytes | None] | None = None) -> int:
        """See `MapStore`. Replaced photos are removed first; an interrupted call can be repeated."""
        ids = np.array([photo_id(photo.sha256) for photo in photos], dtype=np.int64)
        there, blobs = self.collection.rows(ids), features or [None] * len(photos)
        new = {i: row for row, i in enumerate(ids.tolist()) if i not in there}
        self._drop_replaced(photos[row] for row in new.values())
        self._write(
            {
                i: row_of(photos[row]) | {"vector": vectors[row], FEATURES.name: _encoded(blobs[row])}
                for i, row in new.items()
            }
        )
        removed = self.removed_ids()
        if not new.keys().isdisjoint(removed):
            self._write_removed([i for i in removed if i not in new])
        return len(new)

    def update(self, entries: Sequence[Entry]) -> None:
        """See `MapStore`. An interrupted call can be repeated."""
        for start in range(0, len(entries), ROWS_AT_ONCE):
            part = {entry.photo_id: entry for entry in entries[start : start + ROWS_AT_ONCE]}
            rows = self._whole_rows(np.array(list(part), dtype=np.int64))
            self._drop_replaced(e for e in part.values() if e.photo_id in rows and e.replaces not in part)
            self._write({i: row | row_of(_updated(photo_of(row), part[i])) for i, row in rows.items()})

    def _whole_rows(self, ids: Ints) -> dict[int, Row]:
        """All columns and vectors of these photos: Milvus writes whole rows."""
        return self.collection.rows(ids, [*(column.name for column in self.collection.columns), "vector"])

    def remove(self, ids: Ints, *, remember: bool = False) -> int:
        """See `MapStore`. The last 20,000 that were removed are remembered."""
        there = self.collection.rows(ids)
        if remember and there:
            self._write_removed([*self.removed_ids(), *there])
        self.collection.delete(np.array(list(there), dtype=np.int64))
        return len(there)

    def removed(self, digests: Sequence[bytes]) -> set[bytes]:
        """See `MapStore`."""
        ids = set(self.removed_ids())
        return {digest for digest in digests if photo_id(digest) in ids}

    def remember_removed(self, digests: Collection[bytes]) -> None:
        """See `MapStore`."""
        if digests:
            self._write_removed([*self.removed_ids(), *map(photo_id, digests)])

    def removed_ids(self) -> list[int]:
        """The ids of the photos that were removed from the map."""
        return read_note(self, REMOVED, lambda ids: [int(i) for i in ids]) or []

    def _write_removed(self, ids: Sequence[int]) -> None:
        self.write_note(REMOVED, json.dumps(list(dict.fromkeys(ids))[-MOST_REMOVED:]))

    def count(self) -> int:
        """See `MapStore`."""
        return self.collection.count()

    def known(self, digests: Sequence[bytes]) -> dict[bytes, Entry]:
        """See `MapStore`."""
        ids = np.array([photo_id(digest) for digest in digests], dtype=np.int64)
        return {photo.sha256: entry_of(photo, i) for i, photo in self.photos_of(ids).items()}

    def entries(self, files: Sequence[str]) -> dict[str, Entry]:
        """See `MapStore`."""
        return {
            row["file"]: entry_of(photo_of(row), row["id"])
            for start in range(0, len(files), FILES_AT_ONCE)
            for page in self.collection.select(f"file in {text_list(files[start : start + FILES_AT_ONCE])}", ALL)
            for row in page
        }

    def pages(self, area: Area | None = None) -> Iterator[tuple[Ints, Floats, Sequence[str]]]:
        """See `MapStore`."""
        for page in self.collection.select("" if area is None else inside(area.bounds()), PLACE):
            latlon = latlon_of(page)
            rows = np.arange(len(page)) if area is None else area.rows(latlon)
            ids = np.array([row["id"] for row in page], dtype=np.int64)
            yield ids[rows], latlon[rows], [page[row]["file"] for row in rows]

    def records(self) -> Iterator[tuple[list[MapPhoto], Vectors]]:
        """See `MapStore`."""
        for page in self.collection.select(fields=[*ALL, "vector"]):
            yield [photo_of(row) for row in page], np.array([row["vector"] for row in page], dtype=np.float32)

    def photos_of(self, ids: Ints) -> dict[int, MapPhoto]:
        """See `MapStore`."""
        return {i: photo_of(row) for i, row in self.collection.rows(np.unique(ids), ALL).items()}

    def ids_without_features(self) -> Ints:
        """See `MapStore`."""
        where = f'{FEATURES.name} == ""' if self.holds_local_features else ""
        ids = [row["id"] for page in self.collection.select(where) for row in page]
        return np.sort(np.array(ids, dtype=np.int64))

    def write_features(self, ids: Ints, blobs: Sequence[bytes]) -> int:
        """See `MapStore`. An interrupted call can be repeated."""
        if not self.holds_local_features:
            return 0
        given = dict(zip(ids.tolist(), blobs, strict=True))
        rows = self._whole_rows(np.unique(ids))
        if rows:
            packed = [given[i] for i in rows]
            vectors = np.array([row["vector"] for row in rows.values()], dtype=np.float32)
            completed = complete_vectors(vectors, packed, self.manifest)
            for row, vector, blob in zip(rows.values(), completed, packed, strict=True):
                row.update({"vector": vector, FEATURES.name: _encoded(blob)})
            self._write(rows)
        return len(rows)

    def features(self, ids: Ints) -> dict[int, bytes]:
        """See `MapStore`."""
        if not self.holds_local_features:
            return {}
        rows = self.collection.rows(np.unique(ids), [FEATURES.name])
        return {i: self.decoded(row) for i, row in rows.items() if row[FEATURES.name]}

    def decoded(self, row: Row) -> bytes:
        """The packed local features of a row. Raises MapError if they are malformed."""
        try:
            return base64.b64decode(row[FEATURES.name], validate=True)
        except (ValueError, TypeError) as wrong:
            raise MapError(
                f"map {self.name} is damaged: the local features of photo {row['id']} are not base64 ({wrong}). Remove "
                "the photo and add it again"
            ) from wrong

    def notes(self) -> dict[str, str]:
        """See `MapStore`."""
        return {
            key.removeprefix(NOTE): text
            for key, text in _properties(self.collection.connection).items()
            if key.startswith(NOTE)
        }

    def write_note(self, name: str, text: str) -> None:
        """See `MapStore`."""
        self.collection.connection.ask(
            "alter_collection_properties",
            collection_name=self.address.collection,
            properties={f"{NOTE}{name}": text},
        )

    def photo_path(self, file: str) -> Path:
        """See `MapStore`."""
        return Path(file)

    def info(self) -> MapInfo:
        """See `MapStore`: found by queries, without reading all photos."""
        times = self._extremes("time", FIRST_S, LAST_S, SECONDS)
        first, last = (None, None) if times is None else map(time_text, times)
        index = f"{self.collection.index}, kept by Milvus"
        calibrations = read_calibrations(self.notes())
        return MapInfo(
            manifest=self.manifest,
            photos=self.count(),
            extent=self.extent(),
            first=first,
            last=last,
            file_bytes=None,
            index=index,
            calibrations=calibrations,
            local_features=self._stored_features(),
            removed=len(self.removed_ids()),
        )

    def _stored_features(self) -> FeaturesInfo | None:
        note = read_features_note(self)
        if note is None or not self.holds_local_features:
            return None
        return FeaturesInfo(note.keypoints, self.collection.count(f'{FEATURES.name} != ""'), None)

    def extent(self) -> Box | None:
        """The box that contains all photos; None without photos. Takes about 50 queries."""
        latitudes = self._extremes("lat", -90.0, 90.0, DEGREES)
        longitudes = self._extremes("lon", -180.0, 180.0, DEGREES)
        if latitudes is None or longitudes is None:
            return None
        return Box(latitudes[0], longitudes[0], latitudes[1], longitudes[1])

    def _extremes(self, column: str, low: float, high: float, tolerance: float) -> tuple[float, float] | None:
        """The smallest and the largest value of a column in this range; None if there is none."""
        one = self.collection.any_value(column, f"{column} >= {low!r} and {column} <= {high!r}")
        if one is None:
            return None
        return self._nearest(column, low, one, tolerance), self._nearest(column, high, one, tolerance)

    def _nearest(self, column: str, limit: float, best: float, tolerance: float) -> float:
        """The value nearest to a limit of all values, by bisection."""
        while abs(best - limit) > tolerance:
            middle = (best + limit) / 2
            low, high = sorted((middle, limit))
            found = self.collection.any_value(column, f"{column} >= {low!r} and {column} <= {high!r}")
            if found is None:
                limit = middle
            else:
                best = found
        return best

    def verify(self) -> list[str]:
        """See `MapStore`."""
        problems, found = list[str](), 0
        with tqdm(total=self.count(), unit="photo", disable=None, leave=False) as bar:
            for page in self.collection.select(fields=["lat", "lon", "file", "sha256", "vector"]):
                problems += _problems(page)
                found += len(page)
                bar.update(len(page))
        problems += self._bad_features()
        if found != self.count():
            problems.append(f"Milvus counts {self.count():,} photos and returns {found:,}: is another process writing?")
        return problems

    def _bad_features(self) -> Iterator[str]:
        """Local features of another extractor, or that cannot be unpacked."""
        from sareloc.geometry.local_features import unpack_features

        if not self.holds_local_features:
            return
        try:
            read_keypoints(self)
        except MapError as wrong:
            yield str(wrong)
            return
        for page in self.collection.select(f'{FEATURES.name} != ""', ["file", FEATURES.name]):
            for row in page:
                try:
                    unpack_features(self.decoded(row))
                except MapError as wrong:
                    yield f"the local features of photo {row['id']} ({row['file']}) cannot be used: {wrong}"

    def seal(self) -> None:
        """See `MapStore`."""
        self.collection.seal()

    def _write(self, rows: Mapping[int, Row]) -> None:
        """Write whole rows, by id: all columns and the vector."""
        if rows:
            vectors = np.array([row["vector"] for row in rows.values()], dtype=np.float32)
            self.collection.upsert(np.array(list(rows), dtype=np.int64), vectors, list(rows.values()))

    def _drop_replaced(self, photos: Iterable[MapPhoto | Entry]) -> None:
        replaced = {photo.replaces: photo.file for photo in photos if photo.replaces is not None}
        rows = self.collection.rows(np.array(list(replaced), dtype=np.int64), ["file"])
        # unless its name was changed meanwhile
        gone = [i for i, row in rows.items() if row["file"] == replaced[i]]
        self.collection.delete(np.array(gone, dtype=np.int64))


def _encoded(features: bytes | None) -> str:
    """Packed local features as a text; "": none."""
    return "" if features is None else base64.b64encode(features).decode("ascii")


def _updated(photo: MapPhoto, entry: Entry) -> MapPhoto:
    size_bytes, modified_ns = entry.stamp
    return replace(photo, file=entry.file, geotag=entry.geotag, size_bytes=size_bytes, modified_ns=modified_ns)


def _problems(page: list[Row]) -> Iterator[str]:
    lengths = np.linalg.norm(np.array([row["vector"] for row in page], dtype=np.float64), axis=1)
    for row, length in zip(page, lengths, strict=True):
        named = f"photo {row['id']} ({row['file']})"
        if not (abs(row["lat"]) <= 90 and abs(row["lon"]) <= 180):
            yield f"{named} has invalid coordinates: {row['lat']}, {row['lon']}"
        if not abs(length - 1) <= UNIT:
            yield f"the descriptor of {named} has length {length:.3f}, not 1"
        if photo_id(bytes.fromhex(row["sha256"])) != row["id"]:
            yield f"{named} has the content hash of another photo"


def _properties(connection: Connection) -> dict[str, str]:
    described = connection.ask("describe_collection", collection_name=connection.address.collection)
    properties: dict[str, str] = described.get("properties") or {}
    return properties


def manifest_of(connection: Connection) -> MapManifest:
    """The manifest of a collection. Raises MapError if the collection is not a map."""
    values = {key.removeprefix(PROPERTY): text for key, text in _properties(connection).items()}
    if "fingerprint" not in values:
        raise MapError(f"{connection.address} is a collection but not a map of sareloc: use another name for a new map")
    return read_manifest(values, str(connection.address))
