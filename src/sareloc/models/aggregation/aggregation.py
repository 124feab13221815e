"""The base class of aggregations (feature map -> unit vector, in at least float32), and the poolings over locations:
average, maximum, generalised mean, the latter with a linear layer; the class token."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sareloc.errors import ArgumentError

MAX_COUNT = 1 << 20  # of clusters, channels, rows
MAX_DEPTH = 100  # of equal blocks

Option = int | float | bool | str


class Aggregation(nn.Module):
    """Feature maps (B, channels, h, w) -> unit vectors (B, dim); `rng`: the source of random weights, if any.

    With `needs_token`, a transformer's class token (B, channels) is a second input.
    """

    name: ClassVar[str]
    needs_token: ClassVar[bool] = False

    def __init__(self, channels: int, *, rng: torch.Generator | None = None) -> None:
        super().__init__()
        self.channels = channels

    @property
    def dim(self) -> int:
        """Length of the vector."""
        return self.channels

    def options(self) -> dict[str, Option]:
        """The arguments beside `channels` from which an equal aggregation can be made."""
        return {}

    def forward(self, features: Tensor, token: Tensor | None = None) -> Tensor:
        """Pool in full precision and scale to unit length; a token that is not needed is ignored."""
        if features.ndim != 4 or features.shape[1] != self.channels:
            raise ArgumentError(
                f"{self.name}: expected a feature map (B, {self.channels}, h, w), found {tuple(features.shape)}"
            )
        with torch.autocast(features.device.type, enabled=False):
            if not self.needs_token:
                return F.normalize(self.pool(_full(features)), dim=1)
            if token is None or token.shape != features.shape[:2]:
                found = "none" if token is None else str(tuple(token.shape))
                raise ArgumentError(
                    f"{self.name}: expected class tokens ({len(features)}, {self.channels}), found {found}"
                )
            return F.normalize(self.pool_with_token(_full(features), _full(token)), dim=1)

    def pool(self, features: Tensor) -> Tensor:
        """(B, channels, h, w) -> (B, dim), not normalized."""
        raise NotImplementedError

    def pool_with_token(self, features: Tensor, token: Tensor) -> Tensor:
        """(B, channels, h, w) and (B, channels) -> (B, dim), not normalized; if `needs_token`."""
        raise NotImplementedError


def _full(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def check_counts(name: str, **counts: object) -> None:
    """Raises ArgumentError if one of these options is not an integer from 1 to `MAX_COUNT`, `depth` to `MAX_DEPTH`."""
    for option, value in counts.items():
        most = MAX_DEPTH if option == "depth" else MAX_COUNT
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise ArgumentError(f"{option} of {name} must be an integer from 1 to {most:,}, found {value!r}")


def draw_weights(module: nn.Module, rng: torch.Generator | None) -> None:
    """torch's default initialization of linear layers and convolutions, from this generator; "meta" is skipped."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d) and not layer.weight.is_meta:
            nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=rng)
            if layer.bias is not None:
                bound = 1 / math.sqrt(layer.weight[0].numel())
                nn.init.uniform_(layer.bias, -bound, bound, generator=rng)


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
