"""360° photos, videos and tracks: how well maps of them localize in a drawn town with exact truth, and how fast.

    python -m benchmarks.inputs --parts maps --size medium --queries 600    # maps of 360° photos, of a video
    python -m benchmarks.inputs --parts drive --size medium --seconds 60    # a drive localized as video, its clock
    python -m benchmarks.inputs --parts speed                               # cutting views, decoding frames

maps: the same queries in a map of perspective photos and in maps of 360° photos taken at the same positions, cut at the
pitch of the perspective photos (some degrees upwards) and, as by default, in level views; those that look along the way
in a map of the frames of a video, placed by a GPX track whose clock differs from the camera's.
drive: a video of another day, localized as one walk in the map of perspective photos, with the offset of its clock
estimated from the fixes and the track. speed: views or frames a second when they are only decoded, and when they are
described as well, in one run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.judged_fixes import gain
from benchmarks.measuring import about
from tqdm import tqdm

from sareloc.arrays import Bools, Floats
from sareloc.city import SIZES, Drive, draw_drive, draw_places, make_drive
from sareloc.datasets import load_dataset
from sareloc.encode import describe
from sareloc.evaluation.metrics import percent_interval
from sareloc.geo import distance_m
from sareloc.loading import read_images
from sareloc.localize import Fix, Localizer, walk_clock_offset
from sareloc.maps import MapConfig, PlaceMap, build_map
from sareloc.models import PlaceModel, load_model
from sareloc.photos import (
    Address,
    TrackOptions,
    ViewOptions,
    find_photos,
    read_geotag,
    read_image,
    read_time,
    read_track,
)
from sareloc.photos.track_geotags import frames_on_track
from sareloc.photos.videos import video_frames

PARTS = ("maps", "drive", "speed")
RIGHT_M = 25.0
ON_WAY_M, ALONG_DEG = 10.0, 30.0  # queries farther from a drive's way, or turned more, are not asked in its map
SPEED_MPS = 40.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", choices=("small", "medium"), default="small")
    parser.add_argument("--model", default="fast")
    parser.add_argument("--queries", type=int, default=300, help="at most so many, drawn at random")
    parser.add_argument("--seconds", type=float, default=60.0, help="of a drive")
    parser.add_argument(
        "--work", type=Path, help="folder for drawn photos and maps, which are kept; default: temporary"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        args.work = args.work or Path(scratch)
        model = load_model(args.model, device=args.device)
        parts = {"maps": compare_maps, "drive": localize_drive, "speed": measure_speed}
        found = {name: parts[name](args, model) for name in args.parts}
    print(json.dumps({**about(), **found}))


# what is drawn


def draw_town(args: argparse.Namespace, *, panoramas: bool) -> Path:
    folder: Path = args.work / ("panoramas" if panoramas else "photos")
    draw_places(folder, args.seed, args.size, splits=("test",), panoramas=panoramas, device=args.device, progress=True)
    return folder


def draw_video(args: argparse.Namespace, number: int, weather: str) -> tuple[Path, Any]:
    folder: Path = args.work / f"drive{number}"
    drive = make_drive(args.seed, args.size, number=number, seconds=args.seconds, weather=weather)
    draw_drive(drive, folder, frame_size=(360, 640), device=args.device, progress=True)
    return folder, drive


def map_of(
    args: argparse.Namespace, model: PlaceModel, photos: Path, name: str, track: Any = None, **options: Any
) -> PlaceMap:
    path = args.work / f"{name}.gpkg"
    report = build_map(photos, path, model, track=track, config=MapConfig(workers=args.workers, **options))
    print(f"{name}: {report.added} added, {report.already} already, {report.seconds:.0f} s", flush=True)
    return PlaceMap(path)


# maps


def compare_maps(args: argparse.Namespace, model: PlaceModel) -> dict[str, Any]:
    """Queries in maps of perspective photos, of 360° photos, and of the frames of a video."""
    town = draw_town(args, panoramas=False)
    around = draw_town(args, panoramas=True)
    places = load_dataset(town, split="test")
    rows = np.random.default_rng(0).permutation(len(places.queries))[: args.queries]
    queries = [places.queries.path(int(row)) for row in sorted(rows)]
    tags = [tag for tag in map(read_geotag, queries) if tag is not None]
    truth = np.array([tag.latlon for tag in tags])
    folder, drive = draw_video(args, 0, "clear")
    track = TrackOptions((folder / "drive.gpx",), clock_offset=drive.clock_offset_s)
    panoramas = around / "images" / "test" / "database"
    same = ViewOptions(pitch_deg=SIZES[args.size].pitches_deg)
    maps = {
        "perspective": map_of(args, model, town / "images" / "test" / "database", "perspective"),
        "360°, same pitch": map_of(args, model, panoramas, "around-same", views=same),
        "360°, level views": map_of(args, model, panoramas, "around"),
        "video": map_of(args, model, folder / "drive.mp4", "video", track=track),
    }
    on_way = np.array([tag.heading_deg is not None and shown(drive, tag.latlon, tag.heading_deg) for tag in tags])
    found, first = {}, {}
    for name, place_map in maps.items():
        asked = on_way if name == "video" else np.ones(len(truth), dtype=np.bool_)
        localizer = Localizer(model, place_map, workers=args.workers)
        fixes = located(localizer, [query for query, wanted in zip(queries, asked, strict=True) if wanted], name)
        found[name] = judged(fixes, truth[asked]) | {"photos": len(place_map)}
        first[name] = first_right(fixes, truth[asked])
        if name != "video":
            seen = [fix for fix, wanted in zip(fixes, on_way, strict=True) if wanted]
            found[f"{name}, queries that the video shows"] = judged(seen, truth[on_way])
    print_table(found)
    for name in maps:
        if name.startswith("360°"):
            more = gain(first[name], first["perspective"])
            print(f"first match right, {name} - perspective, points: {more}", flush=True)
    return found


def shown(drive: Drive, latlon: tuple[float, float], heading_deg: float) -> bool:
    """Whether a drive came within 10 m of a position, looking in the same direction up to 30 degrees."""
    away = distance_m(drive.latlon, latlon)
    turned = np.abs((drive.headings_deg - heading_deg + 180) % 360 - 180)
    return bool(((away <= ON_WAY_M) & (turned <= ALONG_DEG)).any())


def located(localizer: Localizer, photos: Sequence[Path], title: str) -> list[Fix]:
    answers = tqdm(localizer.localize_each(photos), total=len(photos), desc=title, unit="photo", disable=None)
    return [answer for answer in answers if isinstance(answer, Fix)]


def first_right(fixes: Sequence[Fix], truth: Floats) -> Bools:
    return np.asarray(distance_m(np.array([fix.matches[0].latlon for fix in fixes]), truth) <= RIGHT_M)


def judged(fixes: Sequence[Fix], truth: Floats) -> dict[str, Any]:
    """Measures of fixes by the true positions (n, 2)."""
    first = first_right(fixes, truth)
    answered = np.array([fix.found for fix in fixes], dtype=np.bool_)
    errors = np.array(
        [
            distance_m(fix.latlon, point) if fix.latlon is not None else np.inf
            for fix, point in zip(fixes, truth, strict=True)
        ]
    )
    right = errors <= RIGHT_M
    return {
        "queries": len(fixes),
        "first match right, %": interval(first),
        "answered, %": round(100 * float(answered.mean()), 1),
        "right and answered, %": round(100 * float(right.mean()), 1),
        "right of the answers, %": round(100 * float(right[answered].mean()), 1) if answered.any() else None,
        "median error, m": round(float(np.median(errors[answered])), 2) if answered.any() else None,
    }


def interval(chosen: Bools) -> str:
    low, high = percent_interval(chosen, 0) or (0.0, 100.0)
    return f"{100 * float(chosen.mean()):.1f} ({low:.1f} to {high:.1f})"


def print_table(found: dict[str, dict[str, Any]]) -> None:
    columns = list(next(iter(found.values())))
    print("\n| | " + " | ".join(columns) + " |\n" + "|---" * (len(columns) + 1) + "|")
    for name, row in found.items():
        print(f"| {name} | " + " | ".join(str(row.get(column, "")) for column in columns) + " |", flush=True)


# drive


def localize_drive(args: argparse.Namespace, model: PlaceModel) -> dict[str, Any]:
    """A drive of another day, localized as a walk; the clock offset by its fixes and the GPX track."""
    place_map = map_of(args, model, draw_town(args, panoramas=False) / "images" / "test" / "database", "perspective")
    found = {}
    for number, weather in enumerate(("clear", "overcast")):
        folder, drive = draw_video(args, number, weather)
        frames, times = video_frames(folder / "drive.mp4", 1.0)
        start = time.monotonic()
        fixes = Localizer(model, place_map, workers=args.workers).localize_walk(frames, SPEED_MPS, progress=True)
        seconds = time.monotonic() - start
        answers = [fix for fix in fixes if isinstance(fix, Fix)]
        rows = np.searchsorted(drive.times_s, times + 1e-6, side="right") - 1
        offset = walk_clock_offset(fixes, [read_time(frame) for frame in frames], read_track(folder / "drive.gpx"))
        headings = [
            abs((fix.heading_deg - drive.headings_deg[row] + 180) % 360 - 180)
            for fix, row in zip(answers, rows, strict=True)
            if fix.heading_deg is not None and fix.found
        ]
        found[f"drive {number}, {weather}"] = judged(answers, drive.latlon[rows]) | {
            "median heading error, degrees": round(float(np.median(headings)), 1) if headings else None,
            "clock offset estimated - true, s": round(offset.seconds - drive.clock_offset_s, 2),
            "ambiguous": offset.ambiguous,
            "frames/s": round(len(frames) / seconds, 1),
        }
    print_table(found)
    return found


# speed


def measure_speed(args: argparse.Namespace, model: PlaceModel) -> dict[str, Any]:
    """Images a second: decoded alone, and decoded and described, of photos, 360° photos and a video."""
    torch.set_num_threads(args.workers)
    town, around = draw_town(args, panoramas=False), draw_town(args, panoramas=True)
    folder, drive = draw_video(args, 0, "clear")
    track = TrackOptions((folder / "drive.gpx",), clock_offset=drive.clock_offset_s)
    images = {
        "photos": find_photos(town / "images" / "test" / "database")[:120],
        "views of 360° photos": list(views(find_photos(around / "images" / "test" / "database")))[:120],
        "frames of a video, every 5 m": list(frames_on_track([folder / "drive.mp4"], track).geotags)[:120],
    }
    found: dict[str, dict[str, Any]] = {}
    for name, paths in images.items():
        decoded, described = [], []
        for _ in range(3):
            start = time.monotonic()
            for _ in read_images(paths, (model.preprocess.resizing,), workers=args.workers):
                pass
            decoded.append(len(paths) / (time.monotonic() - start))
            start = time.monotonic()
            describe(paths, model, workers=args.workers, progress=False)
            described.append(len(paths) / (time.monotonic() - start))
        found[name] = {
            "images": len(paths),
            "decoded/s": round(max(decoded), 1),
            "described/s": round(max(described), 1),
        }
    print_table(found)
    return found


def views(panoramas: Sequence[Path]) -> Iterator[Path]:
    for file in panoramas:
        for image in read_image(file, cut=ViewOptions()).views:
            yield Address(file, image.view).path


if __name__ == "__main__":
    main()
