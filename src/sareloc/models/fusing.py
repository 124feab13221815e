"""Convolutions that end in their ReLU, as one kernel of cuDNN's: the feature map is written once, not three times.

torch.compile leaves a convolution to cuDNN and makes one more kernel for its bias and the ReLU, which reads and writes
the whole map again; the early maps of VGG16 are so large that this is a tenth of all the time.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from sareloc.models.folding import module_of, trace_layers
from sareloc.models.place_model import PlaceModel
from sareloc.models.precision import best_dtype

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


@conv_relu.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups)


class ConvRelu(nn.Conv2d):
    """A convolution with its ReLU, computed in the format of its own weights; it fills up the channels they want."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H', W'), no number below zero."""
        assert self.bias is not None
        padding = [int(side) for side in self.padding]
        x = F.pad(input.to(self.weight.dtype), (0, 0, 0, 0, 0, self.weight.shape[1] * self.groups - input.shape[1]))
        found: Tensor = conv_relu(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)
        return found


def fuse_relus(model: PlaceModel) -> PlaceModel:
    """The model with every ReLU that follows a convolution inside it, for evaluation on CUDA.

    Such convolutions are held in the format that the device computes fast. The parts beside the backbone are shared;
    a model without such ReLUs is given back as it is.
    """
    backbone = copy.deepcopy(model.backbone).eval()
    dtype = best_dtype(model.device)
    root, graph = trace_layers(backbone)
    names = {id(module): name for name, module in backbone.named_modules()}
    found = False
    for node in graph.nodes:
        relu, before = module_of(root, node), node.args[0] if node.args else None
        conv = module_of(root, before)
        if not isinstance(relu, nn.ReLU) or type(conv) is not nn.Conv2d or conv.bias is None:
            continue
        assert isinstance(before, fx.Node)
        if len(before.users) > 1 or isinstance(conv.padding, str) or conv.padding_mode != "zeros":
            continue
        conv.to(dtype).requires_grad_(False)
        if conv.groups == 1:
            spare = -conv.in_channels % CHANNELS
            conv.weight = nn.Parameter(F.pad(conv.weight, (0, 0, 0, 0, 0, spare)), requires_grad=False)
        conv.__class__ = ConvRelu  # the same weights and knobs, computed otherwise
        backbone.set_submodule(names[id(relu)], nn.Identity())
        found = True
    if not found:
        return model
    return PlaceModel(model.preprocess, backbone, model.aggregation, model.whitening, model.name).eval()
