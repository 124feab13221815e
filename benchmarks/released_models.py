"""Recall of the packaged models on every real set and on the drawn test city.

    python -m benchmarks.released_models --data DATA --models default fast --weights vgg16.safetensors --out released

Every photo is described from its file at the model's own size, or at those of --resize (such as 480x640, or 480: the
longer side at most); recall@1/5/10 (for landmarks also mAP@100) at 512, 256 and 128 dimensions.
With --weights (ImageNet's VGG16) also off the shelf: VGG16-NetVLAD without training, centres and whitening from the
photos that the released models were trained on. Results are appended to OUT/results.jsonl, the tables are printed last.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.pixel_sets import PixelSets

from sareloc.datasets import Places, load_dataset, photo_paths
from sareloc.encode import describe
from sareloc.errors import PhotoError
from sareloc.evaluation import evaluate_rankings, search
from sareloc.loading import read_images
from sareloc.models import (
    PlaceModel,
    Resize,
    fit_whitening,
    init_netvlad,
    load_backbone_weights,
    load_model,
    make_model,
)
from sareloc.training.distributed import local_device

TRAINED_ON = ("cambridge-train", "tmbud-train", "landmarks-train", "city-train")
JUDGED_ON = (
    "cambridge-test", "gardens-day", "gardens-light", "gardens-both", "tmbud-night", "tmbud-east-day",
    "tmbud-east-night", "landmarks-test", "city-test",
)  # fmt: skip
DIMS = (512, 256, 128)
INIT_PHOTOS = 1000


class Sets:
    """The sets by name, all of them as files: the drawn towns are written once."""

    def __init__(self, data: Path, out: Path, city: str, city_seed: int) -> None:
        self.real = PixelSets(data, out, 480, 640, city="none")
        self.out, self.city, self.city_seed = out, city, city_seed

    def __getitem__(self, name: str) -> Places:
        if not name.startswith("city-"):
            return self.real.places(name)
        from sareloc.city import draw_places

        split, folder = name.removeprefix("city-"), self.out / f"city-{self.city}-{self.city_seed}"
        draw_places(folder, self.city_seed, self.city, splits=(split,), device=local_device())
        return load_dataset(folder, split=split)


def parse_size(text: str) -> Resize:
    sides = [int(side) for side in text.split("x")]
    return (sides[0], sides[1]) if len(sides) == 2 else sides[0]


def off_the_shelf(sets: Sets, names: tuple[str, ...], weights: Path, size: Resize, workers: int) -> PlaceModel:
    """VGG16's ImageNet weights; centres and whitening from database photos of these sets."""
    model = make_model(size=size, name="off the shelf")
    load_backbone_weights(model.backbone, weights)
    model.to(local_device())
    photos = [
        places.database.path(row) for places in map(sets.__getitem__, names) for row in range(len(places.database))
    ]
    rng = np.random.default_rng(0)
    chosen = [photos[i] for i in rng.permutation(len(photos))[:INIT_PHOTOS]]
    loaded = [image for _, image in read_images(chosen, (model.preprocess.resizing,), workers=workers)]
    init_netvlad(model, [image.pixels[0] for image in loaded if not isinstance(image, PhotoError)], rng)
    described = describe(photos, model, batch=32, workers=workers)
    vectors = np.delete(np.asarray(described.vectors), list(described.failures), axis=0)
    dim = min(max(DIMS), len(photos) - 1)
    model.whitening = fit_whitening(vectors, dim).to(local_device())
    return model


def describe_places(model: PlaceModel, places: Places, workers: int) -> torch.Tensor:
    """Descriptors of the database's photos, then of the queries."""
    paths = photo_paths(places)
    described = describe(paths, model, batch=32, workers=workers)
    for why in described.failures.values():
        print(f"found by nobody: {why}")
    row_of = {path: row for row, path in enumerate(paths)}
    rows = [row_of[p.path(i)] for p in (places.database, places.queries) for i in range(len(p))]
    return torch.from_numpy(np.asarray(described.vectors)[rows]).float()


def judge(whole: torch.Tensor, places: Places) -> dict[str, dict[str, float]]:
    """By dimension: recall@1/5/10 in percent, and mAP where the set is judged so."""
    found = {}
    for dim in (d for d in DIMS if d <= whole.shape[1]):
        unit = torch.nn.functional.normalize(whole[:, :dim], dim=1).numpy()
        count = len(places.database)
        rankings, _ = search(unit[:count], unit[count:], min(count, 200), device=local_device())
        report = evaluate_rankings(places, rankings, ns=(1, 5, 10))
        found[str(dim)] = {str(n): recall for n, recall in report.recall.items()}
        if report.mean_average_precision is not None:
            found[str(dim)]["mAP"] = report.mean_average_precision
    return found


def print_tables(columns: dict[str, dict[str, dict[str, dict[str, float]]]]) -> None:
    """A table for each dimension: recall@1/5/10, or mAP@100, by set and model."""
    for dim in map(str, DIMS):
        print(f"\n{dim} dimensions\n\n| set | " + " | ".join(columns) + " |")
        print("|---" * (1 + len(columns)) + "|")
        for name in dict.fromkeys(name for found in columns.values() for name in found):
            cells = []
            for found in columns.values():
                at = found.get(name, {}).get(dim)
                text = "" if at is None else "/".join(f"{at[n]:.1f}" for n in ("1", "5", "10"))
                cells.append(f"{text}, mAP {at['mAP']:.1f}" if at and "mAP" in at else text)
            print(f"| {name} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", nargs="*", default=["default", "fast"], help="names or checkpoints")
    parser.add_argument("--weights", type=Path, help="ImageNet's VGG16: also judge it off the shelf")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=list(JUDGED_ON))
    parser.add_argument("--trained-on", nargs="+", default=list(TRAINED_ON), help="sets for the centres off the shelf")
    parser.add_argument("--city", default="medium")
    parser.add_argument("--city-seed", type=int, default=0)
    parser.add_argument("--size", default="480x640", help="of the model off the shelf")
    parser.add_argument("--resize", nargs="*", default=[None], help="other sizes than the models' own")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    sets = Sets(args.data, args.out, args.city, args.city_seed)
    models = [(name, load_model(name, local_device())) for name in args.models]
    if args.weights:
        shelf = off_the_shelf(sets, tuple(args.trained_on), args.weights, parse_size(args.size), args.workers)
        models.insert(0, ("off the shelf", shelf))
    columns: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for (name, model), size in product(models, args.resize):
        if size:
            name, model.preprocess = f"{name} {size}", replace(model.preprocess, resize=parse_size(size))
        found = {
            chosen: judge(describe_places(model, sets[chosen], args.workers), sets[chosen]) for chosen in args.sets
        }
        columns[name] = found
        row = {"model": name, "fingerprint": model.fingerprint(), "command": " ".join(sys.argv), "found": found}
        with (args.out / "results.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
    print_tables(columns)


if __name__ == "__main__":
    main()
