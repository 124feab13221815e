"""How a Milvus collection is made: an id, a vector and its length, and columns of what is known of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import sleep
from typing import Any, Literal

from sareloc.engines.milvus_connection import Connection
from sareloc.engines.milvus_index import DEFAULT, INDEXES
from sareloc.errors import MapError, look_up

LONGEST_TEXT = 8192  # bytes
INDEX_PROPERTY = "sareloc.index"
"""The property of a collection that names the index it was created with."""
LOAD_S = 3600.0  # a server that was started again reads its collections from disk
WAITS_S = (0.1, 0.2, 0.4)


@dataclass(frozen=True)
class Column:
    """Something that is known of each vector."""

    name: str
    kind: Literal["DOUBLE", "INT64", "VARCHAR"]
    absent: float | str
    """What stands where nothing was said."""


def create_collection(
    connection: Connection, dim: int, columns: Sequence[Column], index: str, properties: Mapping[str, str]
) -> None:
    """Create the connection's collection if there is none of its name; `complete_collection` must follow.

    The name of the index is kept as a property, so that any client can complete the collection.
    Raises MapError if the server refuses.
    """
    look_up(INDEXES, index, "Milvus index")
    kind = connection.types
    schema = connection.make_schema()
    schema.add_field("id", kind.INT64, is_primary=True)
    schema.add_field("vector", kind.FLOAT_VECTOR, dim=dim)
    schema.add_field("length", kind.DOUBLE)
    for column in columns:
        size = {"max_length": LONGEST_TEXT} if column.kind == "VARCHAR" else {}
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
    parameters.add_index("vector", index_type=index, metric_type="IP", params=INDEXES[index].made)
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
