"""Every loss of the paper, as pure functions of descriptors.

    loss = make_loss("sare-joint", kernel="gaussian")
    losses = loss(query, positive, negatives)       # (B, D), (B, D), (B, N, D) -> (B,)
    mean_over_pairs(losses, negatives_per_tuple=N).backward()

`make_loss` knows `LOSSES` by name; the functions themselves and thin module twins (`SARE()`, `Triplet()`, ...) are here
too. Values and gradients stay finite in float32 and under float16 and bfloat16 autocast, at distance 0 and at large
distance; float64 stays float64. Geo-classification works on photos, not tuples, and stands apart.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sareloc.errors import ArgumentError, look_up
from sareloc.losses.classic import angular, contrastive, lifted, n_pair, ratio, triplet
from sareloc.losses.geo_classification import GeoCells, geo_classification, make_cells, make_classifier
from sareloc.losses.sare import LOG_AFFINITY, sare_ind, sare_joint

# From one value per tuple to the one number that training takes the gradient of. The choice sets the step's scale.
#
# The paper's learning rates belong to `mean_over_pairs`. With 10 negatives per tuple `mean_over_tuples` is 10 times
# larger, so the same learning rate takes steps 10 times longer: whoever compares numbers must say which it was.

DIVISORS: dict[str, Callable[[Sequence[int]], int]] = {"pairs": sum, "tuples": len}
"""By what a step's summed losses are divided, from the number of negatives of each of its tuples.

Training computes a step in parts and over several processes: each part's sum is divided by the whole step's number.
"""


def mean_over_pairs(losses: Tensor, negatives_per_tuple: int) -> Tensor:
    """The sum divided by all (tuple, negative) pairs of the batch: the authors' reduction, for every loss alike.

    `losses` (B,) -> scalar, `sum(losses) / (B N)`. For SARE-Joint too, where a tuple has one term and not N: the
    paper's batch of 4 tuples with 10 negatives is divided by 40.
    """
    if isinstance(negatives_per_tuple, bool) or not isinstance(negatives_per_tuple, int) or negatives_per_tuple < 1:
        raise ArgumentError(f"negatives_per_tuple must be a whole number of at least 1, found {negatives_per_tuple!r}")
    return mean_over_tuples(losses) / negatives_per_tuple


def mean_over_tuples(losses: Tensor) -> Tensor:
    """The mean of the tuples' values, whatever their number of negatives: what OpenIBL does for SARE-Joint.

    `losses` (B,) -> scalar, `sum(losses) / B`: `negatives_per_tuple` times the authors' reduction.
    """
    if losses.dim() != 1 or len(losses) == 0:
        raise ArgumentError(f"losses must be one value per tuple, (B,) with B at least 1; found {tuple(losses.shape)}")
    return losses.mean()


# The table of tuple losses, and `make_loss`, which takes one from it by name.

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


# The tuple losses as modules, for training loops that expect one: `SARE()(query, positive, negatives)`.
#
# Thin twins of the functions: no parameters, no state, the same (B, D), (B, D), (B, N, D) -> (B,).


class TupleLossModule(nn.Module):
    """The loss of a name and its options (see `make_loss`) as a module; its twins below name theirs."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__()
        self.name, self.options = name, options
        self.loss = make_loss(name, **options)

    def forward(self, query: Tensor, positive: Tensor, negatives: Tensor) -> Tensor:
        """One value per tuple, (B,): reduce with `mean_over_pairs` or `mean_over_tuples`."""
        return self.loss(query, positive, negatives)

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return ", ".join([repr(self.name), *(f"{option}={value!r}" for option, value in self.options.items())])


class SARE(TupleLossModule):
    """`sare_joint` if `joint`, else `sare_ind`; kernel gaussian, cauchy or exponential, of any width."""

    def __init__(self, kernel: str = "gaussian", joint: bool = False, width: float = 1.0) -> None:
        super().__init__("sare-joint" if joint else "sare-ind", kernel=kernel, width=width)


class Triplet(TupleLossModule):
    """`triplet` as a module."""

    def __init__(self, margin: float = 0.1) -> None:
        super().__init__("triplet", margin=margin)


class Contrastive(TupleLossModule):
    """`contrastive` as a module."""

    def __init__(self, margin: float = 0.7) -> None:
        super().__init__("contrastive", margin=margin)


class NPair(TupleLossModule):
    """`n_pair` as a module."""

    def __init__(self) -> None:
        super().__init__("n-pair")


class Angular(TupleLossModule):
    """`angular` as a module; the angle in degrees."""

    def __init__(self, angle_deg: float = 45.0) -> None:
        super().__init__("angular", angle_deg=angle_deg)


class Lifted(TupleLossModule):
    """`lifted` as a module."""

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__("lifted", margin=margin)


class Ratio(TupleLossModule):
    """`ratio` as a module."""

    def __init__(self) -> None:
        super().__init__("ratio")


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
