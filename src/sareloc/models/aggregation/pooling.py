"""Pooling over locations: average, maximum, generalised mean."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sareloc.errors import ArgumentError
from sareloc.models.aggregation.aggregation import Aggregation

MAX_POWER = 1e6


class Average(Aggregation):
    """Mean over all locations."""

    name = "avg"

    def pool(self, features: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C)."""
        return features.mean(dim=(2, 3))


class Maximum(Aggregation):
    """Maximum over all locations."""

    name = "max"

    def pool(self, features: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C)."""
        return features.amax(dim=(2, 3))


class GeM(Aggregation):
    """Generalised mean (Radenovic et al.): `mean(x^p)^(1/p)` over locations, x clamped at 1e-6; `p` is trained."""

    name = "gem"

    def __init__(self, channels: int, p: float = 3.0, *, rng: torch.Generator | None = None) -> None:
        super().__init__(channels)
        if not isinstance(p, int | float) or isinstance(p, bool) or not 0 < p <= MAX_POWER:
            raise ArgumentError(f"p of gem must be a number above 0 and up to {MAX_POWER:,}, found {p!r}")
        self.p = nn.Parameter(torch.tensor([float(p)]))

    def pool(self, features: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C)."""
        return features.clamp(min=1e-6).pow(self.p).mean(dim=(2, 3)).pow(1 / self.p)
