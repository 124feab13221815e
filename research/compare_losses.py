"""The paper's comparison: the same start, mining and seeds for every loss, judged on datasets it has and has not seen.

    python -m research.compare_losses --data DATA --weights vgg16.safetensors --out compare --epochs 5 --jobs 6

trains VGG16-NetVLAD from ImageNet weights by every recipe, once on Cambridge and once on the drawn city, for every
seed, and judges each model on the test parts of both and, untouched by training, on Gardens Point and TMBuD: with the
full descriptor and after whitening (fitted on the training database). Photos are read or drawn once; the recipes are
shared out among `--jobs` processes on one GPU. Results are appended to OUT/results.jsonl as they come; the table is
printed last.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.pixel_sets import PixelSets, frozen_inputs

from sareloc.models import (
    PlaceModel,
    Whitening,
    fit_whitening,
    init_netvlad,
    load_backbone_weights,
    make_model,
    number_format,
)
from sareloc.training import RECIPES, TrainingSet, recall_of_descriptors, recipe, train
from sareloc.training.distributed import Network, ProcessGroup, compute_descriptors, local_device

TRAINING = {"cambridge": ("cambridge-train", "cambridge-val"), "city": ("city-train", "city-val")}
TESTS = ("cambridge-test", "city-test", "gardens-day", "gardens-light", "gardens-both", "tmbud-night")


class Features:
    """The sets as features of the frozen part, computed when first asked for; every recipe starts from the same."""

    def __init__(self, sets: PixelSets, model: PlaceModel) -> None:
        self.sets, self.model, self.opened = sets, model, dict[str, TrainingSet]()

    def __getitem__(self, name: str) -> TrainingSet:
        if name not in self.opened:
            pixels = self.sets.pixels(name).to(local_device())
            inputs = frozen_inputs(self.model, pixels, number_format(local_device()), batch=64)
            self.opened[name] = TrainingSet(self.sets.places(name), inputs)
        return self.opened[name]


def start(args: argparse.Namespace, sets: str, seed: int, aggregation: str) -> PlaceModel:
    """ImageNet's VGG16, and centres from the training database."""
    model = make_model("vgg16", aggregation, size=(args.height, args.width), rng=torch.Generator().manual_seed(seed))
    load_backbone_weights(model.backbone, args.weights)
    model.to(local_device())
    pixels = np.load(args.out / f"{sets}.npy", mmap_mode="r")
    rng = np.random.default_rng(seed)
    rows = rng.permutation(args.database_rows)[:500]
    init_netvlad(model, (np.ascontiguousarray(pixels[row].transpose(1, 2, 0)) for row in rows), rng)
    return model


def judge(model: PlaceModel, sets: Features, trained_on: str, dim: int) -> dict[str, dict[str, dict[int, float]]]:
    """Recall@1/5/10 in percent on every test set, with the full descriptor and whitened."""

    def descriptors(dataset: TrainingSet) -> torch.Tensor:
        network = Network(model, dataset.inputs.stage, number_format(local_device()))
        return compute_descriptors(network, dataset.inputs, 64, ProcessGroup())

    dataset = sets[trained_on]
    known = descriptors(dataset)[: len(dataset.places.database)].float()
    whitening = fit_whitening(known, min(dim, len(known) - 1)).to(known.device)
    found: dict[str, dict[str, dict[int, float]]] = {"full": {}, f"whitened to {whitening.dim}": {}}
    for name in [n for n in TESTS if n in sets.sets.loaders]:
        raw = descriptors(sets[name])
        for kind, vectors in zip(found, (raw, whiten(whitening, raw)), strict=True):
            recall = recall_of_descriptors(sets[name].places, vectors)
            found[kind][name] = {n: 100 * share for n, share in recall.items()}
    return found


@torch.no_grad()
def whiten(whitening: Whitening, raw: torch.Tensor) -> torch.Tensor:
    return torch.cat([whitening(part.float()) for part in torch.split(raw, 1024)])


def pixel_sets(args: argparse.Namespace) -> PixelSets:
    return PixelSets(args.data, args.out, args.height, args.width, args.city, args.city_seed)


def used_sets(args: argparse.Namespace) -> list[str]:
    names = [*(name for dataset in args.datasets for name in TRAINING[dataset]), *TESTS]
    return [name for name in names if name in pixel_sets(args).loaders]


def run_jobs(args: argparse.Namespace) -> None:
    """Train and judge every (dataset, seed, recipe) of this process, one after another."""
    frozen = make_model("vgg16", "avg", size=(args.height, args.width))
    load_backbone_weights(frozen.backbone, args.weights)
    sets = Features(pixel_sets(args), frozen.to(local_device()).eval())
    for dataset, seed, names in [(t, int(s), n.split("+")) for t, s, n in (job.split(":") for job in args.only)]:
        train_set, val_set = TRAINING[dataset]
        args.database_rows = len(sets[train_set].places.database)
        before: dict[str, torch.Tensor] = {}
        for name in names:
            model = start(args, train_set, seed, "crn" if name == "crn" else "netvlad")
            if name == "crn":  # started from what NetVLAD's triplet has learned
                model.load_state_dict(before, strict=False)
            began = time.perf_counter()
            epochs = []
            if name != "off-the-shelf":
                config = recipe(
                    name, epochs=args.epochs, lr=args.lr, batch=64, dim=0, seed=seed, refresh_every=args.refresh
                )
                run = train(model, sets[train_set], config, validation=sets[val_set], progress=False)
                epochs = [round(100 * record.recall_5, 2) for record in run.history]
                before = model.state_dict()
            result = {
                "town": dataset, "recipe": name, "seed": seed, "seconds": round(time.perf_counter() - began, 1),
                "val_recall_5": epochs, "recall": judge(model, sets, train_set, args.dim),
            }  # fmt: skip
            with (args.out / "results.jsonl").open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(f"{dataset} {name} seed {seed}: {result['seconds']} s, val {epochs}", flush=True)


def share_out(args: argparse.Namespace) -> None:
    """Every recipe of every dataset and seed, among `--jobs` processes."""
    chains = [["off-the-shelf"], ["netvlad", "crn"], *([r] for r in RECIPES if r not in {"netvlad", "crn"})]
    chains = [chain for chain in chains if set(chain) <= set(args.recipes)] if args.recipes else chains
    jobs = [
        f"{dataset}:{seed}:{'+'.join(chain)}"
        for chain in sorted(chains, key=len, reverse=True) for dataset in args.datasets for seed in range(args.seeds)
    ]  # fmt: skip
    common = [sys.executable, "-m", "research.compare_losses", *sys.argv[1:], "--only"]
    children = [subprocess.Popen([*common, *jobs[i :: args.jobs]]) for i in range(args.jobs)]
    for child in children:
        child.wait()


def print_table(path: Path) -> None:
    """Mean over seeds, and half the spread, of recall@1 (and @5, @10) in percent."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    cells: dict[tuple[str, str, str, str], list[list[float]]] = defaultdict(list)
    for row in rows:
        for kind, found in row["recall"].items():
            for name, recall in found.items():
                cells[row["town"], kind, row["recipe"], name].append([recall[n] for n in ("1", "5", "10")])
    for dataset in dict.fromkeys(key[0] for key in cells):
        for kind in dict.fromkeys(key[1] for key in cells):
            names = list(dict.fromkeys(key[3] for key in cells))
            print(
                f"\ntrained on {dataset}, {kind}\n| recipe | "
                + " | ".join(names)
                + " |\n"
                + "|---" * (1 + len(names))
                + "|"
            )
            for name in dict.fromkeys(key[2] for key in cells if key[0] == dataset):
                found = [np.array(cells[dataset, kind, name, test]) for test in names]
                texts = ["/".join(f"{v:.1f}" for v in c.mean(0)) + f" ±{np.ptp(c[:, 0]) / 2:.1f}" for c in found]
                print(f"| {name} | " + " | ".join(texts) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--height", type=int, default=240)
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--datasets", nargs="+", default=["cambridge", "city"])
    parser.add_argument("--city", default="medium", help="size of the drawn city, or none")
    parser.add_argument("--city-seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--refresh", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--recipes", nargs="+", help="only these; crn wants netvlad too")
    parser.add_argument("--only", nargs="*", help="town:seed:recipe[+recipe...] to run in this process")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.only is not None:
        run_jobs(args)
        return
    began = time.perf_counter()
    pixel_sets(args).prepare(used_sets(args), args.workers, local_device())
    print(f"photos ready after {time.perf_counter() - began:.0f} s", flush=True)
    share_out(args)
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"all done after {time.perf_counter() - began:.0f} s on {machine}, torch {torch.__version__}")
    print_table(args.out / "results.jsonl")


if __name__ == "__main__":
    main()
