"""Devices for models: the names accepted by `--device` and `load_model`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sareloc.errors import ArgumentError

if TYPE_CHECKING:
    import torch


TORCH_DEVICES = ("cpu", "cuda", "cuda:N", "mps")
RUNTIME_DEVICES = ("openvino", "openvino-int8")
DEVICES = (*TORCH_DEVICES, *RUNTIME_DEVICES)
"""All names: torch devices, and runtimes that are faster on a CPU (see `sareloc.models.run_on`)."""
DEVICE_HELP = (
    "Device of the model: cpu, cuda, cuda:N (GPU number N, from 0), mps (Apple), or a faster CPU runtime: openvino, "
    "openvino-int8 (extra openvino). Default: cuda if there is a GPU, else cpu."
)


def find_device(name: str | torch.device | None, known: tuple[str, ...] = DEVICES) -> torch.device:
    """The torch device of this name; default: the GPU if there is one, else the CPU.

    Raises ArgumentError if the name is unknown (the error lists `known`) or if this machine has no such device (the
    error lists its devices). A torch.device of another type than `TORCH_DEVICES` is returned unchecked.
    """
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if isinstance(name, torch.device) and name.type not in ("cpu", "cuda", "mps"):
        return name
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", str(name)):
        raise ArgumentError(f"unknown device {str(name)!r}: known are {', '.join(known)}")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    mps = torch.backends.mps.is_available()
    device = torch.device(name)
    if (device.type == "cuda" and (device.index or 0) >= gpus) or (device.type == "mps" and not mps):
        here = ["cpu", *(f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(gpus)), *(["mps"] if mps else [])]
        without = " (this torch is built without CUDA)" if device.type == "cuda" and not torch.version.cuda else ""
        raise ArgumentError(f"there is no device {name} on this machine{without}, only {', '.join(here)}")
    return device
