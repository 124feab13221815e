"""Backbones by name: from pixels to a feature map, with the parameter names of the published weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sareloc.errors import look_up
from sareloc.models.backbones.base import Backbone, init_weights
from sareloc.models.backbones.efficientnet import CUTS, EfficientNetLite0
from sareloc.models.backbones.torchvision import alexnet, resnet18, resnet50, vgg16

__all__ = ["BACKBONES", "Backbone", "make_backbone"]


@dataclass(frozen=True)
class Design:
    """How a backbone is built: its possible `cuts` (the first is the default), and its default `train_from`."""

    build: Callable[[str], Backbone]
    cuts: tuple[str, ...]
    train_from: str


BACKBONES = {
    "vgg16": Design(vgg16, ("conv5_3",), train_from="conv5_1"),
    "alexnet": Design(alexnet, ("conv5",), train_from="conv5"),
    "resnet18": Design(resnet18, ("layer3", "layer4"), train_from="layer3"),
    "resnet50": Design(resnet50, ("layer3", "layer4"), train_from="layer3"),
    "efficientnet-lite0": Design(EfficientNetLite0, tuple(CUTS), train_from="block8"),
}


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
    design = look_up(BACKBONES, name, "backbone")
    cut = look_up({c: c for c in design.cuts}, cut or design.cuts[0], f"cut of {name}")
    backbone = design.build(cut)
    init_weights(backbone, rng)
    backbone.eval()
    backbone.freeze_below(train_from or design.train_from)
    return backbone
