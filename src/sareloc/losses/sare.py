"""SARE, the Stochastic Attraction-Repulsion Embedding: the paper's loss, for three kernels and two ways with negatives.

A kernel turns distances from the query into the probability that the query picks the positive as its match,
`c = k(d_p) / (k(d_p) + sum_n k(d_n))`; the loss is -log c. Written with the kernel's logarithm, the log-affinity
`a = log k`, everything is a function of the gaps `a_n - a_p`. Distances are measured in units of the kernel's width,
1 in the paper: unit vectors are at most 2 apart, so that there even an easy negative still repels; under a narrow
kernel only those do that are not yet told apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from sareloc.errors import ArgumentError, look_up
from sareloc.losses.distances import as_tuples, squared_distances
from sareloc.losses.numerics import log1p_sum_exp, root, softplus

LOG_AFFINITY: dict[str, Callable[[Tensor], Tensor]] = {
    "gaussian": lambda sq: -sq,
    "cauchy": lambda sq: -sq.log1p(),
    "exponential": lambda sq: -root(sq),
}
"""For each kernel its logarithm, as a function of the squared distance."""


def sare_ind(
    query: Tensor, positive: Tensor, negatives: Tensor, *, kernel: str = "gaussian", width: float = 1.0
) -> Tensor:
    """Each negative competes with the positive alone: SARE-Ind.

    Tuples (B, D), (B, D), (B, N, D) -> (B,): `sum_n -log c_n` with `c_n = k(d_p) / (k(d_p) + k(d_n))` (the paper's
    eq. 3 and 4, summed over the tuple's negatives), which is `sum_n log(1 + exp(a_n - a_p))`.
    """
    return softplus(_affinity_gaps(query, positive, negatives, kernel, width)).sum(dim=-1)


def sare_joint(
    query: Tensor, positive: Tensor, negatives: Tensor, *, kernel: str = "gaussian", width: float = 1.0
) -> Tensor:
    """All negatives compete with the positive at once: SARE-Joint.

    Tuples (B, D), (B, D), (B, N, D) -> (B,): `-log c` with `c = k(d_p) / (k(d_p) + sum_n k(d_n))` (the paper's
    section 6 and appendix A), which is `log(1 + sum_n exp(a_n - a_p))`.
    """
    return log1p_sum_exp(_affinity_gaps(query, positive, negatives, kernel, width))


def _affinity_gaps(query: Tensor, positive: Tensor, negatives: Tensor, kernel: str, width: float) -> Tensor:
    """How much more log-affinity each negative has for the query than the positive has: a_n - a_p, (B, N)."""
    log_affinity = look_up(LOG_AFFINITY, kernel, "kernel")
    if not 0 < width < math.inf:
        raise ArgumentError(f"width must be a finite number above 0 (the paper's is 1), found {width}")
    query, positive, negatives = as_tuples(query, positive, negatives)
    to_positive = log_affinity(squared_distances(query, positive) / width**2)  # (B,)
    to_negatives = log_affinity(squared_distances(query[:, None], negatives) / width**2)  # (B, N)
    return to_negatives - to_positive[:, None]
