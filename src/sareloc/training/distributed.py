"""The model that training starts from: published weights of the backbone, and centres from the dataset's own photos."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from sareloc.arrays import Ints
from sareloc.datasets.places import PhotoSet
from sareloc.errors import ArgumentError, PhotoError
from sareloc.loading import load_images
from sareloc.models import PlaceModel, Preprocess, init_netvlad, make_model
from sareloc.models.netvlad_init import INIT_PHOTOS
from sareloc.models.preprocess import Image, autocast
from sareloc.models.published import load_backbone_weights
from sareloc.training.data import Inputs, Stage, free_bytes, frozen_features

# Several processes working as one: who this process is, which share is its own, how shares come together.
#
# Started by `torchrun`, the processes find one another through its environment; started alone, there is one rank and
# every function here gives its argument back.


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


# The trained part of a model as one module, and the descriptors it gives to all photos of a dataset.


class Network(nn.Module):
    """Inputs at `stage` -> descriptors (n, D), unit: pixels go through the whole model, features through the part from
    the first trained layer up. `dtype` is the arithmetic of the convolutions."""

    def __init__(self, model: PlaceModel, stage: Stage, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.stage, self.dtype = model, stage, dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, ...) -> (n, D)."""
        with autocast(inputs.device, self.dtype):
            features = inputs if self.stage == "features" else frozen_features(self.model, inputs, self.dtype)
            # rows gathered from a tensor come out NCHW, and convolutions in half precision want NHWC
            pooled = self.model.upper(features.contiguous(memory_format=torch.channels_last))
        return pooled if self.model.whitening is None else self.model.whitening(pooled)


def in_parallel(network: nn.Module, ranks: Ranks, *, compiled: bool) -> Any:
    """The network as learning steps call it: compiled if asked for, its gradients averaged over the ranks.

    It is compiled in place, so that describing all photos before mining gains as well.
    """
    if compiled:
        network.compile()
    if ranks.world == 1:
        return network
    device = next(network.parameters()).device
    return DistributedDataParallel(network, device_ids=[device] if device.type == "cuda" else None)


@torch.no_grad()
def describe(
    network: Network, inputs: Inputs, batch: int, ranks: Ranks, *, rows: Ints | None = None, progress: bool = False
) -> Tensor:
    """Descriptors (n, D) in half precision of these rows (all of them by default), in evaluation mode.

    Each rank describes its share and every rank gets the whole. They stay on the GPU where they fit into a quarter of
    what is free there, else on the host.
    """
    rows = np.arange(len(inputs)) if rows is None else rows
    own = rows[ranks.share(len(rows))]
    was_training = network.training
    network.eval()
    lots = [own[i : i + batch] for i in range(0, len(own), batch)]
    fits = 8 * len(rows) * network.model.dim < free_bytes(network.device)
    store = network.device if fits else torch.device("cpu")
    out = torch.empty(len(own), network.model.dim, dtype=torch.float16, device=store)
    fetched = tqdm(inputs.batches(lots, network.device), total=len(lots), desc="describing", disable=not progress)
    for i, images in enumerate(fetched):
        out[i * batch : i * batch + len(images)] = network(images)
    network.train(was_training)
    return ranks.gather(out, len(rows))


def start_model(
    databases: Sequence[PhotoSet],
    *,
    backbone: str,
    aggregation: str,
    weights: Path | None,
    size: tuple[int, int],
    seed: int,
    workers: int = 0,
) -> PlaceModel:
    """A new model: the backbone's published weights, NetVLAD's centres by k-means over photos of these databases."""
    if weights is None:
        raise ArgumentError(
            f"a new {backbone} model starts from published weights: give them with --weights (torchvision's .pth or "
            ".safetensors), or start from a checkpoint with --model"
        )
    model = make_model(backbone, aggregation, size=size)
    load_backbone_weights(model.backbone, weights)
    rng = np.random.default_rng(seed)
    photos = [database.path(row) for database in databases for row in range(len(database))]
    chosen = [photos[i] for i in rng.permutation(len(photos))[:INIT_PHOTOS]]
    init_netvlad(model, _readable(chosen, model.preprocess, workers), rng)
    return model


def _readable(photos: Sequence[Path], preprocess: Preprocess, workers: int) -> Iterator[Image]:
    for _, image in load_images(photos, preprocess.size, workers=workers):
        if not isinstance(image, PhotoError):
            yield image
