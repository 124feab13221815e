"""Milvus for tests: milvus-lite in a folder, and fresh collections."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sareloc.milvus.collection import Column, MilvusCollection, create_collection
from sareloc.milvus.connection import Connection, MilvusAddress, read_milvus_address

COLUMNS = (Column("lat", "DOUBLE", 0.0), Column("file", "VARCHAR", ""))


def make_collection(address: MilvusAddress, dim: int, index: str = "HNSW") -> MilvusCollection:
    connection = Connection(address)
    create_collection(connection, dim, COLUMNS, index, {"sareloc.test": "yes"})
    return MilvusCollection(connection, COLUMNS)


def collection_of(request: pytest.FixtureRequest) -> str:
    """A name of its own for each test."""
    return re.sub(r"\W", "_", request.node.name, flags=re.ASCII)


def lite_address(folder: Path, collection: str) -> MilvusAddress:
    return read_milvus_address(f"milvus-lite:{folder}/lite.db/{collection}")
