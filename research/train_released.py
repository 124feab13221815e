"""Experiments towards the models that come with the package: which mixture, depth, projection and augmentation.

    python -m research.train_released --data DATA --weights WEIGHTS --out experiments --jobs 4 \
        --try "plain epochs=8" --try "learned epochs=8 whitening=learned dim=512"

Each `--try` is a name and options: those of `sareloc.training.TrainingConfig`, and towns (datasets: names of
`pixel_sets`, joined by commas; "+" makes every photo a query, "-" none), backbone, cut, clusters, start, blend. The
start is ImageNet's weights (WEIGHTS is a folder of BACKBONE.safetensors) with centres from photos of these datasets, or
the model of an earlier experiment of that name; "blend=NAME:0.4" takes 0.4 of the weights from another one that began
like it, before the
whitening is fitted.
Every epoch is judged on the validation sets, the best one is judged on each of them at 512, 256 and 128 dimensions, and
the model is kept as OUT/NAME.safetensors. Choices are made on those numbers; `--test` adds the test sets for a model
that has been chosen. Results are appended to OUT/results.jsonl, the table is printed last.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.pixel_sets import PixelSets, frozen_inputs, unmarked

from sareloc.datasets import Places
from sareloc.evaluation import evaluate_rankings, search
from sareloc.models import (
    PlaceModel,
    init_netvlad,
    load_backbone_weights,
    load_model,
    make_model,
    number_format,
    save_checkpoint,
)
from sareloc.training import TensorInputs, TrainingConfig, TrainingSet, train
from sareloc.training.distributed import local_device

DATASETS = "cambridge-train+,tmbud-train+,landmarks-train,city-train"
VALIDATION = ("cambridge-val", "tmbud-val", "landmarks-val", "city-val")
TESTS = (
    "cambridge-test", "gardens-day", "gardens-light", "gardens-both", "tmbud-night", "tmbud-east-day",
    "tmbud-east-night", "landmarks-test", "city-test",
)  # fmt: skip
DIMS = (256, 128)
INIT_PHOTOS = 1000
NEAR_M = 12.5  # half of the usual radius: how finely a model tells places along a street apart
DEFAULTS: dict[str, Any] = {
    "loss": "sare-joint", "reduction": "tuples", "train_from": "conv4_1", "epochs": 8, "dim": 512, "batch": 64,
    "refresh_every": 4000, "patience": None,
}  # fmt: skip


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """A name and its options, from "name key=value key=value"."""
    name, *words = shlex.split(text)
    config = dict(DEFAULTS)
    for word in words:
        key, value = word.split("=", 1)
        try:
            config[key] = json.loads(value)
        except json.JSONDecodeError:
            config[key] = value
    return name, config


def start_afresh(sets: PixelSets, datasets: list[str], weights: Path, shape: dict[str, Any], seed: int) -> PlaceModel:
    """The backbone's ImageNet weights, and centres from random photos of all datasets alike."""
    model = make_model(**shape, size=(sets.height, sets.width), rng=torch.Generator().manual_seed(seed))
    load_backbone_weights(model.backbone, weights)
    rng = np.random.default_rng(seed)
    chosen = []
    for name in datasets:
        held = np.load(sets.out / f"{unmarked(name)}.npy", mmap_mode="r")
        rows = rng.permutation(len(held))[: INIT_PHOTOS // len(datasets)]
        chosen += [np.ascontiguousarray(held[row].transpose(1, 2, 0)) for row in rows]
    init_netvlad(model.to(local_device()), chosen, rng)
    return model


def begin_from(name: str, blend: str | None, out: Path, size: tuple[int, int]) -> PlaceModel:
    """The model of an earlier experiment, perhaps blended with another one's, for images of this size."""
    model = load_model(out / f"{name}.safetensors", local_device())
    model.whitening = None
    model.preprocess = replace(model.preprocess, resize=size)
    if blend:
        other, share = blend.split(":")
        weights = load_model(out / f"{other}.safetensors", local_device()).state_dict()
        mine = model.state_dict()
        model.load_state_dict({key: torch.lerp(mine[key].float(), weights[key].float(), float(share)) for key in mine})
    return model


def open_datasets(sets: PixelSets, names: list[str], model: PlaceModel, *, features: bool) -> list[TrainingSet]:
    datasets = []
    for name in names:
        pixels = sets.pixels(name).to(local_device())
        inputs = TensorInputs(pixels)
        if features:
            inputs = frozen_inputs(model, pixels, number_format(local_device()), batch=64)
        datasets.append(TrainingSet(sets.places(name), inputs))
    return datasets


def judge(model: PlaceModel, sets: PixelSets, names: tuple[str, ...]) -> dict[str, dict[str, dict[str, float]]]:
    """For each set and dimension: recall@1/5/10 in percent, and mAP where that is the set's measure."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in names:
        places = sets.places(name)
        described = model.encode(sets.pixels(name), batch=64)
        found[name] = {str(d): _judge(places, described[:, :d]) for d in sorted({model.dim, *DIMS}) if d <= model.dim}
    return found


def _judge(places: Places, described: torch.Tensor) -> dict[str, float]:
    unit = torch.nn.functional.normalize(described, dim=1).numpy()
    count = len(places.database)
    rankings, _ = search(unit[:count], unit[count:], min(count, 200), device=local_device())
    report = evaluate_rankings(places, rankings, ns=(1, 5, 10))
    found = {str(n): round(recall, 2) for n, recall in report.recall.items()}
    if places.protocol == "radius":
        near = evaluate_rankings(replace(places, hit_radius_m=NEAR_M), rankings, ns=(1,))
        found["near"] = round(near.recall[1], 2)
    precision = report.mean_average_precision
    return found if precision is None else found | {"mAP": round(precision, 2)}


def run(args: argparse.Namespace, sets: PixelSets, text: str) -> None:
    """Train, judge and keep one experiment."""
    name, given = parse(text)
    config = dict(given)
    datasets = str(config.pop("towns", DATASETS)).split(",")
    datasets = [dataset for dataset in datasets if unmarked(dataset) in sets.loaders]
    shape = {"backbone": "vgg16", "clusters": 64}
    shape |= {key: config.pop(key) for key in ("backbone", "cut", "clusters") if key in config}
    begun, blend = config.pop("start", None), config.pop("blend", None)
    training = TrainingConfig(**{f.name: config[f.name] for f in fields(TrainingConfig) if f.name in config})
    unknown = set(config) - {f.name for f in fields(TrainingConfig)}
    if unknown:
        raise SystemExit(f"{name}: unknown options {sorted(unknown)}")
    began = time.perf_counter()
    if begun:
        model = begin_from(begun, blend, args.out, (sets.height, sets.width))
    else:
        model = start_afresh(sets, datasets, args.weights / f"{shape['backbone']}.safetensors", shape, training.seed)
    if training.train_from:
        model.backbone.freeze_below(training.train_from)
    validation = [v for v in VALIDATION if v in sets.loaders]
    opened = open_datasets(sets, datasets, model, features=not training.augmented)
    validation_sets = open_datasets(sets, validation, model, features=not training.augmented)
    ready = time.perf_counter() - began
    torch.backends.cudnn.benchmark = True  # all images are of one size
    result = train(model, opened, training, validation=validation_sets, progress=False)
    seconds = time.perf_counter() - began
    save_checkpoint(model, args.out / f"{name}.safetensors", storage=args.storage, training=given | {"towns": datasets})
    record = {
        "name": name, "knobs": given, "towns": datasets, "seconds": round(seconds, 1), "ready": round(ready, 1),
        "size": [sets.height, sets.width], "loss": [round(r.loss, 4) for r in result.history[1:]],
        "val_recall_5": [round(100 * r.recall_5, 2) for r in result.history],
        "val": judge(model, sets, tuple(validation)),
    }  # fmt: skip
    if args.test:
        record["test"] = judge(model, sets, tuple(t for t in TESTS if t in sets.loaders))
    with (args.out / "results.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    print(f"{name}: {seconds:.0f} s, recall@5 on validation {record['val_recall_5']}", flush=True)


def print_table(path: Path) -> None:
    """One line an experiment: recall@1/5 at 512 dimensions and @1 at 128 on every set, and the mean."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for part in ("val", "test"):
        judged = [row for row in rows if part in row]
        if not judged:
            continue
        sets = list(dict.fromkeys(name for row in judged for name in row[part]))
        print(f"\n| {part} | " + " | ".join(sets) + " | mean @1 |")
        print("|---" * (2 + len(sets)) + "|")
        for row in judged:
            cells, ones = [], []
            for name in sets:
                by_dim = row[part].get(name, {})
                if not by_dim:
                    cells.append("")
                    continue
                largest, smallest = (by_dim[d] for d in (max(by_dim, key=int), min(by_dim, key=int)))
                ones.append(largest.get("mAP", largest["1"]))
                cells.append(f"{ones[-1]:.1f}/{largest['5']:.1f} ({smallest.get('mAP', smallest['1']):.1f})")
            print(f"| {row['name']} | " + " | ".join(cells) + f" | {np.mean(ones):.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--try", dest="tries", action="append", default=[], help='"name option=value ..."')
    parser.add_argument("--height", type=int, default=240)
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--city", default="medium", help="size of the drawn city, or none")
    parser.add_argument("--city-seed", type=int, default=1)
    parser.add_argument("--more-seeds", type=int, nargs="*", default=[], help="further towns: city11-train and so on")
    parser.add_argument("--storage", default="float16")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--test", action="store_true", help="judge on the test sets too")
    parser.add_argument("--here", action="store_true", help="run in this process, one after another")
    args = parser.parse_args()
    size = (args.height, args.width)
    folder = args.out / f"{args.height}x{args.width}"
    sets = PixelSets(args.data, folder, *size, args.city, args.city_seed, tuple(args.more_seeds))
    if args.here:
        for text in args.tries:
            run(args, sets, text)
        return
    began = time.perf_counter()
    datasets = [t for text in args.tries for t in str(parse(text)[1].get("towns", DATASETS)).split(",")]
    wanted = [*datasets, *VALIDATION, *(TESTS if args.test else ())]
    sets.prepare([name for name in wanted if unmarked(name) in sets.loaders], args.workers, local_device())
    print(f"photos ready after {time.perf_counter() - began:.0f} s", flush=True)
    common = [sys.executable, "-m", "research.train_released", "--here"]
    for flag in ("data", "weights", "out", "height", "width", "city", "city_seed", "storage"):
        common += [f"--{flag.replace('_', '-')}", str(getattr(args, flag))]
    common += ["--more-seeds", *map(str, args.more_seeds)]
    common += ["--test"] if args.test else []
    shares = [args.tries[i :: args.jobs] for i in range(args.jobs)]
    children = [
        subprocess.Popen([*common, *(word for text in share for word in ("--try", text))]) for share in shares if share
    ]
    failed = [child.args for child in children if child.wait()]
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    seconds = time.perf_counter() - began
    print(f"all done after {seconds:.0f} s on {machine}, torch {torch.__version__}; failed: {failed}")
    if (args.out / "results.jsonl").exists():
        print_table(args.out / "results.jsonl")


if __name__ == "__main__":
    main()
