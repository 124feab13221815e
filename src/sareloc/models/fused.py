"""Fused layers for faster inference: batch norms folded into convolutions, ReLUs computed in their kernels.

torch.compile leaves a convolution to cuDNN and adds a second kernel for bias and ReLU, which reads and writes the
feature map again; on VGG16's large early maps that is a fifth of the time.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.utils import fuse_conv_bn_eval

from sareloc.errors import ArgumentError
from sareloc.models.backbones import Backbone
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import number_format

M = TypeVar("M", bound=nn.Module)


class _Layers(fx.Tracer):
    """Traces into blocks, but not into convolutions or classes derived from them."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Conv2d) or super().is_leaf_module(m, module_qualified_name)


def trace_layers(backbone: Backbone) -> tuple[nn.Module, fx.Graph]:
    """The layers of a backbone in order of computation: a graph, and the root module of its node targets.

    Raises ArgumentError if the backbone is not a sequence of layers, as transformers.
    """
    if not backbone.is_sequence:
        raise ArgumentError(f"{backbone.name} is a transformer, whose layers are not a sequence that can be traced")
    root = nn.Sequential(*(module for modules in backbone.parts().values() for module in modules))
    return root, _Layers().trace(root)


def fold_norms(model: PlaceModel) -> PlaceModel:
    """A copy of the model with batch norms folded, for evaluation only; returns the model itself if it has none.

    All modules but the backbone are shared. Weights and fingerprint differ; descriptors are equal up to rounding.
    """
    if not any(isinstance(module, nn.BatchNorm2d) for module in model.backbone.modules()):
        return model
    backbone = copy.deepcopy(model.backbone).eval()
    names = {module: name for name, module in backbone.named_modules()}
    for conv, norm in convolutions_before(backbone, nn.BatchNorm2d):
        backbone.set_submodule(names[conv], fuse_conv_bn_eval(conv, norm))
        backbone.set_submodule(names[norm], nn.Identity())
    return _with_backbone(model, backbone)


def _with_backbone(model: PlaceModel, backbone: Backbone) -> PlaceModel:
    shared = (model.aggregation, model.whitening, model.name, model.precision)
    return PlaceModel(model.preprocess, backbone, *shared).eval()


def with_stored_format(model: PlaceModel) -> PlaceModel:
    """A copy of the model whose convolutions are stored in its number format, for evaluation only: autocast would
    convert their weights for each image. All modules but the backbone are shared; returns the model itself in float32,
    and a transformer, of which autocast computes parts in float32.
    """
    dtype = number_format(model.device, model.precision)
    if dtype == torch.float32 or not model.backbone.is_sequence:
        return model
    backbone = copy.deepcopy(model.backbone).eval()
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d):
            module.to(dtype)
    return _with_backbone(model, backbone)


def convolutions_before(backbone: Backbone, kind: type[M]) -> list[tuple[nn.Conv2d, M]]:
    """Pairs of a convolution and the layer of this kind that alone uses its output."""
    root, graph = trace_layers(backbone)
    found = []
    for node in graph.nodes:
        layer, before = _module(root, node), node.args[0] if node.args else None
        conv = _module(root, before)
        if isinstance(layer, kind) and isinstance(conv, nn.Conv2d):
            assert isinstance(before, fx.Node)
            assert len(before.users) == 1, f"the output of a convolution is used beside its {kind.__name__}"
            found.append((conv, layer))
    return found


def _module(root: nn.Module, node: object) -> nn.Module | None:
    if isinstance(node, fx.Node) and node.op == "call_module":
        return root.get_submodule(str(node.target))
    return None


CHANNELS = 8  # cuDNN's fast kernels need a multiple of this; the three colour channels are padded with zeros


@torch.library.custom_op("sareloc::conv_relu", mutates_args=())
def conv_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """max(x * weight + bias, 0), on CUDA by one cuDNN kernel, elsewhere by two operators."""
    if x.is_cuda:
        return torch.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, groups)
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups).relu_()


conv_relu.register_fake(F.conv2d)  # same shape and memory format


def conv_then_relu(conv: nn.Conv2d, x: Tensor, dtype: torch.dtype) -> Tensor:
    """`relu(conv(x))` in one kernel, computed in `dtype`: (B, C, H, W) -> (B, C', H', W'), without gradients."""
    assert conv.bias is not None
    padding = [int(side) for side in conv.padding]
    weight = _pad_channels(conv.weight.to(dtype), -conv.weight.shape[1] % CHANNELS)
    x = _pad_channels(x.to(dtype), weight.shape[1] - x.shape[1])
    found: Tensor = conv_relu(x, weight, conv.bias.to(dtype), conv.stride, padding, conv.dilation, conv.groups)
    return found


def _pad_channels(x: Tensor, channels: int) -> Tensor:
    """x with `channels` channels of zeros appended."""
    return F.pad(x, (0, 0, 0, 0, 0, channels)) if channels else x


def run_fused(layers: Sequence[nn.Module], x: Tensor, dtype: torch.dtype) -> Tensor:
    """Apply layers to x in order, each ReLU in the kernel of the convolution before it; without gradients.

    The current weights are used, so later changes to them need no update here.
    """
    inside = False  # whether this layer is a ReLU that the previous kernel has computed
    with torch.no_grad():
        for layer, after in zip(layers, [*layers[1:], None], strict=True):
            if inside:
                inside = False
            elif isinstance(layer, nn.Conv2d) and isinstance(after, nn.ReLU):
                x, inside = conv_then_relu(layer, x, dtype), True
            else:
                x = layer(x)
    return x


class ConvRelu(nn.Conv2d):
    """A convolution with its ReLU, computed in the number format of its weights; pads the input channels."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H', W'), non-negative."""
        return conv_then_relu(self, input, self.weight.dtype)


def fuse_relus(model: PlaceModel) -> PlaceModel:
    """A copy of the model with every ReLU after a convolution fused into it, for evaluation on CUDA.

    Such convolutions are stored in the number format of the model. All modules but the backbone are shared; returns the
    model itself if no ReLU follows a convolution.
    """
    if not model.backbone.is_sequence:
        return model
    backbone = copy.deepcopy(model.backbone).eval()
    names = {module: name for name, module in backbone.named_modules()}
    pairs = convolutions_before(backbone, nn.ReLU)
    dtype = number_format(model.device, model.precision)
    for conv, relu in pairs:
        assert conv.groups == 1
        conv.to(dtype).requires_grad_(False)
        spare = -conv.in_channels % CHANNELS
        conv.weight = nn.Parameter(_pad_channels(conv.weight, spare), requires_grad=False)
        conv.__class__ = ConvRelu  # same weights and options, other forward
        backbone.set_submodule(names[relu], nn.Identity())
    return _with_backbone(model, backbone) if pairs else model
