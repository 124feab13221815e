"""Several processes working as one: who this process is, which share is its own, how shares come together.

Started by `torchrun`, the processes find one another through its environment; started alone, there is one rank and
every function here gives its argument back.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    """This process's number and the number of processes."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes files and shows progress."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This rank's part of `count` things: contiguous, so that the parts joined in order are the whole."""
        each = -(-count // self.world)
        return slice(min(count, self.rank * each), min(count, (self.rank + 1) * each))

    def gather(self, part: Tensor, count: int) -> Tensor:
        """The whole of `count` rows on every rank, from each rank's share of them."""
        if self.world == 1:
            return part
        each = -(-count // self.world)
        padded = part.new_zeros(each, *part.shape[1:])
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(parts, padded)
        return torch.cat(parts)[:count]  # only the last shares can be short, so the padding is at the end

    def total(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all ranks."""
        if self.world > 1:
            dist.all_reduce(value)
        return value


def start_ranks(device: torch.device) -> Ranks:
    """Join the processes that `torchrun` started (NCCL between GPUs, gloo between CPUs); alone, one rank."""
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Ranks()
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Ranks(dist.get_rank(), dist.get_world_size())


def local_device() -> torch.device:
    """The GPU of this rank where there is one, else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
