"""What goes further on a GPU, and what does not: ways to run the whole model, layer by layer times, 8-bit products.

    python -m benchmarks.describe_tries

VGG16-NetVLAD at 480x640, pixels on the GPU already: arithmetic alone, without transfers. Every way is timed in the same
run, the fastest of some rounds counts. The layers are timed one by one in bfloat16, channels last; "at 790 TFLOP/s" is
what each would take at the rate of a large matrix product. The first layer is timed with more channels, and
for a layer of conv4 the product in float8, with and without unfolding the image into the matrix that it wants.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from benchmarks.measuring import about
from torch import Tensor, nn

from sareloc.models import PlaceModel, Whitening, make_model
from sareloc.models.fusing import conv_relu, fuse_relus
from sareloc.models.place_model import evaluating
from sareloc.models.precision import cudnn_tries

PEAK = 790e12  # operations/s of a large matrix product in bfloat16 on an H200


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    """The fastest of `repeats`, on the GPU's clock."""
    for _ in range(3):
        work()
    found = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return min(found)


def whole_model(model: PlaceModel, pixels: Tensor, repeats: int, tuned: bool) -> dict[str, float]:
    """Photos per second of each way to run the same batch, and how far its descriptors are from the first way's."""
    fused = fuse_relus(model).to(memory_format=torch.channels_last)
    modes = {"compiled": "default", "compiled, CUDA graphs": "reduce-overhead"}
    if tuned:
        modes["compiled, max-autotune"] = "max-autotune-no-cudagraphs"
    ways: dict[str, Callable[[Tensor], Tensor]] = {"eager": model, "ReLU fused": fused}
    ways |= {name: torch.compile(model, dynamic=False, mode=mode) for name, mode in modes.items()}
    ways["ReLU fused, compiled"] = torch.compile(fused, dynamic=False)
    ways["ReLU fused, CUDA graphs"] = torch.compile(fused, dynamic=False, mode="reduce-overhead")
    chosen = torch.compile(fused, dynamic=False)

    def tried(images: Tensor) -> Tensor:
        with cudnn_tries():
            return chosen(images)

    ways["fused, compiled, cuDNN tries"] = tried
    rates: dict[str, float] = {}
    reference: Tensor | None = None
    for name, run in ways.items():
        torch._dynamo.reset()
        with evaluating(model), evaluating(fused):
            began = time.perf_counter()
            found = run(pixels).clone()
            torch.cuda.synchronize()
            first = time.perf_counter() - began
            took = milliseconds(lambda run=run: run(pixels), repeats)
        reference = found if reference is None else reference
        apart = float(1 - (found * reference).sum(dim=1).min())
        rates[name] = 1000 * len(pixels) / took
        print(
            f"batch {len(pixels):4d}  {name:28s} {rates[name]:8.0f} photos/s, {apart:.0e} apart, first {first:.0f} s",
            flush=True,
        )
    return rates


def layers(model: PlaceModel, pixels: Tensor, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds of every layer by itself, and of NetVLAD and the whitening."""
    found = {}
    with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
        x = model._pixels(pixels).bfloat16()
        for name, modules in model.backbone.parts().items():
            for number, module in enumerate(modules):
                took = milliseconds(lambda m=module, x=x: m(x), repeats)
                y = module(x)
                row = {"ms": took}
                if isinstance(module, nn.Conv2d):
                    operations = 2 * y.numel() * module.weight[0].numel()
                    row |= {"at_peak_ms": 1000 * operations / PEAK}
                found[f"{name}.{number} {type(module).__name__}"] = row
                x = y
        found["NetVLAD"] = {"ms": milliseconds(lambda: model.aggregation(x), repeats)}
        pooled = model.aggregation(x).float()
        assert model.whitening is not None
        found["whitening"] = {"ms": milliseconds(lambda: model.whitening(pooled), repeats)}
    for name, row in found.items():
        print(f"{name:24s}", "  ".join(f"{key} {value:8.3f}" for key, value in row.items()), flush=True)
    return found


def eight_bits(batch: int, repeats: int) -> dict[str, float]:
    """conv4_2 of VGG16: cuDNN in bfloat16, the product in float8, the unfolding that it needs."""
    channels, height, width = 512, 60, 80
    half = {"device": "cuda", "dtype": torch.bfloat16}
    x = torch.randn(batch, channels, height, width, **half).to(memory_format=torch.channels_last)
    weight = torch.randn(channels, channels, 3, 3, **half).to(memory_format=torch.channels_last)
    small = x.permute(0, 2, 3, 1).to(torch.float8_e4m3fn)
    matrix = weight.permute(0, 2, 3, 1).reshape(channels, -1).to(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda")

    def unfold() -> Tensor:
        padded = F.pad(small.view(torch.uint8), (0, 0, 1, 1, 1, 1))
        return padded.unfold(1, 3, 1).unfold(2, 3, 1).permute(0, 1, 2, 4, 5, 3).reshape(-1, 9 * channels)

    columns = unfold().view(torch.float8_e4m3fn)
    found = {
        "cuDNN bfloat16": milliseconds(lambda: F.conv2d(x, weight, padding=1), repeats),
        "float8 product alone": milliseconds(
            lambda: torch._scaled_mm(columns, matrix.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16), repeats
        ),
        "unfolding": milliseconds(unfold, repeats),
    }
    for name, took in found.items():
        print(f"conv4_2, batch {batch}: {name:24s} {took:8.3f} ms", flush=True)
    return found


def first_layer(batch: int, repeats: int) -> dict[str, float]:
    """conv1_1 of VGG16 on images of 3 channels, and of more, filled up with zeros: kernels like multiples of 8."""
    found = {}
    bias, knobs = torch.randn(64, device="cuda", dtype=torch.bfloat16), ([1, 1], [1, 1], [1, 1], 1)
    for channels in (3, 4, 8):
        x = torch.randn(batch, channels, 480, 640, device="cuda", dtype=torch.bfloat16)
        weight = torch.randn(64, channels, 3, 3, device="cuda", dtype=torch.bfloat16)
        x, weight = (t.to(memory_format=torch.channels_last) for t in (x, weight))
        found[f"{channels} channels"] = milliseconds(lambda x=x, w=weight: F.conv2d(x, w, bias, padding=1), repeats)
        found[f"{channels} channels, ReLU fused"] = milliseconds(
            lambda x=x, w=weight: conv_relu(x, w, bias, *knobs), repeats
        )
    for name, took in found.items():
        print(f"conv1_1, batch {batch}: {name:24s} {took:8.3f} ms", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--tune-at", type=int, default=64, help="the batch that max-autotune is tried with: minutes")
    parser.add_argument("--height", type=int, default=480)
    parser.add_argument("--width", type=int, default=640)
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args()
    model = make_model(size=(args.height, args.width), rng=torch.Generator().manual_seed(0))
    model.whitening = Whitening(torch.zeros(model.dim), torch.randn(512, model.dim) / model.dim**0.5)
    model.to("cuda").to(memory_format=torch.channels_last)
    shape = (max(args.batches), args.height, args.width, 3)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda").permute(0, 3, 1, 2)
    result = {
        "layers": layers(model, pixels[:64], args.repeats),
        "conv1_1": first_layer(64, args.repeats),
        "conv4_2": eight_bits(64, args.repeats),
        "photos_per_second": {
            batch: whole_model(model, pixels[:batch], args.repeats, batch == args.tune_at) for batch in args.batches
        },
    }
    print(json.dumps({**about(), **result}))


if __name__ == "__main__":
    main()
