"""SALAD: locations are assigned to clusters by optimal transport; and MegaLoc's head, SALAD and a linear layer."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sareloc.errors import ArgumentError
from sareloc.models.aggregation.aggregation import Aggregation, Option, check_counts, draw_weights

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

    `hidden`: the width inside the three; `dropout`: of the first two, in training.
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

    def options(self) -> dict[str, Option]:
        """The sizes, and the dropout."""
        names = ("clusters", "cluster_dim", "token_dim", "hidden", "dropout")
        return {name: getattr(self, name) for name in names}

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
        self.linear = nn.Linear(super().dim, out_dim)
        draw_weights(self.linear, rng)

    @property
    def dim(self) -> int:
        """Length of the vector."""
        return self.linear.out_features

    def options(self) -> dict[str, Option]:
        """The sizes, and the dropout."""
        return {**super().options(), "out_dim": self.dim}

    def pool_with_token(self, features: Tensor, token: Tensor) -> Tensor:
        """(B, C, h, w) with more locations than clusters, and (B, C) -> (B, out_dim)."""
        pooled: Tensor = self.linear(F.normalize(super().pool_with_token(features, token), dim=1))
        return pooled
