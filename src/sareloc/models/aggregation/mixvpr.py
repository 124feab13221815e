"""MixVPR: the locations of every channel are mixed by linear layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sareloc.errors import ArgumentError
from sareloc.models.aggregation.aggregation import Aggregation, Option, check_counts, draw_weights


class MixVPR(Aggregation):
    """MixVPR (Ali-bey et al.), for feature maps of one size, `height` x `width`.

    With X (C, S) the locations of each channel, `depth` times `X += relu(norm(X) W1) W2`; then channels are projected
    to `out_channels` and locations to `rows`, and the result, channel by channel, is the vector. `mlp_ratio`: the width
    inside the mixers relative to S. `row_bias`: whether the projection of locations has a bias, as in the published
    files.
    """

    name = "mixvpr"

    def __init__(
        self,
        channels: int,
        height: int = 20,
        width: int = 20,
        out_channels: int = 1024,
        depth: int = 4,
        mlp_ratio: int = 1,
        rows: int = 4,
        row_bias: bool = True,
        *,
        rng: torch.Generator | None = None,
    ) -> None:
        super().__init__(channels)
        check_counts(
            self.name,
            height=height,
            width=width,
            out_channels=out_channels,
            depth=depth,
            mlp_ratio=mlp_ratio,
            rows=rows,
        )
        if not isinstance(row_bias, bool):
            raise ArgumentError(f"row_bias of mixvpr must be true or false, found {row_bias!r}")
        self.height, self.width, self.out_channels = height, width, out_channels
        self.depth, self.mlp_ratio, self.rows, self.row_bias = depth, mlp_ratio, rows, row_bias
        locations = height * width
        check_counts(self.name, locations=locations, width_of_mixers=locations * mlp_ratio)
        self.mix = nn.Sequential(*(_Mixer(locations, mlp_ratio) for _ in range(depth)))
        self.channel_proj = nn.Linear(channels, out_channels)
        self.row_proj = nn.Linear(locations, rows, bias=row_bias)
        draw_weights(self, rng)

    @property
    def dim(self) -> int:
        """Length of the vector."""
        return self.out_channels * self.rows

    def options(self) -> dict[str, Option]:
        """The sizes, and whether rows have a bias."""
        names = ("height", "width", "out_channels", "depth", "mlp_ratio", "rows", "row_bias")
        return {name: getattr(self, name) for name in names}

    def pool(self, features: Tensor) -> Tensor:
        """(B, C, height, width) -> (B, out_channels rows)."""
        if features.shape[2:] != (self.height, self.width):
            raise ArgumentError(
                f"mixvpr is for feature maps of {self.height} x {self.width} locations, found {features.shape[2]} x "
                f"{features.shape[3]}: resize images to the model's size, or make it for another (height, width)"
            )
        mixed = self.mix(features.flatten(2))  # (B, C, S)
        projected: Tensor = self.row_proj(self.channel_proj(mixed.mT).mT)  # (B, out_channels, rows)
        return projected.flatten(1)


class _Mixer(nn.Module):
    """x + W2 relu(W1 norm(x)) along the last dimension."""

    def __init__(self, locations: int, ratio: int) -> None:
        super().__init__()
        inner = locations * ratio
        self.mix = nn.Sequential(
            nn.LayerNorm(locations), nn.Linear(locations, inner), nn.ReLU(), nn.Linear(inner, locations)
        )

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = x + self.mix(x)
        return mixed
