"""Accuracy, calibration and cost of the options of localization, on a drawn city.

    python -m benchmarks.localize_options --work WORK [--town medium] [--model CHECKPOINT]

Draws the test city, builds its map, localizes its queries (other days, nights and weather) and as many photos of
another city (out-of-map photos), and prints for each option: recall@1 (the first match within 25 m); the share of fixes
within 25 m and their median error, both without a threshold on confidence; the share of out-of-map photos that are
rejected and of correct fixes that are answered at confidence 0.5; the expected calibration error; milliseconds per
photo; and the gain in correct fixes over the first option, in points, with a 95 % bootstrap interval. Then walks, photo
by photo and as walks; and calibration on half of the queries. The last line is JSON.

The work folder keeps photos, model and map for the next run. Default model: ImageNet's EfficientNet-lite0 with NetVLAD
and whitening fitted on the train city (extra `lite`).
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import torch
from benchmarks.judged_fixes import gain, judge, right_ones
from benchmarks.measuring import only
from benchmarks.walks import measure_walks

from sareloc.city import city_places, draw_pixels, draw_places
from sareloc.evaluation import judge_fixes
from sareloc.localize import Fix, Localizer, Search, calibrate
from sareloc.maps import PlaceMap, build_map
from sareloc.models import PlaceModel, off_the_shelf, open_checkpoint, save_checkpoint
from sareloc.photos import decode, find_photos, read_geotag

Row = dict[str, float | None]
OPTIONS = {
    "plain": Search(),
    "one match": Search(candidates=1),
    "verify 20": Search(verify=20),
}


def make_model(args: argparse.Namespace, work: Path) -> PlaceModel:
    path = Path(args.model) if args.model else work / "model.safetensors"
    if not path.exists():
        city = city_places(args.seed, args.town, "train")
        rows = np.random.default_rng(0).permutation(len(city.views.database))[:400]
        height, width = args.photo
        images = draw_pixels(city, height, width, rows=rows).permute(0, 2, 3, 1).numpy()
        save_checkpoint(off_the_shelf(list(images), np.random.default_rng(0), dim=args.dim, size=args.photo), path)
    return open_checkpoint(path)


def other_town(args: argparse.Namespace, count: int) -> list[np.ndarray]:
    city = city_places(args.seed, args.town, "val")
    first = len(city.views.database)
    rows = np.arange(first, min(first + count, len(city.poses)))
    height, width = args.photo
    return list(draw_pixels(city, height, width, rows=rows).permute(0, 2, 3, 1).numpy())


def measure(
    localizer: Localizer, images: list[np.ndarray], truth: np.ndarray, others: list[np.ndarray]
) -> tuple[Row, np.ndarray]:
    """The measures of an option, and which of its fixes are right."""
    localizer.localize(images[0])  # fills the cache of local features
    start = time.perf_counter()
    fixes = only(Fix, localizer.localize_many(images, top=1))
    seconds = time.perf_counter() - start
    out_of_map = only(Fix, localizer.localize_many(others, top=1))
    measures = judge(fixes, truth, out_of_map)
    return measures | {"ms_a_photo": 1000 * seconds / len(images)}, right_ones(fixes, truth)


def measure_calibration(
    model: PlaceModel, path: Path, photos: list[Path], truth: np.ndarray, others: list[np.ndarray], search: Search
) -> dict[str, Row]:
    """Calibrate a copy of the map on every other query; judge on the rest and as many photos of the other town."""
    copy = path.with_name("calibrated.gpkg")
    shutil.copy(path, copy)
    report = calibrate(Localizer(model, PlaceMap(copy), search), photos[::2], truth[::2])
    photos_or_kept = (
        f"by {report.photos} photos" if report.rejected_because is None else "by photos: not better, not used"
    )
    found = {}
    for name, city in (("by the map itself", path), (photos_or_kept, copy)):
        localizer = Localizer(model, PlaceMap(city), search, min_confidence=0)
        fixes = only(Fix, localizer.localize_many(photos[1::2], top=1))
        out_of_map = only(Fix, localizer.localize_many(others[: len(fixes)], top=1))
        held = judge_fixes(fixes, truth[1::2]).answers_in_radius
        measures = judge(fixes, truth[1::2], out_of_map)
        found[f"{search.name}, calibrated {name}"] = measures | {"answers_in_radius": held}
    return found


def print_table(rows: dict[str, Row]) -> None:
    columns = list(next(iter(rows.values())))
    print("| " + " | ".join(["option", *columns]) + " |")
    print("|" + "---|" * (len(columns) + 1))
    for name, row in rows.items():
        numbers = ("-" if row[column] is None else f"{row[column]:.3g}" for column in columns)
        print("| " + " | ".join([name, *numbers]) + " |")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--town", default="medium")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--photo", default="240x320", help="height x width")
    parser.add_argument("--model", help="a checkpoint; by itself ImageNet's features")
    parser.add_argument("--dim", type=int, default=256, help="of the model without a checkpoint")
    parser.add_argument("--queries", type=int, default=1000, help="at most")
    parser.add_argument("--walks", type=int, default=30)
    parser.add_argument("--only", nargs="*", default=list(OPTIONS), help="options by name")
    args = parser.parse_args()
    args.photo = tuple(map(int, args.photo.split("x")))

    draw_places(args.work, args.seed, args.town, splits=("test",), photo_size=args.photo, progress=True)
    model = make_model(args, args.work)
    path = args.work / f"town-{model.fingerprint()}.gpkg"
    build_map(args.work / "images" / "test" / "database", path, model)
    photos = find_photos(args.work / "images" / "test" / "queries")
    photos = [photos[i] for i in np.random.default_rng(0).permutation(len(photos))[: args.queries]]
    truth = np.array([tag.latlon for tag in map(read_geotag, photos) if tag is not None])
    images = [decode(photo) for photo in photos]
    others = other_town(args, len(photos))
    place_map = PlaceMap(path)

    options, first = {}, None
    for name in args.only:
        localizer = Localizer(model, place_map, OPTIONS[name], min_confidence=0)
        measures, right = measure(localizer, images, truth, others)
        first = right if first is None else first
        options[name] = measures | gain(right, first)
        print_table({name: options[name]})
    walks = measure_walks(model, place_map, args) if args.walks else {}
    calibration: dict[str, Row] = {}
    for search in (Search(verify=0), Search(verify=20)):
        calibration |= measure_calibration(model, path, photos, truth, others, search)
    for table in (options, walks, calibration):
        if table:
            print_table(table)
    report = {
        "benchmark": "localize_options",
        "town": {"size": args.town, "seed": args.seed, "photos": len(place_map), "queries": len(photos)},
        "others": len(others),
        "model": model.name,
        "dim": model.dim,
        "options": options,
        "walks": walks,
        "calibration": calibration,
        "machine": {"processor": platform.processor() or platform.machine(), "threads": torch.get_num_threads()},
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "command": " ".join(sys.argv),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
