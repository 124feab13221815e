"""How a Milvus collection is made: an id, a vector and its length, and columns of what is known of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sareloc.engines.milvus_connection import Connection
from sareloc.engines.milvus_index import INDEXES
from sareloc.errors import look_up

LONGEST_TEXT = 8192  # bytes


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
    """Make the connection's collection. One of its name that is there is a MapError, or left as it is."""
    kind = connection.types
    schema = connection.make_schema()
    schema.add_field("id", kind.INT64, is_primary=True)
    schema.add_field("vector", kind.FLOAT_VECTOR, dim=dim)
    schema.add_field("length", kind.DOUBLE)
    for column in columns:
        size = {"max_length": LONGEST_TEXT} if column.kind == "VARCHAR" else {}
        schema.add_field(column.name, kind[column.kind], **size)
    parameters = connection.make_index_parameters()
    parameters.add_index(
        "vector", index_type=index, metric_type="IP", params=look_up(INDEXES, index, "Milvus index").made
    )
    connection.ask(
        "create_collection",
        collection_name=connection.address.collection,
        schema=schema,
        index_params=parameters,
        properties=dict(properties),
        consistency_level="Strong",
    )
