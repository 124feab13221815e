"""The whitening of a training: fitted on database photos of its towns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from sareloc.models.whitening import Whitening, fit_whitening
from sareloc.training.network import Ints, Network, describe
from sareloc.training.ranks import Ranks
from sareloc.training.recipes import Training
from sareloc.training.town import Town, join_inputs


def fit_to_towns(network: Network, towns: Sequence[Town], knobs: Training, ranks: Ranks) -> Whitening:
    """The whitening of random database photos: to `knobs.dim` dimensions, or as many as these photos allow.

    Every town counts the same, however many photos it has: what tells the places of a small town apart would else
    give way to what varies in a large one. It is scaled so that a photo's projection has length 1 on average: a
    descriptor does not depend on that, but the size of a step along the projection does.
    """
    rows = choose_photos(towns, knobs)
    raw = describe_database(network, towns, rows, knobs, ranks)
    dim = min(knobs.dim, len(raw) - 1, raw.shape[1])
    if dim < knobs.dim and ranks.first:
        tqdm.write(f"{len(raw)} database photos allow {dim} dimensions after whitening, not {knobs.dim}")
    fitted = fit_whitening(raw, dim, power=knobs.whitening_power, weights=towns_alike(towns, rows))
    length = torch.linalg.vector_norm((raw - fitted.mean) @ fitted.projection.T, dim=1).mean()
    return Whitening(fitted.mean, fitted.projection / length).to(network.device)


def choose_photos(towns: Sequence[Town], knobs: Training) -> Ints:
    """Rows of `knobs.whitening_photos` random photos among the databases of all towns, or of all of them, in order."""
    database = sum(len(town.places.database) for town in towns)
    count = min(database, knobs.whitening_photos)
    return np.sort(np.random.default_rng(knobs.seed).choice(database, count, replace=False))


def towns_alike(towns: Sequence[Town], rows: Ints) -> Tensor:
    """Weights (n,) of these rows of the databases of all towns: those of a town sum to 1."""
    ends = np.cumsum([len(town.places.database) for town in towns])
    town = np.searchsorted(ends, rows, side="right")
    return torch.from_numpy(1 / np.bincount(town, minlength=len(towns))[town])


def describe_database(network: Network, towns: Sequence[Town], rows: Ints, knobs: Training, ranks: Ranks) -> Tensor:
    """(n, D) descriptors before whitening of these rows of the databases of all towns."""
    inputs, _ = join_inputs(towns)
    whitening, network.model.whitening = network.model.whitening, None
    raw = describe(network, inputs, knobs.batch, ranks, rows=rows).float()
    network.model.whitening = whitening
    return raw
