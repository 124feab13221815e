"""The whitening of the trained model: fitted to database photos, or the initial model's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from sareloc.arrays import Ints
from sareloc.models import PlaceModel, Whitening
from sareloc.models.whitening import fit_whitening, sort_by_variance
from sareloc.training.config import TrainingConfig
from sareloc.training.data import TrainingSet, join_inputs
from sareloc.training.distributed import Network, ProcessGroup, compute_descriptors

PAPER_DIM = 4096
PHOTOS_PER_DIM = 2
"""Database photos per dimension from which a start's whitening is replaced by one that is fitted to them.

The smallest of `dim` eigenvalues of a covariance is estimated from n photos within a factor (1 - sqrt(dim / n))^2 at
worst (Marchenko-Pastur), and whitening divides by its root: with n = 2 dim by 0.3 of the true value, with n = dim by
zero. The paper's own whitening has 2.4 photos per dimension."""


def whitening_dim(start: Whitening | None, config: TrainingConfig) -> int:
    """Maximum number of dimensions after whitening: the config's, else the initial model's, else the paper's; 0:
    none."""
    if config.dim is not None:
        return config.dim
    return PAPER_DIM if start is None else start.dim


def cut_whitening(whitening: Whitening | None, dim: int) -> Whitening | None:
    """The first `dim` dimensions of a whitening; all of them if it has fewer."""
    if whitening is None or not dim:
        return None
    return Whitening(whitening.mean, whitening.projection.detach()[:dim].clone())


def kept_whitening(
    start: Whitening | None, datasets: Sequence[TrainingSet], dim: int, config: TrainingConfig, group: ProcessGroup
) -> Whitening | None:
    """The initial model's whitening if the database photos are too few to fit one of `dim` dimensions, else None."""
    if start is None or len(choose_photos(datasets, config)) >= PHOTOS_PER_DIM * dim:
        return None
    if group.is_main:
        tqdm.write(
            f"too few database photos to fit a whitening of {dim} dimensions ({PHOTOS_PER_DIM} photos a dimension are "
            f"needed): the initial model's, of {start.dim}, is kept"
        )
    return start


def trainable_whitening(
    network: Network,
    datasets: Sequence[TrainingSet],
    kept: Whitening | None,
    dim: int,
    config: TrainingConfig,
    group: ProcessGroup,
) -> Whitening:
    """The whitening that is trained with the other layers: `kept`, or one fitted to the initial model's descriptors."""
    if kept:
        raw = describe_database(network, datasets, choose_photos(datasets, config), config, group)
        whitening = scale_to(kept, raw).to(network.device)
    else:
        whitening = fit_to_datasets(network, datasets, dim, config, group)
    whitening.projection.requires_grad_(True)
    return whitening


def final_whitening(
    network: Network,
    datasets: Sequence[TrainingSet],
    kept: Whitening | None,
    dim: int,
    config: TrainingConfig,
    group: ProcessGroup,
) -> Whitening | None:
    """The whitening of the trained model: the trained one with its dimensions in order of variance, `kept`, or one
    fitted to the trained model's descriptors; None if `dim` is 0."""
    if config.whitening == "learned" or (config.whitening == "refitted" and kept):
        assert network.model.whitening is not None
        raw = describe_database(network, datasets, choose_photos(datasets, config), config, group)
        return sort_by_variance(network.model.whitening, raw)
    return kept or (fit_to_datasets(network, datasets, dim, config, group) if dim else None)


def fit_to_datasets(
    network: Network, datasets: Sequence[TrainingSet], dim: int, config: TrainingConfig, group: ProcessGroup
) -> Whitening:
    """Fit a whitening to random database photos: to `dim` dimensions, or as many as these photos allow.

    Every dataset has the same total weight; otherwise the directions that vary in a large dataset would replace those
    that separate the places of a small one.
    """
    rows = choose_photos(datasets, config)
    raw = describe_database(network, datasets, rows, config, group)
    allowed = min(dim, len(raw) - 1, raw.shape[1])
    if allowed < dim and group.is_main:
        tqdm.write(f"{len(raw)} database photos allow {allowed} dimensions after whitening, not {dim}")
    fitted = fit_whitening(raw, allowed, power=config.whitening_power, weights=equal_weights(datasets, rows))
    return scale_to(fitted, raw).to(network.device)


def scale_to(whitening: Whitening, raw: Tensor) -> Whitening:
    """The whitening, scaled so that projections of descriptors `raw` (n, D) have length 1 on average; on their device.

    Whitened descriptors do not depend on the scale, but the relative size of a gradient step on the projection does.
    """
    whitening = whitening.to(raw.device)
    length = torch.linalg.vector_norm((raw - whitening.mean) @ whitening.projection.T, dim=1).mean()
    return Whitening(whitening.mean, whitening.projection.detach() / length)


@contextmanager
def with_whitening(model: PlaceModel, whitening: Whitening | None) -> Iterator[None]:
    """Inside, the model has this whitening, or none."""
    own, model.whitening = model.whitening, whitening
    try:
        yield
    finally:
        model.whitening = own


def choose_photos(datasets: Sequence[TrainingSet], config: TrainingConfig) -> Ints:
    """Rows of `config.whitening_photos` random database photos of all datasets (at most all of them), in order."""
    database = sum(len(dataset.places.database) for dataset in datasets)
    count = min(database, config.whitening_photos)
    return np.sort(np.random.default_rng(config.seed).choice(database, count, replace=False))


def equal_weights(datasets: Sequence[TrainingSet], rows: Ints) -> Tensor:
    """Weights (n,) of these database rows of all datasets: those of each dataset sum to 1."""
    ends = np.cumsum([len(dataset.places.database) for dataset in datasets])
    dataset = np.searchsorted(ends, rows, side="right")
    return torch.from_numpy(1 / np.bincount(dataset, minlength=len(datasets))[dataset])


def describe_database(
    network: Network, datasets: Sequence[TrainingSet], rows: Ints, config: TrainingConfig, group: ProcessGroup
) -> Tensor:
    """(n, D) descriptors, before whitening, of these database rows of all datasets."""
    inputs, _ = join_inputs(datasets)
    with with_whitening(network.model, None):
        return compute_descriptors(network, inputs, config.batch, group, rows=rows).float()
