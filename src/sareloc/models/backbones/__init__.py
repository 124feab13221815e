"""Backbones: from pixels to a feature map, with frozen lower and trained upper layers.

`Backbone` is the base class, `BACKBONES` the table of names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from sareloc.errors import look_up
from sareloc.models.backbones.backbone import (
    DEPTHS,
    LITE0_CUTS,
    NOTHING,
    Backbone,
    EfficientNetLite0,
    ResNet,
    SameConv,
    SequentialBackbone,
    alexnet,
    resnet,
    vgg16,
)
from sareloc.models.backbones.dinov2 import INIT_STD, VITS, DINOv2, ViT, vit_cuts

__all__ = [
    "BACKBONES",
    "NOTHING",
    "VITS",
    "Architecture",
    "Backbone",
    "DINOv2",
    "EfficientNetLite0",
    "ResNet",
    "SameConv",
    "SequentialBackbone",
    "ViT",
    "init_weights",
    "make_backbone",
]


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
    return Architecture(lambda cut: DINOv2(name, cut, vit), vit_cuts(vit), train_from=f"block{max(0, vit.depth - 4)}")


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
    if isinstance(backbone, DINOv2):
        backbone.embed.init_weights(rng)
