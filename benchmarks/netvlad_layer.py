"""NetVLAD's layer, forward and backward: the matrix form against the two forms that other projects use.

    python -m benchmarks.netvlad_layer [--device cuda] [--batch 4 --channels 512 --height 30 --width 40 --clusters 64]

The other two differ from ours in how the sum of residuals is written, and in nothing else:
- residual: the tensor of all residuals, B x K x D x S, multiplied by the assignment and summed (pytorch-NetVlad while
  training, OpenIBL, hloc);
- loop: the same for one cluster after the other (pytorch-NetVlad's slower, smaller variant).

Each form runs in a process of its own. Time: the fastest of the repeats. Memory: on the CPU, how much the process grew
at its peak (resident set, after a small warm-up); on CUDA, the peak of what torch allocated beyond inputs and weights.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from sareloc.models import NetVLAD

MIB = 1 << 20


def assigned(layer: NetVLAD, features: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors of all locations (B, D, S) and their soft assignment (B, K, S)."""
    x = F.normalize(features.flatten(2), dim=1)
    return x, (layer.assign @ x).softmax(dim=1)


def normalised(vlad: Tensor) -> Tensor:
    """L2 per cluster, then of the whole."""
    return F.normalize(F.normalize(vlad, dim=2).flatten(1), dim=1)


def residual_form(layer: NetVLAD, features: Tensor) -> Tensor:
    x, a = assigned(layer, features)
    residuals = x[:, None] - layer.centres[None, :, :, None]  # (B, K, D, S)
    return normalised((residuals * a[:, :, None]).sum(dim=3))


def loop_form(layer: NetVLAD, features: Tensor) -> Tensor:
    x, a = assigned(layer, features)
    clusters = [((x - layer.centres[k, :, None]) * a[:, k, None]).sum(dim=2) for k in range(layer.clusters)]
    return normalised(torch.stack(clusters, dim=1))


FORMS: dict[str, Callable[[NetVLAD, Tensor], Tensor]] = {
    "matrix (sareloc)": NetVLAD.forward,
    "loop": loop_form,
    "residual": residual_form,
}


def step(form: str, layer: NetVLAD, features: Tensor) -> Tensor:
    layer.zero_grad()
    features.grad = None
    found = FORMS[form](layer, features)
    (found * torch.linspace(-1, 1, found.shape[1], device=found.device)).sum().backward()
    return found.detach()


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peak_bytes(device: str) -> int:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measure(args: argparse.Namespace) -> None:
    """One form, in this process; its output goes to a file, its numbers to standard output."""
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    layer = NetVLAD(args.channels, args.clusters).to(args.device)
    tiny = torch.randn(1, args.channels, 2, 2, device=args.device).requires_grad_()
    features = torch.randn(args.batch, args.channels, args.height, args.width, device=args.device).requires_grad_()
    step(args.form, layer, tiny)
    layer.zero_grad()
    synchronise(args.device)
    before = torch.cuda.memory_allocated() if args.device == "cuda" else peak_bytes(args.device)
    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    found = step(args.form, layer, features)
    synchronise(args.device)
    memory = peak_bytes(args.device) - before
    assert features.grad is not None
    torch.save({"output": found.cpu(), "gradient": features.grad.cpu()}, args.output)
    times = []
    for _ in range(args.repeats):
        start = time.perf_counter()
        step(args.form, layer, features)
        synchronise(args.device)
        times.append(time.perf_counter() - start)
    print(json.dumps({"ms": 1e3 * min(times), "mib": memory / MIB}))


def machine(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    cpuinfo = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
    return (
        f"{names[0] if names else platform.processor()}, {len(names)} cores"
        if cpuinfo.exists()
        else platform.platform()
    )


def compare(args: argparse.Namespace) -> None:
    """Every form in its own process, then ratios."""
    numbers: dict[str, dict[str, float]] = {}
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for form in FORMS:
            output = str(Path(folder) / "output.pt")
            command = [sys.executable, *sys.argv, "--form", form, "--output", output]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            numbers[form] = json.loads(done.stdout)
            results[form] = torch.load(output, weights_only=True)
    ours, expected = numbers["matrix (sareloc)"], results["residual"]
    print(f"{args.batch} x {args.channels} x {args.height} x {args.width}, K = {args.clusters}, {machine(args.device)}")
    for form, number in numbers.items():
        off = float((results[form]["output"] - expected["output"]).abs().max())
        number |= {"times_ours": number["ms"] / ours["ms"], "memory_ours": number["mib"] / ours["mib"], "off": off}
        number["gradient_off"] = float(
            (results[form]["gradient"] - expected["gradient"]).abs().max() / expected["gradient"].abs().max()
        )
        print(
            f"{form:17} {number['ms']:9.2f} ms ({number['times_ours']:5.1f} x)   {number['mib']:8.1f} MiB "
            f"({number['memory_ours']:5.1f} x)   output off by {off:.1e}, gradient by {number['gradient_off']:.1e}"
        )
    assert all(n["off"] <= 1e-6 for n in numbers.values()), "the forms disagree"
    about = {"machine": machine(args.device), "torch": torch.__version__, "python": platform.python_version()}
    print(json.dumps({**about, "threads": args.threads, "command": " ".join(sys.argv), "forms": numbers}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    for name, default in {
        "batch": 4,
        "channels": 512,
        "height": 30,
        "width": 40,
        "clusters": 64,
        "repeats": 10,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--form", choices=FORMS, help="measure this one alone (used by the comparison itself)")
    parser.add_argument("--output", help="where the form's output is put")
    args = parser.parse_args()
    (measure if args.form else compare)(args)


if __name__ == "__main__":
    main()
