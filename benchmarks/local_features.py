"""Photos a second that local features are extracted from: kornia's own code, torch and OpenVINO.

    OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive python -m benchmarks.local_features

The methods take turns, image by image, and the fastest of all rounds counts, so that other load on the machine affects
all of them alike; ratios are to kornia's. Images are in memory, 480x360. "network": the milliseconds until the maps of
the network are computed; the rest is the choice of keypoints. Passive: torch's threads do not spin while OpenVINO's
compute.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib.resources import files

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.describe import Pixels, draw_photos
from benchmarks.measuring import about
from kornia.feature import XFeat
from safetensors.torch import load_file

from sareloc.errors import MissingExtraError
from sareloc.geometry import KEYPOINTS, LocalFeatureExtractor
from sareloc.geometry.local_features import load_network, network_input


def by_kornia() -> tuple[Callable[[Pixels], object], Callable[[Pixels], object]]:
    """The whole extraction and the network alone, as kornia's XFeat computes them."""
    network = XFeat(top_k=KEYPOINTS).eval()
    weights = load_file(str(files("sareloc") / "weights" / "xfeat.safetensors"))
    network.load_state_dict({name: tensor.float() for name, tensor in weights.items()})

    def pixels(image: Pixels) -> torch.Tensor:
        return torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255

    return (
        lambda image: network.detectAndCompute(pixels(image)),
        lambda image: network.net(F.interpolate(pixels(image), (352, 480), mode="bilinear")),
    )


def by_sareloc(device: str) -> tuple[Callable[[Pixels], object], Callable[[Pixels], object]]:
    """The same, of a LocalFeatureExtractor."""
    extractor, network = LocalFeatureExtractor(device), load_network(device)
    return (
        lambda image: extractor.extract([image]),
        lambda image: network(network_input(torch.from_numpy(image[None]))),
    )


@torch.inference_mode()
def fastest(work: dict[str, Callable[[Pixels], object]], images: list[Pixels], rounds: int) -> dict[str, float]:
    """Milliseconds of each: over the rounds the fastest for each image, averaged over the images."""
    for run in work.values():
        run(images[0])  # kernels are chosen
    found = {name: np.full((rounds, len(images)), np.inf) for name in work}
    for turn in range(rounds):
        for column, image in enumerate(images):
            for name, run in work.items():
                began = time.perf_counter()
                run(image)
                found[name][turn, column] = 1000 * (time.perf_counter() - began)
    return {name: float(times.min(axis=0).mean()) for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    ways = {"kornia": by_kornia(), "torch": by_sareloc("cpu")}
    try:
        ways["openvino"] = by_sareloc("openvino")
    except MissingExtraError as why:
        print(f"openvino: left out ({why})")
    images = draw_photos(args.photos, 360, 480)
    work = {f"{name}{part}": run for name, both in ways.items() for part, run in zip(("", " net"), both, strict=True)}
    ms = fastest(work, images, args.rounds)
    print("| method | photos/s | ratio | ms | network, ms |\n|---|---|---|---|---|")
    for name in ways:
        whole, network = ms[name], ms[f"{name} net"]
        print(f"| {name} | {1000 / whole:.1f} | {ms['kornia'] / whole:.2f} | {whole:.1f} | {network:.1f} |")
    print(json.dumps({**about(), "ms": {name: round(value, 2) for name, value in ms.items()}}))


if __name__ == "__main__":
    main()
