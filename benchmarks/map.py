"""Time to build, open and search a map, its size, and the recall of its index.

    python -m benchmarks.map                  # 10,000, 100,000 and 1,000,000 photos: 5 GB of disk and of memory
    python -m benchmarks.map --photos 100000 --walk white
    python -m benchmarks.map --photos 10000 --walk white white-8448 --exact    # large descriptors

Descriptors of 512 dimensions are synthetic (see drawn_descriptors.py): "streets" are like those of real street photos
("streets-256": with half the dimensions, "streets-1024": with those of a search vector), "white" ones have no
structure, the hardest case for an index ("white-8448": with the dimensions of SALAD and MegaLoc). Each map is a real
file, opened by a process of its own that builds the
index, then by another that loads it and searches; with --exact by one process, without an index. Recall@10 is measured
against exact search at full precision.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import torch
from benchmarks.drawn_descriptors import WHITE, Walk, draw
from benchmarks.measuring import about, memory_mb
from PIL import Image

from sareloc.maps import Circle, MapConfig, MapManifest, MapPhoto, PlaceMap, build_map, create_map_file, open_map_file
from sareloc.models import make_model
from sareloc.photos import Geotag, exif_bytes

WALKS = {
    "streets": Walk(),
    "white": WHITE,
    "streets-256": Walk(dim=256),
    "streets-1024": Walk(dim=1024),
    "white-8448": replace(WHITE, dim=8448),
}
QUERIES, HITS = 500, 10
CITY, SIZE_DEG = (48.86, 2.35), 0.2  # about 20 km
BATCH = 4096


def make(folder: Path, photos: int, walk: str) -> dict[str, Any]:
    """Draw descriptors, write them as a map, and find the truth."""
    rng = np.random.default_rng(0)
    database, queries = draw(WALKS[walk], photos, QUERIES, rng)
    latlon = CITY + rng.uniform(0, SIZE_DEG, (photos, 2))
    path = folder / "city.gpkg"
    create_map_file(path, MapManifest("drawn", "0" * 16, database.shape[1]))
    start = time.perf_counter()
    with open_map_file(path, write=True) as file:
        for first in range(0, photos, BATCH):
            rows = range(first, min(first + BATCH, photos))
            file.add([drawn_photo(row, latlon[row]) for row in rows], database[rows.start : rows.stop])
    written_s = time.perf_counter() - start
    np.save(folder / "queries.npy", queries)
    np.save(folder / "truth.npy", faiss.knn(queries, database, HITS)[1] + 1)  # ids begin with 1
    names = photos * len(drawn_photo(0, latlon[0]).file)
    return {
        "photos": photos,
        "file_bytes_per_photo_without_name": round((path.stat().st_size - names) / photos, 1),
        "rows_written_per_s": round(photos / written_s),
    }


def drawn_photo(number: int, latlon: npt.NDArray[np.float64]) -> MapPhoto:
    geotag = Geotag((float(latlon[0]), float(latlon[1])), number % 360 + 0.5, 1.7e9 + number)
    return MapPhoto(f"{number:08d}.jpg", geotag, 4000, 3000, hashlib.sha256(b"%d" % number).digest(), 3_000_000, number)


def first_open(folder: Path) -> dict[str, Any]:
    start = time.perf_counter()
    city = PlaceMap(folder / "city.gpkg")
    with open_map_file(city.path) as file:
        cache = file.index_cache().folder
    parts = cache.iterdir() if cache.exists() else ()  # a small map needs no index
    return {
        "first_open_s": round(time.perf_counter() - start, 2),
        "first_open_peak_mb": memory_mb("VmHWM"),
        "index_mb": round(sum(part.stat().st_size for part in parts) / 1e6),
    }


def search(folder: Path, *, exact: bool = False) -> dict[str, Any]:
    """Open a map that has its index, or with `exact` needs none, and search it."""
    queries, truth = np.load(folder / "queries.npy"), np.load(folder / "truth.npy")
    before = memory_mb("VmRSS")
    start = time.perf_counter()
    city = PlaceMap(folder / "city.gpkg", exact=exact)
    open_s = time.perf_counter() - start
    found = np.concatenate([city.search(queries[i : i + 32], HITS).ids for i in range(0, QUERIES, 32)])
    recall = np.mean([len(set(a) & set(b)) / HITS for a, b in zip(found.tolist(), truth.tolist(), strict=True)])
    near = Circle((CITY[0] + SIZE_DEG / 2, CITY[1] + SIZE_DEG / 2), 500)
    return {
        "kind": city.index_info().kind,
        "open_s": round(open_s, 3),
        "recall_at_10": round(float(recall), 4),
        "one_query_ms": timed(lambda i: city.search(queries[i : i + 1], HITS), QUERIES),
        "batch_of_32_ms": timed(lambda i: city.search(queries[i : i + 32], HITS), QUERIES - 32, step=8),
        "one_query_within_500_m_ms": timed(lambda i: city.search(queries[i : i + 1], HITS, near=near), 50),
        "memory_mb": memory_mb("VmRSS") - before,
        "of_which_not_mapped_mb": memory_mb("RssAnon"),
    }


def timed(call: Callable[[int], object], count: int, step: int = 1) -> dict[str, float]:
    """The median and the 95th percentile over calls, in milliseconds; the first ten are for warming up."""
    times = []
    for i in range(0, count, step):
        start = time.perf_counter()
        call(i)
        times.append(1e3 * (time.perf_counter() - start))
    p50, p95 = np.percentile(times[10:] if len(times) > 20 else times, (50, 95))
    return {"p50": round(float(p50), 3), "p95": round(float(p95), 3)}


def build(folder: Path, photos: int = 500) -> dict[str, Any]:
    """Build a map of JPEGs of 640 x 480 with a model so small that everything else shows."""
    rng = np.random.default_rng(0)
    for number in range(photos):
        pixels = np.kron(rng.integers(0, 256, (12, 16, 3)), np.ones((40, 40, 1))).astype(np.uint8)
        exif = exif_bytes(Geotag((48.0 + number * 1e-4, 2.0)))
        Image.fromarray(pixels).save(folder / f"{number:05d}.jpg", exif=exif)
    model = make_model("alexnet", "avg", size=(64, 64), rng=torch.Generator().manual_seed(0))
    report = build_map(folder, folder / "city.gpkg", model, config=MapConfig(batch=32, workers=2, progress=False))
    again = build_map(folder, folder / "city.gpkg", model, config=MapConfig(batch=32, workers=2, progress=False))
    assert (report.added, again.already) == (photos, photos)
    return {
        "photos": photos,
        "photos_per_s": round(photos / report.seconds, 1),
        "skipped_per_s_when_run_again": round(photos / again.seconds),
    }


def in_a_process(stage: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.map", "--stage", stage, *map(str, arguments)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--photos", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--walk", nargs="+", choices=WALKS, default=["streets", "white"])
    parser.add_argument("--exact", action="store_true", help="search without an index")
    parser.add_argument("--folder", type=Path, help="where the maps are written; a temporary folder by default")
    parser.add_argument("--stage", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stage:
        stages: dict[str, Callable[..., dict[str, Any]]] = {
            "make": make,
            "first_open": first_open,
            "search": search,
            "search_exact": partial(search, exact=True),
        }
        name, folder, *rest = args.stage
        print(json.dumps(stages[name](Path(folder), *([int(rest[0]), rest[1]] if rest else []))))
        return
    built: dict[str, Any] | None = None
    if not args.exact:  # searching alone
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            built = build(Path(folder))
        print(f"build: {built['photos_per_s']} photos/s; again: {built['skipped_per_s_when_run_again']} skipped/s")
    results = []
    for photos in args.photos:
        for walk in args.walk:
            with tempfile.TemporaryDirectory(dir=args.folder) as folder:
                row = {"walk": walk, **in_a_process("make", folder, photos, walk)}
                for stage in ("search_exact",) if args.exact else ("first_open", "search"):
                    row |= in_a_process(stage, folder)
            results.append(row)
            print(json.dumps(row), flush=True)
    print(json.dumps({**about(), "faiss": faiss.__version__, "build": built, "search": results}))


if __name__ == "__main__":
    main()
