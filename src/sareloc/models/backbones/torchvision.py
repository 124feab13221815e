"""VGG16, AlexNet, ResNet18 and ResNet50 with torchvision's parameter names.

VGG16 and AlexNet are cut at their last convolution, before its ReLU; a ResNet after layer3 or layer4.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from sareloc.models.backbones import Backbone

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
    """Two 3x3 convolutions (ResNet18)."""

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
    """1x1, 3x3, 1x1 (ResNet50); the 3x3 has the stride, as in torchvision's weights ("v1.5")."""

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


def resnet18(cut: str) -> ResNet:
    """ResNet18: after layer3 256 channels, stride 16; after layer4 512 channels, stride 32."""
    return ResNet("resnet18", _BasicBlock, (2, 2, 2, 2), cut)


def resnet50(cut: str) -> ResNet:
    """ResNet50: after layer3 1024 channels, stride 16; after layer4 2048 channels, stride 32."""
    return ResNet("resnet50", _Bottleneck, (3, 4, 6, 3), cut)
