"""The losses that the paper compares SARE with, each of a batch of tuples: (B, D), (B, D), (B, N, D) -> (B,).

Hinges are relu, whose gradient at exactly 0 is 0: as in the paper, a negative that just satisfies the margin has none.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from sareloc.errors import ArgumentError
from sareloc.losses.sare import as_tuples, distances, log1p_sum_exp, squared_distances


def triplet(query: Tensor, positive: Tensor, negatives: Tensor, *, margin: float = 0.1) -> Tensor:
    """Every negative should be farther than the positive by a margin, in squared distance (NetVLAD's loss).

    `sum_n max(0, m + d_p^2 - d_n^2)`, the paper's eq. 1. Negatives beyond the margin have no gradient.

    Args:
        query: (B, D).
        positive: (B, D).
        negatives: (B, N, D).
        margin: m, of squared distances.
    """
    margin = _checked_margin(margin)
    query, positive, negatives = as_tuples(query, positive, negatives)
    to_positive = squared_distances(query, positive)[:, None]  # (B, 1)
    to_negatives = squared_distances(query[:, None], negatives)  # (B, N)
    return F.relu(margin + to_positive - to_negatives).sum(dim=-1)


def contrastive(query: Tensor, positive: Tensor, negatives: Tensor, *, margin: float = 0.7) -> Tensor:
    """The positive should be at distance 0, every negative at least at the margin.

    `d_p^2 / 2 + sum_n max(0, tau - d_n)^2 / 2`, the paper's eq. 2. Negatives beyond the margin have no gradient.

    Args:
        query: (B, D).
        positive: (B, D).
        negatives: (B, N, D).
        margin: tau, a distance, not squared.
    """
    margin = _checked_margin(margin)
    query, positive, negatives = as_tuples(query, positive, negatives)
    of_positive = squared_distances(query, positive)  # (B,)
    of_negatives = F.relu(margin - distances(query[:, None], negatives)).square()  # (B, N)
    return (of_positive + of_negatives.sum(dim=-1)) / 2


def n_pair(query: Tensor, positive: Tensor, negatives: Tensor) -> Tensor:
    """The positive's dot product with the query should exceed the negatives' (Sohn 2016, eq. 3).

    `log(1 + sum_n exp(q.n - q.p))`; on unit vectors this is Gaussian SARE-Joint with squared distances halved.

    Args:
        query: (B, D).
        positive: (B, D).
        negatives: (B, N, D).
    """
    query, positive, negatives = as_tuples(query, positive, negatives)
    gaps = (query[:, None] * (negatives - positive[:, None])).sum(dim=-1)  # (B, N)
    return log1p_sum_exp(gaps)


def angular(query: Tensor, positive: Tensor, negatives: Tensor, *, angle_deg: float = 45.0) -> Tensor:
    """The angle at the negative between query and positive should be small (Wang 2017, eq. 8).

    `log(1 + sum_n exp(f_n))` with `f_n = 4 tan^2(angle) (q + p).n - 2 (1 + tan^2(angle)) q.p`.

    Args:
        query: (B, D).
        positive: (B, D).
        negatives: (B, N, D).
        angle_deg: in degrees, above 0 and below 90.
    """
    if not (_is_number(angle_deg) and 0 < angle_deg < 90):
        raise ArgumentError(f"angle_deg must be between 0 and 90 degrees (the paper's is 45), found {angle_deg!r}")
    tan2 = math.tan(math.radians(angle_deg)) ** 2
    query, positive, negatives = as_tuples(query, positive, negatives)
    with_negatives = ((query + positive)[:, None] * negatives).sum(dim=-1)  # (B, N)
    with_positive = (query * positive).sum(dim=-1)[:, None]  # (B, 1)
    return log1p_sum_exp(4 * tan2 * with_negatives - 2 * (1 + tan2) * with_positive)


def lifted(query: Tensor, positive: Tensor, negatives: Tensor, *, margin: float = 1.0) -> Tensor:
    """Negatives should be beyond a margin from query and positive (lifted structure, Oh Song 2016, eq. 4, smooth).

    `max(0, J)^2 / 2` with `J = log(sum_n exp(m - d(q,n)) + sum_n exp(m - d(p,n))) + d(q,p)`. Tuples with J < 0 have
    no gradient.

    Args:
        query: (B, D).
        positive: (B, D).
        negatives: (B, N, D).
        margin: m; the paper states none; the authors' code has 1, and the first sum alone.
    """
    margin = _checked_margin(margin)
    query, positive, negatives = as_tuples(query, positive, negatives)
    anchors = torch.stack((query, positive), dim=1)[:, :, None]  # (B, 2, 1, D)
    to_negatives = distances(anchors, negatives[:, None]).flatten(1)  # (B, 2 N)
    J = (margin - to_negatives).logsumexp(dim=-1) + distances(query, positive)  # (B,)
    return F.relu(J).square() / 2


def ratio(query: Tensor, positive: Tensor, negatives: Tensor) -> Tensor:
    """The positive's share of a softmax over the two distances should be 0 (Hoffer 2015, the squared-error form).

    `sum_n 2 s_n^2` with `s_n = exp(d_p) / (exp(d_p) + exp(d_n))`.

    Args:
        query: (B, D).
        positive: (B, D).
        negatives: (B, N, D).
    """
    query, positive, negatives = as_tuples(query, positive, negatives)
    to_positive = distances(query, positive)[:, None]  # (B, 1)
    to_negatives = distances(query[:, None], negatives)  # (B, N)
    return 2 * torch.sigmoid(to_positive - to_negatives).square().sum(dim=-1)


def _checked_margin(margin: float) -> float:
    if not (_is_number(margin) and margin >= 0):
        raise ArgumentError(f"margin must be a finite number of at least 0, found {margin!r}")
    return margin


def _is_number(option: object) -> bool:
    return isinstance(option, int | float) and not isinstance(option, bool) and math.isfinite(option)
