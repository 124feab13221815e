"""Heads of published networks: SALAD (optimal transport to clusters), MegaLoc (SALAD and a linear layer), BoQ (learned
queries attend to the locations), MixVPR (linear layers mix the locations of every channel)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sareloc.errors import ArgumentError
from sareloc.models.aggregation import Aggregation, check_counts, draw_weights

ROUNDS = 3  # of Sinkhorn's algorithm


def assign(scores: Tensor, dustbin: Tensor) -> Tensor:
    """Optimal transport of locations to clusters: scores (B, K, S), S > K, -> log of the assignment (B, K, S).

    A further row, the dustbin, has one score for all locations. Sinkhorn's algorithm in log space, `ROUNDS` times rows
    then columns: a location has the mass 1, a cluster receives 1, the dustbin S - K.
    """
    clusters, locations = scores.shape[1:]
    scores = torch.cat([scores, dustbin.expand(len(scores), 1, locations)], dim=1)  # (B, K + 1, S)
    received = scores.new_zeros(clusters + 1)
    received[-1] = math.log(locations - clusters)
    columns = scores.new_zeros(len(scores), locations)
    for _ in range(ROUNDS):
        rows = received - torch.logsumexp(scores + columns[:, None], dim=2)
        columns = -torch.logsumexp(scores + rows[:, :, None], dim=1)
    return (scores + rows[:, :, None] + columns[:, None])[:, :-1]


class SALAD(Aggregation):
    """SALAD (Izquierdo and Civera): NetVLAD with optimal transport, without centres, and with a token branch.

    Three small networks: `cluster_features` reduces every location to f_s (`cluster_dim`), `score` gives its scores,
    `token_features` reduces the class token (`token_dim`). With the assignment P = exp(assign(scores)), the vector is

        L2(token), then L2 over l of V_lk = sum_s f_ls P_ks, joined and L2     (l slowest, as in the authors' network)

    Args:
        channels: channels of the feature map.
        clusters: number of clusters, K.
        cluster_dim: dimension of f_s.
        token_dim: dimension of the reduced class token.
        hidden: the width inside the three networks.
        dropout: dropout rate of the first two, in training.
        rng: the source of random weights; default: torch's generator.
    """

    name = "salad"
    needs_token = True

    def __init__(
        self,
        channels: int,
        clusters: int = 64,
        cluster_dim: int = 128,
        token_dim: int = 256,
        hidden: int = 512,
        dropout: float = 0.3,
        *,
        rng: torch.Generator | None = None,
    ) -> None:
        super().__init__(channels)
        check_counts(self.name, clusters=clusters, cluster_dim=cluster_dim, token_dim=token_dim, hidden=hidden)
        if not isinstance(dropout, int | float) or isinstance(dropout, bool) or not 0 <= dropout < 1:
            raise ArgumentError(f"dropout of {self.name} must be a number from 0 to below 1, found {dropout!r}")
        self.clusters, self.cluster_dim, self.token_dim = clusters, cluster_dim, token_dim
        self.hidden, self.dropout = hidden, dropout
        self.token_features = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, token_dim))
        self.cluster_features, self.score = (
            nn.Sequential(nn.Conv2d(channels, hidden, 1), nn.Dropout(dropout), nn.ReLU(), nn.Conv2d(hidden, width, 1))
            for width in (cluster_dim, clusters)
        )
        self.dust_bin = nn.Parameter(torch.ones(()))
        draw_weights(self, rng)

    @property
    def dim(self) -> int:
        """Length of the vector."""
        return self.token_dim + self.clusters * self.cluster_dim

    def pool_with_token(self, features: Tensor, token: Tensor) -> Tensor:
        """(B, C, h, w) with more locations than clusters, and (B, C) -> (B, token_dim + cluster_dim K)."""
        locations = features.shape[2] * features.shape[3]
        if locations <= self.clusters:
            raise ArgumentError(
                f"{self.name} with {self.clusters} clusters needs more locations than these, found a feature map of "
                f"{features.shape[2]} x {features.shape[3]} = {locations}: use larger images or fewer clusters"
            )
        local = self.cluster_features(features).flatten(2)  # (B, l, S)
        assigned = assign(self.score(features).flatten(2), self.dust_bin).exp()  # (B, K, S)
        clusters = F.normalize(local @ assigned.mT, dim=1)  # (B, l, K)
        return torch.cat([F.normalize(self.token_features(token), dim=1), clusters.flatten(1)], dim=1)


class MegaLoc(SALAD):
    """MegaLoc's head (Berton and Masone): SALAD, scaled to unit length, and a linear layer to `out_dim`."""

    name = "megaloc"

    def __init__(
        self,
        channels: int,
        clusters: int = 64,
        cluster_dim: int = 256,
        token_dim: int = 256,
        hidden: int = 512,
        dropout: float = 0.3,
        out_dim: int = 8448,
        *,
        rng: torch.Generator | None = None,
    ) -> None:
        super().__init__(channels, clusters, cluster_dim, token_dim, hidden, dropout, rng=rng)
        check_counts(self.name, out_dim=out_dim)
        self.out_dim = out_dim
        self.linear = nn.Linear(super().dim, out_dim)
        draw_weights(self.linear, rng)

    @property
    def dim(self) -> int:
        """Length of the vector."""
        return self.out_dim

    def pool_with_token(self, features: Tensor, token: Tensor) -> Tensor:
        """(B, C, h, w) with more locations than clusters, and (B, C) -> (B, out_dim)."""
        pooled: Tensor = self.linear(F.normalize(super().pool_with_token(features, token), dim=1))
        return pooled


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
