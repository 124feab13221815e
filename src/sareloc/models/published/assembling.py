"""From the arrays of a published NetVLAD network to a PlaceModel that computes the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from sareloc.errors import WeightsError
from sareloc.models.aggregation import NetVLAD, Norm
from sareloc.models.backbones import make_backbone
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import Preprocess
from sareloc.models.published.reading import load_strictly
from sareloc.models.whitening import Whitening

ROUNDS = 100
RELATIVE_ERROR = 1e-7
ROWS_IN_DOUBLE = 256  # at a time: 4096 x 32768 doubles never exist at once


def assemble(
    name: str,
    preprocess: Preprocess,
    backbone: str,
    convolutions: Mapping[str, Tensor],
    vlad: Mapping[str, Tensor],
    whitening: Whitening | None,
    source: str | Path,
    *,
    norm: Norm,
    cut: str | None = None,
) -> PlaceModel:
    """A model in evaluation mode from its arrays; `norm` is how the original's NetVLAD scales to unit length.

    convolutions: the backbone's tensors by their own names. vlad: `assign` (K, D), `centres` (K, D) and, where the
    network has one, `bias` (K,).
    """
    base = make_backbone(backbone, cut=cut)
    load_strictly(base, convolutions, source)
    if vlad["assign"].ndim != 2 or vlad["assign"].shape[1] != base.channels or not len(vlad["assign"]):
        raise WeightsError(
            f"{source}: NetVLAD's weight for the assignment must be (K, {base.channels}), "
            f"found {tuple(vlad['assign'].shape)}"
        )
    layer = NetVLAD(base.channels, clusters=len(vlad["assign"]), bias="bias" in vlad, norm=norm)
    load_strictly(layer, vlad, source)
    if whitening is not None and len(whitening.mean) != layer.dim:
        raise WeightsError(f"{source}: the whitening is for {len(whitening.mean)} dimensions, NetVLAD has {layer.dim}")
    return PlaceModel(preprocess, base, layer, whitening, name=name).eval()


def whitening_of_layer(weight: Tensor, bias: Tensor, source: str | Path) -> Whitening:
    """The whitening `L2(projection (x - mean))` that equals a stored layer `L2(weight x + bias)`.

    weight: (dim, D). Its mean is the shortest m with `weight m = -bias`, by conjugate gradients on `W W^T` after
    scaling W's rows to unit length: a PCA's rows are orthogonal, so that one round is enough.
    """
    if not (weight.numel() and weight.isfinite().all() and bias.isfinite().all()):
        raise WeightsError(f"{source}: weight and bias of the whitening must be finite numbers")
    if bias.shape != weight.shape[:1]:
        raise WeightsError(f"{source}: the whitening has {len(weight)} rows but a bias of shape {tuple(bias.shape)}")
    lengths = torch.linalg.vector_norm(weight, dim=1).double().clamp(min=1e-30)
    parts = [slice(i, i + ROWS_IN_DOUBLE) for i in range(0, len(weight), ROWS_IN_DOUBLE)]

    def project(point: Tensor) -> Tensor:  # (D,) -> (dim,)
        projected: Tensor = torch.cat([weight[p].double() @ point for p in parts]) / lengths
        return projected

    def spread(values: Tensor) -> Tensor:  # (dim,) -> (D,)
        return torch.stack([(values / lengths)[p] @ weight[p].double() for p in parts]).sum(dim=0)

    target = -bias.double() / lengths
    mean = torch.zeros(weight.shape[1], dtype=torch.float64)
    left, direction = target, target
    for _ in range(ROUNDS):
        if left.norm() <= RELATIVE_ERROR * target.norm():
            return Whitening(mean.float(), weight)
        change = spread(direction)
        mean += left.dot(left) / change.dot(change) * change
        before, left = left, target - project(mean)
        direction = left + left.dot(left) / before.dot(before) * direction
    raise WeightsError(f"{source}: the whitening's rows depend on each other, so that no mean gives its bias")
