"""How a device convolves fast, decided where the program runs: the number format, and cuDNN's kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

FAST_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")  # x86 servers of 2020 and later; ARM


def best_dtype(device: torch.device | str) -> torch.dtype:
    """The format for convolutions on this device: bfloat16 where the hardware multiplies it, else float32.

    Emulated bfloat16 is slower than float32, so that support in software alone does not count.
    """
    kind = torch.device(device).type
    if kind == "cuda":
        # compute capability 8.0, Ampere, brought bfloat16 to the hardware
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float32
    if kind == "cpu":
        # older releases of torch cannot say
        capabilities: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
        return torch.bfloat16 if any(capabilities.get(c) for c in FAST_BFLOAT16) else torch.float32
    return torch.float32


def autocast(device: torch.device | str, dtype: torch.dtype | None = None) -> torch.autocast:
    """Convolve in `dtype` inside this context; None: in `best_dtype(device)`; float32: leave everything as it is."""
    dtype = best_dtype(device) if dtype is None else dtype
    mixed = dtype != torch.float32
    return torch.autocast(torch.device(device).type, dtype=dtype if mixed else None, enabled=mixed)


@contextmanager
def cudnn_tries(wanted: bool = True) -> Iterator[None]:
    """Let cuDNN try its kernels on every new size of images and keep the fastest: pays where sizes are few."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or wanted
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
