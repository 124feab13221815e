"""One epoch of learning: from tuples (every loss of the paper but one), or from the cells photos stand in.

A learner owns what its kind of epoch needs and yields after every step; the loop around it does not know which it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import backward

from sareloc.arrays import Floats, Ints
from sareloc.datasets.places import Places
from sareloc.errors import DatasetError
from sareloc.geo import enu_from_wgs84
from sareloc.losses import DIVISORS, TupleLoss, geo_classification, make_cells, make_classifier, make_loss
from sareloc.training.augment import augment
from sareloc.training.config import TrainingConfig
from sareloc.training.data import Inputs
from sareloc.training.distributed import Network, Ranks, describe, in_parallel
from sareloc.training.mining import Neighbourhoods, Tuples, mine, no_memory


@dataclass(frozen=True, eq=False)
class Step:
    """What one step did: its loss after the reduction, a scalar that stays on the device until somebody reads it, and
    how many tuples and photos went through the network."""

    loss: Tensor
    tuples: int
    images: int


class Learner(Protocol):
    """What the loop needs of a kind of learning."""

    network: Network

    def parameters(self) -> list[nn.Parameter]:
        """What the optimizer changes."""
        ...

    def steps(self, epoch: int) -> int:
        """How many steps an epoch has at most."""
        ...

    def epoch(self, epoch: int, optimizer: torch.optim.Optimizer) -> Iterator[Step]:
        """Learn one epoch (from 0), step by step."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """What the next epoch depends on, beside the model and the optimizer."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go back to what `tensors` gave."""
        ...


class TupleLearner:
    """Learns from mined tuples: a query, its positive, its hardest negatives."""

    def __init__(
        self,
        network: Network,
        near: Neighbourhoods,
        inputs: Inputs,
        database: int,
        config: TrainingConfig,
        ranks: Ranks,
    ) -> None:
        self.network, self.near, self.inputs, self.database = network, near, inputs, database
        self.config, self.ranks = config, ranks
        self.loss = make_loss(config.loss, **config.loss_options())
        self.memory = no_memory(len(near.positives), config.remembered)
        self._parallel = in_parallel(network, ranks, compiled=config.compile)

    def parameters(self) -> list[nn.Parameter]:
        """The trained part of the model."""
        return [p for p in self.network.parameters() if p.requires_grad]

    def steps(self, epoch: int) -> int:
        """One step per `tuples_per_step` trainable queries; fewer where a query violates no margin."""
        every = self.config.refresh_every << self.config.halvings(epoch)
        blocks, rest = divmod(len(self.near.trainable), every)
        return blocks * -(-every // self.config.tuples_per_step) + -(-rest // self.config.tuples_per_step)

    def epoch(self, epoch: int, optimizer: torch.optim.Optimizer) -> Iterator[Step]:
        """Describe, mine and learn, block by block of the queries in random order."""
        order = np.random.default_rng((self.config.seed, epoch)).permutation(self.near.trainable)
        every = self.config.refresh_every << self.config.halvings(epoch)
        for number, start in enumerate(range(0, len(order), every)):
            seed = draw_seed(self.config.seed, epoch, number)
            tuples = self._mine(order[start : start + every], seed)
            yield from self._learn(tuples, optimizer, torch.Generator().manual_seed(seed + self.ranks.rank))

    def tensors(self) -> dict[str, Tensor]:
        """The memory of hard negatives."""
        return {"memory": torch.from_numpy(self.memory)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Remember them again."""
        self.memory = tensors["memory"].numpy().copy()

    def _mine(self, block: Ints, seed: int) -> Tuples:
        """The tuples of a block of queries; each rank mines its share, and all of them know the whole."""
        cache = describe(self.network, self.inputs, self.config.batch, self.ranks)
        own = block[self.ranks.share(len(block))]
        rows = torch.from_numpy(self.database + own).to(cache.device)
        tuples, memory = mine(
            own, cache[rows], cache[: self.database], self.near, self.memory, pool=self.config.pool,
            negatives=self.config.negatives, seed=seed, margin=self.config.mining_margin,
        )  # fmt: skip
        table = np.concatenate([tuples.positives[:, None], tuples.negatives, memory[own]], axis=1)
        whole = self.ranks.gather(torch.from_numpy(table).to(self.network.device), len(block)).cpu().numpy()
        self.memory[block] = whole[:, 1 + self.config.negatives :]
        return Tuples(block, whole[:, 0], whole[:, 1 : 1 + self.config.negatives]).usable()

    def _learn(self, tuples: Tuples, optimizer: torch.optim.Optimizer, rng: torch.Generator) -> Iterator[Step]:
        """One optimizer step per `tuples_per_step` tuples, `tuples_at_once` of them through the network at a time."""
        starts = range(0, len(tuples), self.config.tuples_per_step)
        steps = [tuples.take(slice(i, i + self.config.tuples_per_step)) for i in starts]
        shares = [self._share(step) for step in steps]
        wanted = [self._rows(part) for share in shares for part, _ in share]
        fetched = self.inputs.batches(wanted, self.network.device)
        self.network.train()
        for step, share in zip(steps, shares, strict=True):
            optimizer.zero_grad(set_to_none=True)
            negatives = (step.negatives >= 0).sum(axis=1).tolist()
            divisor = DIVISORS[self.config.reduction](negatives)
            total = torch.zeros((), device=self.network.device)
            for i, (part, weight) in enumerate(share):
                images = next(fetched)
                if self.config.augmented:
                    alike = torch.tensor(tuple_sizes(part))
                    images = augment(images, rng, crop=self.config.crop, light=self.config.light, alike=alike)
                with sync_only(self._parallel, i == len(share) - 1):
                    loss = weight * tuple_losses(self.loss, self._parallel(images), part).sum() / divisor
                    backward(loss * self.ranks.world)  # the ranks' gradients are averaged, and a sum is meant
                total += loss.detach()
            optimizer.step()
            yield Step(self.ranks.total(total), len(step), 2 * len(step) + sum(negatives))

    def _share(self, step: Tuples) -> list[tuple[Tuples, float]]:
        """This rank's tuples of a step in parts of `tuples_at_once`, each with weight 1. A rank without any takes the
        first tuple with weight 0: every rank must take part in the exchange of gradients."""
        own = step.take(self.ranks.share(len(step)))
        if not len(own):
            return [(step.take(slice(0, 1)), 0.0)]
        starts = range(0, len(own), self.config.tuples_at_once)
        return [(own.take(slice(i, i + self.config.tuples_at_once)), 1.0) for i in starts]

    def _rows(self, part: Tuples) -> Ints:
        """Rows of the inputs: for each tuple its query, its positive, its negatives."""
        table = np.concatenate([self.database + part.queries[:, None], part.positives[:, None], part.negatives], axis=1)
        return table[table >= 0]


class CellLearner:
    """Learns to say in which cell of the ground a photo was taken (geo-classification), from photos in random order."""

    def __init__(self, network: Network, places: Places, inputs: Inputs, config: TrainingConfig, ranks: Ranks) -> None:
        self.network, self.inputs, self.config, self.ranks = network, inputs, config, ranks
        metres = plane_m(places)
        cells = make_cells(metres, config.cell_m)
        self.labels = torch.from_numpy(cells.labels(metres))
        rng = torch.Generator().manual_seed(config.seed)
        self.head = make_classifier(network.model.dim, len(cells), rng=rng).to(network.device)
        self._parallel = in_parallel(nn.Sequential(network, self.head), ranks, compiled=config.compile)
        self._photos_per_step = config.tuples_per_step * (2 + config.negatives)

    def parameters(self) -> list[nn.Parameter]:
        """The trained part of the model, and the classifier."""
        return [p for p in (*self.network.parameters(), *self.head.parameters()) if p.requires_grad]

    def steps(self, epoch: int) -> int:
        """As many photos a step as a step of tuples has."""
        return -(-len(self.inputs) // self._photos_per_step)

    def epoch(self, epoch: int, optimizer: torch.optim.Optimizer) -> Iterator[Step]:
        """Every photo once."""
        order = np.random.default_rng((self.config.seed, epoch)).permutation(len(self.inputs))
        rng = torch.Generator().manual_seed(draw_seed(self.config.seed, epoch, self.ranks.rank))
        steps = [order[i : i + self._photos_per_step] for i in range(0, len(order), self._photos_per_step)]
        shares = [self._share(step) for step in steps]
        fetched = self.inputs.batches([part for share in shares for part, _ in share], self.network.device)
        self.network.train()
        for step, share in zip(steps, shares, strict=True):
            optimizer.zero_grad(set_to_none=True)
            total = torch.zeros((), device=self.network.device)
            for i, (part, weight) in enumerate(share):
                images = next(fetched)
                if self.config.augmented:
                    images = augment(images, rng, crop=self.config.crop, light=self.config.light)
                labels = self.labels[torch.from_numpy(part)].to(self.network.device)
                with sync_only(self._parallel, i == len(share) - 1):
                    loss = weight * geo_classification(self._parallel(images), labels).sum() / len(step)
                    backward(loss * self.ranks.world)
                total += loss.detach()
            optimizer.step()
            yield Step(self.ranks.total(total), 0, len(step))

    def tensors(self) -> dict[str, Tensor]:
        """The classifier."""
        return {f"head.{name}": tensor for name, tensor in self.head.state_dict().items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The classifier, as it was."""
        self.head.load_state_dict({n: tensors[f"head.{n}"] for n in self.head.state_dict()})

    def _share(self, step: Ints) -> list[tuple[Ints, float]]:
        own = step[self.ranks.share(len(step))]
        if not len(own):
            return [(step[:1], 0.0)]
        at_once = self.config.tuples_at_once * (2 + self.config.negatives)
        return [(own[i : i + at_once], 1.0) for i in range(0, len(own), at_once)]


def tuple_losses(loss: TupleLoss, descriptors: Tensor, tuples: Tuples) -> Tensor:
    """(T,) losses of tuples whose descriptors stand in a row: query, positive, negatives, the next query, ..."""
    lots = torch.split(descriptors, tuple_sizes(tuples))
    return torch.cat([loss(lot[:1], lot[1:2], lot[None, 2:]) for lot in lots])


def tuple_sizes(tuples: Tuples) -> list[int]:
    """How many photos each tuple has."""
    sizes: list[int] = (2 + (tuples.negatives >= 0).sum(axis=1)).tolist()
    return sizes


def sync_only(network: Any, last: bool) -> AbstractContextManager[Any]:
    """Exchange gradients between ranks only after the last part of a step."""
    return network.no_sync() if not last and hasattr(network, "no_sync") else nullcontext()


def plane_m(places: Places) -> Floats:
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
