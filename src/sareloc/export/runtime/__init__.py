"""Other ways to compute a model's descriptors, faster on a CPU: 8-bit integers, OpenVINO. Same model, same maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from sareloc.errors import ArgumentError, look_up
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import Image

# A model whose descriptors come from elsewhere than its own layers.

Compute = Callable[[Tensor], Tensor]
"""uint8 images (B, 3, H, W) on the CPU -> float32 descriptors (B, model.dim), unit rows."""


class RuntimeModel(PlaceModel):
    """A model that shares all its parts with another, and so its fingerprint and feature maps, but not `encode`."""

    def __init__(self, model: PlaceModel, runtime: str, compute: Compute) -> None:
        super().__init__(model.preprocess, model.backbone, model.aggregation, model.whitening, model.name)
        self.eval()
        self.runtime = runtime
        self._compute = compute

    def encode(
        self,
        images: Tensor | Sequence[Image],
        *,
        dim: int | None = None,
        batch: int = 8,
        precision: torch.dtype | None = None,
    ) -> Tensor:
        """Descriptors (N, dim) of N images, as `PlaceModel.encode` gives them; `precision` is the runtime's own."""
        if precision is not None:
            raise ArgumentError(f"{self.runtime} has a precision of its own, {precision} was asked for: leave it out")
        if dim is not None and not (dim == self.dim or (self.whitening is not None and 1 <= dim <= self.dim)):
            raise ArgumentError(f"{self.name} gives {self.dim} dimensions, they cannot be cut to {dim}")
        found = torch.empty(len(images), self.dim if dim is None else dim)
        with torch.no_grad():
            for rows, pixels in self.preprocess.batches(images, batch):
                # the first coordinates of a whitened descriptor, scaled to unit length, are the smaller whitening
                whole = self._compute(pixels)
                found[rows] = whole if dim is None else F.normalize(whole[:, :dim], dim=1)
        return found


__all__ = ["RUNTIMES", "RuntimeModel", "run_on"]


def _int8(model: PlaceModel) -> RuntimeModel:
    from sareloc.export.int8 import on_int8

    return on_int8(model)


def _openvino(model: PlaceModel) -> RuntimeModel:
    from sareloc.export.openvino import on_openvino

    return on_openvino(model)


def _openvino_int8(model: PlaceModel) -> RuntimeModel:
    from sareloc.export.openvino import on_openvino

    return on_openvino(model, int8=True)


RUNTIMES: dict[str, Callable[[PlaceModel], RuntimeModel]] = {
    "int8": _int8,
    "openvino": _openvino,
    "openvino-int8": _openvino_int8,
}


def run_on(model: PlaceModel, runtime: str) -> RuntimeModel:
    """The same model, its `encode` computed otherwise; for describing, not for training.

    "int8": convolutions in 8-bit integers, by torch alone (VGG16 and AlexNet, on processors with VNNI). "openvino":
    the backbone by OpenVINO (extra `openvino`), in bfloat16 where the processor is fast in it. "openvino-int8": that
    in 8-bit integers, with any backbone. Descriptors differ from torch's by less than photos of one place do, so that
    the fingerprint and all maps stay valid.
    """
    return look_up(RUNTIMES, runtime, "runtime")(model)
