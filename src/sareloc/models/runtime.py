"""Runtimes that compute descriptors faster than torch on a CPU: same model, same fingerprint, same maps."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from sareloc.errors import ArgumentError, look_up
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import Image

RUNTIMES = {
    "openvino": "sareloc.export.openvino:on_openvino",
    "openvino-int8": "sareloc.export.openvino:on_openvino_int8",
}
"""For each runtime the module and function that make a `RuntimeModel` of a model, imported when it is asked for."""

Compute = Callable[[Tensor], Tensor]
"""uint8 images (B, 3, H, W) on the CPU -> float32 descriptors (B, model.dim), unit rows."""


def run_on(model: PlaceModel, runtime: str) -> RuntimeModel:
    """The same model with `encode` computed by another runtime; for describing, not for training.

    "openvino": the backbone by OpenVINO (extra `openvino`), in bfloat16 where the processor is fast in it.
    "openvino-int8": in 8-bit integers, on processors with VNNI. Descriptors differ from torch's by less than those of
    two photos of one place do, so that the fingerprint and all maps stay valid.
    """
    module, function = look_up(RUNTIMES, runtime, "runtime").split(":")
    made: RuntimeModel = getattr(importlib.import_module(module), function)(model)
    return made


class RuntimeModel(PlaceModel):
    """A model that shares all parts of another, and so its fingerprint and feature maps, but computes `encode` anew."""

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
        """Descriptors (N, dim) of N images, as `PlaceModel.encode` returns them.

        Raises ArgumentError if a `precision` is given: the runtime has its own.
        """
        if precision is not None:
            raise ArgumentError(f"{self.runtime} has its own precision, found precision={precision}: leave it out")
        if dim is not None and not (dim == self.dim or (self.whitening is not None and 1 <= dim <= self.dim)):
            raise ArgumentError(f"{self.name} has {self.dim} dimensions, which cannot be reduced to {dim}")
        found = torch.empty(len(images), self.dim if dim is None else dim)
        with torch.no_grad():
            for rows, pixels in self.preprocess.batches(images, batch):
                # the first coordinates of a whitened descriptor, scaled to unit length, are the smaller whitening
                descriptors = self._compute(pixels)
                found[rows] = descriptors if dim is None else F.normalize(descriptors[:, :dim], dim=1)
        return found
