"""The plain stacks of convolutions: VGG16 and AlexNet, cut at their last convolution, before its ReLU."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from sareloc.models.backbones.base import Backbone

VGG16_BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class PlainBackbone(Backbone):
    """One sequence of layers under torchvision's name `features`; a part is a convolution with what follows it."""

    beyond_the_map = ("classifier.",)

    def __init__(self, name: str, layers: list[nn.Module], conv_names: list[str], *, stride: int) -> None:
        last = layers[-1]
        assert isinstance(last, nn.Conv2d)
        super().__init__(name, cut=conv_names[-1], channels=last.out_channels, stride=stride)
        self.features = nn.Sequential(*layers)
        self._conv_names = conv_names

    def parts(self) -> Mapping[str, tuple[nn.Module, ...]]:
        """Each convolution by its name in the paper (conv1_1 ... conv5_3, or conv1 ... conv5), with what follows it."""
        lots: list[list[nn.Module]] = []
        for layer in self.features:
            if isinstance(layer, nn.Conv2d):
                lots.append([])
            lots[-1].append(layer)
        return dict(zip(self._conv_names, map(tuple, lots), strict=True))


def vgg16(cut: str) -> PlainBackbone:
    """VGG16 up to conv5_3, no fifth pooling: 512 channels, one location per 16 pixels."""
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
    return PlainBackbone("vgg16", layers[:-2], names, stride=16)


def alexnet(cut: str) -> PlainBackbone:
    """AlexNet (torchvision's, of one tower) up to conv5: 256 channels, one location per 16 pixels."""
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
    return PlainBackbone("alexnet", layers, [f"conv{i}" for i in range(1, 6)], stride=16)
