"""What verification by local features costs: recall by keypoints and candidates, milliseconds, bytes, growth.

    python -m benchmarks.verify_cost --parts sweep --data DATA --figure sweep.svg
    python -m benchmarks.verify_cost --parts time                   # --device cuda: extraction and matching on a GPU
    python -m benchmarks.verify_cost --parts growth                 # 6 GB of disk

sweep: recall@1 of real sets by the number of keypoints of query and map photos (the best N of those extracted) and of
candidates, ranked as `sareloc.evaluation.ranking` ranks, and the CPU time to match and verify the candidates of a
query, on one thread, without extraction and reading. time: what verification adds to a query of 640 x 480 in a drawn
town, verified and unverified in turns, and each of its stages, one after another. growth: reading the features of 20
random photos from maps of random features; each map is read by a process of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
import torch
from benchmarks import real_sets
from benchmarks.measuring import about, memory_mb

from sareloc.arrays import Bools, Floats, Ints
from sareloc.city import draw_places
from sareloc.datasets import Places, load_dataset
from sareloc.datasets.places import find_positives
from sareloc.evaluation.metrics import percent_interval
from sareloc.evaluation.ranking import TEMPERATURE_SHARE, rank
from sareloc.figures.style import FAINT, INK, new_figure, save_figure, series_style, styled
from sareloc.geometry import (
    KEYPOINTS,
    Evidence,
    LocalFeatureExtractor,
    LocalFeatures,
    count_inliers,
    feature_size,
    match_features,
    match_scores,
    pack_features,
    search_vector,
    two_view,
    unpack_features,
    verify,
)
from sareloc.geometry.local_features import KEYPOINT_BYTES
from sareloc.localize import Localizer, Search
from sareloc.localize.verify import PREFILTERED, VERIFIED, Verified, find_pose
from sareloc.maps import MapConfig, MapManifest, PlaceMap, add_local_features, build_map, create_map_file, open_map_file
from sareloc.models import load_model
from sareloc.photos import decode, read_image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")

SETS: dict[str, Callable[[Path], Places]] = {
    "Gardens Point, night": lambda data: real_sets.gardens_point(data, "night_right", "day_right"),
    "Gardens Point, night, other side": lambda data: real_sets.gardens_point(data, "night_right", "day_left"),
    "Cambridge test": lambda data: real_sets.cambridge(data, "test"),
}
PARTS = ("sweep", "time", "growth")
PROCESSES = 2
PHOTO = (480, 640)  # height and width
GROWN = ((10_000, KEYPOINTS), (100_000, KEYPOINTS), (10_000, 16), (100_000, 16), (1_000_000, 16))
BATCH = 4096
READS, COLD_READS = 200, 30


@dataclass(frozen=True)
class Point:
    """Verification of a set's queries with so many keypoints a photo and candidates."""

    keypoints: int
    candidates: int
    recall: float
    interval: tuple[float, float] | None
    ms: float
    """CPU time of a query: the median."""


def clocked(call: Callable[P, T], *args: P.args, **options: P.kwargs) -> tuple[T, float]:
    """What the call returns, and its milliseconds."""
    start = time.perf_counter()
    found = call(*args, **options)
    return found, 1e3 * (time.perf_counter() - start)


# sweep


def sweep(args: argparse.Namespace) -> dict[str, Any]:
    """Recall and time of each set, by keypoints and candidates."""
    torch.set_num_threads(1)
    model = load_model("fast", device="cpu")
    packed: dict[Path, bytes] = {}
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes
    found: dict[str, Any] = {}
    results: dict[str, Sequence[Point]] = {}
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        for name, load in SETS.items():
            places = load(args.data)
            rows = np.sort(np.random.default_rng(0).permutation(len(places.queries))[: args.queries])
            places = replace(places, queries=places.queries.take(rows))
            ranked = rank(model, places, n=max(args.candidates), progress=False)
            top, distances = ranked.rankings[:, : max(args.candidates)], ranked.distances
            shown = [places.database.path(row) for row in np.unique(top).tolist()]
            asked = [places.queries.path(row) for row in range(len(places.queries))]
            wanted = [path for path in (*shown, *asked) if path not in packed]
            packed |= zip(wanted, pool.map(partial(extract, keypoints=max(args.keypoints)), wanted), strict=True)
            tasks = [
                (packed[query], [packed[places.database.path(row)] for row in line])
                for query, line in zip(asked, top.tolist(), strict=True)
            ]
            work = partial(verify_parts, keypoints=args.keypoints, depths=args.candidates)
            verified = pool.map(work, tasks, chunksize=1)
            positives = find_positives(places)
            right = np.array([np.isin(line, near) for line, near in zip(top, positives, strict=True)])
            points = judge(distances, right, verified, args.keypoints, args.candidates)
            unverified = 100 * float(right[:, 0].mean())
            found[name] = {"queries": len(asked), "unverified": unverified, "points": [asdict(one) for one in points]}
            print(sweep_table(name, len(asked), unverified, points), flush=True)
            results[name] = points
    if args.figure:
        save_figure(draw_sweep(results, {name: one["unverified"] for name, one in found.items()}), args.figure)
    return found


def extract(photo: Path, keypoints: int) -> bytes:
    """The packed local features of a photo."""
    torch.set_num_threads(1)
    (features,) = LocalFeatureExtractor("cpu").extract([decode(photo, size=feature_size)], keypoints)
    return pack_features(features)


def verify_parts(
    task: tuple[bytes, Sequence[bytes]], keypoints: Sequence[int], depths: Sequence[int]
) -> tuple[Floats, Floats]:
    """Inliers and planar inliers (N, 2, K) of a query's K candidates with each of N numbers of keypoints; milliseconds
    (N, D) of CPU time to match and verify the first candidates, by each of D ascending depths."""
    query, others = unpack_features(task[0]), [unpack_features(blob) for blob in task[1]]
    counts, ms = np.zeros((len(keypoints), 2, len(others))), np.zeros((len(keypoints), len(depths)))
    for row, number in enumerate(keypoints):
        mine, theirs = query.best(number), [other.best(number) for other in others]
        for part, (first, last) in enumerate(zip((0, *depths[:-1]), depths, strict=True)):
            start = time.process_time()  # other programs do not count
            evidence = count_inliers(verify(mine, theirs[first:last]))
            ms[row, part] = 1e3 * (time.process_time() - start)
            counts[row, :, first:last] = evidence.inliers, evidence.planar
    return counts, ms.cumsum(axis=1)


def judge(
    distances: Floats,
    right: Bools,
    verified: Sequence[tuple[Floats, Floats]],
    keypoints: Sequence[int],
    depths: Sequence[int],
) -> list[Point]:
    """Recall@1 and time for each number of keypoints and each depth.

    distances and right (Q, K): of each query's candidates, nearest first, and whether they show its place. verified: of
    each query, what `verify_parts` returns.
    """
    points = []
    for row, number in enumerate(keypoints):
        for part, depth in enumerate(depths):
            evidence = [Evidence(*counts[row]) for counts, _ in verified]
            first = first_candidates(distances[:, :depth], evidence)
            hits = right[np.arange(len(right)), first]
            ms = float(np.median([times[row, part] for _, times in verified]))
            points.append(Point(number, depth, 100 * float(hits.mean()), percent_interval(hits, 0), ms))
    return points


def first_candidates(distances: Floats, evidence: Sequence[Evidence]) -> Ints:
    """The column (Q,) of the candidate that ranks first by `match_scores`, as in `verify_rankings`.

    distances (Q, K): of descriptors, nearest first. evidence: of the first K candidates of each query, or of more.
    """
    spread = distances[:, -1] ** 2 - distances[:, 0] ** 2
    temperature = max(TEMPERATURE_SHARE * float(np.median(spread)), 1e-9)
    columns = np.arange(distances.shape[1])
    return np.array(
        [
            np.argmax(match_scores(line, temperature, one.take(columns)))
            for line, one in zip(distances, evidence, strict=True)
        ]
    )


def sweep_table(name: str, queries: int, unverified: float, points: Sequence[Point]) -> str:
    """A table: keypoints by candidates, each cell with recall@1, its interval, and the time."""
    depths = sorted({point.candidates for point in points})
    lines = [
        f"\n{name}, {queries} queries, recall@1 unverified {unverified:.1f}\n",
        "| keypoints | " + " | ".join(f"{depth} candidates" for depth in depths) + " |",
        "|---" * (len(depths) + 1) + "|",
    ]
    for number in sorted({point.keypoints for point in points}):
        cells = []
        for point in points:
            if point.keypoints == number:
                low, high = point.interval or (np.nan, np.nan)
                cells.append(f"{point.recall:.1f} ({low:.0f} to {high:.0f}), {point.ms:.0f} ms")
        lines.append(f"| {number:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


@styled
def draw_sweep(sets: dict[str, Sequence[Point]], unverified: dict[str, float]) -> Figure:
    """Recall@1 over keypoints, a line for each number of candidates, and below the time of a query."""
    figure = new_figure(10, 5.4)
    panels = figure.subplots(2, len(sets), sharex=True, sharey="row", squeeze=False, height_ratios=(3, 2))
    for column, (name, points) in enumerate(sets.items()):
        above, below = panels[:, column]
        above.set_title(name)
        above.axhline(unverified[name], color=INK, linewidth=1, linestyle=":", label="unverified")
        for number, depth in enumerate(sorted({point.candidates for point in points})):
            line = [point for point in points if point.candidates == depth]
            style = series_style(number)
            how: dict[str, Any] = {"color": style.colour, "linestyle": style.line, "marker": style.marker}
            keypoints = [point.keypoints for point in line]
            above.plot(keypoints, [point.recall for point in line], label=f"{depth} candidates", **how)
            below.plot(keypoints, [point.ms for point in line], **how)
        below.set_xscale("log", base=2)
        below.set_yscale("log")
        below.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
        below.set_xticks(keypoints, [f"{value:,}" for value in keypoints])
        below.minorticks_off()
        below.set_xlabel("keypoints a photo")
        for panel in (above, below):
            panel.axvline(KEYPOINTS, color=FAINT, linewidth=5, zorder=0)
    panels[0, 0].set_ylabel("recall@1, %")
    panels[1, 0].set_ylabel("ms of CPU time a query")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=6)
    return figure


# time


def measure_query(args: argparse.Namespace) -> dict[str, Any]:
    """What verification adds to a query, and its stages, in milliseconds; bytes a photo; photos a second."""
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        city = (args.folder or Path(folder)) / "city"
        draw_places(city, 0, "small", splits=("test",), photo_size=PHOTO)
        town = load_dataset(city, split="test")
        model, path = load_model("fast", device="cpu"), Path(folder) / "city.gpkg"
        photos = [town.database.path(row) for row in range(len(town.database))]
        build_map(photos, path, model, config=MapConfig(keypoints=0, progress=False))
        before = path.stat().st_size
        added = add_local_features(path, keypoints=KEYPOINTS, device="cpu", progress=False)
        place_map = PlaceMap(path)
        with open_map_file(path) as file:
            sizes = [len(blob) for blob in file.features(place_map.ids).values()]
        images = [decode(photo, size=feature_size) for photo in photos[: args.repeats]]
        extractor = LocalFeatureExtractor("cpu")
        alone = [clocked(extractor.extract, [image])[1] for image in images]
        queries = [town.queries.path(row) for row in range(min(args.repeats, len(town.queries)))]
        found = {
            "photos": len(photos),
            "bytes_a_photo": max(sizes),
            "file_bytes_a_photo": round((path.stat().st_size - before) / len(photos)),
            "extracted_per_s": round(1e3 / float(np.median(alone)), 1),
            "added_to_map_per_s": round(added.added / added.seconds, 1),
            **in_turns(Localizer(model, place_map, Search(verify=0)), Localizer(model, place_map), queries),
        }
    print("\n| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in found.items()), flush=True)
    return found


def in_turns(plain: Localizer, verified: Localizer, queries: Sequence[Path]) -> dict[str, tuple[float, float]]:
    """Milliseconds of a query, unverified and verified, of the difference, and of the stages of verification.

    The median, and the fastest, which other programs on the machine affect least.
    """
    rows = []
    for query in (*queries[:3], *queries):  # the first three are for warming up
        _, without = clocked(plain.localize, query)
        _, with_it = clocked(verified.localize, query)
        rows.append({"unverified_ms": without, "verified_ms": with_it, **stages(verified, query)})
    times = {name: np.array([row[name] for row in rows[3:]]) for name in rows[0]}
    found = {name: (round(float(np.median(ms)), 1), round(float(ms.min()), 1)) for name, ms in times.items()}
    added = times["verified_ms"] - times["unverified_ms"]
    fastest = found["verified_ms"][1] - found["unverified_ms"][1]
    return {"added_ms": (round(float(np.median(added)), 1), round(fastest, 1)), **found}


def stages(localizer: Localizer, photo: Path) -> dict[str, float]:
    """Milliseconds of each stage that verification adds to a query."""
    place_map, extractor = localizer.place_map, localizer.encoder.extractor
    assert extractor is not None
    query = read_image(photo, localizer.encoder.sizes)
    ((encoded,),) = localizer.encode([query])
    retrieved, search_ms = clocked(localizer.retrieve, [encoded], PREFILTERED)
    _, decode_ms = clocked(decode, photo, size=feature_size)
    _, extract_ms = clocked(extractor.extract, query.pixels[1:])
    mine, verifier, temperature = encoded.features, localizer.verifier, localizer.calibration.temperature
    assert mine is not None
    assert verifier is not None
    _, vector_ms = clocked(search_vector, encoded.descriptor, mine, place_map.manifest.aggregate_dim)
    (ids,), (distances,) = retrieved.ids, retrieved.distances
    order, prefilter_ms = clocked(verifier.prefilter, mine, ids, distances, temperature)
    first = order[:VERIFIED]
    (held, headings), read_ms = clocked(place_map.features_and_headings, ids[first])
    others = [held[photo_id] for photo_id in ids[first].tolist()]
    pairs, match_ms = clocked(lambda: list(match_features(mine, others)))
    views, geometry_ms = clocked(lambda: [two_view(mine, *one) for one in zip(others, pairs, strict=True)])
    known = Verified(mine, tuple(others), tuple(views), count_inliers(views), headings)
    _, headings_ms = clocked(known.query_headings_deg)
    _, pose_ms = clocked(find_pose, known, retrieved.latlon[0, first], distances[first], temperature)
    return {
        "decode_ms": decode_ms,
        "extract_ms": extract_ms,
        "search_vector_ms": vector_ms,
        "search_ms": search_ms,
        f"prefilter_{PREFILTERED}_ms": prefilter_ms,
        f"read_{VERIFIED}_ms": read_ms,
        f"match_{VERIFIED}_ms": match_ms,
        f"two_view_{VERIFIED}_ms": geometry_ms,
        "headings_ms": headings_ms,
        "camera_pose_ms": pose_ms,
    }


def measure_batches(args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds a query, in batches on the device, of queries in memory: unverified and verified in turns.

    Also extraction alone, matching alone, and the share of pairs that are equal to the CPU's.
    """
    device = torch.device(args.device)
    with tempfile.TemporaryDirectory() as folder:
        city, path = Path(folder) / "city", Path(folder) / "city.gpkg"
        draw_places(city, 0, "small", splits=("test",), photo_size=PHOTO)  # compiling it for a GPU takes minutes
        model, town = load_model("fast", device=device), load_dataset(city, split="test")
        build_map(
            [town.database.path(row) for row in range(len(town.database))],
            path,
            model,
            config=MapConfig(progress=False),
        )
        place_map = PlaceMap(path)
        plain, verified = (Localizer(model, place_map, Search(verify=verify)) for verify in (0, VERIFIED))
        photos = [town.queries.path(row) for row in range(min(args.batch, len(town.queries)))]
        queries = [read_image(photo, verified.encoder.sizes) for photo in photos]
        extractor = verified.encoder.extractor
        assert extractor is not None
        pixels = [query.pixels[1] for query in queries]
        extracted = extractor.extract(pixels)
        others = list(place_map.local_features(place_map.ids[:VERIFIED]).values())
        ways: dict[str, Callable[[], object]] = {
            "query, unverified": lambda: plain.find_matches(queries, plain.encode(queries), VERIFIED),
            "query, verified": lambda: verified.find_matches(queries, verified.encode(queries), VERIFIED),
            "extraction": lambda: extractor.extract(pixels),
            f"matching with {VERIFIED} photos": lambda: [
                list(match_features(one, others, device)) for one in extracted
            ],
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(args.repeats + 3):
            for name, way in ways.items():
                elapsed = clocked(way)[1] / len(queries)
                if turn >= 3:  # the first ones choose algorithms
                    times[name].append(elapsed)
        here, there = (
            {(i, *pair) for i, pairs in enumerate(match_features(extracted[0], others, on)) for pair in pairs.tolist()}
            for on in (torch.device("cpu"), device)
        )
    measured = {name: [round(float(np.median(ms)), 2), round(min(ms), 2)] for name, ms in times.items()}
    measured["added"] = [
        round(verified_ms - plain_ms, 2)
        for verified_ms, plain_ms in zip(measured["query, verified"], measured["query, unverified"], strict=True)
    ]
    print(f"\n{len(queries)} queries at once, {len(here & there)} of {len(here)} pairs as on the CPU; ms a query")
    print("\n".join(f"| {name} | {median}, {fastest} |" for name, (median, fastest) in measured.items()), flush=True)
    return {"batch": len(queries), "equal_pairs": len(here & there) / len(here), **measured}


# growth


def growth(args: argparse.Namespace) -> dict[str, Any]:
    """Maps of random features: the time to read those of 20 photos, and memory."""
    rows = []
    for photos, keypoints in GROWN:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            path = Path(folder) / "city.gpkg"
            room = 2 * photos * (keypoints * KEYPOINT_BYTES + 1000)
            if shutil.disk_usage(folder).free < room:
                print(f"{photos:,} photos of {keypoints} keypoints need {room / 1e9:.0f} GB of disk: left out")
                continue
            _, ms = clocked(write_random, path, photos, keypoints)
            size = path.stat().st_size
            command = [sys.executable, "-m", "benchmarks.verify_cost", "--read", str(path)]
            read = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        rows.append({"photos": photos, "keypoints": keypoints, "file_mb": size // 10**6, "write_s": round(ms / 1e3, 1)})
        rows[-1] |= read
        print(json.dumps(rows[-1]), flush=True)
    return {"rows": rows}


def write_random(path: Path, photos: int, keypoints: int) -> None:
    """A map with small descriptors and random local features."""
    from benchmarks.map import CITY, SIZE_DEG, drawn_photo  # needs faiss, unlike the other parts

    rng = np.random.default_rng(0)
    latlon = CITY + rng.uniform(0, SIZE_DEG, (photos, 2))
    empty = LocalFeatures(np.zeros((0, 2), np.float32), np.zeros((0, 64), np.int8), (480, 360))
    header = pack_features(empty)
    create_map_file(path, MapManifest("drawn", "0" * 16, 8))
    with open_map_file(path, write=True) as file:
        for first in range(0, photos, BATCH):
            rows = range(first, min(first + BATCH, photos))
            file.add([drawn_photo(row, latlon[row]) for row in rows], rng.random((len(rows), 8), dtype=np.float32))
            blobs = [header + rng.bytes(keypoints * KEYPOINT_BYTES) for _ in rows]
            written = file.write_features(np.arange(rows.start, rows.stop) + 1, blobs)  # ids begin with 1
            assert written == len(rows)


def read_random(path: Path) -> dict[str, Any]:
    """Read the features of 20 random photos again and again, as `PlaceMap.local_features` does."""
    from benchmarks.map import timed

    place_map = PlaceMap(path)
    ids = place_map.ids
    rng = np.random.default_rng(1)
    chosen = [rng.choice(ids, VERIFIED, replace=False) for _ in range(READS)]

    def read(number: int) -> None:
        assert len(place_map.features_and_headings(chosen[number])[0]) == VERIFIED

    read(0)
    before = memory_mb("RssAnon")
    warm = timed(read, READS)
    after = memory_mb("RssAnon")
    cold = []
    for number in range(COLD_READS):
        with path.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        cold.append(clocked(read, number)[1])
    return {
        "read_20_ms": warm,
        "read_20_not_in_disk_cache_ms": round(float(np.median(cold)), 2),
        "grown_by_reading_mb": after - before,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--data", type=Path, help="of the sweep: the folder that real_sets.py describes")
    parser.add_argument("--queries", type=int, default=1000, help="of the sweep: at most so many, drawn at random")
    parser.add_argument("--keypoints", type=int, nargs="+", default=[128, 256, 512, KEYPOINTS])
    parser.add_argument("--candidates", type=int, nargs="+", default=[10, 20, 50, 100])
    parser.add_argument("--figure", type=Path, help="of the sweep: where it is written, as PNG, SVG or PDF")
    parser.add_argument("--device", default="cpu", help="cuda: time measures batches on the GPU")
    parser.add_argument("--batch", type=int, default=32, help="queries at once on a GPU")
    parser.add_argument("--repeats", type=int, default=25, help="of each time")
    parser.add_argument("--folder", type=Path, help="of maps and drawn photos, which are kept; default: temporary")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        print(json.dumps(read_random(args.read)))
        return
    if "sweep" in args.parts and args.data is None:
        parser.error("the sweep needs --data")
    args.keypoints, args.candidates = sorted(args.keypoints), sorted(args.candidates)
    in_time = measure_query if args.device == "cpu" else measure_batches
    found = {name: part(args) for name, part in zip(PARTS, (sweep, in_time, growth), strict=True) if name in args.parts}
    print(json.dumps({**about(), **found}))


if __name__ == "__main__":
    main()
