"""What verification by local features gains: recall, answers and their confidence, on real sets and a drawn town.

    python -m benchmarks.verify --data DATA --work WORK --models fast

A map is built of each set's database, with local features. Its queries are localized without calibration photos, with
and without verification; so are out-of-map photos: queries of the other sets, and of other streets of the same town
(Cambridge's train and val parts for its test part, another drawn town for the drawn one). city-no-focal is the drawn
town as if no photo had a focal length. Tables are printed last.

    python -m benchmarks.verify --data DATA --work WORK --models default --recall --sets cambridge gardens-day

prints recall@1 without and with verification alone, by `evaluate`: no map is built, which needs fewer packages.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import real_sets
from benchmarks.measuring import machine, only

from sareloc.datasets import Places, load_dataset
from sareloc.datasets.places import PhotoSet, find_positives
from sareloc.evaluation import evaluate, judge_fixes
from sareloc.evaluation.fixes import LADDER, first_matches
from sareloc.evaluation.metrics import percent_interval
from sareloc.geo import wgs84_from_ecef, wgs84_from_enu
from sareloc.geometry import pack_features, unpack_features
from sareloc.localize import Fix, Localizer, Search
from sareloc.maps import MapConfig, PlaceMap, build_map, open_store
from sareloc.models import PlaceModel, load_model
from sareloc.photos import ReadImage, read_geotag

ORIGIN = (48.0, 11.0)  # of sets whose positions are local metres
SURE = 0.5
SETS = ("cambridge", "gardens-day", "gardens-night", "gardens-both", "tmbud-night", "city", "city-no-focal")
COLUMNS = (
    *LADDER, "search vector, asked together", "correct", "answered", "of answers correct", "correct and answered",
    "unverified, correct and answered", "same town rejected",
    "others rejected", "ECE", "in radius", "median m", "heading, median degrees", "ms",
)  # fmt: skip


def latlon_of(photos: PhotoSet) -> np.ndarray:
    """Degrees (N, 2): from the photos' own geotags, else from the positions of the set."""
    tags = [tag for row in range(len(photos)) if (tag := read_geotag(photos.path(row))) is not None]
    if len(tags) == len(photos):
        return np.array([tag.latlon for tag in tags])
    assert photos.positions is not None
    metres = photos.positions.metres
    return wgs84_from_ecef(metres) if metres.shape[1] == 3 else wgs84_from_enu(metres, ORIGIN)


def load_set(name: str, args: argparse.Namespace) -> tuple[Places, list[Path]]:
    """A set, and photos of other streets of the same town."""
    if name == "cambridge":
        near = [real_sets.cambridge(args.data, split).queries for split in ("train", "val")]
        return real_sets.cambridge(args.data, "test"), [part.path(row) for part in near for row in range(len(part))]
    if name.startswith("gardens"):
        pair = dict(zip(("day", "night", "both"), real_sets.GARDENS_POINT_PAIRS, strict=True))[name.split("-")[1]]
        return real_sets.gardens_point(args.data, *pair), []
    if name == "tmbud-night":
        return real_sets.tmbud_night_to_day(args.data), []
    from sareloc.city import draw_places

    folder = args.work / f"city-{args.city}-0"
    draw_places(folder, 0, args.city, splits=("test",))
    draw_places(args.work / "city-small-1", 1, "small", splits=("val",), photo_size=(480, 640))
    other = load_dataset(args.work / "city-small-1", split="val").queries
    return load_dataset(folder, split="test"), [other.path(row) for row in range(len(other))]


def build(model: PlaceModel, places: Places, path: Path, workers: int) -> PlaceMap:
    """The map of a set's database; one that was begun is continued."""
    table = path.with_suffix(".csv")
    photos = [places.database.path(row).resolve() for row in range(len(places.database))]
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("file", "lat", "lon", "heading"))
        headings = [None if tag is None else tag.heading_deg for tag in map(read_geotag, photos)]
        rows.writerows(
            (photo, *latlon, heading)
            for photo, latlon, heading in zip(photos, latlon_of(places.database), headings, strict=True)
        )
    start = time.monotonic()
    report = build_map(photos, path, model, geotags=table, config=MapConfig(workers=workers, progress=False))
    print(f"{path.name}: {report.added} photos in {time.monotonic() - start:.0f} s", flush=True)
    return PlaceMap(path)


def without_focal_lengths(built: PlaceMap, path: Path) -> PlaceMap:
    """A copy of a map whose local features do not have the focal lengths of their photos."""
    shutil.copy(built.path, path)
    with open_store(path, write=True) as store:
        bare = {row: replace(unpack_features(blob), focal_px=None) for row, blob in store.features(built.ids).items()}
        store.write_features(np.array(list(bare)), [pack_features(one) for one in bare.values()])
    return PlaceMap(path)


def judge(
    model: PlaceModel,
    place_map: PlaceMap,
    places: Places,
    same_town: list[Path],
    others: list[Path],
    limit: int,
    *,
    focal: bool = True,
) -> dict[str, Any]:
    rows = np.random.default_rng(0).permutation(len(places.queries))[:limit]
    queries, truth = [places.queries.path(int(row)) for row in rows], latlon_of(places.queries)[rows]
    positives = find_positives(places)
    name_of = {str(places.database.path(i).resolve()): i for i in range(len(places.database))}

    def right(files: list[str]) -> np.ndarray:
        found = [name_of[str(place_map.photo_path(file).resolve())] for file in files]
        return np.array([one in positives[int(row)] for one, row in zip(found, rows, strict=True)])

    plain = only(
        Fix, Localizer(model, place_map, Search(verify=0), min_confidence=0).localize_many(queries, condition=None)
    )
    localizer = Localizer(model, place_map, min_confidence=0)
    asked = queries if focal else without_focal_length(localizer, queries)
    start = time.monotonic()
    fixes = only(Fix, localizer.localize_many(asked, condition=None))
    seconds = time.monotonic() - start
    read = only(ReadImage, localizer.load(queries))
    condition = localizer.estimate_condition(queries)
    firsts, together = [], []
    for image in read:
        encoded = localizer.encode([image])
        firsts += first_matches(localizer, encoded, localizer.find_matches([image], encoded, 1))
        together.append(localizer.retrieve(encoded[0], 1, condition=condition).files[0][0])
    ladder = {step: right([first[step][0] for first in firsts]) for step in LADDER}
    ladder["search vector, asked together"] = right(together)
    unknown = [localizer.localize_many(photos, condition=None) if photos else [] for photos in (same_town, others)]
    tags = [read_geotag(query) for query in queries]
    headings = [np.nan if tag is None or tag.heading_deg is None else tag.heading_deg for tag in tags]
    judged = judge_fixes(fixes, truth, headings, [fix for part in unknown for fix in part], min_confidence=SURE)
    rejected = [judge_fixes([], [], out_of_map=part, min_confidence=SURE).strangers_rejected for part in unknown]
    return {
        "queries": len(queries),
        **{step: 100 * float(hits.mean()) for step, hits in ladder.items()},
        **{f"{step} interval": percent_interval(hits, 0) for step, hits in ladder.items()},
        "correct": judged.correct,
        "answered": judged.answered,
        "of answers correct": judged.answers_correct,
        "correct and answered": judged.correct_and_answered,
        "correct and answered interval": judged.correct_and_answered_interval,
        "unverified, correct and answered": judge_fixes(plain, truth, min_confidence=SURE).correct_and_answered,
        "same town rejected": rejected[0],
        "others rejected": rejected[1],
        "ECE": judged.calibration_error,
        "in radius": judged.answers_in_radius,
        "median m": judged.median_error_m,
        "heading, median degrees": judged.median_heading_error_deg,
        "headings": judged.headings,
        "ms": 1000 * seconds / len(queries),
    }


def without_focal_length(localizer: Localizer, photos: list[Path]) -> list[ReadImage]:
    return [replace(query, focal_35mm=None) for query in only(ReadImage, localizer.load(photos))]


def shown(column: str, value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if column == "ECE" else f"{value:.1f}"


def measure_recall(called: str, sets: dict[str, tuple[Places, list[Path]]], workers: int) -> None:
    model = load_model(called)
    for name, (places, _) in sets.items():
        plain, verified = (
            evaluate(model, places, verify=first, batch=32, workers=workers, progress=False) for first in (0, 20)
        )
        low, high = verified.recall_at_1_interval or (0.0, 0.0)
        print(
            f"| {called} | {name}, {verified.queries} | {plain.recall[1]:.1f} | {verified.recall[1]:.1f} "
            f"({low:.0f} to {high:.0f}) | {verified.recall[5]:.1f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="drawn towns and maps are kept there")
    parser.add_argument("--models", nargs="+", default=["fast"])
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--city", default="medium")
    parser.add_argument("--queries", type=int, default=1000, help="at most so many of a set, drawn at random")
    parser.add_argument("--out-of-map", "--strangers", type=int, default=100, help="out-of-map photos of each kind")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--recall", action="store_true", help="recall alone")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    sets = {name: load_set(name, args) for name in args.sets}
    if args.recall:
        print("| model | set, queries | recall@1 | verified | recall@5, verified |\n|---|---|---|---|---|")
        for called in args.models:
            measure_recall(called, sets, args.workers)
        print(json.dumps({"machine": machine(), "command": " ".join(sys.argv)}))
        return
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for called in args.models:
        model = load_model(called)
        for name, (places, same_town) in sets.items():
            others = [
                other.queries.path(row)
                for key, (other, _) in sets.items()
                if key.split("-")[0] != name.split("-")[0]
                for row in range(len(other.queries))
            ]
            chosen = [[part[i] for i in rng.permutation(len(part))[: args.out_of_map]] for part in (same_town, others)]
            path, focal = args.work / f"{called}-{name}.gpkg", not name.endswith("no-focal")
            place_map = build(model, places, path if focal else args.work / f"{called}-city.gpkg", args.workers)
            if not focal:
                place_map = without_focal_lengths(place_map, path)
            found = judge(model, place_map, places, chosen[0], chosen[1], args.queries, focal=focal)
            results.setdefault(called, {})[name] = found
            print(called, name, json.dumps(found), flush=True)
    for called, rows in results.items():
        print(f"\n{called}\n\n| set | " + " | ".join(COLUMNS) + " |\n" + "|---" * (len(COLUMNS) + 1) + "|")
        for name, found in rows.items():
            print(f"| {name} | " + " | ".join(shown(key, found[key]) for key in COLUMNS) + " |")
    print(json.dumps({"machine": machine(), "command": " ".join(sys.argv), "results": results}))


if __name__ == "__main__":
    main()
