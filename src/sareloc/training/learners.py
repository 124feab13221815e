"""One epoch of training: from mined tuples (every loss of the paper but one), or from geographic cells.

A learner holds the state of its kind of epoch and yields after every optimizer step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import backward
from tqdm import tqdm

from sareloc.arrays import Floats, Ints
from sareloc.datasets.places import Places
from sareloc.errors import ArgumentError, DatasetError
from sareloc.geo import enu_from_wgs84
from sareloc.losses import DIVISORS, TupleLoss, geo_classification, make_cells, make_classifier, make_loss
from sareloc.training.config import GEO_CLASSIFICATION, TrainingConfig
from sareloc.training.data import Inputs, TrainingSet, augment, join_inputs
from sareloc.training.distributed import Network, ProcessGroup, compute_descriptors, data_parallel, gradient_sync
from sareloc.training.mining import (
    Neighbourhoods,
    Tuples,
    check_minable,
    find_neighbourhoods,
    join_neighbourhoods,
    mine,
    no_memory,
)


@dataclass(frozen=True, eq=False)
class Step:
    """One optimizer step: its loss after the reduction, a scalar on the device, and the number of its tuples and
    images."""

    loss: Tensor
    tuples: int
    images: int


class Learner(Protocol):
    """One kind of epoch."""

    network: Network

    def parameters(self) -> list[nn.Parameter]:
        """The parameters that the optimizer changes."""
        ...

    def steps(self, epoch: int) -> int:
        """Maximum number of steps of an epoch."""
        ...

    def epoch(self, epoch: int, optimizer: torch.optim.Optimizer) -> Iterator[Step]:
        """Train one epoch (from 0), step by step."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """State for the next epoch, beside the model and the optimizer."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the state that `tensors` returned."""
        ...


def make_learner(
    network: Network, datasets: Sequence[TrainingSet], config: TrainingConfig, group: ProcessGroup
) -> Learner:
    """The learner of the config's loss; raises DatasetError if no tuple can be mined from a dataset."""
    if config.loss == GEO_CLASSIFICATION:
        if len(datasets) > 1:
            raise ArgumentError(f"geo-classification has the cells of one dataset, found {len(datasets)} datasets")
        return CellLearner(network, datasets[0].places, datasets[0].inputs, config, group)
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
                f"{dataset.places.name}: {skipped} of {len(near.positives)} queries have no potential positive and are "
                "skipped"
            )
        found.append((near, len(dataset.places.database)))
    inputs, database = join_inputs(datasets)
    return TupleLearner(network, join_neighbourhoods(found), inputs, database, config, group)


def make_optimizer(learner: Learner, config: TrainingConfig) -> torch.optim.Optimizer:
    """SGD with momentum, as in the paper, or AdamW."""
    lr, decay = config.lr, config.weight_decay
    if config.optimizer == "adamw":
        return torch.optim.AdamW(learner.parameters(), lr=lr, weight_decay=decay)
    return torch.optim.SGD(learner.parameters(), lr=lr, momentum=config.momentum, weight_decay=decay)


def learning_rate(config: TrainingConfig, epoch: int) -> float:
    """The learning rate of this epoch (from 0)."""
    if config.schedule == "cosine":
        return config.lr * 0.5 * (1 + math.cos(math.pi * epoch / config.epochs))
    return float(config.lr * 0.5 ** config.halvings(epoch))


def warmup(config: TrainingConfig, step: int) -> float:
    """The factor of the learning rate in this optimizer step, counted from 0 over all epochs."""
    return min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0


class TupleLearner:
    """Trains on mined tuples: a query, its positive, its hardest negatives."""

    def __init__(
        self,
        network: Network,
        near: Neighbourhoods,
        inputs: Inputs,
        database: int,
        config: TrainingConfig,
        group: ProcessGroup,
    ) -> None:
        self.network, self.near, self.inputs, self.database = network, near, inputs, database
        self.config, self.group = config, group
        self.loss = make_loss(config.loss, **config.loss_options())
        self.memory = no_memory(len(near.positives), config.remembered)
        self._parallel = data_parallel(network, group, compiled=config.compile)

    def parameters(self) -> list[nn.Parameter]:
        """The trained layers of the model."""
        return [p for p in self.network.parameters() if p.requires_grad]

    def steps(self, epoch: int) -> int:
        """One step per `tuples_per_step` trainable queries; fewer if queries have no negative within the margin."""
        every = self.config.refresh_every << self.config.halvings(epoch)
        blocks, rest = divmod(len(self.near.trainable), every)
        return blocks * -(-every // self.config.tuples_per_step) + -(-rest // self.config.tuples_per_step)

    def epoch(self, epoch: int, optimizer: torch.optim.Optimizer) -> Iterator[Step]:
        """For each block of `refresh_every` queries, in random order: compute all descriptors, mine, train."""
        order = np.random.default_rng((self.config.seed, epoch)).permutation(self.near.trainable)
        every = self.config.refresh_every << self.config.halvings(epoch)
        for number, start in enumerate(range(0, len(order), every)):
            seed = draw_seed(self.config.seed, epoch, number)
            tuples = self._mine(order[start : start + every], seed)
            yield from self._train(tuples, optimizer, torch.Generator().manual_seed(seed + self.group.rank))

    def tensors(self) -> dict[str, Tensor]:
        """The remembered hard negatives."""
        return {"memory": torch.from_numpy(self.memory)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the remembered hard negatives."""
        self.memory = tensors["memory"].numpy().copy()

    def _mine(self, block: Ints, seed: int) -> Tuples:
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

    def _train(self, tuples: Tuples, optimizer: torch.optim.Optimizer, rng: torch.Generator) -> Iterator[Step]:
        """One optimizer step per `tuples_per_step` tuples, `tuples_at_once` of them per forward pass."""
        starts = range(0, len(tuples), self.config.tuples_per_step)
        steps = [tuples.take(slice(i, i + self.config.tuples_per_step)) for i in starts]
        shares = [self._share(step) for step in steps]
        batches = self.inputs.batches([self._rows(part) for share in shares for part, _ in share], self.network.device)
        self.network.train()
        for step, share in zip(steps, shares, strict=True):
            optimizer.zero_grad(set_to_none=True)
            negatives = (step.negatives >= 0).sum(axis=1).tolist()
            divisor = DIVISORS[self.config.reduction](negatives)
            total = torch.zeros((), device=self.network.device)
            for i, (part, weight) in enumerate(share):
                images = next(batches)
                if self.config.augmented:
                    sizes = torch.tensor(tuple_sizes(part))
                    images = augment(images, rng, crop=self.config.crop, light=self.config.light, tuple_sizes=sizes)
                with gradient_sync(self._parallel, last=i == len(share) - 1):
                    loss = weight * tuple_losses(self.loss, self._parallel(images), part).sum() / divisor
                    backward(loss * self.group.world_size)  # gradients are averaged over ranks; this makes it a sum
                total += loss.detach()
            optimizer.step()
            yield Step(self.group.sum(total), len(step), 2 * len(step) + sum(negatives))

    def _share(self, step: Tuples) -> list[tuple[Tuples, float]]:
        """This rank's tuples of a step in parts of `tuples_at_once`, each with weight 1. A rank without tuples takes
        the first one with weight 0, because every rank must take part in the exchange of gradients."""
        own = step.take(self.group.share(len(step)))
        if not len(own):
            return [(step.take(slice(0, 1)), 0.0)]
        starts = range(0, len(own), self.config.tuples_at_once)
        return [(own.take(slice(i, i + self.config.tuples_at_once)), 1.0) for i in starts]

    def _rows(self, part: Tuples) -> Ints:
        """Rows of the inputs: for each tuple its query, its positive, its negatives."""
        table = np.concatenate([self.database + part.queries[:, None], part.positives[:, None], part.negatives], axis=1)
        return table[table >= 0]


class CellLearner:
    """Trains a classifier of photos into geographic cells (geo-classification); photos come in random order."""

    def __init__(
        self, network: Network, places: Places, inputs: Inputs, config: TrainingConfig, group: ProcessGroup
    ) -> None:
        self.network, self.inputs, self.config, self.group = network, inputs, config, group
        metres = positions_m(places)
        cells = make_cells(metres, config.cell_m)
        self.labels = torch.from_numpy(cells.labels(metres))
        rng = torch.Generator().manual_seed(config.seed)
        self.head = make_classifier(network.model.dim, len(cells), rng=rng).to(network.device)
        self._parallel = data_parallel(nn.Sequential(network, self.head), group, compiled=config.compile)
        self._photos_per_step = config.tuples_per_step * (2 + config.negatives)

    def parameters(self) -> list[nn.Parameter]:
        """The trained layers of the model, and the classifier."""
        return [p for p in (*self.network.parameters(), *self.head.parameters()) if p.requires_grad]

    def steps(self, epoch: int) -> int:
        """Steps of as many photos as a step of tuples has."""
        return -(-len(self.inputs) // self._photos_per_step)

    def epoch(self, epoch: int, optimizer: torch.optim.Optimizer) -> Iterator[Step]:
        """Every photo once."""
        order = np.random.default_rng((self.config.seed, epoch)).permutation(len(self.inputs))
        rng = torch.Generator().manual_seed(draw_seed(self.config.seed, epoch, self.group.rank))
        steps = [order[i : i + self._photos_per_step] for i in range(0, len(order), self._photos_per_step)]
        shares = [self._share(step) for step in steps]
        batches = self.inputs.batches([part for share in shares for part, _ in share], self.network.device)
        self.network.train()
        for step, share in zip(steps, shares, strict=True):
            optimizer.zero_grad(set_to_none=True)
            total = torch.zeros((), device=self.network.device)
            for i, (part, weight) in enumerate(share):
                images = next(batches)
                if self.config.augmented:
                    images = augment(images, rng, crop=self.config.crop, light=self.config.light)
                labels = self.labels[torch.from_numpy(part)].to(self.network.device)
                with gradient_sync(self._parallel, last=i == len(share) - 1):
                    loss = weight * geo_classification(self._parallel(images), labels).sum() / len(step)
                    backward(loss * self.group.world_size)
                total += loss.detach()
            optimizer.step()
            yield Step(self.group.sum(total), 0, len(step))

    def tensors(self) -> dict[str, Tensor]:
        """The classifier."""
        return {f"head.{name}": tensor for name, tensor in self.head.state_dict().items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the classifier."""
        self.head.load_state_dict({n: tensors[f"head.{n}"] for n in self.head.state_dict()})

    def _share(self, step: Ints) -> list[tuple[Ints, float]]:
        own = step[self.group.share(len(step))]
        if not len(own):
            return [(step[:1], 0.0)]
        at_once = self.config.tuples_at_once * (2 + self.config.negatives)
        return [(own[i : i + at_once], 1.0) for i in range(0, len(own), at_once)]


def tuple_losses(loss: TupleLoss, descriptors: Tensor, tuples: Tuples) -> Tensor:
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


def draw_seed(*numbers: int) -> int:
    """One seed from several numbers, the same in every process."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint32)[0])
