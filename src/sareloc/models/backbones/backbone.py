"""The base class of backbones: named parts, frozen below and trained above."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sareloc.errors import ArgumentError, look_up
from sareloc.models.preprocess import IMAGENET_MEAN, IMAGENET_STD, MIN_SIDE_PX, check_size

NOTHING = "nothing"  # the value of `train_from` that freezes all parts


class Backbone(nn.Module):
    """A network from pixels to a feature map: (B, 3, H, W) normalised floats -> (B, channels, h, w).

    Its parameters carry the names of the published weights, so that those load unchanged, or `published_tensors`
    renames them. A transformer has one more row in its output, with the class token (see `split`).

    `cut` names the layer whose output is the feature map; `channels` is its depth and `stride` the pixels between
    neighbouring locations. `train_from` names the lowest trained part (see `part_names`; "nothing" freezes all): the
    parameters below it need no gradient, and their batch norms use the stored statistics even in training.
    `pixel_mean` and `pixel_std` are the statistics of pixels in [0, 1] that the published weights expect.
    """

    minimum_size = MIN_SIDE_PX
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

    def published_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a published file that belong to this backbone, under the names used here."""
        return {name: tensor for name, tensor in tensors.items() if not name.startswith(self.unused_prefixes)}
