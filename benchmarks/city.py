"""Views of the drawn city per second, and differences between GPU and CPU.

    python -m benchmarks.city --device cpu --size 240x320
    python -m benchmarks.city --device cuda --size 480x640

Draws views of a medium city (database and queries, all weathers) and prints one JSON line: views per second of the
fastest of some rounds and of all, and the seconds that the first batch took (on a GPU: compiling). On CUDA the first
views are drawn on the CPU as well: `differs` holds the largest difference of a value 0..255 and the share of pixels
that differ by more than 2.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from sareloc.city import CityPlaces, Poses, city_places, draw_scene, make_scene


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", default="240x320", help="height x width")
    parser.add_argument("--town", default="medium")
    parser.add_argument("--views", type=int, help="in a round; by itself 32 on a CPU, 512 on a GPU")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compare", type=int, default=64, help="views drawn on both CPU and GPU")
    args = parser.parse_args()
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
