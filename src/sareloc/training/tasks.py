"""What training steps are made of: mined tuples (every loss of the paper but one), or photos and geographic cells.

A task has the rows that an epoch visits and makes the steps of a block of them; the loop trains on the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from sareloc.arrays import Floats, Ints
from sareloc.datasets.places import Places
from sareloc.errors import ArgumentError, DatasetError
from sareloc.geo import enu_from_wgs84
from sareloc.losses import DIVISORS, TupleLoss, geo_classification, make_cells, make_classifier, make_loss
from sareloc.training.config import GEO_CLASSIFICATION, TrainingConfig
from sareloc.training.data import Inputs, TrainingSet, join_inputs
from sareloc.training.distributed import Network, ProcessGroup, compute_descriptors
from sareloc.training.mining import (
    Tuples,
    check_minable,
    find_neighbourhoods,
    join_neighbourhoods,
    mine,
    no_memory,
)


@dataclass(frozen=True, eq=False)
class Part:
    """The photos of one forward pass."""

    rows: Ints
    """Rows of the inputs."""
    losses: Callable[[Tensor], Tensor]
    """From the network's output (n, D) to the losses of the part, one for each tuple or photo."""
    weight: float
    tuple_sizes: Tensor | None = None
    """Number of consecutive photos of each tuple."""


@dataclass(frozen=True, eq=False)
class Step:
    """One optimizer step: this rank's parts of it, the divisor of the summed losses, and the number of its tuples and
    images on all ranks."""

    parts: list[Part]
    divisor: int
    tuples: int
    images: int


class Task(Protocol):
    """What an epoch visits, and the steps made of it."""

    inputs: Inputs
    rows: Ints
    """Visited once an epoch, in random order."""
    rows_per_step: int

    @property
    def network(self) -> nn.Module:
        """From a batch of inputs to what the losses take; its parameters are trained."""
        ...

    def block_size(self, epoch: int) -> int:
        """Number of rows whose steps are made together."""
        ...

    def make_steps(self, block: Ints, seed: int) -> list[Step]:
        """The steps of a block of rows, by the network as it is now; random choices depend on `seed` alone."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """State for the next epoch, beside the model and the optimizer."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the state that `tensors` returned."""
        ...


def make_task(network: Network, datasets: Sequence[TrainingSet], config: TrainingConfig, group: ProcessGroup) -> Task:
    """The task of the config's loss; raises DatasetError if no tuple can be mined from a dataset."""
    if config.loss != GEO_CLASSIFICATION:
        return TupleTask(network, datasets, config, group)
    if len(datasets) > 1:
        raise ArgumentError(f"geo-classification has the cells of one dataset, found {len(datasets)} datasets")
    return CellTask(network, datasets[0], config, group)


def count_steps(task: Task, epoch: int) -> int:
    """Number of steps of an epoch; fewer are made if queries have no negative within the margin."""
    every = task.block_size(epoch)
    blocks, rest = divmod(len(task.rows), every)
    return blocks * -(-every // task.rows_per_step) + -(-rest // task.rows_per_step)


class TupleTask:
    """Mined tuples: a query, its positive, its hardest negatives. An epoch visits the queries that have a potential
    positive."""

    def __init__(
        self, network: Network, datasets: Sequence[TrainingSet], config: TrainingConfig, group: ProcessGroup
    ) -> None:
        self.network, self.config, self.group = network, config, group
        self.inputs, self.database = join_inputs(datasets)
        found = []
        for dataset in datasets:
            near = find_neighbourhoods(
                dataset.places,
                positive_min_m=config.positive_min_m,
                positive_radius_m=config.positive_radius_m,
                negative_radius_m=config.negative_radius_m,
            )
            if len(dataset.places.queries) or len(datasets) == 1:  # without queries it gives negatives to the others
                check_minable(dataset.places, near, config.negatives)
            skipped = len(near.positives) - len(near.trainable)
            if skipped and group.is_main:
                tqdm.write(
                    f"{dataset.places.name}: {skipped} of {len(near.positives)} queries have no potential positive "
                    "and are skipped"
                )
            found.append((near, len(dataset.places.database)))
        self.near = join_neighbourhoods(found)
        self.rows = self.near.trainable
        self.rows_per_step = config.tuples_per_step
        self.loss = make_loss(config.loss, **config.loss_options())
        self.memory = no_memory(len(self.near.positives), config.remembered)

    def block_size(self, epoch: int) -> int:
        """Queries whose tuples are mined from the same descriptors."""
        return self.config.refresh_every << self.config.halvings(epoch)

    def make_steps(self, block: Ints, seed: int) -> list[Step]:
        """Mine the tuples of these queries; one step per `tuples_per_step` tuples that have a negative."""
        tuples = self.mine(block, seed)
        starts = range(0, len(tuples), self.rows_per_step)
        return [self._step(tuples.take(slice(start, start + self.rows_per_step))) for start in starts]

    def mine(self, block: Ints, seed: int) -> Tuples:
        """The tuples of a block of queries; each rank mines its share and gets all of them."""
        cache = compute_descriptors(self.network, self.inputs, self.config.batch, self.group)
        own = block[self.group.share(len(block))]
        rows = torch.from_numpy(self.database + own).to(cache.device)
        tuples, memory = mine(
            own, cache[rows], cache[: self.database], self.near, self.memory, pool=self.config.pool,
            negatives=self.config.negatives, seed=seed, margin=self.config.mining_margin,
        )  # fmt: skip
        table = np.concatenate([tuples.positives[:, None], tuples.negatives, memory[own]], axis=1)
        everything = self.group.gather(torch.from_numpy(table).to(self.network.device), len(block)).cpu().numpy()
        self.memory[block] = everything[:, 1 + self.config.negatives :]
        return Tuples(block, everything[:, 0], everything[:, 1 : 1 + self.config.negatives]).usable()

    def tensors(self) -> dict[str, Tensor]:
        """The remembered hard negatives."""
        return {"memory": torch.from_numpy(self.memory)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the remembered hard negatives."""
        self.memory = tensors["memory"].numpy().copy()

    def _step(self, tuples: Tuples) -> Step:
        parts = []
        for some, weight in self.group.split(len(tuples), self.config.tuples_at_once):
            part = tuples.take(some)
            losses = partial(tuple_losses, self.loss, part)
            parts.append(Part(self._input_rows(part), losses, weight, torch.tensor(tuple_sizes(part))))
        sizes = tuple_sizes(tuples)
        return Step(parts, DIVISORS[self.config.reduction]([size - 2 for size in sizes]), len(tuples), sum(sizes))

    def _input_rows(self, part: Tuples) -> Ints:
        """For each tuple its query, its positive, its negatives."""
        table = np.concatenate([self.database + part.queries[:, None], part.positives[:, None], part.negatives], axis=1)
        return table[table >= 0]


class CellTask:
    """Photos and the geographic cells that they are classified into (geo-classification). A step has as many photos as
    a step of tuples."""

    def __init__(self, network: Network, dataset: TrainingSet, config: TrainingConfig, group: ProcessGroup) -> None:
        self.inputs, self.config, self.group = dataset.inputs, config, group
        metres = positions_m(dataset.places)
        cells = make_cells(metres, config.cell_m)
        self.labels = torch.from_numpy(cells.labels(metres))
        rng = torch.Generator().manual_seed(config.seed)
        self.head = make_classifier(network.model.dim, len(cells), rng=rng).to(network.device)
        self.network = nn.Sequential(network, self.head)
        self.rows = np.arange(len(self.inputs))
        self.rows_per_step = config.tuples_per_step * (2 + config.negatives)

    def block_size(self, epoch: int) -> int:
        """All photos: nothing is mined."""
        return len(self.rows)

    def make_steps(self, block: Ints, seed: int) -> list[Step]:
        """One step per `rows_per_step` photos."""
        starts = range(0, len(block), self.rows_per_step)
        return [self._step(block[start : start + self.rows_per_step]) for start in starts]

    def tensors(self) -> dict[str, Tensor]:
        """The classifier."""
        return {f"head.{name}": tensor for name, tensor in self.head.state_dict().items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the classifier."""
        self.head.load_state_dict({n: tensors[f"head.{n}"] for n in self.head.state_dict()})

    def _step(self, photos: Ints) -> Step:
        parts = []
        for some, weight in self.group.split(len(photos), self.config.tuples_at_once * (2 + self.config.negatives)):
            labels = self.labels[torch.from_numpy(photos[some])]
            parts.append(Part(photos[some], partial(cell_losses, labels), weight))
        return Step(parts, len(photos), 0, len(photos))


def cell_losses(labels: Tensor, scores: Tensor) -> Tensor:
    """(B,) losses of photos by the scores (B, C) of the cells."""
    return geo_classification(scores, labels.to(scores.device))


def tuple_losses(loss: TupleLoss, tuples: Tuples, descriptors: Tensor) -> Tensor:
    """(T,) losses of tuples; rows of `descriptors`: query, positive, negatives, the next query, ..."""
    parts = torch.split(descriptors, tuple_sizes(tuples))
    return torch.cat([loss(part[:1], part[1:2], part[None, 2:]) for part in parts])


def tuple_sizes(tuples: Tuples) -> list[int]:
    """Number of photos of each tuple."""
    sizes: list[int] = (2 + (tuples.negatives >= 0).sum(axis=1)).tolist()
    return sizes


def positions_m(places: Places) -> Floats:
    """(database + queries, 2) east and north in metres, in one plane."""
    positions = (places.database.positions, places.queries.positions)
    if positions[0] is None or positions[1] is None:
        raise DatasetError(f"{places.name}: geo-classification needs positions, and its photos have none")
    if positions[0].frame == "ecef":
        latlon = np.concatenate([p.latlon() for p in positions if p is not None])
        return enu_from_wgs84(latlon, latlon[0])
    return np.concatenate([p.metres for p in positions if p is not None])
