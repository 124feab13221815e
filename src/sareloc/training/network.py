"""The trained part of a model as one module, and the descriptors it gives to all photos of a town."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from sareloc.models import PlaceModel
from sareloc.models.precision import autocast
from sareloc.training.inputs import Inputs, Stage, free_bytes, frozen_features
from sareloc.training.ranks import Ranks

Ints = npt.NDArray[np.int64]


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
