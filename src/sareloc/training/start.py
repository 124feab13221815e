"""The model that training starts from: published weights of the backbone, and centres from the town's own photos."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from sareloc.datasets.places import PhotoSet
from sareloc.errors import ArgumentError, PhotoError
from sareloc.loading import load_images
from sareloc.models import PlaceModel, Preprocess, fit_start, make_model
from sareloc.models.preprocess import Image
from sareloc.models.published import load_backbone_weights
from sareloc.models.start import START_PHOTOS


def start_model(
    databases: Sequence[PhotoSet],
    *,
    backbone: str,
    aggregation: str,
    weights: Path | None,
    size: tuple[int, int],
    seed: int,
    workers: int = 0,
) -> PlaceModel:
    """A new model: the backbone's published weights, NetVLAD's centres by k-means over photos of these databases."""
    if weights is None:
        raise ArgumentError(
            f"a new {backbone} model starts from published weights: give them with --weights (torchvision's .pth or "
            ".safetensors), or start from a checkpoint with --model"
        )
    model = make_model(backbone, aggregation, size=size)
    load_backbone_weights(model.backbone, weights)
    rng = np.random.default_rng(seed)
    photos = [database.path(row) for database in databases for row in range(len(database))]
    chosen = [photos[i] for i in rng.permutation(len(photos))[:START_PHOTOS]]
    fit_start(model, _readable(chosen, model.preprocess, workers), rng)
    return model


def _readable(photos: Sequence[Path], preprocess: Preprocess, workers: int) -> Iterator[Image]:
    for _, image in load_images(photos, preprocess.size, workers=workers):
        if not isinstance(image, PhotoError):
            yield image
