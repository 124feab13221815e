"""Verification of rankings: the first results of each query in a new order, by local features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from sareloc.arrays import Floats, Ints
from sareloc.datasets.places import Places
from sareloc.errors import PhotoError
from sareloc.geometry import (
    KEYPOINTS,
    LocalFeatureExtractor,
    count_inliers,
    feature_size,
    match_scores,
    pack_features,
    unpack_features,
    verify,
)
from sareloc.loading import read_images
from sareloc.models.preprocess import RUNTIME_DEVICES

TEMPERATURE_SHARE = 0.15
"""The temperature of the scores, as a share of the median spread of a query's squared distances; as for fixes."""


def verify_rankings(
    places: Places,
    rankings: Ints,
    distances: Floats,
    first: int,
    *,
    keypoints: int = KEYPOINTS,
    device: torch.device | str | None = None,
    workers: int = 0,
    progress: bool = True,
) -> tuple[Ints, Floats]:
    """Rankings and distances with the first results of each query ordered by `match_scores`.

    Local features are computed from the photos of the queries and of the results, packed as in a map. A photo that
    cannot be decoded has no evidence; a query that cannot be keeps its order. Equal scores keep their order.

    Args:
        places: the dataset.
        rankings: (Q, K) database rows, best first; -1: no result.
        distances: (Q, K) between descriptors.
        first: number of results of each query that are ordered.
        keypoints: of a photo of the database, at most.
        device: where local features are computed; default: the CPU.
        workers: processes that decode photos.
        progress: show progress bars.
    """
    on_it = str(device).startswith("cuda") or device in RUNTIME_DEVICES
    extractor = LocalFeatureExtractor(device if on_it else "cpu")
    top = rankings[:, :first]
    shown = np.unique(top[top >= 0])
    stored = extract_packed(
        extractor, [places.database.path(int(row)) for row in shown], keypoints, workers, "features", progress
    )
    features_of = dict(zip(shown.tolist(), stored, strict=True))
    known = np.isfinite(distances[:, :first]).all(axis=1)
    spread = (distances[known, min(first, top.shape[1]) - 1] ** 2 - distances[known, 0] ** 2) if known.any() else [0.0]
    temperature = max(TEMPERATURE_SHARE * float(np.median(spread)), 1e-9)
    rankings, distances = rankings.copy(), distances.copy()
    queries = extract_packed(extractor, places.queries.paths(), KEYPOINTS, workers, "verify", progress)
    for row, packed in enumerate(queries):
        results = [int(one) for one in top[row] if one >= 0]
        if packed is None or not results:
            continue
        others = [features_of[one] for one in results]
        unpacked = [None if other is None else unpack_features(other) for other in others]
        scores = match_scores(
            distances[row, : len(results)], temperature, count_inliers(verify(unpack_features(packed), unpacked))
        )
        order = np.argsort(-scores, kind="stable")
        rankings[row, : len(results)] = rankings[row, order]
        distances[row, : len(results)] = distances[row, order]
    return rankings, distances


def extract_packed(
    extractor: LocalFeatureExtractor, paths: Sequence[Path], keypoints: int, workers: int, title: str, progress: bool
) -> list[bytes | None]:
    """The packed local features of photos, in order; None for a photo that cannot be decoded."""
    packed: list[bytes | None] = [None] * len(paths)
    loaded = read_images(paths, (feature_size,), workers=workers)
    for row, image in tqdm(loaded, title, len(paths), unit="photo", disable=None if progress else True):
        if not isinstance(image, PhotoError):
            (found,) = extractor.extract(image.pixels, keypoints, focal_35mm=[image.focal_35mm])
            packed[row] = pack_features(found)
    return packed
