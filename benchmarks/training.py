"""Images per second of training, compared with the method of other projects.

    python -m benchmarks.training                        # H200: 480x640, 600 database photos, 200 queries
    python -m benchmarks.training --height 96 --width 128 --database 60 --queries 12 --pool 20   # a CPU's size

An epoch is: describe every photo, mine, learn every query's tuple (1 + 1 + 10 photos, 4 tuples a step). "Other
projects" is what their public code does: float32, NCHW, every photo through all of VGG16 in every pass, the residual
tensor in NetVLAD, one query at a time in mining. Ours is `sareloc.training`: once with cached features of the frozen
layers (their computation is counted into the first epoch and also shown separately), once from pixels. Photos are
random pixels in memory: decoding is not measured. Ratios are to the other method in the same run.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.pixel_sets import frozen_inputs
from torch import Tensor, nn

from sareloc.datasets import PhotoSet, Places
from sareloc.geo import Positions
from sareloc.losses import make_loss
from sareloc.models import PlaceModel, make_model, number_format
from sareloc.training import Neighbourhoods, TensorInputs, TrainingConfig, TrainingSet, find_neighbourhoods
from sareloc.training.distributed import Network, ProcessGroup, data_parallel, local_device
from sareloc.training.loop import make_optimizer, train_epoch, train_step
from sareloc.training.tasks import TupleTask


def make_places(database: int, queries: int) -> Places:
    """Queries along a street every 30 m, three database photos near each, the rest far away."""
    at = np.zeros((database, 2))
    at[:, 0] = np.where(
        np.arange(database) < 3 * queries, np.arange(database) // 3 * 30 + np.arange(database) % 3 + 3, 0
    )
    at[3 * queries :, 1] = 1000 + 30 * np.arange(database - min(database, 3 * queries))
    asked = np.stack([30.0 * np.arange(queries), np.zeros(queries)], axis=1)
    photos, askers = (PhotoSet(Path(), tuple(map(str, range(len(xy)))), Positions.from_local(xy)) for xy in (at, asked))
    return Places("street", "train", photos, askers)


# --- the other way -------------------------------------------------------------------------------------------------


class ResidualNetVLAD(nn.Module):
    """NetVLAD as it is usually written: the residuals of all locations to all centres in one tensor."""

    def __init__(self, model: PlaceModel) -> None:
        super().__init__()
        self.assign = nn.Parameter(model.aggregation.assign.detach().clone())  # type: ignore[operator]
        self.centres = nn.Parameter(model.aggregation.centres.detach().clone())  # type: ignore[operator]

    def forward(self, features: Tensor) -> Tensor:
        x = F.normalize(features, dim=1).flatten(2)  # (B, D, S)
        a = (self.assign @ x).softmax(dim=1)  # (B, K, S)
        residual = x[:, None] - self.centres[None, :, :, None]  # (B, K, D, S)
        vlad = (residual * a[:, :, None]).sum(dim=-1)
        return F.normalize(F.normalize(vlad, dim=2).flatten(1), dim=1)


class OtherWay:
    """One epoch in float32 and NCHW, mining query by query."""

    def __init__(
        self, model: PlaceModel, pixels: Tensor, near: Neighbourhoods, database: int, config: TrainingConfig
    ) -> None:
        self.pixels, self.near, self.database, self.config = pixels, near, database, config
        self.model = model.float().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.pool = ResidualNetVLAD(model).to(pixels.device)
        trained = [*(p for p in self.model.backbone.parameters() if p.requires_grad), *self.pool.parameters()]
        self.optimizer = torch.optim.SGD(trained, lr=config.lr, momentum=0.9, weight_decay=0.001)
        self.loss = make_loss(config.loss)

    def describe(self, rows: Tensor) -> Tensor:
        floats = self.model.preprocess.normalise(self.pixels[rows])
        described: Tensor = self.pool(self.model.backbone(floats))
        return described

    def epoch(self) -> None:
        with torch.no_grad():
            cache = torch.cat([self.describe(rows) for rows in torch.arange(len(self.pixels)).split(24)])
        tuples = []
        rng = np.random.default_rng(0)
        for q in self.near.trainable:
            allowed = np.setdiff1d(np.arange(self.database), self.near.near[q])
            pool = torch.from_numpy(rng.choice(allowed, min(self.config.pool, len(allowed)), replace=False))
            here = torch.from_numpy(self.near.positives[q])
            asked = cache[self.database + q]
            positive = here[((cache[here] - asked) ** 2).sum(1).argmin().cpu()]
            hardest = pool[((cache[pool] - asked) ** 2).sum(1).topk(self.config.negatives, largest=False).indices.cpu()]
            tuples.append(torch.cat([torch.tensor([self.database + q, int(positive)]), hardest]))
        for start in range(0, len(tuples), self.config.tuples_per_step):
            self.step(tuples[start : start + self.config.tuples_per_step])

    def step(self, tuples: list[Tensor]) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        d = self.describe(torch.cat(tuples)).view(len(tuples), 2 + self.config.negatives, -1)
        (self.loss(d[:, 0], d[:, 1], d[:, 2:]).sum() / (len(tuples) * self.config.negatives)).backward()
        self.optimizer.step()


# --- measuring -----------------------------------------------------------------------------------------------------


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call, the GPU's part included."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def step_seconds(task: TupleTask, optimizer: torch.optim.Optimizer) -> float:
    """The fastest of three rounds of training on the same block of mined tuples, per step."""
    steps = task.make_steps(task.rows, seed=0)
    rows = [part.rows for step in steps for part in step.parts]

    def train_all() -> None:
        batches = task.inputs.batches(rows, task.network.device)
        for step in steps:
            train_step(step, batches, task.network, optimizer, task.config, task.group, torch.Generator())

    task.network.train()
    return min(seconds(train_all) for _ in range(3)) / len(steps)


def peak_gib(args: argparse.Namespace, train_from: str, tuples_at_once: int) -> float:
    """Most memory that a GPU holds while steps of four tuples are learned from pixels on the host, in GiB."""
    config = TrainingConfig(pool=args.pool, batch=16, train_from=train_from, tuples_at_once=tuples_at_once)
    places = make_places(60, 8)
    pixels = torch.zeros(68, 3, args.height, args.width, dtype=torch.uint8)
    model = make_model(size=(args.height, args.width), train_from=train_from).to(local_device())
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    network = Network(model, "pixels", number_format(local_device()))
    task = TupleTask(network, [TrainingSet(places, TensorInputs(pixels))], config, ProcessGroup())
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() - sum(p.nbytes for p in model.parameters())
    train_epoch(0, task, network, make_optimizer(network, config), config, ProcessGroup())
    return (torch.cuda.max_memory_reserved() - before) / 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--height", type=int, default=480)
    parser.add_argument("--width", type=int, default=640)
    parser.add_argument("--database", type=int, default=600)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--pool", type=int, default=200)
    parser.add_argument("--compile", action="store_true", help="torch.compile for our way")
    args = parser.parse_args()
    device, dtype = local_device(), number_format(local_device())
    config = TrainingConfig(pool=args.pool, batch=32, compile=args.compile)
    places = make_places(args.database, args.queries)
    near = find_neighbourhoods(places)
    shape = (args.database + args.queries, 3, args.height, args.width)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).to(device)
    learned = 12 * len(near.trainable)

    def ours(stage: str) -> dict[str, float]:
        model = make_model(size=(args.height, args.width), rng=torch.Generator().manual_seed(0)).to(device)
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        held: dict[str, TensorInputs] = {"pixels": TensorInputs(pixels)}
        once = 0.0
        if stage == "features":
            frozen_inputs(model, pixels[:64], dtype, batch=32)
            once = seconds(lambda: held.update(features=frozen_inputs(model, pixels, dtype, batch=32)))
        network, group = Network(model, held[stage].stage, dtype), ProcessGroup()
        task = TupleTask(network, [TrainingSet(places, held[stage])], config, group)
        data_parallel(network, group, compiled=config.compile)
        optimizer = make_optimizer(network, config)
        train_epoch(0, task, network, optimizer, config, group)  # warm: kernels chosen, graphs compiled
        epoch = seconds(lambda: train_epoch(1, task, network, optimizer, config, group))
        step = step_seconds(task, optimizer)
        return {"once_s": once, "epoch_s": epoch, "epoch_images_s": learned / epoch, "step_images_s": 48 / step}

    found: dict[str, object] = {"kept features": ours("features"), "from pixels": ours("pixels")}
    model = make_model(size=(args.height, args.width), rng=torch.Generator().manual_seed(0)).to(device)
    other = OtherWay(model, pixels, near, args.database, config)
    rows = [torch.arange(12) for _ in range(4)]
    other.step(rows)
    step = min(seconds(lambda: other.step(rows)) for _ in range(3))
    epoch = seconds(other.epoch)
    found["other projects"] = {"epoch_s": epoch, "epoch_images_s": learned / epoch, "step_images_s": 48 / step}
    print(f"{learned} photos learned an epoch, {shape[0]} described, {args.height}x{args.width}")
    for name in ("kept features", "from pixels", "other projects"):
        row = found[name]
        assert isinstance(row, dict)
        print(
            f"{name:15s} epoch {row['epoch_s']:7.2f} s = {row['epoch_images_s']:7.0f} images/s "
            f"({epoch / row['epoch_s']:5.1f} x), a step {row['step_images_s']:7.0f} images/s "
            f"({row['step_images_s'] * step / 48:5.1f} x)"
            + (f", once {row['once_s']:.2f} s" if row.get("once_s") else "")
        )
    if torch.cuda.is_available():
        del other, pixels
        found["peak_gib"] = {f"{p}, {n} at once": peak_gib(args, p, n) for p in ("conv5_1", "conv4_1") for n in (1, 4)}
        print("GPU memory of a step:", ", ".join(f"{k}: {v:.2f} GiB" for k, v in found["peak_gib"].items()))  # type: ignore[attr-defined]
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    print(json.dumps({"command": sys.argv, "machine": machine, "torch": torch.__version__, **found}))


if __name__ == "__main__":
    main()
