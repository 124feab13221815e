"""VGG16 and AlexNet, cut at their last convolution, before its ReLU; parameters have torchvision's names."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from sareloc.models.backbones.backbone import Backbone

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
