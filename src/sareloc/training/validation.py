"""Recall on the validation sets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sareloc.datasets.places import Places
from sareloc.evaluation.judging import PROTOCOLS, evaluate_rankings
from sareloc.models import PlaceModel
from sareloc.training.config import TrainingConfig
from sareloc.training.data import TrainingSet
from sareloc.training.distributed import Network, ProcessGroup, compute_descriptors
from sareloc.training.mining import similarity

QUERIES_AT_ONCE = 1024


def mean_recall(
    model: PlaceModel,
    validation_sets: Sequence[TrainingSet],
    config: TrainingConfig,
    dtype: torch.dtype,
    group: ProcessGroup,
) -> dict[int, float]:
    """Recall@1, 5 and 10 on each validation set by its own protocol, averaged over the sets."""
    found = []
    for validation_set in validation_sets:
        network = Network(model, validation_set.inputs.stage, dtype)
        descriptors = compute_descriptors(network, validation_set.inputs, config.batch, group)
        found.append(recall_of_descriptors(validation_set.places, descriptors))
    return {n: sum(recall[n] for recall in found) / len(found) for n in found[0]}


def recall_of_descriptors(places: Places, descriptors: Tensor, ns: tuple[int, ...] = (1, 5, 10)) -> dict[int, float]:
    """Recall@N (shares of all queries) by the dataset's protocol.

    Args:
        places: the dataset.
        descriptors: (N, D) unit vectors of the database rows, then of the query rows, on any device in any precision.
        ns: the N of recall@N.
    """
    count = len(places.database)
    depth = min(count, PROTOCOLS[places.protocol].depth(places, max(ns)))
    rankings = [
        similarity(some, descriptors[:count]).topk(depth, dim=1).indices.cpu()
        for some in torch.split(descriptors[count:], QUERIES_AT_ONCE)
    ]
    recall = evaluate_rankings(places, torch.cat(rankings).numpy(), ns=ns).recall
    return {n: recall[n] / 100 for n in ns}
