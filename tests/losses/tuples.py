"""Tuples of descriptors for the tests of the losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sareloc.losses import LOG_AFFINITY, LOSSES

CASES = [
    *((name, {"kernel": kernel}) for name in ("sare-ind", "sare-joint") for kernel in LOG_AFFINITY),
    *((name, {"kernel": kernel, "width": 0.4}) for name in ("sare-ind", "sare-joint") for kernel in LOG_AFFINITY),
    *((name, {}) for name in LOSSES if not name.startswith("sare")),
    ("triplet", {"margin": 0.5}),
    ("contrastive", {"margin": 1.2}),
    ("lifted", {"margin": 0.2}),
    ("angular", {"angle_deg": 30.0}),
]
"""Every loss with every kernel, with its own options and with others."""
IDS = [" ".join([name, *map(str, options.values())]) for name, options in CASES]


def random_tuples(
    seed: int,
    *,
    batch: int = 4,
    negatives: int = 10,
    dim: int = 8,
    unit: bool = True,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, positive, negatives, the positive nearer than chance; norms are 1 or, if not `unit`, around 1."""
    rng = torch.Generator().manual_seed(seed)
    query = torch.randn(batch, dim, generator=rng, dtype=torch.float64)
    positive = query + 0.5 * torch.randn(batch, dim, generator=rng, dtype=torch.float64)
    far = torch.randn(batch, negatives, dim, generator=rng, dtype=torch.float64)
    all_three = (F.normalize(x, dim=-1) if unit else x / dim**0.5 for x in (query, positive, far))
    query, positive, far = (x.to(dtype) for x in all_three)
    return query, positive, far


def gradients(losses: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    """The gradient of the sum of these losses with respect to each leaf."""
    return torch.autograd.grad(losses.sum(), leaves)
