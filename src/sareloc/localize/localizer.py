"""Localizer: a model and a map that say where photos were taken."""

from __future__ import annotations

import copy
import hashlib
import logging
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np
import torch
from tqdm import tqdm

from sareloc.arrays import Floats
from sareloc.encode import Encoded, Encoder
from sareloc.encode.encoder import single_threads
from sareloc.errors import ArgumentError, MapError, PhotoError
from sareloc.geometry import KEYPOINTS, InlierPairs
from sareloc.loading import read_images
from sareloc.localize.condition import (
    MIN_PHOTOS,
    SAMPLED,
    Condition,
    UsedCondition,
    count_places,
    search_centred,
    spread,
)
from sareloc.localize.estimate import (
    CANDIDATES,
    MIN_CONFIDENCE,
    Calibration,
    Candidates,
    Fix,
    Match,
    check_confidence,
    estimate,
    fix_at,
    weigh,
)
from sareloc.localize.panorama import combine_views
from sareloc.localize.verify import Search, Verified, Verifier, find_pose
from sareloc.localize.walk import chance_of_place, estimate_walk
from sareloc.maps import Area, Circle, Matches, PlaceMap, load_map_model
from sareloc.maps.notes import own_calibration, untagged_note
from sareloc.maps.store import map_model
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import Precision
from sareloc.photos import Image, ImageRecord, ReadImage, ViewOptions
from sareloc.photos.decoding import TRUNCATED
from sareloc.photos.panoramas import panorama_places

if TYPE_CHECKING:
    from sareloc.localize.several import SeveralMaps

Query = Image | ImageRecord | ReadImage
"""An image (a path, the bytes of a file, pixels), the record of one, or one that was read already."""
Near = Area | Fix | None
Maps = list[str] | list[Path] | list[str | Path] | tuple[str | Path, ...]
"""Several maps that are asked at once: files and addresses."""

AROUND_M = 500.0
PANORAMA_DEPTH, PANORAMA_VERIFIED = 2, 4
"""Times as many photos are retrieved, and verified, for all views of a 360° query as for a photo."""
AT_ONCE = 32  # images that are read before they are encoded
FEW = 8  # files: starting workers takes longer than reading so many

log = logging.getLogger("sareloc.localize")


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


class Localizes(ABC):
    """Says where photos were taken: a `Localizer`, or `SeveralMaps`."""

    min_confidence: float
    """A fix of a lower confidence has no position."""

    def localize(self, photo: Query, *, near: Near = None, top: int = 5, condition: Condition | None = None) -> Fix:
        """Where a photo was taken.

        Args:
            photo: the query: a path, the bytes of a file, RGB pixels (H, W, 3), a Pillow image, or an `ImageRecord`.
            near: search only there; a `Fix` means within 500 m of it (and its radius), or anywhere if it has no
                position.
            top: how many matches the fix lists; all if the map holds fewer.
            condition: of photos like this one (see `estimate_condition`); default: it is searched as it is.

        Raises:
            PhotoError: if it cannot be decoded.
        """
        (found,) = self.localize_many([photo], near=near, top=top, condition=condition)
        if isinstance(found, PhotoError):
            raise found
        return found

    def localize_many(
        self, photos: Sequence[Query], *, near: Near = None, top: int = 5, condition: UsedCondition = "auto"
    ) -> list[Fix | PhotoError]:
        """Where each photo was taken, in order; for one that cannot be decoded, the error that says why.

        Args:
            photos: the queries, each as for `localize`.
            near: as for `localize`.
            top: as for `localize`.
            condition: default: that of 20 or more photos is estimated from them, see `estimate_condition`; fewer are
                searched as they are. None: all are. A condition that was estimated before is used as it is.
        """
        return list(self.localize_each(photos, near=near, top=top, condition=condition))

    @abstractmethod
    def localize_each(
        self, photos: Sequence[Query], *, near: Near = None, top: int = 5, condition: UsedCondition = "auto"
    ) -> Iterator[Fix | PhotoError]:
        """As `localize_many`, each answer as soon as it is known, in constant memory."""

    @abstractmethod
    def localize_walk(
        self,
        photos: Sequence[Query],
        reach_m: float | Sequence[float],
        *,
        near: Near = None,
        top: int = 5,
        condition: UsedCondition = "auto",
        progress: bool = False,
    ) -> list[Fix | PhotoError]:
        """As `localize_many`, for the photos of one walk, whose places are estimated together (see `estimate_walk`).

        Args:
            photos: in the order in which they were taken; they are not sorted here. A photo that cannot be decoded
                counts as one without matches.
            reach_m: the largest distance between two photos that follow each other; one number, or one for each of the
                T - 1 steps, such as a speed in m/s times the seconds between them.
            near: as for `localize_many`.
            top: as for `localize_many`.
            condition: as for `localize_many`.
            progress: show a bar on standard error.
        """


class Localizer(Localizes):
    """Localizes photos with a map and the model that it was built with.

    A 360° photo is cut into views, whose matches give one fix together; its heading is that of the middle of the
    panorama.

    Args:
        model: the model that the map was built with.
        place_map: the map.
        search: how matches are searched.
        calibration: how confidence and radius are computed; default: see `map_calibration`.
        min_confidence: a fix of a lower confidence has no position.
        views: how a 360° photo is cut; default: twelve views around, of photos with GPano tags.
        batch: maximum number of photos encoded at once.
        workers: processes that decode photos; 0: this one.

    Raises:
        MapError: if the map has no photos or was built with another model.
    """

    def __init__(
        self,
        model: PlaceModel,
        place_map: PlaceMap,
        search: Search | None = None,
        *,
        calibration: Calibration | None = None,
        min_confidence: float = MIN_CONFIDENCE,
        views: ViewOptions | None = None,
        batch: int = 8,
        workers: int = 0,
    ) -> None:
        if not len(place_map):
            raise MapError(f'map {place_map.path} holds no photos: add some with "sareloc map add"')
        check_confidence(min_confidence)
        place_map.check_model(model)
        self.model = model
        self.place_map = place_map
        self.search = (search or Search()).for_map(place_map)
        self.min_confidence = min_confidence
        self.views = views
        self.workers = workers
        self.encoder = Encoder(
            map_model(model, place_map),
            dim=place_map.manifest.dim,
            keypoints=KEYPOINTS if self.search.verify or place_map.manifest.aggregate_dim else 0,
            aggregate_dim=place_map.manifest.aggregate_dim,
            adaptation=place_map.adaptation(),
            batch=batch,
        )
        """Encodes queries as the map's photos were encoded."""
        extractor = self.encoder.extractor if self.search.verify else None
        self.verifier = None if extractor is None else Verifier(place_map, extractor)
        """Verifies matches; None: they are not verified."""
        self._given = calibration
        self.calibration = calibration or map_calibration(place_map, self.search)
        """The parameters of confidence and radius."""

    def __repr__(self) -> str:
        return f"<Localizer: {self.place_map!r}, search {self.search.name}>"

    def recalibrated(self) -> Localizer:
        """This localizer with the calibration that its map has now; one given as an argument is kept."""
        fresh = copy.copy(self)
        fresh.calibration = self._given or map_calibration(self.place_map, self.search)
        return fresh

    @cached_property
    def vector_space(self) -> str:
        """16 hex digits over what search vectors depend on: the model, the map's own whitening, and dimensions."""
        manifest = self.place_map.manifest
        parts = (self.encoder.model.fingerprint(), manifest.dim, manifest.aggregate, manifest.aggregate_dim)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def localize_each(
        self, photos: Sequence[Query], *, near: Near = None, top: int = 5, condition: UsedCondition = "auto"
    ) -> Iterator[Fix | PhotoError]:
        """See `Localizes`."""
        check_queries(photos, top)
        for found in self._search(photos, _area(near), top, condition):
            yield found if isinstance(found, PhotoError) else replace(self.fix(found), matches=found.matches[:top])

    def find_candidates(
        self,
        queries: Sequence[ReadImage],
        encoded: Sequence[Sequence[Encoded]],
        near: Near = None,
        top: int = 5,
        condition: Condition | None = None,
    ) -> list[Candidates]:
        """What is found for each query, for a fix that lists some matches.

        Args:
            queries: as for `find_matches`.
            encoded: as for `find_matches`.
            near: as for `localize`.
            top: as for `localize`.
            condition: of the queries.
        """
        k = max(top, self.search.fused)
        return self.find_matches(queries, encoded, k, _area(near), condition) if queries else []

    def fix(self, found: Candidates) -> Fix:
        """The fix that what was found for a query gives."""
        if found.place is not None:
            matches = found.matches
            return fix_at(found.place, found.confidence, matches, self.calibration, self.min_confidence, found.pose)
        return estimate(self.fused(found), self.calibration, pose=found.pose, min_confidence=self.min_confidence)

    def fused(self, found: Candidates) -> tuple[Match, ...]:
        """The matches that are fused into a fix: those that were verified; if none was, the first."""
        verified = tuple(match for match in found.matches if match.inliers is not None)
        return verified or found.matches[: self.search.fused]

    def localize_walk(
        self,
        photos: Sequence[Query],
        reach_m: float | Sequence[float],
        *,
        near: Near = None,
        top: int = 5,
        condition: UsedCondition = "auto",
        progress: bool = False,
    ) -> list[Fix | PhotoError]:
        """See `Localizes`."""
        check_queries(photos, top)
        searched = self._search(photos, _area(near), top, condition)
        bar = tqdm(searched, total=len(photos), desc="localize", unit="photo", disable=None if progress else True)
        found = list(bar)
        seen = [Candidates(()) if isinstance(one, PhotoError) else one for one in found]
        fixes = estimate_walk(
            [self.fused(one) for one in seen],
            reach_m,
            self.calibration,
            poses=[one.pose for one in seen],
            chance=chance_of_place(self.place_map),
            min_confidence=self.min_confidence,
        )
        return [
            one if isinstance(one, PhotoError) else replace(fix, matches=one.matches[:top])
            for one, fix in zip(found, fixes, strict=True)
        ]

    def estimate_condition(self, photos: Sequence[Query], *, near: Near = None) -> Condition:
        """What these photos have in common, such as night: it makes photos taken in this condition easier to find.

        Up to 200 of them, spread evenly, are encoded and searched as they are; those that cannot be decoded are left
        out. A 360° photo counts once, with the mean of its views. A condition of fewer than 20 photos, or of few
        places, has no effect (see `Condition.weight`).

        Args:
            photos: of many places, 20 or more.
            near: as for `localize`.
        """
        check_queries(photos, 1)
        sampled = [photos[row] for row in spread(len(photos), SAMPLED).tolist()]
        total, count, first = np.zeros(self.place_map.manifest.vector_dim), 0, list[Floats]()
        for loaded in _chunks(self._read(sampled)):
            queries = [query for query in loaded if not isinstance(query, PhotoError)]
            if not queries:
                continue
            encoded = self.encode(queries)
            found = self.retrieve([view for views in encoded for view in views], 1, _area(near))
            row = 0
            for views in encoded:
                total += np.mean([view.vector for view in views], axis=0, dtype=np.float64)
                if found.ids.size:
                    first.append(found.latlon[row + int(found.distances[row : row + len(views), 0].argmin()), 0])
                row += len(views)
            count += len(queries)
        mean = (total / max(count, 1)).astype(np.float32)
        return Condition(mean, count, count_places(first), self.vector_space)

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

    def encode(self, queries: Sequence[ReadImage]) -> list[list[Encoded]]:
        """Each query encoded: one image, or the views of a 360° photo."""
        encoded = iter(self.encoder.encode([image for query in queries for image in query.images]))
        return [[next(encoded) for _ in query.images] for query in queries]

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

    def inlier_pairs(self, photo: Query, photo_id: int, file: str) -> InlierPairs | None:
        """The matched keypoints of a query and a photo of the map that agree with one geometry.

        Args:
            photo: the query.
            photo_id: the id of the map's photo, as in `Match.id`.
            file: its file, as in `Match.photo`, which is read if the map has no local features of it.

        Returns:
            The pairs; None if the map's photo has no local features and its file cannot be read.

        Raises:
            PhotoError: if the query cannot be decoded.
            ArgumentError: if this localizer does not verify matches.
        """
        if self.verifier is None:
            raise ArgumentError(
                "matches are not verified: the map holds no local features, or Search(verify=0) was asked for"
            )
        (query,) = self.load([photo])
        if isinstance(query, PhotoError):
            raise query
        pairs = [
            self.verifier.inlier_pairs(encoded.features, photo_id, file)
            for encoded in self.encode([query])[0]
            if encoded.features is not None
        ]
        best = max(range(len(pairs)), key=lambda row: len(pairs[row] or ()))
        found, view = pairs[best], query.images[best].view
        if found is None or query.panorama is None or view is None:
            return found
        return replace(
            found,
            query_xy=panorama_places(query.panorama, view, found.query_xy),
            query_size=(query.panorama.width, query.panorama.height),
        )

    def _read(self, photos: Sequence[Query]) -> Iterator[ReadImage | PhotoError]:
        unread = [photo for photo in photos if not isinstance(photo, ReadImage)]
        workers = self.workers if len(unread) > FEW else 0
        views = self.views or ViewOptions()
        loaded = read_images(unread, self.encoder.sizes, cut=views, workers=workers) if unread else iter(())
        for photo in photos:
            yield photo if isinstance(photo, ReadImage) else next(loaded)[1]

    def load(self, photos: Sequence[Query]) -> Iterator[ReadImage | PhotoError]:
        """The queries as they are read, in order; for one that cannot be read, the error. Logs warnings."""
        spheres: list[str] = []
        for query in self._read(photos):
            if isinstance(query, ReadImage) and query.note:
                log.warning(query.note)
            if isinstance(query, ReadImage) and query.truncated:
                log.warning(f"{query.name}: {TRUNCATED}")
            if isinstance(query, ReadImage) and query.is_untagged_sphere:
                spheres.append(query.name)
            yield query
        if spheres:
            log.warning(untagged_note(spheres))

    def _search(
        self, photos: Sequence[Query], near: Area | None, top: int, condition: UsedCondition
    ) -> Iterator[Candidates | PhotoError]:
        used, k = self.used_condition(photos, near, condition), max(top, self.search.fused)
        for loaded, queries, encoded in self.encode_each(photos):
            found = iter(self.find_matches(queries, encoded, k, near, used) if queries else ())
            for query in loaded:
                yield query if isinstance(query, PhotoError) else next(found)

    def used_condition(self, photos: Sequence[Query], near: Near, condition: UsedCondition) -> Condition | None:
        """The condition by which these photos are searched.

        Args:
            photos: the queries.
            near: as for `localize`.
            condition: as for `localize_many`.
        """
        if isinstance(condition, str) and condition != "auto":
            raise ArgumentError(
                f'condition must be a Condition, "auto" or None, found {condition!r}: see open_condition'
            )
        if condition == "auto":
            return self.estimate_condition(photos, near=near) if len(photos) >= MIN_PHOTOS else None
        return condition

    def encode_each(
        self, photos: Sequence[Query]
    ) -> Iterator[tuple[list[ReadImage | PhotoError], list[ReadImage], list[list[Encoded]]]]:
        """Some queries at a time: as they are read, those that could be read, and the latter encoded."""
        for loaded in _chunks(self.load(photos)):
            queries = [query for query in loaded if not isinstance(query, PhotoError)]
            yield loaded, queries, self.encode(queries) if queries else []


def _yaws(query: ReadImage) -> list[float]:
    return [image.view.yaw_deg for image in query.views if image.view is not None]


def _chunks(loaded: Iterator[ReadImage | PhotoError]) -> Iterator[list[ReadImage | PhotoError]]:
    """Queries in lists that together have about `AT_ONCE` images."""
    chunk: list[ReadImage | PhotoError] = []
    count = 0
    for query in loaded:
        chunk.append(query)
        count += 1 if isinstance(query, PhotoError) else len(query.images)
        if count >= AT_ONCE:
            yield chunk
            chunk, count = [], 0
    if chunk:
        yield chunk


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


def check_queries(photos: Sequence[Query], top: int) -> None:
    """Raise ArgumentError if there are no photos, or no matches are asked for."""
    if not len(photos):
        raise ArgumentError("no photos were given: name at least one")
    if isinstance(photos, str | bytes):
        raise ArgumentError("expected a list of photos, found a single one: put it in a list, or call localize")
    if top < 1:
        raise ArgumentError(f"top must be 1 or more, found {top}")


def _area(near: Near) -> Area | None:
    if not isinstance(near, Fix):
        return near
    return None if near.latlon is None else Circle(near.latlon, AROUND_M + (near.radius_m or 0.0))


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


@overload
def open_localizer(
    path: str | Path,
    model: str | Path | PlaceModel | None = None,
    search: Search | None = None,
    *,
    min_confidence: float = ...,
    views: ViewOptions | None = None,
    device: torch.device | str | None = None,
    precision: Precision = "auto",
    batch: int = 8,
    workers: int = 0,
) -> Localizer: ...


@overload
def open_localizer(
    path: Maps,
    model: str | Path | PlaceModel | None = None,
    search: Search | None = None,
    *,
    min_confidence: float = ...,
    views: ViewOptions | None = None,
    device: torch.device | str | None = None,
    precision: Precision = "auto",
    batch: int = 8,
    workers: int = 0,
) -> SeveralMaps: ...


def open_localizer(
    path: str | Path | Maps,
    model: str | Path | PlaceModel | None = None,
    search: Search | None = None,
    *,
    min_confidence: float = MIN_CONFIDENCE,
    views: ViewOptions | None = None,
    device: torch.device | str | None = None,
    precision: Precision = "auto",
    batch: int = 8,
    workers: int = 0,
) -> Localizer | SeveralMaps:
    """Open a map with the model that it was built with, or several maps, which are asked at once.

    Args:
        path: a map file, or the address of a map; or a list of them.
        model: a model, a checkpoint or a packaged model's name; default: the packaged model that the map was built
            with.
        search: see `Localizer`.
        min_confidence: see `Localizer`.
        views: see `Localizer`.
        device: where a model that is loaded here runs; default: the GPU if there is one.
        precision: its number format (see `load_model`); a model that is given has its own.
        batch: see `Localizer`.
        workers: see `Localizer`.
    """
    from sareloc.localize.several import SeveralMaps, map_names

    addresses = [path] if isinstance(path, str | Path) else path
    alone = isinstance(path, str | Path)
    models: dict[str, PlaceModel] = {}
    localizers = []
    for place_map in map(PlaceMap, addresses):
        made = place_map.manifest
        if made.fingerprint not in models:
            if isinstance(model, PlaceModel):
                models[made.fingerprint] = model
            else:
                models[made.fingerprint] = load_map_model(made, place_map.path.name, model, device, precision)
        least = min_confidence if alone else 0.0  # of several maps, after their fixes were compared
        opened = Localizer(
            models[made.fingerprint], place_map, search, min_confidence=least, views=views, batch=batch, workers=workers
        )
        localizers.append(opened)
    if alone:
        return localizers[0]
    names = map_names([localizer.place_map.path for localizer in localizers])
    return SeveralMaps(dict(zip(names, localizers, strict=True)), min_confidence)
