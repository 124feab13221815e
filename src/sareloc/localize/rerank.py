"""Re-ranking: the top matches in a new order, by local features of the model's backbone that match geometrically."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from sareloc.arrays import Bools, Floats
from sareloc.errors import PhotoError
from sareloc.loading import load_images
from sareloc.maps import Matches, PlaceMap
from sareloc.models.place_model import PlaceModel, evaluating
from sareloc.models.preprocess import Image

SCALES = tuple(2.0 ** (step / 4) for step in range(-4, 5))  # from half to double size, by fourths of an octave
TOLERANCE = 1.5  # cells
FEWEST_FOR_AFFINE = 6
GAIN = 3.0
REFERENCE_QUANTILE = 0.75
SPREAD = 3.0
"""By about this factor re-ranking widens the spread of squared distances, and so the temperature of the weights."""
CACHE_BYTES = 256 * 2**20

log = logging.getLogger("sareloc.localize")


@dataclass(frozen=True, eq=False)
class LocalFeatures:
    """The local features of an image: one for each location of its feature map."""

    vectors: Tensor
    """(S, C) unit rows, float16: half the memory, and a cosine is exact to three digits."""
    cells: Floats
    """(S, 2) column and row, in cells of the feature map."""


def local_features(feature_map: Tensor) -> LocalFeatures:
    """The S = h w locations of one feature map (C, h, w)."""
    _, height, width = feature_map.shape
    rows, columns = np.divmod(np.arange(height * width), width)
    vectors = F.normalize(feature_map.float().flatten(1).T, dim=1).half()
    return LocalFeatures(vectors, np.stack([columns, rows], axis=1).astype(np.float64))


def inlier_share(query: LocalFeatures, other: LocalFeatures) -> float:
    """The share of the query's local features that have an inlier match in the other photo, 0 to 1.

    Two features match if each is the other's nearest neighbour (cosine); inliers agree on one affine map.
    """
    mine, theirs = mutual_matches(query.vectors, other.vectors)
    return float(inliers(query.cells[mine], other.cells[theirs]).sum()) / len(query.cells)


def mutual_matches(a: Tensor, b: Tensor) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows of a (S, C) and of b (T, C), unit vectors, that are mutual nearest neighbours; ties go to the first."""
    cosines = a.float() @ b.float().T
    nearest_b, nearest_a = cosines.argmax(dim=1), cosines.argmax(dim=0)
    mine = torch.arange(len(a), device=a.device)
    mutual = nearest_a[nearest_b] == mine
    return mine[mutual].cpu().numpy(), nearest_b[mutual].cpu().numpy()


def inliers(a: Floats, b: Floats) -> Bools:
    """Which matches of cells a (M, 2), b (M, 2) are inliers of the map that has most of them: mask (M,).

    Every match proposes, with each of nine scales, the map `b = scale a + shift` that fits it: all hypotheses are tried
    instead of RANSAC's random ones. An inlier is within 1.5 cells. The best map (of equals the scale nearest to 1, then
    the first match) is refined to an affine map by least squares on its inliers, which counts if it has more.
    """
    if not len(a):
        return np.zeros(0, dtype=np.bool_)
    best = np.zeros(len(a), dtype=np.bool_)
    for scale in sorted(SCALES, key=lambda s: abs(np.log(s))):
        near = _close((b - scale * a).astype(np.float32))
        counts = near.sum(axis=1)
        if counts.max() > best.sum():
            best = near[int(counts.argmax())]
    if best.sum() >= FEWEST_FOR_AFFINE:
        flat = np.column_stack([a, np.ones(len(a))])
        affine, *_ = np.linalg.lstsq(flat[best], b[best], rcond=None)
        fits = ((flat @ affine - b) ** 2).sum(axis=1) <= TOLERANCE**2
        best = fits if fits.sum() > best.sum() else best
    return best


def _close(points: npt.NDArray[np.float32]) -> Bools:
    """Which of M points (M, 2) are within 1.5 of each other: (M, M). Column by column, which is many times faster."""
    x, y = (np.subtract.outer(column, column) for column in points.T)
    np.square(x, out=x)
    np.square(y, out=y)
    x += y
    return np.asarray(x <= TOLERANCE**2)


class Reranker:
    """Compares photos by the local features of the model's own backbone. Safe from several threads.

    A map stores no local features: those of its photos are computed from the files when they are needed, and the most
    recently used 256 MiB are cached.
    """

    def __init__(self, model: PlaceModel, place_map: PlaceMap, *, batch: int = 8, workers: int = 0) -> None:
        self.model = model
        self.place_map = place_map
        self.batch = batch
        self.workers = workers
        self._lock = Lock()
        self._cache: OrderedDict[str, LocalFeatures] = OrderedDict()
        self._cached_bytes = 0
        self._warned = False

    def rerank(self, images: Sequence[Image], matches: Matches, first: int) -> Matches:
        """The matches (Q, K) of Q images, the `first` of each query re-ranked.

        A match with the share f of inliers (`inlier_share`) gets the distance `d (1 + 3 f') / (1 + 3 f)`, with f' the
        upper quartile over the re-ranked ones: inliers by chance change little, and distances keep their scale. Equal
        distances keep their order. A match whose photo cannot be read keeps its distance; if none can be read, a
        warning is logged, once.
        """
        shares = np.full((len(images), min(first, matches.ids.shape[1])), np.nan)
        for row, query in enumerate(self._features_of_images(images)):
            files = matches.files[row][:first]
            seen = self._features_of_files(files)
            shares[row] = [inlier_share(query, seen[file]) if file in seen else np.nan for file in files]
            if files and not seen:
                self._warn(files)
        distances = matches.distances.copy()
        distances[:, :first] = shorten(distances[:, :first], shares)
        return _reorder(matches, distances)

    def _features_of_images(self, images: Sequence[Image]) -> list[LocalFeatures]:
        found: dict[int, LocalFeatures] = {}
        with evaluating(self.model):
            for rows, pixels in self.model.preprocess.batches(images, self.batch):
                maps = self.model.feature_map(pixels.to(self.model.device)).cpu()
                found |= {row: local_features(one) for row, one in zip(rows, maps, strict=True)}
        return [found[row] for row in range(len(images))]

    def _features_of_files(self, files: Sequence[str]) -> dict[str, LocalFeatures]:
        """The local features of the map's photos, those that can be read."""
        with self._lock:
            here = {file: self._cache[file] for file in files if file in self._cache}
            images = self._load([file for file in dict.fromkeys(files) if file not in here])
            here |= zip(images, self._features_of_images(list(images.values())), strict=True)
            for file in files:
                if file in here:
                    self._keep(file, here[file])
        return here

    def _load(self, files: Sequence[str]) -> dict[str, npt.NDArray[np.uint8]]:
        paths = [self.place_map.photo_path(file) for file in files]
        loaded = load_images(paths, self.model.preprocess.size, workers=self.workers)
        return {files[row]: image for row, image in loaded if not isinstance(image, PhotoError)}

    def _warn(self, files: Sequence[str]) -> None:
        with self._lock:
            if not self._warned:
                log.warning(
                    f"re-ranking reads the photos of map {self.place_map.path.name}, and none of the first "
                    f"{len(files):,} matches can be read, such as {self.place_map.photo_path(files[0])}: matches keep "
                    "their order. Move the photos back, or localize without re-ranking"
                )
            self._warned = True

    def _keep(self, file: str, features: LocalFeatures) -> None:
        if file not in self._cache:
            self._cached_bytes += _bytes(features)
        self._cache[file] = features
        self._cache.move_to_end(file)
        while self._cached_bytes > CACHE_BYTES:
            self._cached_bytes -= _bytes(self._cache.popitem(last=False)[1])


def shorten(distances: npt.NDArray[np.float32], shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Descriptor distances (Q, K), shorter where the share of inliers (Q, K) is above the query's upper quartile.

    NaN: an unknown share; that distance is not changed.
    """
    shortened = distances.copy()
    for row, known in enumerate(~np.isnan(shares)):
        if known.any():
            reference = np.quantile(shares[row, known], REFERENCE_QUANTILE)
            factors = (1 + GAIN * reference) / (1 + GAIN * shares[row, known])
            shortened[row, known] = np.minimum(2.0, distances[row, known] * factors)
    return shortened


def _reorder(matches: Matches, distances: npt.NDArray[np.float32]) -> Matches:
    """The same matches with these distances (Q, K), the shortest first."""
    order = np.argsort(distances, axis=1, kind="stable")
    return Matches(
        np.take_along_axis(matches.ids, order, axis=1),
        np.take_along_axis(distances, order, axis=1),
        np.take_along_axis(matches.latlon, order[..., None], axis=1),
        tuple(tuple(files[i] for i in line) for files, line in zip(matches.files, order, strict=True)),
    )


def _bytes(features: LocalFeatures) -> int:
    return features.vectors.numel() * features.vectors.element_size() + features.cells.nbytes
