"""The initial model of a training that starts from a published backbone and not from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sareloc.datasets.places import PhotoSet
from sareloc.errors import ArgumentError, PhotoError
from sareloc.loading import read_images
from sareloc.models import PlaceModel, init_netvlad, make_model
from sareloc.models.netvlad_init import INIT_PHOTOS, imagenet_weights
from sareloc.models.published import load_backbone_weights


def start_model(
    databases: Sequence[PhotoSet],
    *,
    backbone: str,
    aggregation: str,
    weights: Path | None,
    size: tuple[int, int],
    seed: int,
    workers: int = 0,
    cut: str | None = None,
    **options: Any,
) -> PlaceModel:
    """A new model: published weights of the backbone, and NetVLAD's centres by k-means over photos of the databases.

    Args:
        databases: photos to choose from for NetVLAD's centres.
        backbone: one of `BACKBONES`.
        aggregation: one of `AGGREGATIONS`.
        weights: published file of the backbone; default for efficientnet-lite0: that of the extra `lite`; for others
            None raises ArgumentError, which says what to give.
        size: height and width of images.
        seed: of the choice of photos and of k-means.
        workers: processes that decode photos.
        cut: see `make_backbone`.
        options: the aggregation's, such as `clusters=32`.
    """
    if weights is None and backbone == "efficientnet-lite0":
        weights = imagenet_weights()
    if weights is None:
        raise ArgumentError(
            f"a new {backbone} model starts from published weights: give them with --weights (.pth or .safetensors of "
            "torchvision or DINOv2), or start from a checkpoint with --model"
        )
    model = make_model(backbone, aggregation, size=size, cut=cut, **options)
    load_backbone_weights(model.backbone, weights)
    rng = np.random.default_rng(seed)
    photos = [path for database in databases for path in database.paths()]
    chosen = [photos[i] for i in rng.permutation(len(photos))[:INIT_PHOTOS]]
    read = read_images(chosen, (model.preprocess.resizing,), workers=workers)
    init_netvlad(model, (image.pixels[0] for _, image in read if not isinstance(image, PhotoError)), rng)
    return model
