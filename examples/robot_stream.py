"""A robot's own frames, from memory: build a map of one run, then localize another, frame by frame.

    python examples/robot_stream.py --out robot.gpkg

The frames are those of a drawn town (`sareloc.city`). Replace `mapping_run` and `second_run` by generators over your
camera: each frame is an `ImageRecord` of RGB pixels. `near` limits each search to the surroundings of the last fix.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import numpy as np

from sareloc import build_map, load_model, open_localizer
from sareloc.city import CityPlaces, city_places, draw_pixels, geotags
from sareloc.localize import Fix
from sareloc.maps import MapConfig
from sareloc.photos import ImageRecord

SIZE = (240, 320)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("robot.gpkg"))
    parser.add_argument("--frames", type=int, default=150, help="of the map")
    parser.add_argument("--queries", type=int, default=10)
    args = parser.parse_args()
    town, model = city_places(seed=0), load_model("fast")
    report = build_map(mapping_run(town, args.frames), args.out, model, config=MapConfig(progress=False))
    print(f"{args.out}: {report.added} frames in {report.seconds:.1f} s")

    localizer = open_localizer(args.out, model)
    near: Fix | None = None
    for frame in second_run(town, args.queries):
        start = perf_counter()
        fix = localizer.localize(frame, near=near)
        elapsed_ms = 1e3 * (perf_counter() - start)
        print(f"{frame.name}: {fix.latlon or fix.reason}, confidence {fix.confidence:.2f}, {elapsed_ms:.0f} ms")
        near = fix if fix.found else None  # lost: search the whole map


def mapping_run(town: CityPlaces, count: int) -> Iterator[ImageRecord]:
    """Frames with the position, heading and time that the robot knows when it records them."""
    tags = geotags(town)
    for row in range(min(count, len(town.places.database))):
        tag = tags[row]
        yield ImageRecord(f"front/{row:06d}", pixels(town, row), tag.latlon, tag.heading_deg, tag.time)


def second_run(town: CityPlaces, count: int) -> Iterator[ImageRecord]:
    """Frames of another day, of unknown position."""
    first = len(town.places.database)
    for row in range(first, min(first + count, len(town.poses))):
        yield ImageRecord(f"front/{row:06d}", pixels(town, row))


def pixels(town: CityPlaces, row: int) -> np.ndarray:
    """One frame (H, W, 3) uint8, as a camera's driver returns it."""
    return draw_pixels(town, *SIZE, rows=[row])[0].permute(1, 2, 0).contiguous().numpy()


if __name__ == "__main__":
    main()
