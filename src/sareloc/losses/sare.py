"""SARE, the Stochastic Attraction-Repulsion Embedding: the paper's loss, with three kernels and two forms.

A kernel k of the distances from the query gives the probability that the query picks the positive as its match,
`c = k(d_p) / (k(d_p) + sum_n k(d_n))`; the loss is -log c. With the log-affinity `a = log k` the loss is a function of
the differences `a_n - a_p` alone. Distances are in units of the kernel's width, 1 in the paper: unit vectors are at
most 2 apart, so even an easy negative has a gradient; with a narrow kernel only negatives about as near as the positive
have one.

The tuple layout, distances and numerics below are shared with the other losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from sareloc.errors import ArgumentError, look_up

LOG_AFFINITY: dict[str, Callable[[Tensor], Tensor]] = {
    "gaussian": lambda sq: -sq,
    "cauchy": lambda sq: -sq.log1p(),
    "exponential": lambda sq: -root(sq),
}
"""Logarithm of each kernel, as a function of the squared distance."""


def sare_ind(
    query: Tensor, positive: Tensor, negatives: Tensor, *, kernel: str = "gaussian", width: float = 1.0
) -> Tensor:
    """SARE-Ind: each negative competes with the positive separately.

    `sum_n -log c_n` with `c_n = k(d_p) / (k(d_p) + k(d_n))` (the paper's eq. 3 and 4, summed over the tuple's
    negatives), which is `sum_n log(1 + exp(a_n - a_p))`.

    Args:
        query: (B, D).
        positive: (B, D).
        negatives: (B, N, D).
        kernel: of `LOG_AFFINITY`: gaussian, cauchy or exponential.
        width: of the kernel; 1 is the paper's.

    Returns:
        (B,), one value per tuple.
    """
    return softplus(_affinity_differences(query, positive, negatives, kernel, width)).sum(dim=-1)


def sare_joint(
    query: Tensor, positive: Tensor, negatives: Tensor, *, kernel: str = "gaussian", width: float = 1.0
) -> Tensor:
    """SARE-Joint: all negatives compete with the positive at once.

    `-log c` with `c = k(d_p) / (k(d_p) + sum_n k(d_n))` (the paper's section 6 and appendix A), which is
    `log(1 + sum_n exp(a_n - a_p))`.

    Args:
        query: (B, D).
        positive: (B, D).
        negatives: (B, N, D).
        kernel: of `LOG_AFFINITY`: gaussian, cauchy or exponential.
        width: of the kernel; 1 is the paper's.

    Returns:
        (B,), one value per tuple.
    """
    return log1p_sum_exp(_affinity_differences(query, positive, negatives, kernel, width))


def _affinity_differences(query: Tensor, positive: Tensor, negatives: Tensor, kernel: str, width: float) -> Tensor:
    """Log-affinities of the negatives minus that of the positive: a_n - a_p, (B, N)."""
    log_affinity = look_up(LOG_AFFINITY, kernel, "kernel")
    if not 0 < width < math.inf:
        raise ArgumentError(f"width must be a finite number above 0 (the paper's is 1), found {width}")
    query, positive, negatives = as_tuples(query, positive, negatives)
    to_positive = log_affinity(squared_distances(query, positive) / width**2)  # (B,)
    to_negatives = log_affinity(squared_distances(query[:, None], negatives) / width**2)  # (B, N)
    return to_negatives - to_positive[:, None]


# ---------------------------------------------------------------- tuples and distances


def as_tuples(query: Tensor, positive: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Check a batch of tuples and convert it to one type: float64 if any of the three is float64, else float32.

    B tuples: query (B, D), positive (B, D), negatives (B, N, D), usually but not necessarily unit vectors.
    Half-precision descriptors, as from a model under autocast, are widened. The losses use elementwise operations and
    sums only, which autocast leaves in this precision; a matrix product would be narrowed again.
    """
    for name, descriptors in (("query", query), ("positive", positive), ("negatives", negatives)):
        if not isinstance(descriptors, Tensor) or not descriptors.is_floating_point():
            kind = descriptors.dtype if isinstance(descriptors, Tensor) else type(descriptors).__name__
            raise ArgumentError(f"{name} must be a tensor of floating-point descriptors, found {kind}")
    if not _is_tuple_layout(query, positive, negatives):
        found = f"query {_shape(query)}, positive {_shape(positive)}, negatives {_shape(negatives)}"
        hint = ": reshape the negatives, negatives.view(B, N, D)" if negatives.dim() == 2 else ""
        raise ArgumentError(
            "a loss takes query (B, D), positive (B, D) and negatives (B, N, D), N and D at least 1; "
            f"found {found}{hint}"
        )
    dtype = reduce(torch.promote_types, (query.dtype, positive.dtype, negatives.dtype), torch.float32)
    return query.to(dtype), positive.to(dtype), negatives.to(dtype)


def _is_tuple_layout(query: Tensor, positive: Tensor, negatives: Tensor) -> bool:
    if query.dim() != 2 or negatives.dim() != 3 or query.shape != positive.shape:
        return False
    tuples, count, dim = negatives.shape
    return (tuples, dim) == tuple(query.shape) and count >= 1 and dim >= 1


def _shape(descriptors: Tensor) -> str:
    return str(tuple(descriptors.shape))


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Squared Euclidean distances |a - b|^2 over the last dimension, (..., D) and (..., D) -> (...).

    From the difference, not from dot products: |a|^2 + |b|^2 - 2 a.b cancels for near vectors, even to below 0.
    """
    return (a - b).square().sum(dim=-1)


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances |a - b| over the last dimension; the gradient is 0 where a equals b."""
    return root(squared_distances(a, b))


# ---------------------------------------------------------------- functions that do not overflow, cancel or divide by 0


def root(squared: Tensor) -> Tensor:
    """The square root of values >= 0, with gradient 0 at 0 instead of infinity.

    Two equal descriptors thus have no gradient, whose direction would be undefined.
    """
    is_zero = squared == 0
    return torch.where(is_zero, 1.0, squared).sqrt().masked_fill(is_zero, 0.0)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), exact to the last digits for every x (torch's softplus returns x above 20)."""
    return -F.logsigmoid(-x)


def log1p_sum_exp(x: Tensor) -> Tensor:
    """log(1 + sum exp(x)) over the last dimension (B, N) -> (B,).

    A sum far below 1 is kept: adding it to 1 first would round the loss, and its gradient, to 0.
    """
    return softplus(x.logsumexp(dim=-1))
