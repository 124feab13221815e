"""NetVLAD, NetVLAD with contextual reweighting (CRN), and VLAD with hard assignment."""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sareloc.errors import ArgumentError
from sareloc.models.aggregation.aggregation import Aggregation, Option, check_counts

NORM_EPS = 1e-12
RANDOM_SHARPNESS = 100.0  # of the assignment until `init_netvlad` sets it from data

Norm = Literal["smoothed", "clamped"]
"""How NetVLAD scales vectors to unit length: "smoothed", v / sqrt(|v|^2 + 1e-12), as NetVLAD's MatConvNet release, or
"clamped", v / max(|v|, 1e-12), as torch's `normalize` and the networks published for PyTorch. They differ where |v| is
below about 1e-4: clusters with almost no assigned weight stay short, or are scaled to unit length."""


class NetVLAD(Aggregation):
    """NetVLAD (Arandjelovic et al.): residuals to K centres, softly assigned, summed over locations.

    With every location's vector x_s scaled to unit length, the assignment `a_ks = softmax_k(assign_k . x_s)` and

        V_k = sum_s a_ks (x_s - centres_k)     then L2 per cluster, then L2 of all clusters joined, cluster by cluster.

    `norm`: how locations and clusters are normalized (see `Norm`; default: "smoothed"). `assign` (K, D) and `centres`
    (K, D) are separate parameters; `bias` (K,) exists only in some published weights and is None otherwise. The sum is
    computed as `A X^T - diag(sum_s A) centres`: the residual tensor, B x K x D x h w numbers, is never allocated, nor
    is a normalized copy of the feature map.
    """

    name = "netvlad"

    def __init__(
        self,
        channels: int,
        clusters: int = 64,
        bias: bool = False,
        norm: Norm = "smoothed",
        *,
        rng: torch.Generator | None = None,
    ) -> None:
        super().__init__(channels)
        check_counts(self.name, clusters=clusters)
        if not isinstance(bias, bool):
            raise ArgumentError(f"bias of {self.name} must be true or false, found {bias!r}")
        if norm not in get_args(Norm):
            raise ArgumentError(f"unknown norm {norm!r} of {self.name}: known are {', '.join(get_args(Norm))}")
        self.clusters = clusters
        self.norm = norm
        self.assign = nn.Parameter(torch.empty(clusters, channels))
        self.bias = nn.Parameter(torch.zeros(clusters)) if bias else None
        self.centres = nn.Parameter(torch.empty(clusters, channels))
        if not self.centres.is_meta:  # meta tensors have no values: see `init_weights`
            with torch.no_grad():
                self.centres.copy_(F.normalize(torch.randn(clusters, channels, generator=rng), dim=1))
                self.assign.copy_(RANDOM_SHARPNESS * self.centres)

    @property
    def dim(self) -> int:
        """Length of the vector: K x D."""
        return self.clusters * self.channels

    def options(self) -> dict[str, Option]:
        """The number of clusters, whether the assignment has a bias, and the norm if it is not the default.

        The default norm is left out: models saved before the option existed have fingerprints without it.
        """
        norm: dict[str, Option] = {} if self.norm == "smoothed" else {"norm": self.norm}
        return {"clusters": self.clusters, "bias": self.bias is not None, **norm}

    def unit_scale(self, squared: Tensor) -> Tensor:
        """The factors that scale vectors of these squared lengths to unit length, according to `norm`."""
        if self.norm == "clamped":
            return squared.clamp(min=NORM_EPS**2).rsqrt()  # before the root, whose gradient at 0 is infinite
        return squared.add(NORM_EPS).rsqrt()

    def location_weights(self, features: Tensor) -> Tensor | None:
        """Weights that multiply the assignment of every location, (B, 1, S); None: no reweighting."""
        return None

    def pool(self, features: Tensor) -> Tensor:
        """(B, D, h, w) -> (B, K D), every cluster's part scaled to unit length."""
        x = features.flatten(2)  # (B, D, S)
        # x / |x| is never stored: both products below are linear in x, so the scale is applied to the (K, S) side
        scale = self.unit_scale(torch.linalg.vector_norm(x, dim=1, keepdim=True).square())  # (B, 1, S)
        # the (K, D) matrix is expanded over the batch: a plain product would copy the feature map to merge the batch
        logits = (self.assign.expand(x.shape[0], -1, -1) @ x) * scale  # (B, K, S)
        if self.bias is not None:
            logits = logits + self.bias[:, None]
        assigned = logits.softmax(dim=1)
        weight = self.location_weights(features)
        if weight is not None:
            assigned = assigned * weight
        vlad: Tensor = (assigned * scale) @ x.mT - assigned.sum(dim=2, keepdim=True) * self.centres  # (B, K, D)
        vlad = vlad * self.unit_scale(vlad.square().sum(dim=2, keepdim=True))
        return vlad.flatten(1)


class CRN(NetVLAD):
    """NetVLAD with contextual reweighting (Kim et al.): a small network predicts a weight for each location.

    The feature map, not normalised, is halved by a 3x3 mean; 32 filters of 3x3, 32 of 5x5 and 20 of 7x7, ReLU, are
    summed with one trained bias (a 1x1 convolution whose weights are fixed at 1), ReLU; the result, brought back to
    the map's own size by bilinear interpolation, multiplies the assignment of every cluster. Train `netvlad` first and
    start from its weights. If all weights are 0 the vector is 0.
    """

    name = "crn"

    def __init__(
        self,
        channels: int,
        clusters: int = 64,
        bias: bool = False,
        norm: Norm = "smoothed",
        *,
        rng: torch.Generator | None = None,
    ) -> None:
        super().__init__(channels, clusters, bias, norm, rng=rng)
        convolutions = [
            nn.Conv2d(channels, filters, size, padding=size // 2) for filters, size in ((32, 3), (32, 5), (20, 7))
        ]
        for conv in convolutions:
            assert conv.bias is not None
            # the authors' initialization, Caffe's "xavier": variance 1 / fan-in
            nn.init.kaiming_uniform_(conv.weight, nonlinearity="linear", generator=rng)
            nn.init.zeros_(conv.bias)
        self.context = nn.ModuleList(convolutions)
        self.context_bias = nn.Parameter(torch.zeros(1))

    def location_weights(self, features: Tensor) -> Tensor:
        """(B, D, h, w) -> (B, 1, S), non-negative."""
        h, w = features.shape[2:]
        # ceil_mode: an even map is halved exactly, as in the authors' release
        halved = F.avg_pool2d(features, (min(3, h), min(3, w)), stride=2, ceil_mode=True)
        evidence = torch.cat([F.relu(conv(halved)) for conv in self.context], dim=1)  # (B, 84, h/2, w/2)
        mask = F.relu(evidence.sum(dim=1, keepdim=True) + self.context_bias)
        return F.interpolate(mask, size=(h, w), mode="bilinear", align_corners=False).flatten(2)


class VLAD(Aggregation):
    """VLAD with hard assignment (Jegou et al.; over DINOv2: AnyLoc, Keetha et al.).

    With every location's vector x_s scaled to unit length and assigned to the centre of largest cosine similarity,

        V_k = sum of x_s - centres_k over the locations of k     then L2 per cluster, then L2 of all clusters joined.

    A centre without locations contributes zeros; of equally similar centres the first is chosen.
    """

    name = "vlad"

    def __init__(self, channels: int, clusters: int = 32, *, rng: torch.Generator | None = None) -> None:
        super().__init__(channels)
        check_counts(self.name, clusters=clusters)
        self.clusters = clusters
        self.centres = nn.Parameter(torch.empty(clusters, channels))
        if not self.centres.is_meta:
            with torch.no_grad():
                self.centres.copy_(F.normalize(torch.randn(clusters, channels, generator=rng), dim=1))

    @property
    def dim(self) -> int:
        """Length of the vector: K x D."""
        return self.clusters * self.channels

    def options(self) -> dict[str, Option]:
        """The number of clusters."""
        return {"clusters": self.clusters}

    def pool(self, features: Tensor) -> Tensor:
        """(B, D, h, w) -> (B, K D), every cluster's part scaled to unit length."""
        x = F.normalize(features.flatten(2), dim=1)  # (B, D, S)
        nearest = (F.normalize(self.centres, dim=1) @ x).argmax(dim=1)  # (B, S)
        assigned = F.one_hot(nearest, self.clusters).to(x).mT  # (B, K, S)
        vlad = assigned @ x.mT - assigned.sum(dim=2, keepdim=True) * self.centres  # (B, K, D)
        return F.normalize(vlad, dim=2).flatten(1)
