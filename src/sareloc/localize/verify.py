"""How matches are searched, and verified: what local features say of retrieved photos, by two-view geometry.

The photos that were retrieved by their search vectors are ordered by the matches of their best keypoints (pre-filter);
the first of them are verified. Where the photos' headings are known, also where the query was taken and where it looks
(see `find_pose`).
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
from sareloc.errors import ArgumentError, PhotoError
from sareloc.geo import ecef_from_wgs84, enu_from_wgs84, wgs84_from_enu
from sareloc.geometry import (
    Evidence,
    InlierPairs,
    LocalFeatureExtractor,
    LocalFeatures,
    Reference,
    TwoView,
    count_inliers,
    count_matches,
    estimate_camera_pose,
    feature_size,
    inlier_pairs,
    turn_deg,
    verify,
)
from sareloc.geometry.two_view import PREFILTER_KEYPOINTS
from sareloc.localize.estimate import CANDIDATES, PLACE_M, SURE_INLIERS, Pose, fuse, weigh
from sareloc.maps import Matches, PlaceMap
from sareloc.maps.notes import LOCAL_FEATURES
from sareloc.photos import read_image

VERIFIED = 10
"""Default: how many matches are verified if the map holds local features."""
PREFILTERED = 100
"""Default: how many photos are retrieved if matches are verified; the pre-filter chooses among them."""
COUNT_SCORE = 2.0
"""Weight of the logarithm of matches in the order of the pre-filter; chosen on training towns."""
OVERWHELMING_INLIERS, OVERWHELMING_PHOTOS = 60, 3
"""With so many photos of one place that have so many inliers, no other place needs to be looked at."""
CACHE_BYTES = 256 * 2**20
HEADING_INLIERS, HEADING_PHOTOS = 30, 5

log = logging.getLogger("sareloc.localize")


@dataclass(frozen=True)
class Search:
    """How matches are searched. A calibration belongs to the search that it was fitted with."""

    candidates: int | None = None
    """How many photos are retrieved by their search vectors. Default: 100 if matches are verified, of which those that
    are verified are fused into a fix; else 20, which are fused."""
    verify: int | None = None
    """About how many of them are verified by local features, and ranked by the evidence (see `Verifier.verify_best`);
    0: none. Default: 10 if the map holds local features, else 0."""

    def __post_init__(self) -> None:
        for field, least in (("candidates", 1), ("verify", 0)):
            found = getattr(self, field)
            if found is not None and found < least:
                raise ArgumentError(f"{field} must be {least} or more, found {found}")

    def for_map(self, place_map: PlaceMap) -> Search:
        """This search with the defaults of a map."""
        verify = self.verify
        if verify is None:
            verify = VERIFIED if LOCAL_FEATURES in place_map.notes else 0
        return Search(max(self.candidates or (PREFILTERED if verify else CANDIDATES), verify), verify)

    @property
    def fused(self) -> int:
        """How many matches are fused into a fix if none of them could be verified."""
        return CANDIDATES if self.verify else self.candidates or CANDIDATES

    @property
    def name(self) -> str:
        """Such as "candidates=100 verify=10"; "plain" for 20 candidates that are not verified."""
        if not self.verify:
            return "plain" if self.fused == CANDIDATES else f"candidates={self.fused}"
        return f"candidates={self.candidates or PREFILTERED} verify={self.verify}"

    @property
    def note(self) -> str:
        """The name under which a map stores the calibration of this search."""
        return f"calibration {self.name}"


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

    def join(self, other: Verified) -> Verified:
        """What the photos of both say of the same query, these photos first."""
        evidence = Evidence(
            np.append(self.evidence.inliers, other.evidence.inliers),
            np.append(self.evidence.planar, other.evidence.planar),
        )
        headings = np.append(self.headings_deg, other.headings_deg)
        return Verified(self.query, self.photos + other.photos, self.views + other.views, evidence, headings)

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


def _is_overwhelming(evidence: Evidence, latlon: Floats) -> bool:
    """Whether three photos within 25 m of the one with most inliers have 60 or more, of those verified, at `latlon`."""
    inliers = np.nan_to_num(evidence.inliers)
    if (inliers >= OVERWHELMING_INLIERS).sum() < OVERWHELMING_PHOTOS:
        return False
    points = ecef_from_wgs84(latlon[: len(inliers)])
    near = np.linalg.norm(points - points[int(inliers.argmax())], axis=1) <= PLACE_M
    return int((near & (inliers >= OVERWHELMING_INLIERS)).sum()) >= OVERWHELMING_PHOTOS


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

    def prefilter(self, query: LocalFeatures, ids: Ints, distances: npt.ArrayLike, temperature: float) -> Ints:
        """The order (K,) in which K retrieved photos are to be verified.

        By `2 log(1 + matches of the 256 best keypoints) - d^2 / temperature`, the largest first; ties keep their order.
        A photo whose local features the map does not hold counts as the median of the others.

        Args:
            query: the local features of the query.
            ids: (K,) of the photos.
            distances: (K,) of their search vectors, rising.
            temperature: of the calibration.
        """
        held, _ = self.place_map.features_and_headings(ids, best=PREFILTER_KEYPOINTS)
        if not held:
            return np.arange(len(ids))
        matches = dict(zip(held, count_matches(query, list(held.values()), self.extractor.device), strict=True))
        usual = float(np.median(list(matches.values())))
        counts = np.array([matches.get(photo_id, usual) for photo_id in ids.tolist()], dtype=np.float64)
        scores = COUNT_SCORE * np.log1p(counts) - np.asarray(distances, dtype=np.float64) ** 2 / temperature
        return np.argsort(-scores, kind="stable")

    def verify_best(
        self, query: LocalFeatures, retrieved: Matches, count: int, temperature: float
    ) -> tuple[Ints, Verified]:
        """Order the photos retrieved for a query by the pre-filter, and verify the first of them.

        About `count` photos are verified: half of them if these leave no doubt (three photos within 25 m of the best
        have 60 inliers), twice as many if the first `count` have found nothing (15 inliers).

        Args:
            query: the local features of the query.
            retrieved: (1, K) the photos.
            count: how many photos are verified.
            temperature: of the calibration.

        Returns:
            The columns (K,) of the photos in the order of the pre-filter, and what those that were verified, the first
            ones, say.
        """
        (ids,), (distances,), (files,) = retrieved.ids, retrieved.distances, retrieved.files
        order = self.prefilter(query, ids, distances, temperature) if len(ids) > count else np.arange(len(ids))

        def verified(first: int, last: int) -> Verified:
            columns = order[first:last]
            return self.verify(query, ids[columns], [files[column] for column in columns])

        found = verified(0, (count + 1) // 2)
        if not _is_overwhelming(found.evidence, retrieved.latlon[0, order]):
            found = found.join(verified((count + 1) // 2, count))
        if len(order) > count and (np.nan_to_num(found.evidence.inliers) < SURE_INLIERS).all():
            found = found.join(verified(count, 2 * count))
        return order, found

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
