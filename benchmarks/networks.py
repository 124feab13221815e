"""Networks of other projects with random weights: photos described a second, and the memory of a training step.

    python -m benchmarks.networks                                          # a CPU
    python -m benchmarks.networks --device cuda --batch 128 --photos 4096  # a GPU

Each network is measured as `describe` runs it on that device, from images in memory, transfers included. The fastest of
the rounds counts; networks take turns. A training step: one tuple of 12 photos, SARE, gradients of the layers that are
trained by default.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import numpy.typing as npt
import torch
from benchmarks.measuring import about

from sareloc.encode import Encoder
from sareloc.losses import make_loss
from sareloc.models import PlaceModel, make_model
from sareloc.photos import ReadImage

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
    args = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for name in args.only:
        backbone, aggregation, side = NETWORKS[name]
        model = make_model(backbone, aggregation, size=(side, side), rng=torch.Generator().manual_seed(0))
        model = model.to(args.device)
        images = np.random.default_rng(0).integers(0, 256, (args.photos, side, side, 3), dtype=np.uint8)
        row: dict[str, float] = {"dim": model.dim, "parameters, M": round(parameters(model) / 1e6, 1)}
        times = [describe_once(model, images, args.batch) for _ in range(args.rounds + 1)][1:]
        row["photos/s"] = round(args.photos / min(times), 1)
        if args.device.startswith("cuda"):
            row["training step, GiB"] = round(training_gib(model, side), 2)
        found[name] = row
        print(name, row, flush=True)
    print(json.dumps({**about(), "networks": found}))


def parameters(model: PlaceModel) -> int:
    return sum(weight.numel() for weight in model.parameters())


def describe_once(model: PlaceModel, images: npt.NDArray[np.uint8], batch: int) -> float:
    encoder = Encoder(model, keypoints=0, batch=batch)
    read = [ReadImage(str(row), (image,), image.shape[1], image.shape[0]) for row, image in enumerate(images)]
    start = time.perf_counter()
    encoder.encode(read)
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
