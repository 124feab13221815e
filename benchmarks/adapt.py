"""What adapting a map to its city gains: recall and answers of real queries before and after, and suspicious geotags.

    python -m benchmarks.adapt --data DATA --work WORK --sets tmbud gardens-point cambridge

The maps of WORK are used again. Queries never take part in the adaptation.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from benchmarks.measuring import about
from benchmarks.real_sets import cambridge, gardens_point, tmbud_night_to_day

from sareloc.adapt import adapt_map, check_geotags
from sareloc.adapt.learn import bootstrap_gain
from sareloc.arrays import Bools, Floats
from sareloc.datasets import PhotoSet, load_dataset
from sareloc.geo import Positions, distance_m, wgs84_from_enu
from sareloc.localize import Localizer, open_localizer
from sareloc.maps import MapConfig, PlaceMap, build_map
from sareloc.photos import ImageRecord, ReadImage

WRONG_SHARE, WRONG_M = 0.05, 150.0
ORIGIN = (48.0, 2.0)  # of walks whose positions are local


@dataclass(frozen=True, eq=False)
class Show:
    """A map, photos without positions that it learns from, and queries."""

    database: PhotoSet
    unlabelled: list[Path]
    queries: PhotoSet
    right: Bools
    """(queries, database) whether a photo is right."""


def degrees(photos: PhotoSet) -> Floats:
    """Positions (n, 2) of photos; those of a local frame around `ORIGIN`."""
    positions = photos.positions or Positions.from_local(np.zeros((len(photos), 2)))
    return wgs84_from_enu(positions.metres[:, :2], ORIGIN) if positions.frame == "local" else positions.latlon()


def within(queries: PhotoSet, database: PhotoSet, radius_m: float = 25.0) -> Bools:
    """(queries, database) whether two photos were taken within a radius."""
    there = degrees(database)
    return np.stack([distance_m(np.broadcast_to(one, there.shape), there) <= radius_m for one in degrees(queries)])


def show(data: Path, name: str, seed: int) -> Show:
    """The map, the photos without positions and the queries of a set."""
    if name == "tmbud":
        places = tmbud_night_to_day(data)
        order = np.random.default_rng(seed).permutation(len(places.queries))
        half = len(order) // 2
        asked = places.queries.take(np.sort(order[half:]))
        ids = [set(row) for row in places.database.place_ids or ()]
        right = np.array([[not one.isdisjoint(row) for one in ids] for row in asked.place_ids or ()])
        return Show(places.database, [places.queries.path(row) for row in order[:half]], asked, right)
    if name == "gardens-point":
        places = gardens_point(data, "night_right", "day_left")
        other = gardens_point(data, "day_right", "day_left").queries
        return Show(places.database, other.paths(), places.queries, within(places.queries, places.database))
    places = cambridge(data)
    return Show(places.database, [], places.queries, within(places.queries, places.database))


def make_map(database: PhotoSet, path: Path) -> Path:
    """The map of these photos by the model `fast`."""
    records = [
        ImageRecord(str(photo), photo, (lat, lon))
        for photo, (lat, lon) in zip(database.paths(), degrees(database).tolist(), strict=True)
    ]
    build_map(records, path, "fast", config=MapConfig(workers=0))
    return path


def ask(localizer: Localizer, case: Show, together: bool, verify: bool) -> dict[str, Bools]:
    """Whether each query's first photo is right, by the search vector alone, also centred on the condition of all
    queries, and verified; and whether it is also answered."""
    place_map = localizer.place_map
    row_of = {str(path): row for row, path in enumerate(case.database.paths())}
    rows = np.array([row_of[str(place_map.photo_path(file))] for file in place_map.files])
    read = [one for one in localizer.load(case.queries.paths()) if isinstance(one, ReadImage)]
    encoded = [one for (one,) in localizer.encode(read)]
    found: dict[str, Bools] = {}
    for name, condition in (("alone", None), ("together", localizer.estimate_condition(read))):
        if name == "alone" or together:
            ids = localizer.retrieve(encoded, 1, condition=condition).ids[:, 0]
            found[name] = case.right[np.arange(len(ids)), rows[np.searchsorted(place_map.ids, ids)]]
    if verify:
        answers = localizer.find_matches(read, [[one] for one in encoded], 20)
        first = [rows[np.searchsorted(place_map.ids, one.matches[0].id)] for one in answers]
        found["verified"] = case.right[np.arange(len(first)), first]
        found["answered"] = found["verified"] & np.array([localizer.fix(one).found for one in answers])
    return found


def measure(data: Path, work: Path, name: str, seed: int, verify: bool) -> None:
    """Adapt the map of a set, and print recall before and after."""
    case = show(data, name, seed)
    path, out, began, used = work / f"{name}.gpkg", work / f"{name}-{seed}", time.monotonic(), cpu_seconds()
    if not path.exists():
        make_map(case.database, path)
    shutil.rmtree(out, ignore_errors=True)
    report = adapt_map(path, out, photos=case.unlabelled, seed=seed, say=print)
    took = f"{time.monotonic() - began:.0f} s, {cpu_seconds() - used:.0f} s of CPU"
    print(
        f"{name}, seed {seed}: {report.verified:,} verified pairs, {report.placed} of {report.given} placed, gain of "
        f"recall@1 held out {report.mean_gain[0]:+.1f} ({report.mean_gain[1]:+.1f} to {report.mean_gain[2]:+.1f}), "
        f"{report.kept_because or 'adapted'}; {took}"
    )
    for one in report.proved:
        print(f"  {one.kind}: {one.recall_1} {one.answered} {one.rejected}")
    before = ask(open_localizer(path), case, True, verify)
    after = before if report.map is None else ask(open_localizer(report.map), case, True, verify)
    for kind, was in before.items():
        gains = after[kind].astype(np.float64) - was
        low, high = 100 * np.percentile(
            bootstrap_gain(gains, np.arange(len(gains)), np.random.default_rng(0)), (2.5, 97.5)
        )
        print(
            f"  {kind}: {100 * was.mean():.1f} -> {100 * after[kind].mean():.1f} ({low:+.1f} to {high:+.1f})",
            flush=True,
        )


def measure_geotags(database: PhotoSet, path: Path, seed: int) -> None:
    """Give 5 % of the photos the position of another one, and print how many of them are found."""
    true, rng = degrees(database), np.random.default_rng(seed)
    wrong, tagged = rng.permutation(len(true))[: round(WRONG_SHARE * len(true))], true.copy()
    for row in wrong:
        far = np.flatnonzero(distance_m(np.broadcast_to(true[row], true.shape), true) > WRONG_M)
        tagged[row] = true[rng.choice(far)]
    if not path.exists():
        make_map(replace(database, positions=Positions.from_wgs84(tagged)), path)
    began, used = time.monotonic(), cpu_seconds()
    with PlaceMap(path) as place_map:
        found = check_geotags(place_map)
        names = {str(place_map.photo_path(one.photo)): one for one in found.suspicious}
    hits = [row for row in wrong.tolist() if str(database.path(row)) in names]
    errors = [float(distance_m([true[row]], [names[str(database.path(row))].suggested])[0]) for row in hits]
    print(
        f"{path.stem}: {len(true):,} photos, {len(wrong)} wrong geotags, {len(names)} suspicious: precision "
        f"{100 * len(hits) / max(len(names), 1):.0f} %, recall {100 * len(hits) / max(len(wrong), 1):.0f} %, median "
        f"error of the suggestion {np.median(errors or [np.nan]):.1f} m; {time.monotonic() - began:.0f} s, "
        f"{cpu_seconds() - used:.0f} s of CPU"
    )


def cpu_seconds() -> float:
    """Of this process, by all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", default=["tmbud", "gardens-point", "cambridge"])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--verify", action="store_true", help="also localize the queries with verification")
    parser.add_argument("--geotags", nargs="*", default=[], help="cambridge, tmbud or folders of drawn towns")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    for name in args.sets:
        for seed in args.seeds:
            measure(args.data, args.work, name, seed, args.verify)
    known: dict[str, Callable[[Path], PhotoSet]] = {
        "cambridge": lambda data: cambridge(data).database,
        "tmbud": lambda data: tmbud_night_to_day(data).database,
    }
    for name in args.geotags:
        database = known[name](args.data) if name in known else load_dataset(name).database
        for seed in args.seeds:
            measure_geotags(database, args.work / f"wrong-{Path(name).name}-{seed}.gpkg", seed)
    print(json.dumps(about()))


if __name__ == "__main__":
    main()
