"""Milvus for tests: milvus-lite in a folder, and engines over fresh collections."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sareloc.milvus.connection import Connection, MilvusAddress, read_milvus_address
from sareloc.milvus.engine import Column, MilvusEngine, create_collection

COLUMNS = (Column("lat", "DOUBLE", 0.0), Column("file", "VARCHAR", ""))


def make_engine(address: MilvusAddress, dim: int, index: str = "HNSW") -> MilvusEngine:
    connection = Connection(address)
    create_collection(connection, dim, COLUMNS, index, {"sareloc.test": "yes"})
    return MilvusEngine(connection, COLUMNS)


def collection_of(request: pytest.FixtureRequest) -> str:
    """A name of its own for each test."""
    return re.sub(r"\W", "_", request.node.name, flags=re.ASCII)


def lite_address(folder: Path, collection: str) -> MilvusAddress:
    return read_milvus_address(f"milvus-lite:{folder}/lite.db/{collection}")
