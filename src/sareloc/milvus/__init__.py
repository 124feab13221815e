"""Maps on a Milvus server or in a milvus-lite file (extra `milvus`), opened through `sareloc.maps`.

`BACKEND` is what the registry of map addresses (`sareloc.maps.store`) imports.
"""

from sareloc.maps import MapBackend
from sareloc.milvus.info import MilvusListing, TimedWatch, compact_milvus, milvus_info, verify_milvus
from sareloc.milvus.store import (
    MilvusMap,
    build_milvus_index,
    has_remote_writers,
    milvus_map_exists,
    open_milvus_store,
    open_or_create_milvus_store,
    photo_path_name,
)

__all__ = ["BACKEND", "MilvusMap"]

BACKEND = MapBackend(
    is_file=False,
    exists=milvus_map_exists,
    photo_name=photo_path_name,
    open_store=open_milvus_store,
    open_or_create_store=open_or_create_milvus_store,
    place_map=MilvusMap,
    exact_numbers=0,
    build_index=build_milvus_index,
    has_remote_writers=has_remote_writers,
    info=milvus_info,
    verify=verify_milvus,
    compact=compact_milvus,
    listing=MilvusListing,
    watch=TimedWatch,
)
