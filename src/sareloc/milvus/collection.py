"""A collection of Milvus or milvus-lite: an index of vectors, with columns of data about each.

Vectors are unit vectors up to rounding, stored as float32 and compared by inner product; the length of each is stored
too, which gives exact distances. Reads have one of two consistency levels: "Strong" sees all earlier writes and waits
for them (about 0.2 s), "Bounded" does not wait and may miss the last seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import sleep
from typing import Any, Literal

import numpy as np

from sareloc.arrays import Floats, Ints, Vectors
from sareloc.errors import ArgumentError, MapError, look_up
from sareloc.index.exact import Hits, IndexInfo, checked_ids, checked_k, checked_vectors, nearest_of, no_hits
from sareloc.milvus.connection import Connection

DEFAULT = "FLAT"


@dataclass(frozen=True)
class IndexParameters:
    """The parameters of an index."""

    build: dict[str, Any]
    search: Callable[[int], dict[str, Any]]
    """By the number of hits."""


INDEXES: dict[str, IndexParameters] = {
    "FLAT": IndexParameters({}, lambda k: {}),
    "HNSW": IndexParameters({"M": 32, "efConstruction": 200}, lambda k: {"ef": max(2 * k, 400)}),
}
"""FLAT compares with every vector; HNSW with few, for millions of photos, and misses some neighbours, the more the less
descriptors cluster. A collection with another index is searched with the default parameters of that index."""


def search_parameters(index: str, k: int) -> dict[str, Any]:
    """The search parameters of an index for k hits."""
    return INDEXES[index].search(k) if index in INDEXES else {}


LONGEST_TEXT = 8192  # bytes
INDEX_PROPERTY = "sareloc.index"
"""The property of a collection that names the index it was created with."""
LOAD_S = 3600.0  # a restarted server reads its collections from disk
WAITS_S = (0.1, 0.2, 0.4)


@dataclass(frozen=True)
class Column:
    """A column of data about each vector."""

    name: str
    kind: Literal["DOUBLE", "INT64", "VARCHAR"]
    absent: float | str
    """The default value."""
    longest: int = LONGEST_TEXT
    """Of a text: bytes."""


def create_collection(
    connection: Connection, dim: int, columns: Sequence[Column], index: str, properties: Mapping[str, str]
) -> None:
    """Create the connection's collection if there is none of its name; `complete_collection` must follow.

    Args:
        connection: to the server.
        dim: of the vectors.
        columns: data about each vector.
        index: a key of `INDEXES`; kept as a property, so that any client can complete the collection.
        properties: texts that are stored with the collection.

    Raises:
        MapError: if the server refuses.
    """
    look_up(INDEXES, index, "Milvus index")
    kind = connection.types
    schema = connection.make_schema()
    schema.add_field("id", kind.INT64, is_primary=True)
    schema.add_field("vector", kind.FLOAT_VECTOR, dim=dim)
    schema.add_field("length", kind.DOUBLE)
    for column in columns:
        size = {"max_length": column.longest} if column.kind == "VARCHAR" else {}
        schema.add_field(column.name, kind[column.kind], **size)
    name = {"collection_name": connection.address.collection}
    stated = {**properties, INDEX_PROPERTY: index}
    _ensure(
        lambda: connection.ask("has_collection", **name) or None,
        lambda: connection.ask(
            "create_collection", **name, schema=schema, properties=stated, consistency_level="Strong"
        ),
    )


def complete_collection(connection: Connection) -> str:
    """Index and load the connection's collection unless that has been done; returns the type of its index.

    A client may have been killed between creating a collection and indexing it, and several clients may complete one
    at the same time. Raises MapError if the server refuses.
    """
    name = {"collection_name": connection.address.collection}
    properties = connection.ask("describe_collection", **name).get("properties") or {}
    index = properties.get(INDEX_PROPERTY)
    index = index if index in INDEXES else DEFAULT
    parameters = connection.make_index_parameters()
    parameters.add_index("vector", index_type=index, metric_type="IP", params=INDEXES[index].build)
    described = _ensure(
        lambda: connection.ask("describe_index", **name, index_name="vector"),
        lambda: connection.ask("create_index", **name, index_params=parameters),
    )
    connection.ask("load_collection", **name, timeout=LOAD_S)
    return str(described["index_type"])


def _ensure(find: Callable[[], Any], make: Callable[[], object]) -> Any:
    """What `find` returns, after `make` if it returns None.

    The server refuses what another client makes at the same time: then both are repeated, a few times.
    Raises MapError if the server still refuses.
    """
    for wait in WAITS_S:
        if (found := find()) is not None:
            return found
        try:
            make()
        except MapError:
            sleep(wait)
    if (found := find()) is None:
        make()
        found = find()
    return found


MOST_ROWS = 16_384
"""Milvus returns at most this many hits for a query, and rows at a time."""
NUMBERS_AT_ONCE = 2**22  # of vectors in one message: 16 MiB
HITS_AT_ONCE = 2**17
LONG_ROWS = 256  # with long texts in one message: 16 MiB
IDS_AT_ONCE = 8192
UNIT = 1e-2

Consistency = Literal["Strong", "Bounded"]
Row = dict[str, Any]


class MilvusCollection:
    """The vectors of an existing collection, with those of these columns that it has.

    Its index is built if it has none. Safe from several threads.
    """

    def __init__(
        self, connection: Connection, columns: Sequence[Column] = (), *, consistency: Consistency = "Strong"
    ) -> None:
        self.connection = connection
        self.consistency = consistency
        self._name = connection.address.collection
        self.index = complete_collection(connection)
        described = self._ask("describe_collection")
        fields = {field["name"]: field for field in described["fields"]}
        self.dim = int(fields["vector"]["params"]["dim"])
        self.columns = [column for column in columns if column.name in fields]
        self._long = {column.name for column in self.columns if column.longest > LONGEST_TEXT}

    def upsert(self, ids: Ints, vectors: Vectors, rows: Sequence[Row] | None = None) -> None:
        """See `Index`. `rows`: for each vector the values of columns; the others have their default values."""
        unit = checked_vectors(vectors, self.dim)
        new = checked_ids(ids, len(unit)).tolist()
        lengths = np.linalg.norm(unit.astype(np.float64), axis=1)
        if len(unit) and not np.abs(lengths - 1).max() <= UNIT:
            raise ArgumentError(
                f"expected unit vectors, found one of length {lengths[np.argmax(np.abs(lengths - 1))]:.3f}"
            )
        most = LONG_ROWS if self._long else len(unit)
        for start in range(0, len(unit), step := max(1, min(most, NUMBERS_AT_ONCE // self.dim))):
            data = [
                {"id": new[i], "vector": unit[i], "length": float(lengths[i])}
                | {column.name: (rows[i] if rows else {}).get(column.name, column.absent) for column in self.columns}
                for i in range(start, min(start + step, len(unit)))
            ]
            self._ask("upsert", data=data)

    def delete(self, ids: Ints) -> None:
        """See `Index`."""
        for part in _parts(ids):
            self._ask("delete", ids=part)

    def search(self, queries: Vectors, k: int, among: Ints | None = None) -> Hits:
        """See `Index`. A hit may be missed if the index is not FLAT."""
        if among is None:
            return self.find(queries, k)[0]
        return self.find_among(queries, k, among)[0]

    def find_among(
        self, queries: Vectors, k: int, among: Ints, fields: Sequence[str] = ()
    ) -> tuple[Hits, dict[int, Row]]:
        """As `find`, among these ids."""
        asked, rows = checked_vectors(queries, self.dim), dict[int, Row]()
        parts = [no_hits(len(asked))]
        for part in _parts(np.unique(among)):
            hits, known = self.find(asked, k, f"id in {part}", fields)
            parts.append(hits)
            rows |= known
        return nearest_of(checked_k(k), *parts), rows

    def find(
        self, queries: Vectors, k: int, where: str = "", fields: Sequence[str] = ()
    ) -> tuple[Hits, dict[int, Row]]:
        """The nearest vectors of each query, and some fields of them by id.

        Args:
            queries: (Q, dim).
            k: how many.
            where: a condition that they meet, in Milvus's syntax; default: none.
            fields: names of columns.
        """
        asked, k = checked_vectors(queries, self.dim), checked_k(k)
        if k > MOST_ROWS:
            k = min(k, self.count(where))
        if k > MOST_ROWS:
            raise ArgumentError(f"Milvus finds at most {MOST_ROWS:,} hits, requested: {k:,}")
        found: list[list[Row]] = []
        for start in range(0, len(asked) if k else 0, step := max(1, HITS_AT_ONCE // max(k, 1))):
            found += self._search(asked[start : start + step], k, where, fields)
        shortest = min(map(len, found), default=k)
        if shortest < k and shortest < (k := min(k, self.count(where))):
            return self._scan(asked, k, where, fields)  # an index may miss hits if few vectors meet the condition
        rows = {hit["id"]: hit["entity"] for hits in found for hit in hits}
        if not found:
            return no_hits(len(asked)), rows
        values = [[(hit["distance"], hit["entity"]["length"]) for hit in hits[:k]] for hits in found]
        products, lengths = np.moveaxis(np.array(values, dtype=np.float64).reshape(len(asked), k, 2), 2, 0)
        ids = np.array([[hit["id"] for hit in hits[:k]] for hits in found], dtype=np.int64).reshape(len(asked), k)
        return nearest_of(k, Hits(ids, _distances(asked, products, lengths))), rows

    def _search(self, asked: Vectors, k: int, where: str, fields: Sequence[str]) -> list[list[Row]]:
        found: list[list[Row]] = self._ask(
            "search",
            data=list(asked),
            limit=k,
            filter=where,
            output_fields=["length", *fields],
            search_params={"metric_type": "IP", "params": search_parameters(self.index, k)},
            consistency_level=self.consistency,
        )
        return found

    def _scan(self, asked: Vectors, k: int, where: str, fields: Sequence[str]) -> tuple[Hits, dict[int, Row]]:
        """As `find`, by comparing with all that meet the condition."""
        best, known = no_hits(len(asked)), dict[int, Row]()
        for page in self.select(where, (*fields, "vector")):
            ids = np.array([row["id"] for row in page], dtype=np.int64)
            vectors = np.array([row["vector"] for row in page], dtype=np.float64)
            distances = _distances(asked, asked @ vectors.T, np.linalg.norm(vectors, axis=1))
            here = Hits(np.tile(ids, (len(asked), 1)), distances)
            best = nearest_of(k, best, here)
            known |= {row["id"]: {name: row[name] for name in fields} for row in page}
            known = {i: known[i] for i in np.unique(best.ids).tolist()}
        return best, known

    def select(self, where: str = "", fields: Sequence[str] = ()) -> Iterator[list[Row]]:
        """All rows that meet the condition, with these fields, by ascending id, some thousand at a time."""
        page = min(MOST_ROWS, max(1, NUMBERS_AT_ONCE // self.dim)) if "vector" in fields else MOST_ROWS
        page = min(page, LONG_ROWS) if self._long.intersection(fields) else page
        names = ["id", *fields]
        first = self._ask("query", filter=where, limit=page, output_fields=names, consistency_level=self.consistency)
        if len(first) < page:  # the usual case; an iterator takes a second to start on older servers
            if first:
                yield sorted(first, key=lambda row: int(row["id"]))
            return
        pages = self._ask("query_iterator", batch_size=page, filter=where, output_fields=names)
        try:
            while rows := self.connection.retry(pages.next):
                yield list(rows)
        finally:
            pages.close()

    def rows(self, ids: Ints, fields: Sequence[str] = ()) -> dict[int, Row]:
        """These fields of these ids; unknown ids are ignored."""
        return {row["id"]: row for part in _parts(ids) for page in self.select(f"id in {part}", fields) for row in page}

    def fetch(self, ids: Ints) -> Vectors:
        """See `Index`."""
        wanted = np.asarray(ids, dtype=np.int64).tolist()
        rows = self.rows(np.unique(np.asarray(ids, dtype=np.int64)), ["vector"])
        if lost := [i for i in wanted if i not in rows]:
            raise ArgumentError(f"there is no vector under id {lost[0]}")
        return np.array([rows[i]["vector"] for i in wanted], dtype=np.float32).reshape(-1, self.dim)

    def any_value(self, column: str, where: str) -> float | None:
        """The value of a column in one row that meets the condition; None if there is none. Read "Bounded"."""
        rows = self._ask("query", filter=where, limit=1, output_fields=[column], consistency_level="Bounded")
        return float(rows[0][column]) if len(rows) else None

    def seal(self) -> None:
        """Ask the server to index what was added last, which it searches less well until then; it may refuse."""
        with suppress(MapError):
            self._ask("flush", retry_on_rate_limit=False)

    def count(self, where: str = "") -> int:
        """The number of rows that meet the condition, with all earlier writes."""
        counted = self._ask("query", filter=where, output_fields=["count(*)"], consistency_level="Strong")
        return int(counted[0]["count(*)"])

    def info(self) -> IndexInfo:
        """See `Index`."""
        count = self.count()
        return IndexInfo(f"Milvus {self.index}", count, self.dim, 4 * self.dim * count)

    def _ask(self, method: str, **arguments: Any) -> Any:
        return self.connection.ask(method, collection_name=self._name, **arguments)


def _distances(queries: Vectors, products: Floats, lengths: Floats) -> Vectors:
    """Euclidean distances (Q, K) from inner products (Q, K) with vectors of these lengths."""
    squared = (queries.astype(np.float64) ** 2).sum(axis=1, keepdims=True) + lengths**2 - 2 * products
    return np.asarray(np.sqrt(np.maximum(squared, 0)), dtype=np.float32)


def _parts(ids: Ints) -> Iterator[list[int]]:
    wanted = np.asarray(ids, dtype=np.int64).tolist()
    for start in range(0, len(wanted), IDS_AT_ONCE):
        yield wanted[start : start + IDS_AT_ONCE]
