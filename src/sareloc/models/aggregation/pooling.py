"""Pooling over locations: average, maximum, generalised mean, the latter with a linear layer; the class token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sareloc.errors import ArgumentError
from sareloc.models.aggregation.aggregation import Aggregation, Option, check_counts, draw_weights

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


class CosPlace(Aggregation):
    """GeM and a linear layer, as in CosPlace and EigenPlaces (Berton et al.).

    With every location's vector scaled to unit length, `L2(W gem(x) + b)`; `p` is trained. `out_dim`: the rows of W.
    """

    name = "cosplace"

    def __init__(self, channels: int, out_dim: int = 512, *, rng: torch.Generator | None = None) -> None:
        super().__init__(channels)
        check_counts(self.name, out_dim=out_dim)
        self.gem = GeM(channels)
        self.linear = nn.Linear(channels, out_dim)
        draw_weights(self.linear, rng)

    @property
    def dim(self) -> int:
        """Length of the vector."""
        return self.linear.out_features

    def options(self) -> dict[str, Option]:
        """The length of the vector."""
        return {"out_dim": self.dim}

    def pool(self, features: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, out_dim)."""
        pooled: Tensor = self.linear(self.gem.pool(F.normalize(features, dim=1)))
        return pooled


class ClassToken(Aggregation):
    """The class token of a transformer."""

    name = "cls"
    needs_token = True

    def pool_with_token(self, features: Tensor, token: Tensor) -> Tensor:
        """(B, C, h, w) and (B, C) -> (B, C)."""
        return token
