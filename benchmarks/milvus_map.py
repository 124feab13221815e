"""Time to write and search a map on Milvus, and the recall of its index.

    python -m benchmarks.milvus_map milvus://localhost:19530/drawn --photos 20000 --walk white --index FLAT

Descriptors are those of `benchmarks.map`, so that both can be compared. The collection is created, measured when its
index is built, and dropped. Recall is measured against exact search.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import faiss
import numpy as np
from benchmarks.drawn_descriptors import draw
from benchmarks.map import BATCH, CITY, HITS, QUERIES, SIZE_DEG, WALKS, drawn_photo, timed

from sareloc.maps import Circle, MapManifest, PlaceMap, open_or_create_store
from sareloc.milvus import MilvusStore
from sareloc.milvus.collection import MilvusCollection


def finish_index(collection: MilvusCollection) -> None:
    """Wait until all vectors are searched by the index; what came last is not, for a while."""
    connection, name = collection.connection, collection.connection.address.collection
    collection.seal()
    while connection.ask("describe_index", collection_name=name, index_name="vector")["pending_index_rows"]:
        time.sleep(0.5)
    connection.ask("release_collection", collection_name=name)
    connection.ask("load_collection", collection_name=name)


def measure(address: str, photos: int, walk: str, index: str) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    database, queries = draw(WALKS[walk], photos, QUERIES, rng)
    latlon = CITY + rng.uniform(0, SIZE_DEG, (photos, 2))
    truth = faiss.knn(queries, database, HITS)[1]
    manifest = MapManifest("drawn", "0" * 16, database.shape[1])
    with open_or_create_store(f"{address}?index={index}", manifest) as store:
        assert isinstance(store, MilvusStore)
        start = time.perf_counter()
        for first in range(0, photos, BATCH):
            rows = range(first, min(first + BATCH, photos))
            store.add([drawn_photo(row, latlon[row]) for row in rows], database[rows.start : rows.stop])
        written_s = time.perf_counter() - start
        start = time.perf_counter()
        finish_index(store.collection)
        index_s = time.perf_counter() - start
        city = PlaceMap(address)
        found = [city.search(queries[i : i + 32], HITS).files for i in range(0, QUERIES, 32)]
        numbers = [[int(name.removesuffix(".jpg")) for name in line] for part in found for line in part]
        shared = [len(set(a) & set(b)) / HITS for a, b in zip(numbers, truth.tolist(), strict=True)]
        near = Circle((CITY[0] + SIZE_DEG / 2, CITY[1] + SIZE_DEG / 2), 500)
        measured = {
            "server": store.collection.connection.ask("get_server_version"),
            "index": store.collection.index,
            "walk": walk,
            "photos": photos,
            "rows_written_per_s": round(photos / written_s),
            "index_s": round(index_s, 1),
            "same_first_match": round(float(np.mean([a[0] == b[0] for a, b in zip(numbers, truth, strict=True)])), 4),
            "recall_at_10": round(float(np.mean(shared)), 4),
            "one_query_ms": timed(lambda i: city.search(queries[i : i + 1], HITS), QUERIES),
            "batch_of_32_ms": timed(lambda i: city.search(queries[i : i + 32], HITS), QUERIES - 32, step=8),
            "one_query_within_500_m_ms": timed(lambda i: city.search(queries[i : i + 1], HITS, near=near), 50),
        }
        store.collection.connection.ask("drop_collection", collection_name=store.address.collection)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="of a collection that is not there")
    parser.add_argument("--photos", type=int, default=20_000)
    parser.add_argument("--walk", choices=WALKS, default="streets")
    parser.add_argument("--index", default="HNSW")
    args = parser.parse_args()
    print(json.dumps(measure(args.address, args.photos, args.walk, args.index)))


if __name__ == "__main__":
    main()
