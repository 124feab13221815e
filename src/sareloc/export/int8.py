"""VGG16 and AlexNet in 8-bit integers, by the oneDNN kernels that come with torch.

Weights have one step for each output channel. Pixels are bytes already: the first convolution takes them as they are,
their statistics moved into its weights. Activations have one step for the whole map, found for each photo by itself: a
thumbnail of it (an eighth as wide, from 64 px up) runs through the same layers in floating point, and its largest
activation in each layer, and a quarter more, is what 255 stands for. So no calibration photos are needed, and a
descriptor depends on its photo alone, not on its neighbours in a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sareloc.errors import ArgumentError
from sareloc.export.runtime import RuntimeModel
from sareloc.models.backbones.torchvision import PlainBackbone
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import MIN_SIDE_PX, Preprocess, autocast, check_size

FAST_INT8 = ("avx512_vnni", "avx_vnni", "amx_int8")  # without these, products of bytes saturate at 16 bits
TOP = 255
SHRINK = 8
HEADROOM = 1.25  # the photo may hold a stronger activation than its thumbnail
SMALLEST = 1e-30  # instead of a step of 0, where all weights or activations are


def on_int8(model: PlaceModel) -> RuntimeModel:
    """The model with convolutions in 8-bit integers; aggregation and whitening stay in float32."""
    if not isinstance(model.backbone, PlainBackbone):
        raise ArgumentError(f"{model.backbone.name} does not run in int8 (vgg16 and alexnet do): leave its device cpu")
    check_fast_int8()
    layers = Int8Layers(model.backbone, model.preprocess)

    def compute(images: Tensor) -> Tensor:
        check_size(images.shape[2], images.shape[3])
        maps = [layers.feature_map(images[row : row + 1]) for row in range(len(images))]
        pooled: Tensor = model.aggregation(torch.cat(maps))
        return pooled if model.whitening is None else model.whitening(pooled)

    return RuntimeModel(model, "int8", compute)


def has_fast_int8() -> bool:
    """Whether this processor has instructions for products of 8-bit integers."""
    capabilities: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(capability) for capability in FAST_INT8)


def check_fast_int8() -> None:
    """Refuse a processor without them: products of bytes would saturate there."""
    if not has_fast_int8():
        raise ArgumentError("this processor does not multiply 8-bit integers (VNNI): leave the device cpu")


@dataclass(frozen=True, eq=False)
class _Conv:
    """A convolution with integer weights in the kernel's own order."""

    weight: Tensor
    steps: Tensor
    bias: Tensor
    form: tuple[Any, ...]
    """Stride, padding, dilation, groups."""
    relu: bool

    def __call__(self, x: Tensor, step: float, out_step: float | None) -> Tensor:
        """Integers of `step` in; integers of `out_step` out, or float32 where it is None."""
        zeros = torch.zeros_like(self.steps, dtype=torch.int32)
        out = (1.0, 0, torch.float32) if out_step is None else (out_step, 0, torch.uint8)
        after = "relu" if self.relu else "none"
        found: Tensor = torch.ops.onednn.qconv2d_pointwise(
            x, step, 0, self.weight, self.steps, zeros, self.bias, *self.form, *out, after, [], ""
        )
        return found


class Int8Layers:
    """The layers of a plain backbone, from pixels to the feature map."""

    def __init__(self, backbone: PlainBackbone, pixels: Preprocess) -> None:
        self._pixels = pixels
        self._floats = list(backbone.features)
        first, *others = (layer for layer in self._floats if not isinstance(layer, nn.ReLU))
        assert isinstance(first, nn.Conv2d)
        self._margin = int(first.padding[0])
        # a normalised pixel is gain * (pixel - mean)
        black, white = (pixels.normalise(torch.full((1, 3, 1, 1), v, dtype=torch.uint8)) for v in (0, TOP))
        gain = (white - black) / TOP
        mean = -black / gain
        self._outside = mean.round().clamp(0, TOP).to(torch.uint8)  # what is 0 after normalisation
        self._first = pack(first, first.weight * gain, padding=(0, 0), mean=mean)
        relu = {
            id(conv) for conv, after in zip(self._floats, self._floats[1:], strict=False) if isinstance(after, nn.ReLU)
        }
        self._others = [
            pack(layer, layer.weight, relu=id(layer) in relu) if isinstance(layer, nn.Conv2d) else layer
            for layer in others
        ]

    def feature_map(self, image: Tensor) -> Tensor:
        """uint8 image (1, 3, H, W) -> float32 (1, C, h, w)."""
        step, *steps = (HEADROOM * top / TOP for top in self._largest(image))
        x = self._first(self._framed(image), 1.0, step)
        for layer in self._others:
            if isinstance(layer, nn.MaxPool2d):
                x = max_pool(x, layer)
            else:
                out_step = steps.pop(0) if steps else None
                x = layer(x, step, out_step)
                step = out_step or 1.0
        return x

    def _framed(self, image: Tensor) -> Tensor:
        """The image with its margin, which is not a convolution's own: 0 means black to that."""
        height, width = (side + 2 * self._margin for side in image.shape[2:])
        framed = self._outside.expand(1, 3, height, width).contiguous(memory_format=torch.channels_last)
        inside = slice(self._margin, -self._margin or None)
        framed[:, :, inside, inside] = image
        return framed

    def _largest(self, image: Tensor) -> list[float]:
        """The largest activation behind each ReLU, on a thumbnail."""
        shrink = min(1.0, max(1 / SHRINK, MIN_SIDE_PX / min(image.shape[2:])))
        small = [round(side * shrink) for side in image.shape[2:]]
        x = F.interpolate(self._pixels.normalise(image), small, mode="bilinear", antialias=True)
        found = []
        with autocast("cpu"):
            for layer in self._floats:
                x = layer(x)
                if isinstance(layer, nn.ReLU):
                    found.append(x.amax().float())
        return torch.stack(found).clamp(min=SMALLEST).tolist()


def pack(
    layer: nn.Conv2d,
    weight: Tensor,
    *,
    relu: bool = True,
    padding: Any = None,
    mean: Tensor | None = None,
) -> _Conv:
    """A convolution with these weights as integers; `mean` (1, 3, 1, 1) is taken from its input first."""
    weight = weight.detach()
    steps = weight.abs().amax(dim=(1, 2, 3)).clamp(min=SMALLEST) / 127
    integers = (weight / steps.view(-1, 1, 1, 1)).round()
    bias = torch.zeros(len(steps)) if layer.bias is None else layer.bias.detach()
    if mean is not None:
        # of the rounded weights, so that what rounding did to them does not add up over an even surface
        bias = bias - (integers * steps.view(-1, 1, 1, 1) * mean).sum(dim=(1, 2, 3))
    form = (layer.stride, layer.padding if padding is None else padding, layer.dilation, layer.groups)
    packed = torch.ops.onednn.qconv_prepack(integers.to(torch.int8), steps, 1.0, 0, *form, None)
    return _Conv(packed, steps, bias, form, relu)


def max_pool(x: Tensor, layer: nn.MaxPool2d) -> Tensor:
    """Maxima of bytes (B, C, H, W), which torch's own function refuses."""
    assert isinstance(layer.kernel_size, int)
    assert isinstance(layer.stride, int)
    for axis in (2, 3):
        last = (x.shape[axis] - layer.kernel_size) // layer.stride * layer.stride
        shifts = [x.narrow(axis, first, last + 1) for first in range(layer.kernel_size)]
        x = reduce(torch.maximum, (shift.unfold(axis, 1, layer.stride).squeeze(-1) for shift in shifts))
    return x
