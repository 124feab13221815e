"""A map as a collection of Milvus: a row for each photo, the manifest and the notes as properties of the collection.

The id of a photo is the first 63 bits of the SHA-256 of its content, so that every process writes the same row for it.
(Of 100 million photos, two have the same id with a probability of 1 in 1,800: the later one is not added.)
"""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats, Ints, Vectors
from sareloc.errors import MapError, look_up
from sareloc.geo import ROUNDING_M as ROUNDING_M
from sareloc.geo import SMALLEST_RADIUS_M, Area, Box, Circle, ecef_from_wgs84, wgs84_from_ecef
from sareloc.index import Hits, IndexInfo
from sareloc.maps import Entry, MapManifest, MapPhoto, Matches, PlaceMap
from sareloc.maps.store import NO_WHITENING, Address, read_manifest
from sareloc.milvus.collection import DEFAULT, INDEXES, Column, Consistency, MilvusCollection, Row, create_collection
from sareloc.milvus.connection import Connection, read_milvus_address
from sareloc.photos import Geotag

if TYPE_CHECKING:
    from sareloc.geometry.local_features import LocalFeatures

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
ENTRY = ["lat", "lon", "file", "sha256", "time", "heading_deg", "size_bytes", "modified_ns"]
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
    sizes: tuple[Any, ...] = row["size_bytes"], row["modified_ns"]
    return MapPhoto(row["file"], _geotag(row), row["width"], row["height"], bytes.fromhex(row["sha256"]), *sizes)


def entry_of(row: Row) -> Entry:
    """The entry of a row with the columns `ENTRY`."""
    return Entry(row["id"], row["file"], (row["size_bytes"], row["modified_ns"]), _geotag(row))


def _geotag(row: Row) -> Geotag:
    heading, time = (None if row[name] == UNKNOWN else row[name] for name in ("heading_deg", "time"))
    return Geotag((row["lat"], row["lon"]), heading, time)


def text_list(values: Sequence[str]) -> str:
    """Texts as a list in a condition."""
    return json.dumps(list(values), ensure_ascii=False)


IDS = 2**63
SPARE = 2  # a circle fills three quarters of its box


class MilvusMap(PlaceMap):
    """A map on Milvus, opened for searching; nothing of it is in memory.

    Opening and refreshing wait for all earlier writes (consistency level Strong). Searches do not wait (Bounded): they
    may miss what was added in the last seconds.
    """

    def __init__(self, path: str | Path, *, exact: bool = False) -> None:
        super().__init__(path)
        self._store = open_milvus_store(path, consistency="Bounded")
        self._collection = self._store.collection
        self.manifest = self._store.manifest
        self._look_again()

    def __len__(self) -> int:
        return self._count

    def search(self, descriptors: npt.ArrayLike, k: int = 10, near: Area | None = None) -> Matches:
        """See `PlaceMap`."""
        queries = np.asarray(descriptors, dtype=np.float32)
        if isinstance(near, Circle):
            hits, rows = self._find_in_circle(queries, k, near)
        else:
            hits, rows = self._collection.find(queries, k, "" if near is None else inside(near), PLACE)
        found = [[rows[i] for i in line] for line in hits.ids.tolist()]
        latlon = np.array([[(row["lat"], row["lon"]) for row in line] for line in found], dtype=np.float64)
        files = tuple(tuple(row["file"] for row in line) for line in found)
        return Matches(hits.ids, hits.distances, latlon.reshape(*hits.ids.shape, 2), files)

    def _find_in_circle(self, queries: Vectors, k: int, circle: Circle) -> tuple[Hits, dict[int, Row]]:
        """Search in the box around the circle, then select by exact distance; servers compute it in various ways."""
        hits, rows = self._collection.find(queries, SPARE * k, inside(circle.bounds()), PLACE)
        latlon = np.array([[row["lat"], row["lon"]] for row in rows.values()], dtype=np.float64).reshape(-1, 2)
        held = np.array(list(rows), dtype=np.int64)[circle.rows(latlon)]
        in_circle = np.isin(hits.ids, held)
        enough = int(in_circle.sum(axis=1).min(initial=k))
        if enough < k and hits.ids.shape[1] == SPARE * k:  # there may be more in the circle
            ids = [ids for ids, _, _ in self._store.pages(circle)]
            return self._collection.find_among(queries, k, np.concatenate([held, *ids]), PLACE)
        first = np.argsort(~in_circle, axis=1, kind="stable")[:, : min(k, enough)]
        taken = Hits(np.take_along_axis(hits.ids, first, 1), np.take_along_axis(hits.distances, first, 1))
        return taken, rows

    def descriptors(self, ids: npt.ArrayLike) -> Vectors:
        """See `PlaceMap`."""
        return self._collection.fetch(np.asarray(ids, dtype=np.int64))

    def local_features(self, ids: npt.ArrayLike) -> dict[int, LocalFeatures]:
        """See `PlaceMap`: none."""
        return {}

    def headings_deg(self, ids: npt.ArrayLike) -> Floats:
        """See `PlaceMap`."""
        wanted = np.asarray(ids, dtype=np.int64)
        rows = self._collection.rows(np.unique(wanted), ["heading_deg"])
        known = {i: row["heading_deg"] for i, row in rows.items() if row["heading_deg"] != UNKNOWN}
        return np.array([known.get(i, np.nan) for i in wanted.tolist()], dtype=np.float64)

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
        """See `PlaceMap`; always the same photos: those with the smallest ids, which are hashes."""
        limit = IDS * SPARE * count // max(self._count, 1)
        parts = list(self._collection.select(f"id < {min(limit, IDS - 1)}", PLACE))
        rows = [row for part in parts for row in part][:count]
        latlon = np.array([[row["lat"], row["lon"]] for row in rows], dtype=np.float64).reshape(-1, 2)
        return np.array([row["id"] for row in rows], dtype=np.int64), latlon

    def count_around(self, points_m: Floats, radius_m: float) -> Ints:
        """See `PlaceMap`."""
        ground_m = (
            2 * SMALLEST_RADIUS_M * math.asin(min(1.0, radius_m / (2 * SMALLEST_RADIUS_M)))
        )  # longer than a chord
        counts = []
        for point, latlon in zip(points_m, wgs84_from_ecef(points_m), strict=True):
            box = Circle((float(latlon[0]), float(latlon[1])), ground_m).bounds()
            around = [there for _, there, _ in self._store.pages(box)]
            away = [np.linalg.norm(ecef_from_wgs84(there) - point, axis=1) for there in around if len(there)]
            counts.append(sum(int((part <= radius_m + ROUNDING_M).sum()) for part in away))
        return np.array(counts, dtype=np.int64)

    def index_info(self) -> IndexInfo:
        """See `PlaceMap`."""
        return self._collection.info()

    def refresh(self) -> None:
        """See `PlaceMap`."""
        if manifest_of(self._collection.connection) != self.manifest:
            raise MapError(f"{self._store.name} was replaced since it was opened: open it again")
        self._look_again()

    def __getattr__(self, name: str) -> NoReturn:
        """Raise MapError for what only a map file has in memory."""
        if name in ("ids", "latlon", "files"):
            raise MapError(
                f"the photos of map {self.path.name} are on a server, not in memory, and this needs all of them: copy "
                f'the map to a file with "sareloc map copy"'
            )
        raise AttributeError(f"{type(self).__name__} has no attribute {name}")

    def _look_again(self) -> None:
        self._count = self._store.count()
        self.notes = self._store.notes()


PROPERTY, NOTE = "sareloc.", "sareloc.note "
FILES_AT_ONCE = 1024
ROWS_AT_ONCE = 1024


class MilvusStore:
    """An open map, from `open_milvus_store`: the `MapStore` of one collection. Safe from several threads."""

    def __init__(self, collection: MilvusCollection, manifest: MapManifest) -> None:
        self.collection = collection
        self.address = collection.connection.address
        self.manifest = manifest

    @property
    def name(self) -> str:
        """See `MapStore`."""
        return str(self.address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.collection.connection.close()

    def add(
        self, photos: Sequence[MapPhoto], descriptors: Vectors, features: Sequence[bytes | None] | None = None
    ) -> int:
        """See `MapStore`. Replaced photos are removed first; an interrupted call can be repeated."""
        ids = np.array([photo_id(photo.sha256) for photo in photos], dtype=np.int64)
        there = self.collection.rows(ids)
        new = list({i: row for row, i in enumerate(ids.tolist()) if i not in there}.values())
        self._drop_replaced(photos[row] for row in new)
        self._write(ids[new], [photos[row] for row in new], descriptors[new])
        return len(new)

    def update(self, entries: Sequence[Entry]) -> None:
        """See `MapStore`. An interrupted call can be repeated."""
        for start in range(0, len(entries), ROWS_AT_ONCE):
            part = {entry.photo_id: entry for entry in entries[start : start + ROWS_AT_ONCE]}
            rows = self.collection.rows(np.array(list(part), dtype=np.int64), [*ALL, "vector"])
            self._drop_replaced(e for e in part.values() if e.photo_id in rows and e.replaces not in part)
            photos = [_updated(photo_of(row), part[i]) for i, row in rows.items()]
            vectors = np.array([row["vector"] for row in rows.values()], dtype=np.float32)
            if photos:  # the others were removed meanwhile
                self._write(np.array(list(rows), dtype=np.int64), photos, vectors)

    def remove(self, ids: Ints) -> int:
        """See `MapStore`."""
        there = self.collection.rows(ids)
        self.collection.delete(np.array(list(there), dtype=np.int64))
        return len(there)

    def count(self) -> int:
        """See `MapStore`."""
        return self.collection.count()

    def known(self, digests: Sequence[bytes]) -> dict[bytes, Entry]:
        """See `MapStore`."""
        ids = np.array([photo_id(digest) for digest in digests], dtype=np.int64)
        return {
            bytes.fromhex(row["sha256"]): entry_of(row) for row in self.collection.rows(np.unique(ids), ENTRY).values()
        }

    def entries(self, files: Sequence[str]) -> dict[str, Entry]:
        """See `MapStore`."""
        return {
            row["file"]: entry_of(row)
            for start in range(0, len(files), FILES_AT_ONCE)
            for page in self.collection.select(f"file in {text_list(files[start : start + FILES_AT_ONCE])}", ENTRY)
            for row in page
        }

    def pages(self, area: Area | None = None) -> Iterator[tuple[Ints, Floats, Sequence[str]]]:
        """See `MapStore`."""
        for page in self.collection.select("" if area is None else inside(area.bounds()), PLACE):
            latlon = np.array([[row["lat"], row["lon"]] for row in page])
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

    @property
    def holds_local_features(self) -> bool:
        """See `MapStore`."""
        return False

    def ids_without_features(self) -> Ints:
        """See `MapStore`: those of all photos."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *(ids for ids, _, _ in self.pages())])

    def write_features(self, ids: Ints, blobs: Sequence[bytes]) -> int:
        """See `MapStore`: none are stored."""
        return 0

    def features(self, ids: Ints) -> dict[int, bytes]:
        """See `MapStore`: none."""
        return {}

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

    def whitening(self) -> tuple[Vectors, Vectors] | None:
        """See `MapStore`: none, a property of a collection is too small for one."""
        return None

    def write_whitening(self, mean: Vectors, projection: Vectors) -> None:
        """See `MapStore`: raises MapError."""
        raise MapError(f"map {self.name} cannot hold a whitening: {NO_WHITENING}")

    def photo_path(self, file: str) -> Path:
        """See `MapStore`."""
        return Path(file)

    def _write(self, ids: Ints, photos: Sequence[MapPhoto], descriptors: Vectors) -> None:
        known = [row_of(photo) for photo in photos]
        self.collection.upsert(ids, descriptors, {name: [row[name] for row in known] for name in ALL})

    def _drop_replaced(self, photos: Iterable[MapPhoto | Entry]) -> None:
        replaced = {photo.replaces: photo.file for photo in photos if photo.replaces is not None}
        rows = self.collection.rows(np.array(list(replaced), dtype=np.int64), ["file"])
        # unless its name was changed meanwhile
        gone = [i for i, row in rows.items() if row["file"] == replaced[i]]
        self.collection.delete(np.array(gone, dtype=np.int64))


def _updated(photo: MapPhoto, entry: Entry) -> MapPhoto:
    size_bytes, modified_ns = entry.stamp
    return replace(photo, file=entry.file, geotag=entry.geotag, size_bytes=size_bytes, modified_ns=modified_ns)


def milvus_map_exists(where: Address) -> bool:
    """Whether there is a collection at this address.

    Raises MapError if its server does not answer, ArgumentError if the address is malformed or names an unknown index.
    """
    address = read_milvus_address(where)
    if address.index is not None:
        look_up(INDEXES, address.index, "Milvus index")
    if address.local and not Path(address.uri).exists():
        return False  # connecting would create the file
    connection = Connection(address)
    try:
        return bool(connection.ask("has_collection", collection_name=address.collection))
    finally:
        connection.close()


def photo_path_name(where: Address, photo: Path) -> str:
    """The name of a photo in a map on a server: its absolute path."""
    return Path(os.path.abspath(photo)).as_posix()


def open_milvus_store(where: Address, write: bool = True, *, consistency: Consistency = "Strong") -> MilvusStore:
    """Open a map. Raises MapError if there is none, or if the collection is not a map. Writers must read Strong."""
    address = read_milvus_address(where)
    connection = Connection(address)
    if not connection.ask("has_collection", collection_name=address.collection):
        raise MapError(f'map {address} does not exist: build one with "sareloc map build PHOTOS --out {address}"')
    return _store_of(connection, consistency)


def open_or_create_milvus_store(where: Address, manifest: MapManifest) -> MilvusStore:
    """Open a map to write to it; if there is none, create an empty one of this manifest.

    Several processes may do so at once: all get the map of the one that created the collection.
    """
    address = read_milvus_address(where)
    connection = Connection(address)
    values = asdict(replace(manifest, map_id=uuid.uuid4().hex, format=1))  # later formats differ only in files
    properties = {f"{PROPERTY}{key}": str(value) for key, value in values.items()}
    create_collection(connection, manifest.dim, COLUMNS, address.index or DEFAULT, properties)
    return _store_of(connection, "Strong")


def build_milvus_index(where: Address) -> None:
    """Ask the server to index what was added last."""
    with open_milvus_store(where) as store:
        store.collection.seal()


def has_remote_writers(where: Address) -> bool:
    """Whether processes on other machines can write to the map: not to milvus-lite's file."""
    return not read_milvus_address(where).local


def _store_of(connection: Connection, consistency: Consistency) -> MilvusStore:
    manifest, collection = manifest_of(connection), MilvusCollection(connection, COLUMNS, consistency=consistency)
    address = connection.address
    if address.index not in (None, collection.index):
        raise MapError(
            f"map {address} has the index {collection.index}, the address says {address.index}: omit that, or copy "
            "the map to a new collection with this index"
        )
    return MilvusStore(collection, manifest)


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
