"""The whitening of a training: fitted on database photos of its datasets, or the one that the start came with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from sareloc.arrays import Ints
from sareloc.datasets.places import Places
from sareloc.evaluation.judging import PROTOCOLS, evaluate_rankings
from sareloc.models import PlaceModel
from sareloc.models.whitening import Whitening, fit_whitening
from sareloc.training.config import TrainingConfig
from sareloc.training.data import TrainingSet, join_inputs
from sareloc.training.distributed import Network, Ranks, describe
from sareloc.training.mining import similarity

# How well a model in training does: recall on a set of places, from descriptors that are where they were made.

QUERIES_AT_ONCE = 1024


def recall_of_descriptors(places: Places, descriptors: Tensor, ns: tuple[int, ...] = (1, 5, 10)) -> dict[int, float]:
    """Recall@N (shares of all queries) by the dataset's own protocol.

    `descriptors` (N, D): unit, of the database rows, then of the query rows, on any device in any precision.
    """
    count = len(places.database)
    depth = min(count, PROTOCOLS[places.protocol].depth(places, max(ns)))
    rankings = [
        similarity(some, descriptors[:count]).topk(depth, dim=1).indices.cpu()
        for some in torch.split(descriptors[count:], QUERIES_AT_ONCE)
    ]
    recall = evaluate_rankings(places, torch.cat(rankings).numpy(), ns=ns).recall
    return {n: recall[n] / 100 for n in ns}


def mean_recall(
    model: PlaceModel, validation_sets: Sequence[TrainingSet], config: TrainingConfig, dtype: torch.dtype, ranks: Ranks
) -> dict[int, float]:
    """Recall@N on each validation set by its own protocol, averaged."""
    found = []
    for validation_set in validation_sets:
        described = describe(
            Network(model, validation_set.inputs.stage, dtype), validation_set.inputs, config.batch, ranks
        )
        found.append(recall_of_descriptors(validation_set.places, described))
    return {n: sum(recall[n] for recall in found) / len(found) for n in found[0]}


PAPER_DIM = 4096
PHOTOS_PER_DIM = 2
"""Database photos per dimension from which a start's whitening is replaced by one that is fitted to them.

The smallest of `dim` eigenvalues of a covariance is estimated from n photos within a factor (1 - sqrt(dim / n))^2 at
worst (Marchenko-Pastur), and whitening divides by its root: with n = 2 dim by 0.3 of what it should be, with n = dim by
zero. The paper's own whitening has 2.4 photos per dimension."""


def whitening_dim(start: Whitening | None, config: TrainingConfig) -> int:
    """Dimensions after whitening, at most: those asked for, else the start's, else the paper's; 0: no whitening."""
    if config.dim is not None:
        return config.dim
    return PAPER_DIM if start is None else start.dim


def cut_whitening(whitening: Whitening | None, dim: int) -> Whitening | None:
    """The first `dim` dimensions of a whitening, which are a whitening too; all of them where it has fewer."""
    if whitening is None or not dim:
        return None
    return Whitening(whitening.mean, whitening.projection.detach()[:dim].clone())


def photos_suffice(datasets: Sequence[TrainingSet], dim: int, config: TrainingConfig) -> bool:
    """Whether the datasets have database photos enough to replace a start's whitening by one of `dim` dimensions."""
    return len(choose_photos(datasets, config)) >= PHOTOS_PER_DIM * dim


def fit_to_datasets(
    network: Network, datasets: Sequence[TrainingSet], dim: int, config: TrainingConfig, ranks: Ranks
) -> Whitening:
    """The whitening of random database photos: to `dim` dimensions, or as many as these photos allow.

    Every dataset counts the same, however many photos it has: what tells the places of a small dataset apart would else
    give way to what varies in a large one.
    """
    rows = choose_photos(datasets, config)
    raw = describe_database(network, datasets, rows, config, ranks)
    allowed = min(dim, len(raw) - 1, raw.shape[1])
    if allowed < dim and ranks.first:
        tqdm.write(f"{len(raw)} database photos allow {allowed} dimensions after whitening, not {dim}")
    fitted = fit_whitening(raw, allowed, power=config.whitening_power, weights=equal_weights(datasets, rows))
    return scale_to(fitted, raw).to(network.device)


def scale_to(whitening: Whitening, raw: Tensor) -> Whitening:
    """The same whitening, scaled so that a photo's projection has length 1 on average, on the device of `raw` (n, D).

    A descriptor does not depend on the scale, but the size of a step along the projection does.
    """
    whitening = whitening.to(raw.device)
    length = torch.linalg.vector_norm((raw - whitening.mean) @ whitening.projection.T, dim=1).mean()
    return Whitening(whitening.mean, whitening.projection.detach() / length)


@contextmanager
def with_whitening(model: PlaceModel, whitening: Whitening | None) -> Iterator[None]:
    """The model has this whitening, or none, for a while."""
    own, model.whitening = model.whitening, whitening
    try:
        yield
    finally:
        model.whitening = own


def load_weights(model: PlaceModel, weights: Mapping[str, Tensor]) -> None:
    """Give the model these weights, and the whitening that is among them, or none."""
    mean, projection = weights.get("whitening.mean"), weights.get("whitening.projection")
    whitening = None if mean is None or projection is None else Whitening(mean.clone(), projection.clone())
    model.whitening = whitening if whitening is None else whitening.to(model.device)
    model.load_state_dict(dict(weights))


def choose_photos(datasets: Sequence[TrainingSet], config: TrainingConfig) -> Ints:
    """Rows of `config.whitening_photos` random database photos of all datasets (at most all of them), in order."""
    database = sum(len(dataset.places.database) for dataset in datasets)
    count = min(database, config.whitening_photos)
    return np.sort(np.random.default_rng(config.seed).choice(database, count, replace=False))


def equal_weights(datasets: Sequence[TrainingSet], rows: Ints) -> Tensor:
    """Weights (n,) of these rows of the databases of all datasets: those of a dataset sum to 1."""
    ends = np.cumsum([len(dataset.places.database) for dataset in datasets])
    dataset = np.searchsorted(ends, rows, side="right")
    return torch.from_numpy(1 / np.bincount(dataset, minlength=len(datasets))[dataset])


def describe_database(
    network: Network, datasets: Sequence[TrainingSet], rows: Ints, config: TrainingConfig, ranks: Ranks
) -> Tensor:
    """(n, D) descriptors before whitening of these rows of the databases of all datasets."""
    inputs, _ = join_inputs(datasets)
    with with_whitening(network.model, None):
        return describe(network, inputs, config.batch, ranks, rows=rows).float()
