"""What adapting a map to its city gains: recall and answers of real queries before and after, and suspicious geotags.

    python -m benchmarks.adapt --data DATA --work WORK --sets tmbud gardens-point cambridge TOWN --seeds 0 1 2 3 4
    python -m benchmarks.adapt --data DATA --work WORK --sets --geotags cambridge tmbud TOWN

TOWN: a folder of "sareloc data draw"; 5 % of its database photos get wrong geotags. What is in WORK is used again, so
that a run that was interrupted continues. Queries that are asked never take part in the adaptation.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from benchmarks.measuring import about
from benchmarks.real_sets import cambridge, gardens_point, tmbud_night_to_day

from sareloc.adapt import adapt_map, check_geotags
from sareloc.adapt.learn import bootstrap_gain
from sareloc.arrays import Bools, Floats, Ints
from sareloc.datasets import PhotoSet, load_dataset
from sareloc.files import write_atomically
from sareloc.geo import Positions, distance_m, wgs84_from_enu
from sareloc.localize import Localizer, open_localizer
from sareloc.localize.condition import spread
from sareloc.maps import MapConfig, PlaceMap, build_map
from sareloc.photos import ImageRecord, ReadImage

WRONG_SHARE, WRONG_M = 0.05, 150.0
REAL = ("tmbud", "gardens-point", "cambridge")
QUERIES, ELSEWHERE = 500, 100  # at most, of a set and of another city
ORIGIN = (48.0, 2.0)  # of walks whose positions are local


@dataclass(frozen=True, eq=False)
class Show:
    """A map, photos without positions that it learns from, and queries."""

    database: PhotoSet
    unlabelled: list[Path]
    queries: PhotoSet
    asked: Ints
    """Rows of the queries that take no part in the adaptation."""
    right: Bools
    """(queries, database) whether a photo is right."""
    elsewhere: PhotoSet
    """Photos of another city."""


def degrees(photos: PhotoSet) -> Floats:
    """Positions (n, 2) of photos; those of a local frame around `ORIGIN`."""
    positions = photos.positions or Positions.from_local(np.zeros((len(photos), 2)))
    return wgs84_from_enu(positions.metres[:, :2], ORIGIN) if positions.frame == "local" else positions.latlon()


def within(queries: PhotoSet, database: PhotoSet, radius_m: float = 25.0) -> Bools:
    """(queries, database) whether two photos were taken within a radius."""
    there = degrees(database)
    return np.stack([distance_m(np.broadcast_to(one, there.shape), there) <= radius_m for one in degrees(queries)])


def show(data: Path, name: str, seed: int) -> Show:
    """The map, the photos without positions, the queries, and photos of another city, for a set."""
    elsewhere = tmbud_night_to_day(data).database if name == "cambridge" else cambridge(data, "val").queries
    elsewhere = elsewhere.take(spread(len(elsewhere), ELSEWHERE))
    if name == "gardens-point":
        places = gardens_point(data, "night_right", "day_left")
        unlabelled, asked = gardens_point(data, "day_right", "day_left").queries.paths(), np.arange(len(places.queries))
    elif name == "cambridge":
        places = cambridge(data)
        unlabelled, asked = [], np.arange(len(places.queries))
    else:
        places = tmbud_night_to_day(data) if name == "tmbud" else load_dataset(name)
        queries = places.queries.take(spread(len(places.queries), QUERIES))
        order = np.random.default_rng(seed).permutation(len(queries))
        half = len(order) // 2
        unlabelled, asked = [queries.path(row) for row in order[:half]], np.sort(order[half:])
        places = replace(places, queries=queries)
    if name == "tmbud":
        ids = [set(row) for row in places.database.place_ids or ()]
        right = np.array([[not one.isdisjoint(row) for one in ids] for row in places.queries.place_ids or ()])
    else:
        right = within(places.queries, places.database)
    database = places.database if name in REAL else misplace(places.database, 0)[0]
    return Show(database, unlabelled, places.queries, asked, right, elsewhere)


def misplace(database: PhotoSet, seed: int) -> tuple[PhotoSet, Ints]:
    """The photos, 5 % of them with the position of another one that is more than 150 m away; and which these are."""
    true, rng = degrees(database), np.random.default_rng(seed)
    wrong, tagged = rng.permutation(len(true))[: round(WRONG_SHARE * len(true))], true.copy()
    for row in wrong:
        far = np.flatnonzero(distance_m(np.broadcast_to(true[row], true.shape), true) > WRONG_M)
        tagged[row] = true[rng.choice(far)]
    return replace(database, positions=Positions.from_wgs84(tagged)), np.asarray(wrong)


def make_map(database: PhotoSet, path: Path) -> Path:
    """The map of these photos by the model `fast`."""
    records = [
        ImageRecord(str(photo), photo, (lat, lon))
        for photo, (lat, lon) in zip(database.paths(), degrees(database).tolist(), strict=True)
    ]
    build_map(records, path, "fast", config=MapConfig(workers=0))
    return path


def ask(localizer: Localizer, case: Show) -> dict[str, list[bool]]:
    """Whether the first photo of each asked query is right, by the search vector alone, also centred on the condition
    of all asked queries, and verified; whether it is also answered; and whether photos of another city are rejected."""
    place_map = localizer.place_map
    row_of = {str(path): row for row, path in enumerate(case.database.paths())}
    rows = np.array([row_of[str(place_map.photo_path(file))] for file in place_map.files])
    read = [one for one in localizer.load([case.queries.path(row) for row in case.asked]) if isinstance(one, ReadImage)]
    encoded = [one for (one,) in localizer.encode(read)]

    def right(ids: Sequence[int] | Ints) -> Bools:
        return np.asarray(case.right[case.asked, rows[np.searchsorted(place_map.ids, ids)]])

    answers = localizer.find_matches(read, [[one] for one in encoded], 20)
    verified = right([one.matches[0].id for one in answers])
    others = [one for one in localizer.load(case.elsewhere.paths()) if isinstance(one, ReadImage)]
    strange = localizer.find_matches(others, localizer.encode(others), 20)
    found = {
        "alone": right(localizer.retrieve(encoded, 1).ids[:, 0]),
        "together": right(localizer.retrieve(encoded, 1, condition=localizer.estimate_condition(read)).ids[:, 0]),
        "verified": verified,
        "answered": verified & np.array([localizer.fix(one).found for one in answers]),
        "rejected": np.array([not localizer.fix(one).found for one in strange]),
    }
    return {kind: some.tolist() for kind, some in found.items()}


def measure(data: Path, work: Path, name: str, seed: int) -> None:
    """Adapt the map of a set, ask its queries before and after, and write what was found to a file.

    Maps, comparisons of their photos and answers before are kept, and serve all seeds.
    """
    case, stem = show(data, name, seed), Path(name).name
    path, out, result = work / f"{stem}.gpkg", work / f"{stem}-{seed}", work / f"{stem}-{seed}.json"
    if result.exists():
        return
    if not path.exists():
        make_map(case.database, path)
    kept = work / f"{stem}.kept"
    began, used = time.monotonic(), cpu_seconds()
    with PlaceMap(path) as place_map:
        check_geotags(place_map, folder=kept)
    took = {"compare_s": time.monotonic() - began, "compare_cpu_s": cpu_seconds() - used}
    before_file = work / f"{stem}-before-{zlib.crc32(case.asked.tobytes()):08x}.json"
    if not before_file.exists():
        write_atomically(before_file, json.dumps(ask(open_localizer(path), case)).encode())
    before = json.loads(before_file.read_text())
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(kept, f"{out}.work", dirs_exist_ok=True)
    began, used = time.monotonic(), cpu_seconds()
    report = adapt_map(path, out, photos=case.unlabelled, seed=seed, say=print)
    took |= {"adapt_s": time.monotonic() - began, "adapt_cpu_s": cpu_seconds() - used}
    after = before if report.map is None else ask(open_localizer(report.map), case)
    counts = {key: getattr(report, key) for key in ("verified", "placed", "given", "mean_gain", "rejected_because")}
    held_out = {one.kind: asdict(one) for one in report.held_out}
    found = {"asked": case.asked.tolist(), "before": before, "after": after, "held_out": held_out, **counts, **took}
    write_atomically(result, json.dumps(found).encode())
    print(f"{stem}, seed {seed}: {json.dumps({key: found[key] for key in (*counts, *took)})}", flush=True)


def print_table(work: Path, name: str, seeds: Sequence[int]) -> None:
    """Before and after over seeds, with the 95 % interval of the gain (paired bootstrap over queries)."""
    runs = [json.loads((work / f"{Path(name).name}-{seed}.json").read_text()) for seed in seeds]
    written = sum(run["rejected_because"] is None for run in runs)
    print(f"{Path(name).name}: {written} of {len(runs)} seeds wrote an adapted map")
    for kind in runs[0]["before"]:
        was, now = (
            np.concatenate([run[when][kind] for run in runs]).astype(np.float64) for when in ("before", "after")
        )
        rows = [range(len(run["before"][kind])) if kind == "rejected" else run["asked"] for run in runs]
        drawn = 100 * bootstrap_gain(now - was, np.concatenate(rows), np.random.default_rng(0))
        low, high = np.percentile(drawn, (2.5, 97.5))
        print(f"  {kind}: {100 * was.mean():.1f} -> {100 * now.mean():.1f} ({low:+.1f} to {high:+.1f})", flush=True)


def measure_geotags(database: PhotoSet, path: Path, seed: int) -> None:
    """Give 5 % of the photos the position of another one, and print how many of them are found."""
    true = degrees(database)
    tagged, wrong = misplace(database, seed)
    if not path.exists():
        make_map(tagged, path)
    began, used = time.monotonic(), cpu_seconds()
    with PlaceMap(path) as place_map:
        found = check_geotags(place_map, folder=path.with_suffix(".kept"))
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
    parser.add_argument("--sets", nargs="*", default=REAL)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--geotags", nargs="*", default=[], help="cambridge, tmbud or folders of drawn towns")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    for name in args.sets:
        for seed in args.seeds:
            measure(args.data, args.work, name, seed)
        print_table(args.work, name, args.seeds)
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
