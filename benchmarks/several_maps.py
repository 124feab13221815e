"""Two maps of two drawn towns asked at once, against the right map alone.

    python -m benchmarks.several_maps

Each town has a map of its own, and its queries are asked in that map alone, then in both maps at once. Printed: the
share of queries whose position is within 25 m of the truth (with any confidence, and as answers with a confidence of
0.5 or more), the share of answers that are wrong, and the share of positions from the map of the other town.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.measuring import about, only

from sareloc.city import draw_places
from sareloc.geo import distance_m
from sareloc.localize import MIN_CONFIDENCE, Fix, Localizer, SeveralMaps, open_localizer
from sareloc.maps import MapConfig, build_map
from sareloc.models import load_model
from sareloc.photos import find_photos, read_geotag

HIT_M = 25.0


def main() -> None:
    """Draw, build, ask and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs=2, default=(3, 4))
    parser.add_argument("--model", default="fast")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(about() | {"several maps": measure(Path(folder), args.seeds, args.model)}, indent=2))


def measure(folder: Path, seeds: tuple[int, int], model_name: str) -> dict[str, Any]:
    """The towns' queries in the map of their town alone, and in both maps."""
    model = load_model(model_name, "cpu")
    maps, queries = [], []
    for seed in seeds:
        draw_places(folder / str(seed), seed, splits=["test"])
        images = folder / str(seed) / "images" / "test"
        maps.append(folder / f"town{seed}.gpkg")
        build_map(images / "database", maps[-1], model, config=MapConfig(progress=False))
        queries.append(find_photos(images / "queries"))
    both = open_localizer(maps, model, min_confidence=0.0)
    rows = {"alone": list[dict[str, float]](), "both": list[dict[str, float]]()}
    for path, photos in zip(maps, queries, strict=True):
        rows["alone"].append(judge(open_localizer(path, model, min_confidence=0.0), photos, None))
        rows["both"].append(judge(both, photos, path.name))
    return {
        how: {name: float(np.mean([town[name] for town in towns])) for name in towns[0]} for how, towns in rows.items()
    } | {"queries": sum(map(len, queries))}


def judge(localizer: Localizer | SeveralMaps, photos: list[Path], right_map: str | None) -> dict[str, float]:
    """Shares of the queries by what was found for them; each is asked alone."""
    fixes = only(Fix, localizer.localize_many(photos, top=1, condition=None))
    truth = [geotag.latlon for geotag in map(read_geotag, photos) if geotag is not None]
    errors_m = distance_m([fix.latlon or (0.0, 0.0) for fix in fixes], truth)
    sure = np.array([fix.confidence >= MIN_CONFIDENCE for fix in fixes])
    return {
        "within 25 m": float(np.mean(errors_m <= HIT_M)),
        "answers within 25 m": float(np.mean(sure & (errors_m <= HIT_M))),
        "wrong answers": float(np.mean(sure & (errors_m > HIT_M))),
        "of the other map": float(np.mean([fix.map != right_map for fix in fixes])),
    }


if __name__ == "__main__":
    main()
