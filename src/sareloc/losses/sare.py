"""SARE, the Stochastic Attraction-Repulsion Embedding: the paper's loss, for three kernels and two ways with negatives.

A kernel turns distances from the query into the probability that the query picks the positive as its match,
`c = k(d_p) / (k(d_p) + sum_n k(d_n))`; the loss is -log c. Written with the kernel's logarithm, the log-affinity
`a = log k`, everything is a function of the gaps `a_n - a_p`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from sareloc.errors import look_up
from sareloc.losses.distances import as_tuples, squared_distances
from sareloc.losses.numerics import log1p_sum_exp, root, softplus

LOG_AFFINITY: dict[str, Callable[[Tensor], Tensor]] = {
    "gaussian": lambda sq: -sq,
    "cauchy": lambda sq: -sq.log1p(),
    "exponential": lambda sq: -root(sq),
}
"""For each kernel its logarithm, as a function of the squared distance."""


def sare_ind(query: Tensor, positive: Tensor, negatives: Tensor, *, kernel: str = "gaussian") -> Tensor:
    """Each negative competes with the positive alone: SARE-Ind.

    Tuples (B, D), (B, D), (B, N, D) -> (B,): `sum_n -log c_n` with `c_n = k(d_p) / (k(d_p) + k(d_n))` (the paper's
    eq. 3 and 4, summed over the tuple's negatives), which is `sum_n log(1 + exp(a_n - a_p))`.
    """
    return softplus(_affinity_gaps(query, positive, negatives, kernel)).sum(dim=-1)


def sare_joint(query: Tensor, positive: Tensor, negatives: Tensor, *, kernel: str = "gaussian") -> Tensor:
    """All negatives compete with the positive at once: SARE-Joint.

    Tuples (B, D), (B, D), (B, N, D) -> (B,): `-log c` with `c = k(d_p) / (k(d_p) + sum_n k(d_n))` (the paper's
    section 6 and appendix A), which is `log(1 + sum_n exp(a_n - a_p))`.
    """
    return log1p_sum_exp(_affinity_gaps(query, positive, negatives, kernel))


def _affinity_gaps(query: Tensor, positive: Tensor, negatives: Tensor, kernel: str) -> Tensor:
    """How much more log-affinity each negative has for the query than the positive has: a_n - a_p, (B, N)."""
    log_affinity = look_up(LOG_AFFINITY, kernel, "kernel")
    query, positive, negatives = as_tuples(query, positive, negatives)
    to_positive = log_affinity(squared_distances(query, positive))  # (B,)
    to_negatives = log_affinity(squared_distances(query[:, None], negatives))  # (B, N)
    return to_negatives - to_positive[:, None]
