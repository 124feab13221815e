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


def make_loss(name: str, **knobs: Any) -> TupleLoss:
    """The loss of this name with these knobs: a function of query (B, D), positive (B, D), negatives (B, N, D) -> (B,).

    One value per tuple, summed over its negatives and never reduced over tuples: `mean_over_pairs` and
    `mean_over_tuples` do that, and say how. Knobs: kernel (sare-ind, sare-joint: gaussian, cauchy, exponential) and its
    width, margin (triplet, contrastive, lifted), angle_deg (angular). An unknown name, an unknown knob and a value out
    of range raise ArgumentError here, not in the first training step.
    """
    function = look_up(LOSSES, name, "loss")
    known = _knobs(function)
    unknown = [knob for knob in knobs if knob not in known]
    if unknown:
        has = ", ".join(f"{knob} (default {default!r})" for knob, default in known.items()) or "none"
        raise ArgumentError(f"loss {name!r} has no knob {unknown[0]!r}: its knobs are {has}")
    loss = partial(function, **knobs)
    # One tuple of zeros: the loss itself judges the values of its knobs.
    loss(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 1, 1))
    return loss


def _knobs(function: Callable[..., Tensor]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
