"""Verification: what local features say of each match, by two-view geometry between the query and the map's photo.

Where the photos' headings are known, also where the query was taken and where it looks (see `find_pose`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats, Ints
from sareloc.errors import PhotoError
from sareloc.geo import ecef_from_wgs84, enu_from_wgs84, wgs84_from_enu
from sareloc.geometry import (
    Evidence,
    InlierPairs,
    LocalFeatureExtractor,
    LocalFeatures,
    Reference,
    TwoView,
    count_inliers,
    estimate_camera_pose,
    feature_size,
    inlier_pairs,
    turn_deg,
    verify,
)
from sareloc.localize.estimate import PLACE_M, SURE_INLIERS, Pose, fuse, weigh
from sareloc.maps import PlaceMap
from sareloc.photos import read_image

VERIFIED = 20
"""Default: how many matches are verified if the map holds local features."""
CACHE_BYTES = 256 * 2**20
HEADING_INLIERS, HEADING_PHOTOS = 30, 5

log = logging.getLogger("sareloc.localize")


@dataclass(frozen=True, eq=False)
class Verified:
    """What the local features of K photos of the map say of a query."""

    query: LocalFeatures
    photos: tuple[LocalFeatures | None, ...]
    """Of the K photos; None: a photo was not verified."""
    views: tuple[TwoView | None, ...]
    evidence: Evidence
    headings_deg: Floats
    """(K,) of the photos; NaN: unknown."""

    def query_headings_deg(self) -> Floats:
        """The query's headings (K,) by the five photos with most inliers, at least 30, with a known heading; NaN by
        the others."""
        headings = np.full(len(self.views), np.nan)
        known = np.flatnonzero((self.evidence.inliers >= HEADING_INLIERS) & ~np.isnan(self.headings_deg))
        for row in known[np.argsort(-self.evidence.inliers[known], kind="stable")][:HEADING_PHOTOS]:
            photo, view = self.photos[row], self.views[row]
            assert photo is not None
            assert view is not None
            turned = turn_deg(self.query, photo, view)
            headings[row] = np.nan if turned is None else (self.headings_deg[row] + turned) % 360
        return headings


def find_pose(verified: Verified, latlon: Floats, distances: npt.ArrayLike, temperature: float) -> Pose | None:
    """Where a query was taken and where it looks, by its matches at `latlon` (K, 2) with descriptor `distances` (K,).

    By the photos within 25 m of the place where the matches agree (see `fuse`) that have 15 inliers or more and a known
    heading, the most probable first; see `estimate_camera_pose`. None where that gives none.
    """
    if np.isnan(verified.evidence.inliers).all():
        return None
    weights = weigh(distances, temperature, verified.evidence)
    place = fuse(latlon, distances, weights, verified.evidence)
    usable = (verified.evidence.inliers >= SURE_INLIERS) & ~np.isnan(verified.headings_deg)
    away_m = np.linalg.norm(ecef_from_wgs84(latlon) - ecef_from_wgs84(place.latlon), axis=1)
    rows = np.flatnonzero(usable & (away_m <= PLACE_M))
    rows = rows[np.argsort(-weights[rows], kind="stable")]
    metres = enu_from_wgs84(latlon[rows], place.latlon)  # of near photos only: the plane has no image of the far ones
    references = [
        Reference(photo, view, east_m, north_m, float(verified.headings_deg[row]))
        for row, (east_m, north_m) in zip(rows, metres.tolist(), strict=True)
        if (photo := verified.photos[row]) is not None and (view := verified.views[row]) is not None
    ]
    pose = estimate_camera_pose(verified.query, references)
    if pose is None:
        return None
    (latitude, longitude), *_ = wgs84_from_enu([(pose.east_m, pose.north_m)], place.latlon).tolist()
    return Pose((latitude, longitude), pose.radius_m, pose.heading_deg)


class Verifier:
    """Verifies matches by the local features that a map holds. Safe from several threads.

    Features that the map does not hold are computed from the photo's file, and the most recently used 256 MiB of them
    are cached. Raises MapError if the map holds local features of another extractor.
    """

    def __init__(self, place_map: PlaceMap, extractor: LocalFeatureExtractor) -> None:
        self.place_map = place_map
        place_map.local_features([])  # raises MapError before the first query
        self.extractor = extractor
        self._lock = Lock()
        self._cache: OrderedDict[str, LocalFeatures] = OrderedDict()
        self._cached_bytes = 0
        self._warned = False

    def verify(self, query: LocalFeatures, ids: Ints, files: Sequence[str]) -> Verified:
        """What the local features of K photos of the map, by their ids (K,) and file names, say of a query.

        A photo whose features are neither in the map nor can be computed from its file is not verified (NaN). If that
        is so for all, a warning is logged, once.
        """
        held, headings_deg = self._features_of_photos(ids, files)
        if len(ids) and not held:
            self._warn(files)
        photos = [held.get(photo_id) for photo_id in ids.tolist()]
        views = verify(query, photos, self.extractor.device)
        return Verified(query, tuple(photos), tuple(views), count_inliers(views), headings_deg)

    def inlier_pairs(self, query: LocalFeatures, photo_id: int, file: str) -> InlierPairs | None:
        """The matched keypoints of a query and a photo of the map, by its id and file name, that agree.

        None if the photo's features are neither in the map nor can be computed from its file.
        """
        other = self._features_of_photos(np.array([photo_id]), [file])[0].get(photo_id)
        (view,) = verify(query, [other], self.extractor.device)
        return None if other is None or view is None else inlier_pairs(query, other, view)

    def _features_of_photos(self, ids: Ints, files: Sequence[str]) -> tuple[dict[int, LocalFeatures], Floats]:
        held, headings_deg = self.place_map.features_and_headings(ids)
        missing = {int(i): file for i, file in zip(ids.tolist(), files, strict=True) if i not in held}
        if missing:
            with self._lock:
                held |= {i: one for i, file in missing.items() if (one := self._from_file(file)) is not None}
        return held, headings_deg

    def _from_file(self, file: str) -> LocalFeatures | None:
        if file not in self._cache:
            path = self.place_map.photo_path(file)
            try:
                image = read_image(path, (feature_size,))
            except PhotoError:
                return None
            (found,) = self.extractor.extract(image.pixels, focal_35mm=[image.focal_35mm])
            self._cache[file] = found
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
