"""Every loss of the paper, as pure functions of descriptors.

    loss = make_loss("sare-joint", kernel="gaussian")
    losses = loss(query, positive, negatives)       # (B, D), (B, D), (B, N, D) -> (B,)
    mean_over_pairs(losses, negatives_per_tuple=N).backward()

`make_loss` finds a loss by its name in `LOSSES`; the functions (`sare_ind`, ...) and the same losses as modules
(`SARE()`, `Triplet()`, ...) are exported too. Values and gradients are finite in float32 and under float16 and bfloat16
autocast, at distance 0 and at large distances; float64 inputs give float64. Geo-classification is a loss of photos, not
of tuples, and therefore not in `LOSSES`.
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

# ---------------------------------------------------------------- losses by name

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
"""The tuple losses by name."""


def make_loss(name: str, **options: Any) -> TupleLoss:
    """The loss of this name with these options: query (B, D), positive (B, D), negatives (B, N, D) -> (B,).

    One value per tuple, summed over its negatives and not reduced over tuples: see `mean_over_pairs` and
    `mean_over_tuples`. Options: kernel (sare-ind, sare-joint: gaussian, cauchy, exponential) and its width, margin
    (triplet, contrastive, lifted), angle_deg (angular). Raises ArgumentError if the name is unknown, if the loss has no
    such option, or if a value is out of range.
    """
    if name == "geo-classification":
        raise ArgumentError(
            "geo-classification is a loss of photos and their cells, not of tuples: call geo_classification, or train "
            'with TrainingConfig(loss="geo-classification")'
        )
    function = look_up(LOSSES, name, "loss")
    known = loss_options(name)
    unknown = [option for option in options if option not in known]
    if unknown:
        has = ", ".join(f"{option} (default {default!r})" for option, default in known.items()) or "none"
        raise ArgumentError(f"loss {name!r} has no option {unknown[0]!r}: its options are {has}")
    loss = partial(function, **options)
    loss(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 1, 1))  # the loss checks the values of its options
    return loss


def loss_options(name: str) -> dict[str, Any]:
    """The options of the loss of this name, with their defaults."""
    parameters = inspect.signature(look_up(LOSSES, name, "loss")).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


# ---------------------------------------------------------------- reductions
#
# The paper's learning rates are for `mean_over_pairs`. With 10 negatives per tuple `mean_over_tuples` is 10 times
# larger, and so is a step with the same learning rate: reported numbers must say which reduction was used.

DIVISORS: dict[str, Callable[[Sequence[int]], int]] = {"pairs": sum, "tuples": len}
"""Divisor of a step's summed losses, as a function of the number of negatives of each of its tuples.

Training computes a step in parts and over several processes: the sum of each part is divided by the step's divisor.
"""


def mean_over_pairs(losses: Tensor, negatives_per_tuple: int) -> Tensor:
    """The sum divided by the number of (tuple, negative) pairs of the batch: the authors' reduction, for every loss.

    `losses` (B,) -> scalar, `sum(losses) / (B N)`. For SARE-Joint too, which has one term per tuple and not N: the
    paper's batch of 4 tuples with 10 negatives is divided by 40.
    """
    if isinstance(negatives_per_tuple, bool) or not isinstance(negatives_per_tuple, int) or negatives_per_tuple < 1:
        raise ArgumentError(f"negatives_per_tuple must be a whole number of at least 1, found {negatives_per_tuple!r}")
    return mean_over_tuples(losses) / negatives_per_tuple


def mean_over_tuples(losses: Tensor) -> Tensor:
    """The mean over tuples, whatever their number of negatives: OpenIBL's reduction of SARE-Joint.

    `losses` (B,) -> scalar, `sum(losses) / B`: `negatives_per_tuple` times the authors' reduction.
    """
    if losses.dim() != 1 or len(losses) == 0:
        raise ArgumentError(f"losses must be one value per tuple, (B,) with B at least 1; found {tuple(losses.shape)}")
    return losses.mean()


# ---------------------------------------------------------------- the same losses as modules


class TupleLossModule(nn.Module):
    """A loss of `make_loss` as a module without parameters or state: (B, D), (B, D), (B, N, D) -> (B,)."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__()
        self.name, self.options = name, options
        self.loss = make_loss(name, **options)

    def forward(self, query: Tensor, positive: Tensor, negatives: Tensor) -> Tensor:
        """One value per tuple, (B,): reduce with `mean_over_pairs` or `mean_over_tuples`."""
        return self.loss(query, positive, negatives)

    def extra_repr(self) -> str:
        """Name and options, for `print(module)`."""
        return ", ".join([repr(self.name), *(f"{option}={value!r}" for option, value in self.options.items())])


class SARE(TupleLossModule):
    """`sare_joint` or `sare_ind` as a module.

    Args:
        kernel: gaussian, cauchy or exponential.
        joint: True: `sare_joint`; False: `sare_ind`.
        width: width of the kernel; 1 is the paper's.
    """

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
