"""Backbones: from pixels to a feature map, with frozen lower and trained upper layers.

`Backbone` is the base class, `BACKBONES` the table of names. A family of backbones is a module of this package, which
is imported when one of its backbones is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

import torch
from torch import Tensor, nn

from sareloc.errors import ArgumentError, look_up
from sareloc.models.preprocess import IMAGENET_MEAN, IMAGENET_STD, MIN_SIDE_PX, check_size

__all__ = ["BACKBONES", "Backbone", "init_weights", "make_backbone"]


@dataclass(frozen=True)
class Architecture:
    """How a backbone is built."""

    build: str
    """"module:function" of this package: a function from the cut to the backbone."""
    cuts: tuple[str, ...]
    """The possible cuts; the first is the default."""
    train_from: str
    """The default of the lowest trained part."""


BACKBONES = {
    "vgg16": Architecture("torchvision:vgg16", ("conv5_3",), train_from="conv5_1"),
    "alexnet": Architecture("torchvision:alexnet", ("conv5",), train_from="conv5"),
    "resnet18": Architecture("torchvision:resnet18", ("layer3", "layer4"), train_from="layer3"),
    "resnet50": Architecture("torchvision:resnet50", ("layer3", "layer4"), train_from="layer3"),
    "efficientnet-lite0": Architecture(
        "efficientnet:EfficientNetLite0", ("block10", "block15", "head"), train_from="block8"
    ),
}
NOTHING = "nothing"  # the value of `train_from` that freezes all parts


def make_backbone(
    name: str, *, train_from: str | None = None, cut: str | None = None, rng: torch.Generator | None = None
) -> Backbone:
    """A backbone with random weights, in evaluation mode; load published ones with `load_backbone_weights`.

    name: one of `BACKBONES`. `vgg16` is the paper's: cut at conv5_3 before its ReLU, trained from conv5_1 up.
    train_from: the lowest part that is trained, "nothing" for none; default: conv5_1 (vgg16), conv5 (alexnet),
        layer3 (resnet18, resnet50), block8 (efficientnet-lite0).
    cut: the layer whose output is the feature map. vgg16: conv5_3. alexnet: conv5. resnet18, resnet50: layer3 (default,
        stride 16), layer4 (stride 32). efficientnet-lite0: block10 (default, 112 channels, stride 16), block15 (320,
        stride 32), head (1280, stride 32).
    rng: the source of random weights; default: torch's generator.
    """
    architecture = look_up(BACKBONES, name, "backbone")
    cut = look_up({c: c for c in architecture.cuts}, cut or architecture.cuts[0], f"cut of {name}")
    module, function = architecture.build.split(":")
    build: Callable[[str], Backbone] = getattr(import_module(f"{__name__}.{module}"), function)
    backbone = build(cut)
    init_weights(backbone, rng)
    backbone.eval()
    backbone.freeze_below(train_from or architecture.train_from)
    return backbone


class Backbone(nn.Module):
    """A convolutional network from pixels to a feature map: (B, 3, H, W) normalised floats -> (B, channels, h, w).

    Its parameters carry the names of the published weights, so that those load unchanged.

    `cut` names the layer whose output is the feature map; `channels` is its depth and `stride` the pixels between
    neighbouring locations. `train_from` names the lowest trained part (see `part_names`; "nothing" freezes all): the
    parameters below it need no gradient, and their batch norms use the stored statistics even in training.
    `pixel_mean` and `pixel_std` are the statistics of pixels in [0, 1] that the published weights expect.
    """

    minimum_size = MIN_SIDE_PX
    pixel_mean = IMAGENET_MEAN
    pixel_std = IMAGENET_STD
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
        """(B, 3, H, W) normalised floats, H and W at least `minimum_size` -> (B, channels, h, w)."""
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
        """The feature map, from the output of `lower`."""
        trained = False
        for name, modules in self.parts().items():
            trained = trained or name == self.train_from
            for module in modules if trained else ():
                features = module(features)
        return features


def init_weights(backbone: Backbone, rng: torch.Generator | None) -> None:
    """Random weights by He et al. 2015 (fan-in), zero biases.

    Weights on the device "meta" have no values and are skipped: torch would load its compiler for them, which takes
    seconds.
    """
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=rng)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
