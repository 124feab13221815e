"""Verification: what local features say of each match, by two-view geometry between the query and the map's photo."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

import numpy as np
import PIL.Image
import torch

from sareloc.arrays import Floats, Image, Ints
from sareloc.errors import PhotoError
from sareloc.geometry import (
    Evidence,
    InlierPairs,
    LocalFeatureExtractor,
    LocalFeatures,
    count_inliers,
    feature_size,
    focal_px_of,
    inlier_pairs,
    turn_deg,
    verify,
)
from sareloc.loading import load_images
from sareloc.maps import PlaceMap
from sareloc.photos import MAX_PIXELS, SizeRule, decode, read_focal_35mm

VERIFIED = 20
"""Default: how many matches are verified if the map holds local features."""
CACHE_BYTES = 256 * 2**20
HEADING_INLIERS, HEADING_PHOTOS = 30, 5
FEW = 8  # photos: starting workers takes longer than decoding so many

Photo = str | Path | bytes | Image
"""A file, its bytes, or pixels."""

log = logging.getLogger("sareloc.localize")


@dataclass(frozen=True, eq=False)
class QueryImage:
    """A decoded query: pixels for the descriptor and, if its matches are to be verified, for local features."""

    image: Image
    """At the model's size."""
    detail: Image | None = None
    """At the size of local features; None: they are not needed."""
    focal_35mm: float | None = None
    """35 mm equivalent focal length in mm; None: unknown."""


def read_query(
    photo: Photo, size: SizeRule, *, detail: bool, name: str | None = None, max_pixels: int = MAX_PIXELS
) -> QueryImage:
    """Decode a query to the model's size and, if `detail`, to that of local features.

    Pixels are used as they are given, and reduced for local features. Raises PhotoError if the photo cannot be decoded.
    """
    if not isinstance(photo, str | Path | bytes):
        return QueryImage(photo, _reduced(photo) if detail else None)
    image = decode(photo, size=size, name=name, max_pixels=max_pixels)
    if not detail:
        return QueryImage(image)
    close = decode(photo, size=feature_size, name=name, max_pixels=max_pixels)
    return QueryImage(image, close, read_focal_35mm(photo))


def read_queries(
    photos: Sequence[Photo | QueryImage], size: SizeRule, *, detail: bool, workers: int
) -> Iterator[QueryImage | PhotoError]:
    """Each query decoded, in order, or the error that says why it cannot be; files in worker processes if many."""
    files = [photo for photo in photos if isinstance(photo, str | Path)]
    in_workers = workers > 0 and len(files) > FEW
    images = load_images(files, size, workers=workers) if in_workers else iter(())
    details = load_images(files, feature_size, workers=workers) if in_workers and detail else iter(())
    for row, photo in enumerate(photos):
        if isinstance(photo, QueryImage):
            yield photo
        elif isinstance(photo, str | Path) and in_workers:
            image = next(images)[1]
            close = next(details)[1] if detail else None
            if isinstance(image, PhotoError) or isinstance(close, PhotoError):
                yield image if isinstance(image, PhotoError) else close  # type: ignore[misc]
            else:
                yield QueryImage(image, close, read_focal_35mm(photo) if detail else None)
        else:
            try:
                name = f"photo {row}" if isinstance(photo, bytes) else None
                yield read_query(photo, size, detail=detail, name=name)
            except PhotoError as error:
                yield error


def _reduced(image: Image) -> Image:
    height, width = feature_size(*image.shape[:2])
    if (height, width) == image.shape[:2]:
        return image
    return np.array(PIL.Image.fromarray(image).resize((width, height), PIL.Image.Resampling.BILINEAR))


class Verifier:
    """Verifies matches by the local features that a map holds. Safe from several threads.

    Features that the map does not hold are computed from the photo's file, and the most recently used 256 MiB of them
    are cached. device: where features are extracted; default: the GPU if there is one.
    """

    def __init__(self, place_map: PlaceMap, *, device: torch.device | str | None = None) -> None:
        self.place_map = place_map
        self.extractor = LocalFeatureExtractor(device)
        self._lock = Lock()
        self._cache: OrderedDict[str, LocalFeatures] = OrderedDict()
        self._cached_bytes = 0
        self._warned = False

    def features(self, queries: Sequence[QueryImage]) -> list[LocalFeatures]:
        """The local features of queries; of one that was decoded without `detail`, from its smaller image."""
        images = [_reduced(query.image) if query.detail is None else query.detail for query in queries]
        found = self.extractor.extract(images)
        return [
            replace(one, focal_px=focal_px_of(query.focal_35mm, one.size))
            for one, query in zip(found, queries, strict=True)
        ]

    def verify(self, query: LocalFeatures, ids: Ints, files: Sequence[str]) -> tuple[Evidence, Floats]:
        """What the local features of K photos of the map, by their ids (K,) and file names, say of a query.

        The evidence, and the query's headings (K,) in degrees by the five photos with most inliers, at least 30, whose
        own headings the map knows; NaN by the others.

        A photo whose features are neither in the map nor can be computed from its file is not verified (NaN). If that
        is so for all, a warning is logged, once.
        """
        held = self._features_of_photos(ids, files)
        if len(ids) and not held:
            self._warn(files)
        others = [held.get(photo_id) for photo_id in ids.tolist()]
        views = verify(query, others)
        evidence = count_inliers(views)
        headings = np.full(len(ids), np.nan)
        rows = np.flatnonzero(evidence.inliers >= HEADING_INLIERS)
        rows = rows[np.argsort(-evidence.inliers[rows], kind="stable")][:HEADING_PHOTOS]
        for row, known in zip(rows.tolist(), self.place_map.headings_deg(ids[rows]).tolist(), strict=True):
            other, view = others[row], views[row]
            if other is not None and view is not None and not np.isnan(known):
                turned = turn_deg(query, other, view)
                headings[row] = np.nan if turned is None else (known + turned) % 360
        return evidence, headings

    def inlier_pairs(self, query: LocalFeatures, photo_id: int, file: str) -> InlierPairs | None:
        """The matched keypoints of a query and a photo of the map, by its id and file name, that agree.

        None if the photo's features are neither in the map nor can be computed from its file.
        """
        other = self._features_of_photos(np.array([photo_id]), [file]).get(photo_id)
        (view,) = verify(query, [other])
        return None if other is None or view is None else inlier_pairs(query, other, view)

    def _features_of_photos(self, ids: Ints, files: Sequence[str]) -> dict[int, LocalFeatures]:
        held = self.place_map.local_features(ids)
        missing = {int(i): file for i, file in zip(ids.tolist(), files, strict=True) if i not in held}
        if missing:
            with self._lock:
                held |= {i: one for i, file in missing.items() if (one := self._from_file(file)) is not None}
        return held

    def _from_file(self, file: str) -> LocalFeatures | None:
        if file not in self._cache:
            path = self.place_map.photo_path(file)
            try:
                image = decode(path, size=feature_size)
            except PhotoError:
                return None
            (found,) = self.extractor.extract([image])
            self._cache[file] = replace(found, focal_px=focal_px_of(read_focal_35mm(path), found.size))
            self._cached_bytes += _bytes(found)
        self._cache.move_to_end(file)
        found = self._cache[file]
        while self._cached_bytes > CACHE_BYTES:
            self._cached_bytes -= _bytes(self._cache.popitem(last=False)[1])
        return found

    def _warn(self, files: Sequence[str]) -> None:
        with self._lock:
            if not self._warned:
                log.warning(
                    f"map {self.place_map.path.name} holds no local features, and of the first {len(files):,} matches "
                    f"no photo can be read, such as {self.place_map.photo_path(files[0])}: matches are not verified. "
                    'Move the photos back and run "sareloc map upgrade", or localize with --verify 0'
                )
            self._warned = True


def _bytes(features: LocalFeatures) -> int:
    return features.xy.nbytes + features.descriptors.nbytes
