"""Photos described per second, from memory and from JPEG files, by several methods, and the recall of each.

    OMP_NUM_THREADS=2 python -m benchmarks.describe                                   # a CPU: 480x640, VGG16-NetVLAD
    python -m benchmarks.describe --photos 1024 --files 4096 --batch 64 --workers 16   # a GPU
    ... --dataset DATASET --split val --weights vgg16.safetensors   # also recall; the model starts from these photos
    ... --backbone efficientnet-lite0 --clusters 32 --height 240 --width 320
    ... --model fast

"others" is what public code does: float32, NCHW, no fusion, the residual tensor in NetVLAD. The methods take turns, and
the fastest round of each counts, so that other load on the machine affects all of them alike. Ratios are to "others".
Files are JPEGs of 1024x768 (--file-sizes); decoding them, in worker processes, is part of that row.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from benchmarks.measuring import about
from benchmarks.training import ResidualNetVLAD
from PIL import Image
from torch import Tensor

from sareloc.datasets import Places, load_dataset
from sareloc.encode import Encoder, describe
from sareloc.errors import SarelocError
from sareloc.evaluation import evaluate
from sareloc.models import (
    RUNTIMES,
    PlaceModel,
    RuntimeModel,
    fit_whitening,
    init_netvlad,
    load_backbone_weights,
    load_model,
    make_model,
    run_on,
)
from sareloc.photos import ReadImage, decode

Pixels = npt.NDArray[np.uint8]
INIT_PHOTOS = 128


def as_others_do(model: PlaceModel) -> RuntimeModel:
    """Float32, NCHW, every residual in one tensor."""
    pool = ResidualNetVLAD(model).to(model.device)

    def compute(images: Tensor) -> Tensor:
        pixels = model.preprocess.normalise(images.to(model.device).contiguous())
        found: Tensor = pool(model.backbone(pixels))
        return (found if model.whitening is None else model.whitening(found)).cpu()

    return RuntimeModel(model, "others", compute)


def in_float32(model: PlaceModel) -> RuntimeModel:
    return RuntimeModel(model, "float32", lambda images: model.encode(images, batch=len(images), precision="float32"))


def make_ways(model: PlaceModel, wanted: list[str] | None) -> dict[str, PlaceModel]:
    """The model as each wanted way computes it; ways that this machine or model cannot go are left out, saying why."""
    ways: dict[str, PlaceModel] = {"others": as_others_do(model), "float32": in_float32(model), "sareloc": model}
    for runtime in RUNTIMES if model.device.type == "cpu" else ():
        try:
            ways[runtime] = run_on(model, runtime)
        except SarelocError as why:
            print(f"{runtime}: left out ({why})")
    return {name: way for name, way in ways.items() if wanted is None or name in wanted}


def synchronised(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def from_memory(ways: dict[str, PlaceModel], images: list[Pixels], batch: int, repeats: int) -> dict[str, float]:
    """Photos per second of each way, images decoded before."""
    read = [ReadImage(str(row), (image,), image.shape[1], image.shape[0]) for row, image in enumerate(images)]
    stacked = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)

    def plain(way: PlaceModel) -> Callable[[], object]:
        return lambda: way.encode(stacked, batch=batch)

    work = {name: plain(way) for name, way in ways.items() if name != "sareloc"}
    if "sareloc" in ways:
        encoder = Encoder(ways["sareloc"], keypoints=0, batch=batch)
        work["sareloc"] = lambda: encoder.encode(read)
    return fastest(work, len(images), repeats)


def from_files(ways: dict[str, PlaceModel], paths: list[Path], args: argparse.Namespace) -> dict[str, float]:
    """Photos per second from JPEG files to descriptors."""

    def work(way: PlaceModel) -> Callable[[], object]:
        return lambda: describe(paths, way, batch=args.batch, workers=args.workers, progress=False)

    chosen = {name: work(way) for name, way in ways.items() if name not in ("others", "float32")}
    return fastest(chosen, len(paths), args.repeats)


def fastest(work: dict[str, Callable[[], object]], photos: int, repeats: int) -> dict[str, float]:
    for run in work.values():
        run()  # kernels are chosen, graphs compiled
    rounds = [{name: synchronised(run) for name, run in work.items()} for _ in range(repeats)]
    return {name: photos / min(found[name] for found in rounds) for name in work}


def draw_photos(count: int, height: int, width: int) -> list[Pixels]:
    """Blobs with grain: a JPEG of them is about as large as one of a street."""
    rng = np.random.default_rng(0)
    photos = []
    for _ in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((width, height))
        grain = rng.integers(-12, 13, (height, width, 1))
        photos.append(np.clip(np.asarray(coarse) + grain, 0, 255).astype(np.uint8))
    return photos


def write_files(folder: Path, count: int, height: int, width: int) -> list[Path]:
    paths = [folder / f"{number:05d}.jpg" for number in range(count)]
    drawn = draw_photos(min(count, 16), height, width)
    for number, path in enumerate(paths):
        if number < len(drawn):
            Image.fromarray(drawn[number]).save(path, quality=90)
        else:
            path.write_bytes(paths[number % len(drawn)].read_bytes())
    return paths


def start_from(model: PlaceModel, places: Places, weights: Path, dim: int) -> None:
    """ImageNet's weights, centres and whitening from some of the database's photos."""
    load_backbone_weights(model.backbone, weights)
    rows = np.linspace(0, len(places.database) - 1, min(INIT_PHOTOS, len(places.database))).astype(int)
    images = [decode(places.database.path(int(row)), size=model.preprocess.size) for row in rows]
    init_netvlad(model, images, np.random.default_rng(0))
    model.whitening = fit_whitening(model.encode(images), min(dim, len(images) - 1))


def recalls(ways: dict[str, PlaceModel], places: Places, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Recall of each way that does not compute what another one computes as well."""
    found = {}
    for name in [name for name in ways if name != "others"]:
        report = evaluate(ways[name], places, batch=args.batch, workers=args.workers)
        found[name] = {str(n): round(percent, 2) for n, percent in report.recall.items()}
        print(
            f"recall  {name:18s}", "  ".join(f"@{n} {percent:6.2f}" for n, percent in found[name].items()), flush=True
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"height": 480, "width": 640, "clusters": 64, "dim": 512, "batch": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in {"photos": 8, "files": 16, "workers": 2, "repeats": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--file-sizes", nargs="+", default=["768x1024"], help="height x width of the JPEG files")
    parser.add_argument("--model", help="a packaged model or a checkpoint, at its own size, instead of random weights")
    parser.add_argument("--backbone", default="vgg16")
    parser.add_argument("--ways", nargs="+", help="only these, such as others sareloc openvino")
    parser.add_argument("--dataset", help="a dataset's folder: its recall by each way")
    parser.add_argument("--split", default="val")
    parser.add_argument("--weights", type=Path, help="ImageNet weights of the backbone")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = (args.height, args.width)
    if args.model:
        model = load_model(args.model)
        size = model.preprocess.size(*size)
    else:
        model = make_model(args.backbone, clusters=args.clusters, size=size, rng=torch.Generator().manual_seed(0))
    model.to(device)
    result: dict[str, Any] = {}
    if args.dataset:
        places = load_dataset(args.dataset, split=args.split)
        if not args.model:
            start_from(model, places, args.weights, args.dim)
            model.to(device)
        result["recall"] = recalls(make_ways(model, args.ways), places, args)
    ways = make_ways(model, args.ways)
    if args.photos:
        result["from_memory"] = from_memory(ways, draw_photos(args.photos, *size), args.batch, args.repeats)
        print_rates("memory", result["from_memory"], result["from_memory"].get("others"))
    if args.files:
        for height, width in ([int(side) for side in size.split("x")] for size in args.file_sizes):
            with tempfile.TemporaryDirectory() as folder:
                found = from_files(ways, write_files(Path(folder), args.files, height, width), args)
            print_rates(f"files {height}x{width}", found, result.get("from_memory", found).get("others"))
            result[f"from_files_{height}x{width}"] = found
    print(json.dumps({**about(), "device": device, **result}))


def print_rates(source: str, rates: dict[str, float], base: float | None) -> None:
    for name, rate in rates.items():
        print(f"{source:14s} {name:18s} {rate:8.2f} photos/s" + (f"  {rate / base:5.2f} x" if base else ""), flush=True)


if __name__ == "__main__":
    main()
