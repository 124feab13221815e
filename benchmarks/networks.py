"""Networks of other projects with random weights: photos described a second, and the memory of a training step.

    python -m benchmarks.networks                                          # a CPU
    python -m benchmarks.networks --device cuda --batch 128 --photos 4096  # a GPU

Each network is measured as `describe` runs it on that device, from images in memory, transfers included; compiled: by
torch.compile, which takes a while at first. The fastest of the rounds counts; networks take turns. A training step: one
tuple of 12 photos, SARE, gradients of the layers that are trained by default.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from benchmarks.measuring import about
from sareloc.describe import encode_batches

from sareloc.losses import make_loss
from sareloc.models import PlaceModel, make_model

NETWORKS: dict[str, tuple[str, str, int]] = {
    "DINOv2 ViT-S, CLS": ("dinov2-s", "cls", 322),
    "DINOv2 ViT-B, CLS": ("dinov2-b", "cls", 322),
    "DINOv2 ViT-B, SALAD": ("dinov2-b", "salad", 322),
    "DINOv2 ViT-B, BoQ": ("dinov2-b", "boq", 322),
    "DINOv2 ViT-B, MegaLoc": ("dinov2-b", "megaloc", 322),
    "DINOv2 ViT-L, CLS": ("dinov2-l", "cls", 322),
    "ResNet50, MixVPR": ("resnet50", "mixvpr", 320),
    "ResNet50, CosPlace": ("resnet50", "cosplace", 512),
}
TUPLE = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--photos", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--compiled", action="store_true", help="also by torch.compile")
    args = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for name in args.only:
        backbone, aggregation, side = NETWORKS[name]
        model = make_model(backbone, aggregation, size=(side, side), rng=torch.Generator().manual_seed(0))
        model = model.to(args.device)
        images = np.random.default_rng(0).integers(0, 256, (args.photos, side, side, 3), dtype=np.uint8)
        row: dict[str, float] = {"dim": model.dim, "parameters, M": round(parameters(model) / 1e6, 1)}
        for compiled in (False, True) if args.compiled else (False,):
            times = [describe_once(model, images, args.batch, compiled) for _ in range(args.rounds + 1)][1:]
            row["compiled, photos/s" if compiled else "photos/s"] = round(args.photos / min(times), 1)
        if args.device.startswith("cuda"):
            row["training step, GiB"] = round(training_gib(model, side), 2)
        found[name] = row
        print(name, row, flush=True)
    print(json.dumps({**about(), "networks": found}))


def parameters(model: PlaceModel) -> int:
    return sum(weight.numel() for weight in model.parameters())


def describe_once(model: PlaceModel, images: npt.NDArray[np.uint8], batch: int, compiled: bool) -> float:
    def batches() -> Iterator[tuple[int, list[npt.NDArray[np.uint8]]]]:
        for first in range(0, len(images), batch):
            yield first, list(images[first : first + batch])

    start = time.perf_counter()
    for _ in encode_batches(model, batches(), batch=batch, compiled=compiled):
        pass
    return time.perf_counter() - start


def training_gib(model: PlaceModel, side: int) -> float:
    """The peak of GPU memory, weights included, of a step with one tuple of photos."""
    images = torch.randint(0, 256, (TUPLE, 3, side, side), dtype=torch.uint8, device=model.device)
    loss = make_loss("sare-joint")
    torch.cuda.reset_peak_memory_stats()
    model.train()
    with torch.autocast("cuda", torch.bfloat16):
        descriptors = model(images).float()
    loss(descriptors[:1], descriptors[1:2], descriptors[None, 2:]).backward()
    model.zero_grad()
    model.eval()
    return torch.cuda.max_memory_allocated() / 2**30


if __name__ == "__main__":
    main()
