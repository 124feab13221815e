"""Maps on a Milvus server or in a milvus-lite file (extra `milvus`), opened through `sareloc.maps`.

`MilvusMap` is what the registry of map addresses (`MAPS` in `sareloc.maps.store`) names.
"""

from sareloc.milvus.place_map import MilvusMap
from sareloc.milvus.store import MilvusStore

__all__ = ["MilvusMap", "MilvusStore"]
