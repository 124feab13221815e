"""The table of tuple losses, and `make_loss`, which takes one from it by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sareloc.errors import ArgumentError, look_up
from sareloc.losses.classic import angular, contrastive, lifted, n_pair, ratio, triplet
from sareloc.losses.sare import sare_ind, sare_joint

TupleLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""query (B, D), positive (B, D), negatives (B, N, D) -> (B,), one value per tuple."""

LOSSES: dict[str, Callable[..., Tensor]] = {
    "sare-ind": sare_ind,
    "sare-joint": sare_joint,
    "triplet": triplet,
    "contrastive": contrastive,
    "n-pair": n_pair,
    "angular": angular,
    "lifted": lifted,
    "ratio": ratio,
}


def make_loss(name: str, **options: Any) -> TupleLoss:
    """The loss of this name and options: a function of query (B, D), positive (B, D), negatives (B, N, D) -> (B,).

    One value per tuple, summed over its negatives and never reduced over tuples: `mean_over_pairs` and
    `mean_over_tuples` do that, and say how. Options: kernel (sare-ind, sare-joint: gaussian, cauchy, exponential) and
    its width, margin (triplet, contrastive, lifted), angle_deg (angular). Raises ArgumentError if the name is unknown,
    if the loss has no such option, and if a value is out of range.
    """
    function = look_up(LOSSES, name, "loss")
    known = loss_options(name)
    unknown = [option for option in options if option not in known]
    if unknown:
        has = ", ".join(f"{option} (default {default!r})" for option, default in known.items()) or "none"
        raise ArgumentError(f"loss {name!r} has no option {unknown[0]!r}: its options are {has}")
    loss = partial(function, **options)
    # One tuple of zeros: the loss itself checks the values of its options.
    loss(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 1, 1))
    return loss


def loss_options(name: str) -> dict[str, Any]:
    """The options of the loss of this name, with their defaults."""
    parameters = inspect.signature(look_up(LOSSES, name, "loss")).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
