"""The indexes that a Milvus collection can have, and how each is searched.

FLAT compares with every vector and is right always; HNSW reads few of them, for maps of millions, and misses some,
the more the less descriptors cluster. A collection whose owner has given it another index is searched with that index's
own defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DEFAULT = "FLAT"


@dataclass(frozen=True)
class MilvusIndex:
    """How an index is made, and searched for so many hits."""

    made: dict[str, Any]
    searched: Callable[[int], dict[str, Any]]


INDEXES: dict[str, MilvusIndex] = {
    "FLAT": MilvusIndex({}, lambda k: {}),
    "HNSW": MilvusIndex({"M": 32, "efConstruction": 200}, lambda k: {"ef": max(2 * k, 400)}),
}


def search_parameters(index: str, k: int) -> dict[str, Any]:
    """What to ask this index with, for k hits."""
    return INDEXES[index].searched(k) if index in INDEXES else {}
