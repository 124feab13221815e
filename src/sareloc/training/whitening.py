"""The whitening of the trained model: fitted to database photos, or the initial model's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

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


@dataclass(frozen=True, eq=False)
class WhiteningFit:
    """Fits whitenings of `dim` dimensions to database photos of the datasets, `config.whitening_photos` at most."""

    network: Network
    datasets: Sequence[TrainingSet]
    dim: int
    config: TrainingConfig
    group: ProcessGroup

    def kept(self, start: Whitening | None) -> Whitening | None:
        """The initial model's whitening if the database photos are too few to fit one, else None."""
        if start is None or len(self.rows()) >= PHOTOS_PER_DIM * self.dim:
            return None
        if self.group.is_main:
            tqdm.write(
                f"too few database photos to fit a whitening of {self.dim} dimensions ({PHOTOS_PER_DIM} photos a "
                f"dimension are needed): the initial model's, of {start.dim}, is kept"
            )
        return start

    def trainable(self, kept: Whitening | None) -> Whitening:
        """The whitening that is trained with the other layers: `kept`, or one fitted to the initial descriptors."""
        whitening = scale_to(kept, self.descriptors()).to(self.network.device) if kept else self.fit()
        whitening.projection.requires_grad_(True)
        return whitening

    def final(self, kept: Whitening | None) -> Whitening | None:
        """The whitening of the trained model: the trained one with its dimensions in order of variance, `kept`, or one
        fitted to the trained model's descriptors; None if `dim` is 0."""
        if self.config.whitening == "learned" or (self.config.whitening == "refitted" and kept):
            assert self.network.model.whitening is not None
            return sort_by_variance(self.network.model.whitening, self.descriptors())
        return kept or (self.fit() if self.dim else None)

    def fit(self) -> Whitening:
        """A whitening to `dim` dimensions, or as many as the photos allow.

        Every dataset has the same total weight; otherwise the directions that vary in a large dataset would replace
        those that separate the places of a small one.
        """
        raw = self.descriptors()
        allowed = min(self.dim, len(raw) - 1, raw.shape[1])
        if allowed < self.dim and self.group.is_main:
            tqdm.write(f"{len(raw)} database photos allow {allowed} dimensions after whitening, not {self.dim}")
        weights = equal_weights(self.datasets, self.rows())
        fitted = fit_whitening(raw, allowed, power=self.config.whitening_power, weights=weights)
        return scale_to(fitted, raw).to(self.network.device)

    def rows(self) -> Ints:
        """Rows of random database photos of all datasets, in order."""
        database = sum(len(dataset.places.database) for dataset in self.datasets)
        count = min(database, self.config.whitening_photos)
        return np.sort(np.random.default_rng(self.config.seed).choice(database, count, replace=False))

    def descriptors(self) -> Tensor:
        """(n, D) descriptors of these photos, before whitening, by the network as it is now."""
        inputs, _ = join_inputs(self.datasets)
        with use_whitening(self.network.model, None):
            return compute_descriptors(self.network, inputs, self.config.batch, self.group, rows=self.rows()).float()


def scale_to(whitening: Whitening, raw: Tensor) -> Whitening:
    """The whitening, scaled so that projections of descriptors `raw` (n, D) have length 1 on average; on their device.

    Whitened descriptors do not depend on the scale, but the relative size of a gradient step on the projection does.
    """
    whitening = whitening.to(raw.device)
    length = torch.linalg.vector_norm((raw - whitening.mean) @ whitening.projection.T, dim=1).mean()
    return Whitening(whitening.mean, whitening.projection.detach() / length)


@contextmanager
def use_whitening(model: PlaceModel, whitening: Whitening | None) -> Iterator[None]:
    """Inside, the model has this whitening, or none."""
    own, model.whitening = model.whitening, whitening
    try:
        yield
    finally:
        model.whitening = own


def equal_weights(datasets: Sequence[TrainingSet], rows: Ints) -> Tensor:
    """Weights (n,) of these database rows of all datasets: those of each dataset sum to 1."""
    ends = np.cumsum([len(dataset.places.database) for dataset in datasets])
    dataset = np.searchsorted(ends, rows, side="right")
    return torch.from_numpy(1 / np.bincount(dataset, minlength=len(datasets))[dataset])
