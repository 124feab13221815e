"""Search from one to ten million photos: time, recall, and the gain of a known region.

    python -m benchmarks.scale                             # 1M, 3M, 10M photos: 5 GB of disk, 2 GB of memory
    python -m benchmarks.scale --photos 100000 300000 --codes PQ128x4fs RaBitQ

Descriptors are synthetic, along one long walk (see drawn_descriptors.py), so that the first million photos are a region
of the larger maps. All queries show places in it: for every size the same queries and the same correct answers, among
more and more other photos. Searching the first size alone is the cost of a query that is known to be in the region.

An index keeps short codes in memory, in lists of which a share is visited (IVF), and takes the best candidates' vectors
at half precision from a file that is mapped. "same first" is the share of queries whose first match is that of exact
search; "right place" the share whose first match is within 5 photos of the query's place.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
from benchmarks.drawn_descriptors import Walk, draw_blocks
from benchmarks.map import drawn_photo
from benchmarks.measuring import about, memory_mb
from PIL import Image
from tqdm import tqdm

from sareloc.maps import MapManifest, create_map_file, open_map_file
from sareloc.photos import decode

Vectors = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]

DIM, QUERIES, HITS = 256, 500, 10
BLOCK = 50_000
CANDIDATES = 500
NEAR_PHOTOS = 5
CODES = ("PQ128x4fs", "RaBitQ")  # faiss's names: 4 bits for two dimensions, and 1 bit for each
VISITED = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1)
TRAINING_PER_LIST = 64


def make(folder: Path, photos: int, region: int) -> None:
    """Write the descriptors of a walk at half precision, and queries about its first photos."""
    vectors = np.memmap(folder / "vectors.f16", dtype=np.float16, mode="w+", shape=(photos, DIM))
    queries, asked = [], []
    blocks = draw_blocks(Walk(dim=DIM), photos, QUERIES, np.random.default_rng(0), asked_among=region)
    for block in tqdm(blocks, total=-(-photos // BLOCK), desc="draw"):
        vectors[block.start : block.start + len(block.descriptors)] = block.descriptors
        queries.append(block.queries)
        asked.append(block.asked)
    vectors.flush()
    np.save(folder / "queries.npy", np.concatenate(queries))
    np.save(folder / "asked.npy", np.concatenate(asked))


def blocks_of(vectors: Vectors) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    for start in range(0, len(vectors), BLOCK):
        yield start, vectors[start : start + BLOCK].astype(np.float32)


def exact(vectors: Vectors, queries: Vectors, sizes: list[int]) -> dict[int, Ints]:
    """The nearest rows of each query among the first so many vectors, by comparing with all."""
    best, rows = np.full((len(queries), HITS), -np.inf, np.float32), np.zeros((len(queries), HITS), np.int64)
    found: dict[int, Ints] = {}
    for first, size in pairwise([0, *sorted(sizes)]):
        for start, block in tqdm(blocks_of(vectors[first:size]), total=-(-(size - first) // BLOCK), desc="exact"):
            scores, here = faiss.knn(queries, block, HITS, metric=faiss.METRIC_INNER_PRODUCT)
            scores, here = np.concatenate([best, scores], axis=1), np.concatenate([rows, here + first + start], axis=1)
            order = np.argsort(-scores, axis=1)[:, :HITS]
            best, rows = np.take_along_axis(scores, order, axis=1), np.take_along_axis(here, order, axis=1)
        found[size] = rows
    return found


def make_index(vectors: Vectors, codes: str, lists: int) -> Any:
    index: Any = faiss.index_factory(DIM, f"IVF{lists},{codes}", faiss.METRIC_L2)
    index.by_residual = codes == "RaBitQ"  # one table of distances for all lists, rather than one for each
    index.cp.niter = 10
    wanted = np.random.default_rng(1).choice(len(vectors), TRAINING_PER_LIST * lists, replace=False)
    index.train(vectors[np.sort(wanted)].astype(np.float32))
    for _, block in tqdm(blocks_of(vectors), total=-(-len(vectors) // BLOCK), desc=f"{codes} {len(vectors):,}"):
        index.add(block)
    return index


def search_one(index: Any, vectors: Vectors, query: Vectors) -> Ints:
    """Candidates by their codes, put in order by their vectors."""
    rows = index.search(query[None], CANDIDATES)[1][0]
    rows = np.sort(rows[rows >= 0])  # the file is read forwards
    scores = vectors[rows].astype(np.float32) @ query
    nearest: Ints = rows[np.argsort(-scores)[:HITS]]
    return nearest


def judge(found: list[Ints], truth: Ints, asked: Ints) -> dict[str, float]:
    shares = {
        "recall_at_10": np.mean([len(set(a) & set(b)) / HITS for a, b in zip(found, truth.tolist(), strict=True)]),
        "same_first": np.mean([a[0] == b[0] for a, b in zip(found, truth, strict=True)]),
        "right_place": np.mean([abs(a[0] - place) <= NEAR_PHOTOS for a, place in zip(found, asked, strict=True)]),
    }
    return {name: round(float(share), 4) for name, share in shares.items()}


def measure(folder: Path, photos: int, codes: str, truth: Ints) -> Iterator[dict[str, Any]]:
    queries, asked = np.load(folder / "queries.npy"), np.load(folder / "asked.npy")
    vectors = np.memmap(folder / "vectors.f16", dtype=np.float16, mode="r").reshape(-1, DIM)[:photos]
    lists = round(1024 * (photos / 1e6) ** 0.5) if photos >= 1e6 else 256
    start = time.perf_counter()
    index = make_index(vectors, codes, lists)
    made_s = time.perf_counter() - start
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    for share in VISITED:
        index.nprobe = max(1, round(share * lists))
        found, times = [], []
        for query in queries:
            start = time.perf_counter()
            found.append(search_one(index, vectors, query))
            times.append(1e3 * (time.perf_counter() - start))
        p50, p95 = np.percentile(times[10:], (50, 95))
        yield {
            "photos": photos,
            "codes": f"IVF{lists},{codes}",
            "visited": f"1/{round(1 / share)}",
            **judge(found, truth, asked),
            "p50_ms": round(float(p50), 2),
            "p95_ms": round(float(p95), 2),
            "code_bytes": index.code_size,
            "made_s": round(made_s),
            "not_mapped_mb": memory_mb("RssAnon"),
        }
    faiss.omp_set_num_threads(threads)


def decoding() -> dict[str, float]:
    """Milliseconds of one core to decode a JPEG to 480x640, by the size it has."""
    rng = np.random.default_rng(0)
    found = {}
    for width, height in ((640, 480), (4000, 3000)):
        shapes = Image.fromarray(rng.integers(0, 256, (height // 20, width // 20, 3), dtype=np.uint8))
        grain = rng.normal(0, 4, (height, width, 3))
        pixels = np.clip(np.asarray(shapes.resize((width, height))) + grain, 0, 255).astype(np.uint8)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "JPEG", quality=88)
        start, count = time.process_time(), 0
        while time.process_time() - start < 2:
            decode(stream.getvalue(), size=lambda height, width: (480, 640))
            count += 1
        found[f"{width}x{height}, {len(stream.getvalue()) // 1000} kB"] = 1e3 * (time.process_time() - start) / count
    return {name: round(ms, 2) for name, ms in found.items()}


def writing(folder: Path, photos: int = 40_960, packet: int = 256) -> dict[str, float]:
    """How fast one process writes packets of descriptors to a map file, and the file's bytes a photo without names."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((packet, DIM), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    known = [drawn_photo(row, latlon) for row, latlon in enumerate(rng.uniform(0, 1, (photos, 2)))]
    path = folder / "written.gpkg"
    create_map_file(path, MapManifest("drawn", "0" * 16, DIM))
    start = time.perf_counter()
    with open_map_file(path, write=True) as file:
        for first in range(0, photos, packet):
            file.add(known[first : first + packet], vectors)
    rate = photos / (time.perf_counter() - start)
    each = path.stat().st_size / photos - len(known[0].file)
    path.unlink()
    return {"rows_per_s": round(rate), "bytes_per_photo_without_name": round(each, 1)}


def growth(rows: list[dict[str, Any]], name: str) -> float:
    """The exponent e of `name` ~ photos^e, fitted over the sizes."""
    return float(np.polyfit(np.log([row["photos"] for row in rows]), np.log([row[name] for row in rows]), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--photos", type=int, nargs="+", default=[1_000_000, 3_000_000, 10_000_000])
    parser.add_argument("--codes", nargs="+", choices=CODES, default=["PQ128x4fs"])
    parser.add_argument(
        "--folder", type=Path, help="where descriptors are written and kept; a temporary one by default"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        if not (folder / "asked.npy").exists():
            make(folder, max(args.photos), min(args.photos))
        vectors = np.memmap(folder / "vectors.f16", dtype=np.float16, mode="r").reshape(-1, DIM)
        queries, asked = np.load(folder / "queries.npy"), np.load(folder / "asked.npy")
        truth = exact(vectors, queries, args.photos)
        for photos, rows in truth.items():
            print(json.dumps({"photos": photos, "codes": "exact", **judge(list(rows), rows, asked)}), flush=True)
        results = []
        for codes in args.codes:
            for photos in args.photos:
                for row in measure(folder, photos, codes, truth[photos]):
                    results.append(row)
                    print(json.dumps(row), flush=True)
        for codes in args.codes:
            for share in VISITED:
                same = [row for row in results if row["visited"] == f"1/{round(1 / share)}" and codes in row["codes"]]
                if len(same) > 1:
                    print(f"{codes}, 1/{round(1 / share)} visited: p50 grows as photos^{growth(same, 'p50_ms'):.2f}")
        print(json.dumps({"decoding_ms_of_a_core": decoding(), "writing": writing(folder), **about()}))


if __name__ == "__main__":
    main()
