"""The drawn city: views per second, and how its photos compare with those of real cities.

    python -m benchmarks.city --device cpu --size 240x320
    python -m benchmarks.city --device cuda --size 480x640

Draws views of a medium city (database and queries, all weathers) and prints one JSON line: views per second of the
fastest of some rounds and of all, and the seconds that the first batch took (on a GPU: compiling). On CUDA the first
views are drawn on the CPU as well: `differs` holds the largest difference of a value 0..255 and the share of pixels
that differ by more than 2.

    python -m benchmarks.city --compare-with DATA --towns 0 1 2 --weights efficientnet-lite0.pth

Compares small drawn towns with Cambridge, TMBuD and Gardens Point (see `benchmarks.real_sets`) instead, and prints a
table: inliers of two-view geometry between photos of different places, more than 60 m apart (`elsewhere`: the most of a
query with the ten nearest such photos by search vector), and between photos of one place at different times (`here`:
the most with the ten nearest photos that show its place); recall of the `--models`, and with `--weights` that of
EfficientNet-lite0 with ImageNet weights, whose NetVLAD is fitted on the database that is searched. What a network
gains by training on drawn towns alone is the difference between two checkpoints, the start and the result:

    sareloc train TOWN --recipe open-fast --epochs 0 --out start
    sareloc train TOWN --recipe open-fast --out run
    python -m benchmarks.city --compare-with DATA --queries 600 --models start/model.safetensors run/model.safetensors

    python -m benchmarks.city --reject WORK --towns 0 21 22 23 24 25 --size 240x320

Builds a map of each of these small drawn towns instead, and prints which share of its own queries is answered, which
share of the answers is within 25 m, and which share of the queries of the other towns is rejected. Photos and maps are
kept in WORK.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks import real_sets
from benchmarks.measuring import about, only

from sareloc.arrays import Floats, Image, Ints
from sareloc.city import CityPlaces, Poses, city_places, draw_pixels, draw_places, draw_scene, make_scene
from sareloc.datasets import Places
from sareloc.datasets.places import find_positives
from sareloc.encode import Encoded, Encoder
from sareloc.evaluation import evaluate_rankings, judge_fixes
from sareloc.evaluation.ranking import search
from sareloc.geometry import count_inliers, verify
from sareloc.loading import read_images
from sareloc.localize import Fix, Localizer
from sareloc.maps import PlaceMap, build_map
from sareloc.maps.records import LARGEST_AGGREGATE_DIM
from sareloc.models import (
    PlaceModel,
    fit_whitening,
    init_netvlad,
    load_backbone_weights,
    load_model,
    make_model,
)
from sareloc.photos import ReadImage, find_photos, read_geotag

ELSEWHERE_M = 60.0
VERIFIED = 10
PHOTO = (480, 640)
RECALLS = (1, 20)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(city: CityPlaces, poses: Poses, height: int, width: int, device: torch.device) -> dict[str, float | int]:
    scenes = [make_scene(city.town, city.views.moments, where) for where in ("cpu", device)]
    drawn = [draw_scene(scene, poses, height, width).cpu().int() for scene in scenes]
    apart = (drawn[0] - drawn[1]).abs().amax(1)
    return {
        "views": len(poses),
        "largest": int(apart.max()),
        "share_of_pixels_over_2": float((apart > 2).float().mean()),
        "share_of_pixels_equal": float((apart == 0).float().mean()),
    }


def encode(encoder: Encoder, images: list[Image | Path]) -> list[Encoded]:
    """What the images are searched and verified by, in order."""
    read = [image for _, image in read_images(images, encoder.sizes)]
    assert all(isinstance(image, ReadImage) for image in read), "a photo cannot be read"
    return encoder.encode([image for image in read if isinstance(image, ReadImage)])


def most_inliers(query: Encoded, others: list[Encoded]) -> float:
    """The inliers of the query with that of the other photos that has most; NaN: no other photo."""
    evidence = count_inliers(verify(_features(query), [other.features for other in others]))
    return float(max(evidence.inliers, default=np.nan))


def _features(encoded: Encoded) -> Any:
    assert encoded.features is not None
    return encoded.features


def inliers(places: Places, database: list[Encoded], queries: list[Encoded], rows: Ints) -> tuple[Floats, Floats]:
    """Inliers (N,) of the queries `rows` with photos of other places, and with photos of their own place."""
    vectors = np.stack([one.vector for one in database])
    positives = find_positives(places)
    here: list[float] = []
    elsewhere: list[float] = []
    for row, query in zip(rows, queries, strict=True):
        order = np.argsort(-(vectors @ query.vector), kind="stable")
        shown = np.isin(order, positives[int(row)])
        if places.database.positions is None or places.queries.positions is None or places.protocol == "place-id":
            far = ~shown
        else:
            apart = places.database.positions.metres - places.queries.positions.metres[int(row)]
            far = (np.linalg.norm(apart, axis=1) > ELSEWHERE_M)[order]
        for found, which in ((here, shown), (elsewhere, far)):
            found.append(most_inliers(query, [database[i] for i in order[which][:VERIFIED]]))
    return np.array(elsewhere), np.array(here)


def off_the_shelf(weights: Path, images: list[Image]) -> PlaceModel:
    """EfficientNet-lite0 with these ImageNet weights; NetVLAD and whitening from these images."""
    model = make_model("efficientnet-lite0", clusters=32, size=(240, 320), name="off the shelf")
    load_backbone_weights(model.backbone, weights)
    init_netvlad(model, images, np.random.default_rng(0))
    model.whitening = fit_whitening(model.encode(images), min(256, len(images) - 1))
    return model


def recall(places: Places, database: list[Encoded], queries: list[Encoded], rows: Ints) -> dict[int, float]:
    """Recall in percent of the queries `rows` by descriptors alone."""
    few = replace(places, queries=places.queries.take(rows))
    known, asked = (np.stack([one.descriptor for one in part]) for part in (database, queries))
    found, _ = search(known, asked, max(RECALLS))
    return dict(evaluate_rankings(few, found, ns=RECALLS).recall)


def real_places(data: Path) -> dict[str, Places]:
    """Queries by day and by night against photos of other days."""
    return {
        "Cambridge": real_sets.cambridge(data),
        "TMBuD, day": real_sets.tmbud_east(data, "DAY"),
        "TMBuD, night": real_sets.tmbud_night_to_day(data),
        "Gardens Point, day": real_sets.gardens_point(data, "day_right", "day_left"),
        "Gardens Point, night": real_sets.gardens_point(data, "night_right", "day_right"),
    }


def judge(
    places: Places,
    database: list[Any],
    queries: list[Any],
    rows: Ints,
    models: dict[str, PlaceModel],
    weights: Path | None,
) -> dict[str, Any]:
    """The row of a set in the table, inliers by the first model; `database` and `queries` (those of `rows`): paths or
    pixels."""
    found: dict[str, Any] = {"queries": len(rows)}
    for name, model in models.items():
        encoder = Encoder(model, aggregate_dim=LARGEST_AGGREGATE_DIM)
        known, asked = encode(encoder, database), encode(encoder, queries)
        if "here" not in found:
            elsewhere, here = inliers(places, known, asked, rows)
            found["elsewhere"] = [round(float(q)) for q in np.nanquantile(elsewhere, (0.5, 0.9))]
            found["here"] = [round(float(q)) for q in np.nanquantile(here, (0.5, 0.1, 0.9))]
        found[name] = [round(value, 1) for value in recall(places, known, asked, rows).values()]
    if weights is not None:
        chosen = np.random.default_rng(0).permutation(len(database))[:300]
        size = (lambda height, width: (240, 320),)
        some = [one for _, one in read_images([database[i] for i in chosen], size) if isinstance(one, ReadImage)]
        shelf = Encoder(off_the_shelf(weights, [one.pixels[0] for one in some]), keypoints=0)
        described = (encode(shelf, database), encode(shelf, queries))
        found["off the shelf"] = [round(value, 1) for value in recall(places, *described, rows).values()]
    return found


def compare_with_real(
    data: Path | None, towns: list[int], queries: int, models: dict[str, PlaceModel], weights: Path | None
) -> dict[str, Any]:
    """The rows of the table by the name of the set; each is printed as soon as it is known."""
    found: dict[str, Any] = {}
    for seed in towns:
        city = city_places(seed, "small", "test")
        pixels = draw_pixels(city, *PHOTO).permute(0, 2, 3, 1).numpy()
        count, rows = len(city.places.database), np.arange(min(queries, len(city.places.queries)))
        images = list(pixels)
        found[f"drawn town {seed}"] = judge(
            city.places, images[:count], [images[count + i] for i in rows], rows, models, weights
        )
        print(json.dumps({f"drawn town {seed}": found[f"drawn town {seed}"]}), flush=True)
    for name, places in ({} if data is None else real_places(data)).items():
        rows = np.random.default_rng(0).permutation(len(places.queries))[:queries]
        asked = [places.queries.path(int(row)) for row in rows]
        found[name] = judge(places, places.database.paths(), asked, rows, models, weights)
        print(json.dumps({name: found[name]}), flush=True)
    return found


def reject_other_towns(work: Path, towns: list[int], size: tuple[int, int]) -> None:
    """Print a row for the map of each town, see above."""
    folders = {seed: work / f"town-{seed}-{size[0]}x{size[1]}" for seed in towns}
    model, queries = load_model("fast"), {}
    for seed, folder in folders.items():
        draw_places(folder, seed, "small", splits=("test",), photo_size=size)
        build_map(folder / "images" / "test" / "database", folder / "town.gpkg", model)
        queries[seed] = find_photos(folder / "images" / "test" / "queries")
    print(
        "| map of town | queries | answered | of answers within 25 m | of other towns | rejected |\n" + "|---" * 6 + "|"
    )
    for seed, folder in folders.items():
        localizer = Localizer(model, PlaceMap(folder / "town.gpkg"), min_confidence=0)
        truth = [tag.latlon for tag in map(read_geotag, queries[seed]) if tag is not None]
        others = [photo for other in towns if other != seed for photo in queries[other]]
        fixes, away = (only(Fix, localizer.localize_many(asked)) for asked in (queries[seed], others))
        found = judge_fixes(fixes, truth, out_of_map=away)
        shares = " | ".join(f"{share:.1f}" for share in (found.answered, found.answers_correct or np.nan))
        print(f"| {seed} | {len(fixes)} | {shares} | {len(away)} | {found.strangers_rejected:.1f} |", flush=True)


def print_table(found: dict[str, Any], models: dict[str, PlaceModel]) -> None:
    """One row per set, in Markdown; of each model recall@1 and @20."""
    names = [*models, "off the shelf"]
    heads = ["elsewhere: median, 90 %", "here: median, 10 %, 90 %", *names]
    print("| set | queries | " + " | ".join(heads) + " |\n|" + "---|" * (2 + len(heads)))
    for name, row in found.items():
        cells = [", ".join(map(str, row.get(key, ()))) for key in ("elsewhere", "here", *names)]
        print(f"| {name} | {row['queries']} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", default="240x320", help="height x width")
    parser.add_argument("--town", default="medium")
    parser.add_argument("--views", type=int, help="in a round; by itself 32 on a CPU, 512 on a GPU")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compare", type=int, default=64, help="views drawn on both CPU and GPU")
    parser.add_argument("--compare-with", type=Path, metavar="DATA", help="folder of the real sets")
    parser.add_argument("--reject", type=Path, metavar="WORK", help="ask maps of small towns for photos of the others")
    parser.add_argument(
        "--towns", type=int, nargs="*", default=[], help="seeds of small towns to compare, or to reject"
    )
    parser.add_argument("--queries", type=int, default=50, help="of each compared set")
    parser.add_argument("--models", nargs="+", default=["fast"], help="checkpoints or names, for recall")
    parser.add_argument("--weights", type=Path, help="EfficientNet-lite0's ImageNet weights")
    args = parser.parse_args()
    if args.reject:
        height, width = map(int, args.size.split("x"))
        reject_other_towns(args.reject, args.towns, (height, width))
        print(json.dumps({"benchmark": "city, other towns rejected", **about()}))
        return
    if args.towns or args.compare_with:
        models = {name: load_model(name) for name in args.models}
        found = compare_with_real(args.compare_with, args.towns, args.queries, models, args.weights)
        print_table(found, models)
        print(json.dumps({"benchmark": "city, compared", **about()}))
        return
    device = torch.device(args.device)
    height, width = map(int, args.size.split("x"))
    city = city_places(0, args.town, "test")
    count = args.views or (512 if device.type == "cuda" else 32)
    rows = np.random.default_rng(0).choice(len(city.poses), count, replace=len(city.poses) < count)
    poses = city.poses.take(rows)
    made = seconds(lambda: make_scene(city.town, city.views.moments, device), device)
    scene = make_scene(city.town, city.views.moments, device)
    first = seconds(lambda: draw_scene(scene, poses.take(range(min(32, count))), height, width), device)
    rounds = [seconds(lambda: draw_scene(scene, poses, height, width), device) for _ in range(args.rounds)]
    report = {
        "benchmark": "city",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        "threads": torch.get_num_threads(),
        "size": [height, width],
        "views_per_second": round(count / min(rounds), 2),
        "views_per_second_all_rounds": round(count * len(rounds) / sum(rounds), 2),
        "scene_seconds": round(made, 2),
        "first_batch_seconds": round(first, 2),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "command": " ".join(sys.argv),
    }
    if device.type == "cuda":
        report["gpu_memory_gib"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 2)
        some = poses.take(range(min(args.compare, count)))
        report["differs"] = compare(city, some, height, width, device)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
