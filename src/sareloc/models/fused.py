"""Convolutions that end in their ReLU, as one kernel of cuDNN's: the feature map is written once, not three times.

torch.compile leaves a convolution to cuDNN and makes one more kernel for its bias and the ReLU, which reads and writes
the whole map again; the early maps of VGG16 are so large that this is a fifth of all the time.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.utils import fuse_conv_bn_eval

from sareloc.models.backbones import Backbone
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import best_dtype

# Batch norms folded into the convolutions before them: the same feature map with half as many passes over it.

M = TypeVar("M", bound=nn.Module)


class _Layers(fx.Tracer):
    """Looks into blocks, but not into convolutions, whatever they are derived from."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Conv2d) or super().is_leaf_module(m, module_qualified_name)


def trace_layers(backbone: Backbone) -> tuple[nn.Module, fx.Graph]:
    """The layers of a backbone in the order of the computation: a graph, and the module that its names refer to."""
    root = nn.Sequential(*(module for modules in backbone.parts().values() for module in modules))
    return root, _Layers().trace(root)


def fold_norms(model: PlaceModel) -> PlaceModel:
    """The model as it describes fastest, for evaluation only; one without batch norms is given back as it is.

    The parts beside the backbone are shared. The weights, and so the fingerprint, differ; the descriptors do not,
    beyond rounding.
    """
    if not any(isinstance(module, nn.BatchNorm2d) for module in model.backbone.modules()):
        return model
    backbone = copy.deepcopy(model.backbone).eval()
    names = {module: name for name, module in backbone.named_modules()}
    for conv, norm in convolutions_before(backbone, nn.BatchNorm2d):
        backbone.set_submodule(names[conv], fuse_conv_bn_eval(conv, norm))
        backbone.set_submodule(names[norm], nn.Identity())
    return PlaceModel(model.preprocess, backbone, model.aggregation, model.whitening, model.name).eval()


def convolutions_before(backbone: Backbone, kind: type[M]) -> list[tuple[nn.Conv2d, M]]:
    """Each convolution that a layer of this kind follows, and that layer; nothing else may use the convolution."""
    root, graph = trace_layers(backbone)
    found = []
    for node in graph.nodes:
        layer, before = _module(root, node), node.args[0] if node.args else None
        conv = _module(root, before)
        if isinstance(layer, kind) and isinstance(conv, nn.Conv2d):
            assert isinstance(before, fx.Node)
            assert len(before.users) == 1, f"what a convolution gives is used beside its {kind.__name__}"
            found.append((conv, layer))
    return found


def _module(root: nn.Module, node: object) -> nn.Module | None:
    if isinstance(node, fx.Node) and node.op == "call_module":
        return root.get_submodule(str(node.target))
    return None


CHANNELS = 8  # cuDNN's fast kernels take so many at a time; the three colours are filled up with zeros


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
    """max(x * weight + bias, 0) by cuDNN in one kernel; anywhere else than on CUDA by two operators."""
    if x.is_cuda:
        return torch.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, groups)
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups).relu_()


conv_relu.register_fake(F.conv2d)  # of the same shape, in the same order


def relu_of(conv: nn.Conv2d, x: Tensor, dtype: torch.dtype) -> Tensor:
    """`relu(conv(x))` in one kernel, computed in `dtype`: (B, C, H, W) -> (B, C', H', W'), without gradients."""
    assert conv.bias is not None
    padding = [int(side) for side in conv.padding]
    weight = _fill_up(conv.weight.to(dtype), -conv.weight.shape[1] % CHANNELS)
    x = _fill_up(x.to(dtype), weight.shape[1] - x.shape[1])
    found: Tensor = conv_relu(x, weight, conv.bias.to(dtype), conv.stride, padding, conv.dilation, conv.groups)
    return found


def _fill_up(x: Tensor, channels: int) -> Tensor:
    """So many channels of zeros more."""
    return F.pad(x, (0, 0, 0, 0, 0, channels)) if channels else x


def run_fused(layers: Sequence[nn.Module], x: Tensor, dtype: torch.dtype) -> Tensor:
    """What layers make of x one after another, each ReLU inside the convolution before it; without gradients.

    The weights are taken as they are now, so that nothing need be told when they change.
    """
    inside = False  # whether this layer is a ReLU that the one before has seen to
    with torch.no_grad():
        for layer, after in zip(layers, [*layers[1:], None], strict=True):
            if inside:
                inside = False
            elif isinstance(layer, nn.Conv2d) and isinstance(after, nn.ReLU):
                x, inside = relu_of(layer, x, dtype), True
            else:
                x = layer(x)
    return x


class ConvRelu(nn.Conv2d):
    """A convolution with its ReLU, computed in the format of its own weights; it fills up the channels they want."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H', W'), no number below zero."""
        return relu_of(self, input, self.weight.dtype)


def fuse_relus(model: PlaceModel) -> PlaceModel:
    """The model with every ReLU that follows a convolution inside it, for evaluation on CUDA.

    Such convolutions are held in the format that the device computes fast. The parts beside the backbone are shared;
    a model without such ReLUs is given back as it is.
    """
    backbone = copy.deepcopy(model.backbone).eval()
    names = {module: name for name, module in backbone.named_modules()}
    pairs = convolutions_before(backbone, nn.ReLU)
    for conv, relu in pairs:
        assert conv.groups == 1
        conv.to(best_dtype(model.device)).requires_grad_(False)
        spare = -conv.in_channels % CHANNELS
        conv.weight = nn.Parameter(_fill_up(conv.weight, spare), requires_grad=False)
        conv.__class__ = ConvRelu  # the same weights and knobs, computed otherwise
        backbone.set_submodule(names[relu], nn.Identity())
    if not pairs:
        return model
    return PlaceModel(model.preprocess, backbone, model.aggregation, model.whitening, model.name).eval()
