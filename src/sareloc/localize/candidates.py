"""The candidates of a query: the photos of a map that are retrieved by its search vector, and verified.

The views of a 360° query answer together: their matches and poses become those of one photo. A view's heading is that
of the middle of the panorama plus its yaw.
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Self

import numpy as np

from sareloc.arrays import Floats
from sareloc.encode import Encoded, Encoder
from sareloc.encode.encoder import single_threads
from sareloc.errors import ArgumentError, MapError
from sareloc.geo import Area, ecef_from_wgs84, enu_from_wgs84, wgs84_from_enu
from sareloc.localize.condition import Condition, search_centred
from sareloc.localize.estimate import (
    CANDIDATES,
    PLACE_M,
    Calibration,
    Candidates,
    Match,
    Pose,
    columns,
    fuse,
    kernel,
    weigh,
)
from sareloc.localize.verify import Search, Verified, Verifier, find_pose
from sareloc.localize.walk import LEAST, Belief, chance_of_place, own_belief
from sareloc.maps import Matches, PlaceMap
from sareloc.maps.notes import own_calibration
from sareloc.photos import ReadImage

PANORAMA_DEPTH, PANORAMA_VERIFIED = 2, 4
"""Times as many photos are retrieved, and verified, for all views of a 360° query as for a photo."""
TRUST = 0.2
"""The part of independent evidence that each further view counts for: less than a photo of a walk, since neighbouring
views overlap and are matched with the same photos. Chosen on a drawn town, by 360° photos of it and of another one."""
AGREEING_DEG = 15.0
"""Views whose headings differ by more do not agree on a pose."""


def map_calibration(place_map: PlaceMap, search: Search) -> Calibration:
    """The calibration stored in a map for this search, else one fitted to the map's own photos.

    The latter is stored too, for 20 candidates; where it is absent or outdated (see `own_calibration`), it is fitted.
    """
    stored = place_map.notes.get(search.note)
    if stored is not None:
        return Calibration.from_json(stored)
    own = own_calibration(place_map.notes, len(place_map)) if search.fused == CANDIDATES else None
    if own is not None:
        with suppress(MapError):  # it can be fitted again
            return Calibration.from_json(own)
    from sareloc.localize.calibration import calibrate_by_map  # most maps hold their calibration

    return calibrate_by_map(place_map, search.fused)


class CandidateSearch:
    """Retrieves the candidates of queries in one map, and verifies them."""

    def __init__(self, place_map: PlaceMap, search: Search, encoder: Encoder, calibration: Calibration | None) -> None:
        """Prepare the search.

        Args:
            place_map: the map.
            search: how matches are searched, see `Search.for_map`.
            encoder: encodes queries as the map's photos were encoded.
            calibration: how confidence and radius are computed; default: see `map_calibration`.
        """
        self.place_map = place_map
        self.search = search
        self.encoder = encoder
        """Encodes queries as the map's photos were encoded."""
        extractor = encoder.extractor if search.verify else None
        self.verifier = None if extractor is None else Verifier(place_map, extractor)
        """Verifies matches; None: they are not verified."""
        self._given = calibration
        self.calibration = calibration or map_calibration(place_map, search)
        """The parameters of confidence and radius."""

    def recalibrated(self) -> Self:
        """The same with the calibration that its map has now; one given as an argument is kept."""
        fresh = copy.copy(self)
        fresh.calibration = self._given or map_calibration(self.place_map, self.search)
        return fresh

    @cached_property
    def vector_space(self) -> str:
        """16 hex digits over what search vectors depend on: the model, the map's own whitening, and dimensions."""
        manifest = self.place_map.manifest
        parts = (self.encoder.model.fingerprint(), manifest.dim, manifest.aggregate, manifest.aggregate_dim)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def retrieve(
        self, encoded: Sequence[Encoded], k: int, near: Area | None = None, condition: Condition | None = None
    ) -> Matches:
        """The k photos of the map whose search vectors are nearest to that of each image.

        Args:
            encoded: the images.
            k: how many photos.
            near: search only there.
            condition: the vectors of images and map are centred before they are compared, see `search_centred`.

        Raises:
            ArgumentError: if the condition was estimated with another model, or another map's whitening.
        """
        vectors = np.stack([one.vector for one in encoded])
        if condition is None:
            return self.place_map.search(vectors, k, near)
        if condition.vector_space != self.vector_space or condition.mean.shape != vectors.shape[1:]:
            raise ArgumentError(
                f"the condition is of the vector space {condition.vector_space:.80} with {condition.mean.size} "
                f"dimensions, the map has {self.vector_space} with {vectors.shape[1]}: estimate it again with this map"
            )
        if not condition.weight:
            return self.place_map.search(vectors, k, near)
        return search_centred(self.place_map, vectors, k, near, condition)

    def find_matches(
        self,
        queries: Sequence[ReadImage],
        encoded: Sequence[Sequence[Encoded]],
        k: int,
        near: Area | None = None,
        condition: Condition | None = None,
    ) -> list[Candidates]:
        """The k photos of the map most like each query, more if more are retrieved, and its pose by them.

        Those of a 360° query are found by its views (see `combine_views`), which together verify four times as many
        matches as one photo.

        Args:
            queries: read at the sizes of `encoder`.
            encoded: the same, see `encode`.
            k: how many photos.
            near: search only there.
            condition: of the queries.
        """
        images = [one for views in encoded for one in views]
        count, depth = self.search.verify or 0, self.search.candidates or 0
        retrieved = self.retrieve(images, max(k, depth), near, condition)
        shares = [
            (math.ceil(PANORAMA_VERIFIED * count / len(views)), math.ceil(PANORAMA_DEPTH * depth / len(views)))
            if query.views
            else (count, depth)
            for query, views in zip(queries, encoded, strict=True)
            for _ in views
        ]
        found = iter(self._verified(images, retrieved, shares))
        chance = chance_of_place(self.place_map) if any(query.views for query in queries) else 1.0
        return [
            combine_views([next(found).best(CANDIDATES) for _ in query.views], _yaws(query), self.calibration, chance)
            if query.views
            else next(found)
            for query in queries
        ]

    def _verified(
        self, encoded: Sequence[Encoded], retrieved: Matches, shares: Sequence[tuple[int, int]]
    ) -> list[Candidates]:
        """What was found for each of N images, with the `count` and `depth` of `Verifier.verify_best` for each."""
        lists = _lists(retrieved)
        if self.verifier is None:
            return [Candidates(matches) for matches in lists]
        verifier, temperature = self.verifier, self.calibration.temperature

        def verified(row: int, share: tuple[int, int]) -> Candidates:
            features, (count, depth) = encoded[row].features, share
            assert features is not None
            nearest = retrieved.take(row, np.arange(min(depth, retrieved.ids.shape[1])))
            order, found = verifier.verify_best(features, nearest, count, temperature)
            first = order[: len(found.views)]
            pose = find_pose(found, retrieved.latlon[row, first], retrieved.distances[row, first], temperature)
            ordered = [*(lists[row][column] for column in order), *lists[row][len(order) :]]
            return Candidates(_ranked(ordered, found, temperature), pose)

        return list(single_threads("verify", os.getpid()).map(verified, range(len(encoded)), shares))


def combine_views(
    views: Sequence[Candidates], yaws_deg: Sequence[float], calibration: Calibration, chance: float
) -> Candidates:
    """What the views of one 360° query found, with headings of the middle of the panorama.

    The place is where the matches of all views agree (see `fuse`), with their probabilities given all views as weights
    (see `joint_chances`), and the confidence is their sum there. chance: see `joint_chances`.

    A photo of the map that several views found is listed once, as the view with most inliers has it, then the one with
    the smallest distance. The most probable photos come first, then those of smaller distance.
    """
    matches = [
        replace(match, heading_deg=None if match.heading_deg is None else (match.heading_deg - yaw) % 360)
        for found, yaw in zip(views, yaws_deg, strict=True)
        for match in found.matches
    ]
    if not matches:
        return Candidates(())
    latlon, distances, evidence = columns(matches)
    weights = joint_chances([own_belief(found.matches, calibration) for found in views], chance)
    place = fuse(latlon, distances, weights, evidence)
    inside = np.linalg.norm(ecef_from_wgs84(latlon) - ecef_from_wgs84(place.latlon), axis=1) <= PLACE_M
    confidence = float(weights[inside].sum())
    best: dict[int, Match] = {}
    for row in np.lexsort((distances, -weights)):  # the order of the first mention stays
        match = matches[row]
        best[match.id] = max(best.get(match.id, match), match, key=_rank)
    poses = [
        replace(found.pose, heading_deg=(found.pose.heading_deg - yaw) % 360)
        for found, yaw in zip(views, yaws_deg, strict=True)
        if found.pose is not None
    ]
    return Candidates(tuple(best.values()), combine_poses(poses), place, min(confidence, 1.0))


def joint_chances(beliefs: Sequence[Belief], chance: float) -> Floats:
    """The probability (K,) of the places of all beliefs, in order, given that all V views were taken at one place.

    With a prior of 1/2 for "in the map", of which every place has the part `chance` (the probability that two photos of
    the map, drawn at random, show the same place), a view's belief b at a place p gives the likelihood
    `b(p) / prior(p)` by Bayes' rule. Its matches within some 12 m add up (see `kernel`); for a place that it does not
    name, "elsewhere in the map" counts. The views' errors are alike: V views count as `1 + 0.2 (V - 1)` independent
    ones. One view alone gives its own belief. A view without matches says nothing.
    """
    points = np.concatenate([belief.points_m for belief in beliefs])
    power = (1 + TRUST * (len(beliefs) - 1)) / len(beliefs)
    there, outside = np.zeros(len(points)), 0.0  # logarithms
    elsewhere = 0.0
    for belief in beliefs:
        if len(belief.points_m):
            named = kernel(points, belief.points_m) @ belief.chances
            there += np.log(np.maximum(named / chance + belief.elsewhere, LEAST))
            elsewhere += math.log(max(belief.elsewhere, LEAST))
            outside += math.log(max(belief.outside, LEAST))
    same = kernel(points, points).sum(axis=1)  # points near each other are one place: together they have its prior
    logs = np.array([*(power * there + np.log(chance / same)), power * elsewhere, power * outside])
    shares = np.exp(logs - logs.max())
    return np.asarray(shares[: len(points)] / shares.sum())


def combine_poses(poses: Sequence[Pose]) -> Pose | None:
    """The mean of the poses that agree with the most certain one, weighted by the inverse squares of their radii.

    They agree if their headings differ by 15 degrees at most and their positions by the sum of their radii. The radius
    is that of the most certain one: the views share the errors of the map's photos. None if there are none.
    """
    if not poses:
        return None
    first = min(poses, key=lambda pose: pose.radius_m)
    latlon, radii = np.array([pose.latlon for pose in poses]), np.array([pose.radius_m for pose in poses])
    turns = np.array([(pose.heading_deg - first.heading_deg + 180) % 360 - 180 for pose in poses])
    away_m = np.linalg.norm(ecef_from_wgs84(latlon) - ecef_from_wgs84(first.latlon), axis=1)
    agree = (away_m <= radii + first.radius_m) & (np.abs(turns) <= AGREEING_DEG)
    weights = 1 / np.maximum(radii[agree], 1e-3) ** 2
    weights /= weights.sum()
    metres = enu_from_wgs84(latlon[agree], first.latlon)  # of near poses only: the plane has no image of the far ones
    (latitude, longitude), *_ = wgs84_from_enu([weights @ metres], first.latlon).tolist()
    return Pose((latitude, longitude), first.radius_m, float(first.heading_deg + weights @ turns[agree]) % 360)


def _rank(match: Match) -> tuple[int, float]:
    return -1 if match.inliers is None else match.inliers, -match.distance


def _yaws(query: ReadImage) -> list[float]:
    return [image.view.yaw_deg for image in query.views if image.view is not None]


def _ranked(matches: Sequence[Match], verified: Verified, temperature: float) -> tuple[Match, ...]:
    """The verified matches, which are the first, by their weights (see `weigh`), then the others."""
    evidence, count = verified.evidence, len(verified.views)
    if np.isnan(evidence.inliers).all():
        return tuple(matches)
    first = [
        match
        if np.isnan(inliers)
        else replace(
            match,
            inliers=int(inliers),
            planar_inliers=int(planar),
            heading_deg=None if np.isnan(heading) else float(heading),
        )
        for match, inliers, planar, heading in zip(
            matches[:count], evidence.inliers, evidence.planar, verified.query_headings_deg(), strict=True
        )
    ]
    distances = np.array([match.distance for match in first])
    order = np.lexsort((distances, -weigh(distances, temperature, evidence)))
    return (*(first[row] for row in order), *matches[count:])


def _lists(matches: Matches) -> list[tuple[Match, ...]]:
    return [
        tuple(
            Match(int(photo_id), file, (float(lat), float(lon)), float(distance))
            for photo_id, file, (lat, lon), distance in zip(ids, files, latlon, distances, strict=True)
        )
        for ids, files, latlon, distances in zip(
            matches.ids, matches.files, matches.latlon, matches.distances, strict=True
        )
    ]
