"""How well a model in training does: recall on a set of places, from descriptors that are where they were made."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sareloc.datasets.places import Places
from sareloc.evaluation.judging import PROTOCOLS, evaluate_rankings
from sareloc.mining import similarity
from sareloc.models import PlaceModel
from sareloc.training.network import Network, describe
from sareloc.training.ranks import Ranks
from sareloc.training.recipes import Training
from sareloc.training.town import Town

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
    model: PlaceModel, exams: Sequence[Town], knobs: Training, dtype: torch.dtype, ranks: Ranks
) -> dict[int, float]:
    """Recall@N on each validation set by its own protocol, averaged."""
    found = []
    for exam in exams:
        described = describe(Network(model, exam.inputs.stage, dtype), exam.inputs, knobs.batch, ranks)
        found.append(recall_of_descriptors(exam.places, described))
    return {n: sum(recall[n] for recall in found) / len(found) for n in found[0]}
