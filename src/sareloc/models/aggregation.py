"""Aggregations: feature map -> descriptor. NetVLAD, CRN, VLAD, GeM, CosPlace's head, average, maximum, the class token.

Every aggregation maps (B, C, h, w), for any h and w unless it says otherwise, to unit rows (B, dim). All of them
compute in at least float32, independent of the backbone's precision: bfloat16 is too coarse for a softmax as sharp as
NetVLAD's. `AGGREGATIONS` is the table of names; the larger heads (SALAD, MegaLoc, BoQ, MixVPR) are in `heads`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sareloc.errors import ArgumentError, look_up

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
        return {name: getattr(self, name) for name in option_names(type(self))}

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


def option_names(kind: Callable[..., Aggregation]) -> list[str]:
    """The arguments of an aggregation's class beside `channels` and `rng`; an instance has them under these names."""
    return [name for name in inspect.signature(kind).parameters if name not in ("channels", "rng")]


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
    """Generalised mean (Radenovic et al.): `mean(x^p)^(1/p)` over locations, x clamped at 1e-6.

    Args:
        channels: channels of the feature map.
        p: initial value of the exponent, which is trained.
        rng: not used, as there are no random weights.
    """

    name = "gem"

    def __init__(self, channels: int, p: float = 3.0, *, rng: torch.Generator | None = None) -> None:
        super().__init__(channels)
        if not isinstance(p, int | float) or isinstance(p, bool) or not 0 < p <= MAX_POWER:
            raise ArgumentError(f"p of gem must be a number above 0 and up to {MAX_POWER:,}, found {p!r}")
        self.p = nn.Parameter(torch.tensor([float(p)]))

    def options(self) -> dict[str, Option]:
        """None: the exponent is a weight."""
        return {}

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
        self.out_dim = out_dim
        self.gem = GeM(channels)
        self.linear = nn.Linear(channels, out_dim)
        draw_weights(self.linear, rng)

    @property
    def dim(self) -> int:
        """Length of the vector."""
        return self.out_dim

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

    `assign` (K, D) and `centres` (K, D) are separate parameters. The sum is computed as
    `A X^T - diag(sum_s A) centres`: the residual tensor, B x K x D x h w numbers, is never allocated, nor is a
    normalized copy of the feature map.

    Args:
        channels: channels of the feature map, D.
        clusters: number of clusters, K.
        bias: add `bias` (K,) to the assignment, as some published weights do; it is None otherwise.
        norm: how locations and clusters are normalized (see `Norm`).
        rng: the source of random weights; default: torch's generator.
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
        self._add_layers(rng)

    def _add_layers(self, rng: torch.Generator | None) -> None:
        """Those of a subclass."""

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

    def _add_layers(self, rng: torch.Generator | None) -> None:
        convolutions = [
            nn.Conv2d(self.channels, filters, size, padding=size // 2) for filters, size in ((32, 3), (32, 5), (20, 7))
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

    def pool(self, features: Tensor) -> Tensor:
        """(B, D, h, w) -> (B, K D), every cluster's part scaled to unit length."""
        x = F.normalize(features.flatten(2), dim=1)  # (B, D, S)
        nearest = (F.normalize(self.centres, dim=1) @ x).argmax(dim=1)  # (B, S)
        assigned = F.one_hot(nearest, self.clusters).to(x).mT  # (B, K, S)
        vlad = assigned @ x.mT - assigned.sum(dim=2, keepdim=True) * self.centres  # (B, K, D)
        return F.normalize(vlad, dim=2).flatten(1)


OWN = (NetVLAD, CRN, VLAD, GeM, CosPlace, Average, Maximum, ClassToken)
AGGREGATIONS: dict[str, Callable[..., Aggregation] | str] = {
    **{kind.name: kind for kind in OWN},
    "salad": "SALAD",
    "megaloc": "MegaLoc",
    "mixvpr": "MixVPR",
    "boq": "BoQ",
}
"""The classes by the names of aggregations; by their names those of `heads`, which is imported for them."""


def make_aggregation(
    name: str,
    channels: int,
    options: Mapping[str, Option] = MappingProxyType({}),
    *,
    rng: torch.Generator | None = None,
) -> Aggregation:
    """The aggregation of this name, with random weights.

    Args:
        name: one of `AGGREGATIONS`.
        channels: of the feature maps.
        options: arguments of its class, such as `clusters` (netvlad, crn, vlad, salad) or `out_dim` (cosplace,
            megaloc).
        rng: the source of random weights; default: torch's generator.

    Raises:
        ArgumentError: if the name or an option is unknown; it lists the known ones.
    """
    kind = look_up(AGGREGATIONS, name, "aggregation")
    if isinstance(kind, str):
        kind = getattr(import_module("sareloc.models.heads"), kind)
    known = option_names(kind)
    for option in options:
        if option not in known:
            raise ArgumentError(f"{name} has no option {option!r}: known are {', '.join(known) or 'none'}")
    return kind(channels, **options, rng=rng)
