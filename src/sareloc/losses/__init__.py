"""Every loss of the paper, as pure functions of descriptors.

    loss = make_loss("sare-joint", kernel="gaussian")
    losses = loss(query, positive, negatives)       # (B, D), (B, D), (B, N, D) -> (B,)
    mean_over_pairs(losses, negatives_per_tuple=N).backward()

`make_loss` knows `LOSSES` by name; the functions themselves and thin module twins (`SARE()`, `Triplet()`, ...) are here
too. Values and gradients stay finite in float32 and under float16 and bfloat16 autocast, at distance 0 and at large
distance; float64 stays float64. Geo-classification works on photos, not tuples, and stands apart.
"""

from __future__ import annotations

from sareloc.losses.classic import angular, contrastive, lifted, n_pair, ratio, triplet
from sareloc.losses.geo_classification import GeoCells, geo_classification, make_cells, make_classifier
from sareloc.losses.modules import SARE, Angular, Contrastive, Lifted, NPair, Ratio, Triplet
from sareloc.losses.named import LOSSES, TupleLoss, loss_options, make_loss
from sareloc.losses.reduction import DIVISORS, mean_over_pairs, mean_over_tuples
from sareloc.losses.sare import LOG_AFFINITY, sare_ind, sare_joint

__all__ = [
    "DIVISORS",
    "LOG_AFFINITY",
    "LOSSES",
    "SARE",
    "Angular",
    "Contrastive",
    "GeoCells",
    "Lifted",
    "NPair",
    "Ratio",
    "Triplet",
    "TupleLoss",
    "angular",
    "contrastive",
    "geo_classification",
    "lifted",
    "loss_options",
    "make_cells",
    "make_classifier",
    "make_loss",
    "mean_over_pairs",
    "mean_over_tuples",
    "n_pair",
    "ratio",
    "sare_ind",
    "sare_joint",
    "triplet",
]
