"""Weights as they are stored: float32, float16, or int8 with one scale for each row; and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from sareloc.errors import ArgumentError

Storage = Literal["float32", "float16", "int8"]
ROW_SCALE = "#row-scale"  # marks the scales of an int8 tensor; no parameter's name has a "#"
SMALL = 1 << 15  # up to so many numbers stay float32, such as NetVLAD's 64 centres: little to save, much hangs on them


def pack(weights: Mapping[str, Tensor], storage: Storage) -> dict[str, Tensor]:
    """Tensors as they are stored, on the CPU, contiguous; `unpack` makes float32 of them again.

    "float16" halves and "int8" quarters the large tensors; an int8 tensor comes with `name#row-scale`, the step of each
    row (output channel), max|row| / 127: no number is farther off than half a step. Biases, statistics, tensors of up
    to 32,768 numbers, and those with numbers beyond float16's range stay float32.
    """
    if storage not in get_args(Storage):
        raise ArgumentError(f"unknown storage {storage!r}: known are {', '.join(get_args(Storage))}")
    packed = {}
    for name, tensor in weights.items():
        full = tensor.detach().cpu().contiguous()
        if full.is_floating_point():
            full = full.float()
        packed[name] = full
        if storage == "float32" or not full.is_floating_point() or full.ndim < 2 or full.numel() <= SMALL:
            continue
        if storage == "int8":
            scale = full.flatten(1).abs().amax(dim=1) / 127
            steps = full / _along_rows(scale.clamp(min=torch.finfo(torch.float32).tiny), full)
            packed[name] = steps.round().clamp(-127, 127).to(torch.int8)
            packed[name + ROW_SCALE] = scale
        elif (half := full.half()).isfinite().all():
            packed[name] = half
    return packed


def unpack(packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stored tensors as a model wants them: what was scaled is multiplied out, floats become float32."""
    weights = {}
    for name, tensor in packed.items():
        if not name.endswith(ROW_SCALE):
            scale = packed.get(name + ROW_SCALE)
            full = tensor.float() if tensor.is_floating_point() or scale is not None else tensor
            weights[name] = full if scale is None else full * _along_rows(scale, full)
    return weights


def _along_rows(scale: Tensor, like: Tensor) -> Tensor:
    """(rows,) shaped to multiply a tensor row by row."""
    return scale.view(-1, *[1] * (like.ndim - 1))
