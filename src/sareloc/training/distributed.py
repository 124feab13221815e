"""The network in training, on one process or on many that `torchrun` started.

Each process (a rank) computes its share of a step and of the descriptors; gradients are averaged and descriptors
gathered over the process group. In a single process every operation of the group returns its argument.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sareloc.arrays import Ints
from sareloc.models import PlaceModel
from sareloc.models.preprocess import autocast
from sareloc.training.data import Inputs, Stage, free_bytes, frozen_features


@dataclass(frozen=True)
class ProcessGroup:
    """The rank of this process and the number of processes."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This rank's part of `count` items; the parts are contiguous and in the order of the ranks."""
        each = -(-count // self.world_size)
        return slice(min(count, self.rank * each), min(count, (self.rank + 1) * each))

    def split(self, count: int, at_once: int) -> list[tuple[slice, float]]:
        """This rank's part of `count` items in slices of at most `at_once`, each with weight 1. A rank without items
        takes the first one with weight 0, because every rank must take part in the exchange of gradients."""
        own = self.share(count)
        starts = range(own.start, own.stop, at_once)
        return [(slice(start, min(start + at_once, own.stop)), 1.0) for start in starts] or [(slice(0, 1), 0.0)]

    def gather(self, part: Tensor, count: int) -> Tensor:
        """All `count` rows on every rank, from each rank's share of them."""
        if self.world_size == 1:
            return part
        each = -(-count // self.world_size)
        padded = part.new_zeros(each, *part.shape[1:])
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in range(self.world_size)]
        dist.all_gather(parts, padded)
        return torch.cat(parts)[:count]  # only the last shares can be short, so the padding is at the end

    def sum(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all ranks."""
        if self.world_size > 1:
            dist.all_reduce(value)
        return value


def join_process_group(device: torch.device) -> ProcessGroup:
    """Join the processes that `torchrun` started (NCCL between GPUs, gloo between CPUs); without it, one process."""
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return ProcessGroup()
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return ProcessGroup(dist.get_rank(), dist.get_world_size())


def local_device() -> torch.device:
    """The GPU of this rank if there is one, else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


class Network(nn.Module):
    """Inputs at `stage` -> descriptors (n, D), unit vectors: pixels pass through the whole model, features through the
    layers from the first trained one. `dtype`: floating-point type of the convolutions."""

    def __init__(self, model: PlaceModel, stage: Stage, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.stage, self.dtype = model, stage, dtype

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.model.parameters()).device

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, ...) -> (n, D)."""
        with autocast(inputs.device, self.dtype):
            features = inputs if self.stage == "features" else frozen_features(self.model, inputs, self.dtype)
            # rows gathered from a tensor are NCHW; convolutions in half precision are faster in NHWC
            pooled = self.model.upper(features.contiguous(memory_format=torch.channels_last))
        return pooled if self.model.whitening is None else self.model.whitening(pooled)


def data_parallel(network: nn.Module, group: ProcessGroup, *, compiled: bool) -> Any:
    """The network for training steps: compiled if `compiled`, its gradients averaged over the process group.

    It is compiled in place, so that computing descriptors for mining is faster too.
    """
    if compiled:
        network.compile()
    if group.world_size == 1:
        return network
    device = next(network.parameters()).device
    return DistributedDataParallel(network, device_ids=[device] if device.type == "cuda" else None)


def gradient_sync(network: Any, *, last: bool) -> AbstractContextManager[Any]:
    """Exchange gradients between ranks only in the last backward pass of a step."""
    return network.no_sync() if not last and hasattr(network, "no_sync") else nullcontext()


@torch.no_grad()
def compute_descriptors(
    network: Network, inputs: Inputs, batch: int, group: ProcessGroup, *, rows: Ints | None = None
) -> Tensor:
    """Descriptors (n, D) in half precision of these rows (default: all) by the network as it is now.

    Each rank computes its share, and every rank gets all of them: on its device if they fit into a quarter of the free
    memory there, else on the CPU. `sareloc.encode` is for photo files and a finished model, whose layers it fuses.
    """
    rows = np.arange(len(inputs)) if rows is None else rows
    own = rows[group.share(len(rows))]
    was_training = network.training
    network.eval()
    fits = 8 * len(rows) * network.model.dim < free_bytes(network.device)
    out = torch.empty(
        len(own), network.model.dim, dtype=torch.float16, device=network.device if fits else torch.device("cpu")
    )
    batches = [own[i : i + batch] for i in range(0, len(own), batch)]
    for i, images in enumerate(inputs.batches(batches, network.device)):
        out[i * batch : i * batch + len(images)] = network(images)
    network.train(was_training)
    return group.gather(out, len(rows))
