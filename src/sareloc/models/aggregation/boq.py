"""BoQ: learned queries attend to the locations of the feature map."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sareloc.errors import ArgumentError
from sareloc.models.aggregation.aggregation import Aggregation, Option, check_counts, draw_weights

HEAD_DIM = 64  # channels of an attention head


class BoQ(Aggregation):
    """Bag of queries (Ali-bey et al.).

    A 3x3 convolution reduces the map to `width` channels; the locations, normalized, pass through `depth` blocks. Each
    has an encoder layer, whose output is the next block's input, and `queries` learned queries, which attend to each
    other and then to the locations. The results of all blocks are projected to `rows` per channel. `heads`: of every
    attention; 0: one for 64 channels.
    """

    name = "boq"

    def __init__(
        self,
        channels: int,
        width: int = 384,
        queries: int = 64,
        depth: int = 2,
        rows: int = 32,
        heads: int = 0,
        *,
        rng: torch.Generator | None = None,
    ) -> None:
        super().__init__(channels)
        check_counts(self.name, width=width, queries=queries, depth=depth, rows=rows)
        heads = heads or max(1, width // HEAD_DIM)
        check_counts(self.name, heads=heads)
        if width % heads:
            raise ArgumentError(f"width of boq must be a multiple of its {heads} heads, found {width}")
        self.width, self.queries, self.depth, self.rows, self.heads = width, queries, depth, rows, heads
        self.proj_c = nn.Conv2d(channels, width, 3, padding=1)
        self.norm_input = nn.LayerNorm(width)
        self.boqs = nn.ModuleList(_QueryBlock(width, queries, heads) for _ in range(depth))
        self.fc = nn.Linear(depth * queries, rows)
        draw_weights(self, rng)
        for module in self.modules():
            if isinstance(module, _QueryBlock | _Attention):
                module.init_weights(rng)

    @property
    def dim(self) -> int:
        """Length of the vector."""
        return self.width * self.rows

    def options(self) -> dict[str, Option]:
        """The sizes."""
        return {name: getattr(self, name) for name in ("width", "queries", "depth", "rows", "heads")}

    def pool(self, features: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, width rows)."""
        local = self.norm_input(self.proj_c(features).flatten(2).mT)  # (B, S, width)
        answers = []
        for block in self.boqs:
            local, answer = block(local)
            answers.append(answer)
        projected: Tensor = self.fc(torch.cat(answers, dim=1).mT)  # (B, width, rows)
        return projected.flatten(1)


class _QueryBlock(nn.Module):
    """Locations (B, S, D) -> the encoded locations (B, S, D), and what the queries found in them (B, queries, D)."""

    def __init__(self, width: int, queries: int, heads: int) -> None:
        super().__init__()
        self.encoder = _EncoderLayer(width, heads)
        self.queries = nn.Parameter(torch.empty(1, queries, width))
        self.self_attn, self.cross_attn = _Attention(width, heads), _Attention(width, heads)
        self.norm_q, self.norm_out = nn.LayerNorm(width), nn.LayerNorm(width)

    def init_weights(self, rng: torch.Generator | None) -> None:
        if not self.queries.is_meta:
            nn.init.normal_(self.queries, generator=rng)

    def forward(self, local: Tensor) -> tuple[Tensor, Tensor]:
        local = self.encoder(local)
        # the queries do not depend on the image
        queries = self.norm_q(self.queries + self.self_attn(self.queries, self.queries))
        return local, self.norm_out(self.cross_attn(queries.expand(len(local), -1, -1), local))


class _EncoderLayer(nn.Module):
    """A transformer's encoder layer, normalized after each addition; the names are those of torch's module."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.self_attn = _Attention(width, heads)
        self.linear1, self.linear2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.self_attn(x, x))
        out: Tensor = self.norm2(x + self.linear2(F.relu(self.linear1(x))))
        return out


class _Attention(nn.Module):
    """Queries (B, Q, D) attend to x (B, S, D) with several heads; the names are those of torch's module."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)

    def init_weights(self, rng: torch.Generator | None) -> None:
        if not self.in_proj_weight.is_meta:
            nn.init.xavier_uniform_(self.in_proj_weight, generator=rng)
            nn.init.zeros_(self.out_proj.bias)

    def forward(self, queries: Tensor, x: Tensor) -> Tensor:
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        q, k, v = (
            F.linear(given, weight, bias).reshape(*given.shape[:2], self.heads, -1).transpose(1, 2)  # (B, heads, n, d)
            for given, weight, bias in zip((queries, x, x), weights, biases, strict=True)
        )
        found: Tensor = self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return found
