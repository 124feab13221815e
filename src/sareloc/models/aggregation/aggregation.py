"""The base class of aggregations: feature map -> unit vector, in at least float32."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sareloc.errors import ArgumentError

Option = int | float | bool | str


class Aggregation(nn.Module):
    """Feature maps (B, channels, h, w) -> unit vectors (B, dim); `rng`: the source of random weights, if any."""

    name: ClassVar[str]

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

    def forward(self, features: Tensor) -> Tensor:
        """Pool in full precision and scale to unit length."""
        if features.ndim != 4 or features.shape[1] != self.channels:
            raise ArgumentError(
                f"{self.name}: expected a feature map (B, {self.channels}, h, w), found {tuple(features.shape)}"
            )
        with torch.autocast(features.device.type, enabled=False):
            full = features.float() if features.dtype in (torch.float16, torch.bfloat16) else features
            return F.normalize(self.pool(full), dim=1)

    def pool(self, features: Tensor) -> Tensor:
        """(B, channels, h, w) -> (B, dim), not normalized."""
        raise NotImplementedError
