"""ResNets, cut after layer3 or layer4; parameters have torchvision's names."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from sareloc.models.backbones.backbone import Backbone


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
