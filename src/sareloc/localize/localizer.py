"""Localizer: a model and a map that say where photos were taken."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar, overload

import numpy as np
import torch
from tqdm import tqdm

from sareloc.arrays import Floats
from sareloc.encode import Encoded
from sareloc.errors import ArgumentError, PhotoError
from sareloc.geometry import InlierPairs
from sareloc.localize.candidates import CandidateSearch
from sareloc.localize.condition import MIN_PHOTOS, SAMPLED, Condition, UsedCondition, count_places, spread
from sareloc.localize.estimate import (
    MIN_CONFIDENCE,
    Calibration,
    Candidates,
    Fix,
    Match,
    check_confidence,
    estimate,
    fix_at,
)
from sareloc.localize.queries import (
    Near,
    Query,
    area_of,
    check_queries,
    query_encoder,
    read_queries,
    readable,
    split_into_chunks,
    with_warnings,
)
from sareloc.localize.verify import Search
from sareloc.localize.walk import chance_of_place, estimate_walk
from sareloc.maps import PlaceMap
from sareloc.maps.store import load_map_models
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import Precision
from sareloc.photos import ReadImage, ViewOptions
from sareloc.photos.panoramas import panorama_places

if TYPE_CHECKING:
    from sareloc.localize.several import SeveralMaps

Maps = list[str] | list[Path] | list[str | Path] | tuple[str | Path, ...]
"""Several maps that are asked at once: files and addresses."""

Found = TypeVar("Found")
"""What is found for a query, of which a fix is made."""


class Localizes(ABC, Generic[Found]):
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

    def localize_each(
        self, photos: Sequence[Query], *, near: Near = None, top: int = 5, condition: UsedCondition = "auto"
    ) -> Iterator[Fix | PhotoError]:
        """As `localize_many`, each answer as soon as it is known, in constant memory."""
        check_queries(photos, top, condition)
        for found in self._search(photos, near, top, condition):
            yield found if isinstance(found, PhotoError) else self.answer(found, top)

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
        check_queries(photos, top, condition)
        searched = self._search(photos, near, top, condition)
        bar = tqdm(searched, total=len(photos), desc="localize", unit="photo", disable=None if progress else True)
        found = list(bar)
        seen = [None if isinstance(one, PhotoError) else one for one in found]
        fixes = self.answer_walk(seen, reach_m, top)
        return [one if isinstance(one, PhotoError) else fix for one, fix in zip(found, fixes, strict=True)]

    @abstractmethod
    def _search(
        self, photos: Sequence[Query], near: Near, top: int, condition: UsedCondition
    ) -> Iterator[Found | PhotoError]:
        """What is found for each photo, in order, or why it cannot be decoded."""

    @abstractmethod
    def answer(self, found: Found, top: int) -> Fix:
        """The fix of a query, with `top` matches."""

    @abstractmethod
    def answer_walk(self, found: Sequence[Found | None], reach_m: float | Sequence[float], top: int) -> list[Fix]:
        """The fixes of a walk.

        Args:
            found: what is found for each photo; None: it cannot be decoded.
            reach_m: as for `localize_walk`.
            top: how many matches each fix lists.
        """


class Localizer(CandidateSearch, Localizes[Candidates]):
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
        check_confidence(min_confidence)
        used = (search or Search()).for_map(place_map)
        encoder = query_encoder(model, place_map, verify=bool(used.verify), batch=batch)
        super().__init__(place_map, used, encoder, calibration)
        self.model = model
        self.min_confidence = min_confidence
        self.views = views or ViewOptions()
        self.workers = workers

    def __repr__(self) -> str:
        return f"<Localizer: {self.place_map!r}, search {self.search.name}>"

    def load(self, photos: Sequence[Query], *, digest: bool = False) -> Iterator[ReadImage | PhotoError]:
        """The queries as they are read, in order; for one that cannot be read, the error. Logs warnings.

        `digest`: see `read_image`.
        """
        return with_warnings(read_queries(photos, self.encoder.sizes, self.views, self.workers, digest=digest))

    def encode(self, queries: Sequence[ReadImage]) -> list[list[Encoded]]:
        """Each query encoded: one image, or the views of a 360° photo."""
        encoded = iter(self.encoder.encode([image for query in queries for image in query.images]))
        return [[next(encoded) for _ in query.images] for query in queries]

    def _search(
        self, photos: Sequence[Query], near: Near, top: int, condition: UsedCondition
    ) -> Iterator[Candidates | PhotoError]:
        used = self.used_condition(photos, near, condition)
        for loaded in split_into_chunks(self.load(photos)):
            queries = readable(loaded)
            found = iter(self.find_candidates(queries, self.encode(queries), near, top, used) if queries else ())
            for query in loaded:
                yield query if isinstance(query, PhotoError) else next(found)

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
            queries: as for `find_matches`; one or more.
            encoded: as for `find_matches`.
            near: as for `localize`.
            top: as for `localize`.
            condition: of the queries.
        """
        return self.find_matches(queries, encoded, max(top, self.search.fused), area_of(near), condition)

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

    def answer(self, found: Candidates, top: int) -> Fix:
        """See `Localizes`."""
        return replace(self.fix(found), matches=found.matches[:top])

    def answer_walk(self, found: Sequence[Candidates | None], reach_m: float | Sequence[float], top: int) -> list[Fix]:
        """The fixes of a walk.

        Args:
            found: as for `Localizes.answer_walk`.
            reach_m: as for `localize_walk`.
            top: how many matches each fix lists.
        """
        seen = [one or Candidates(()) for one in found]
        fixes = estimate_walk(
            [self.fused(one) for one in seen],
            reach_m,
            self.calibration,
            poses=[one.pose for one in seen],
            chance=chance_of_place(self.place_map),
            min_confidence=self.min_confidence,
        )
        return [replace(fix, matches=one.matches[:top]) for one, fix in zip(seen, fixes, strict=True)]

    def used_condition(self, photos: Sequence[Query], near: Near, condition: UsedCondition) -> Condition | None:
        """The condition by which these photos are searched.

        Args:
            photos: the queries.
            near: as for `localize`.
            condition: as for `localize_many`.
        """
        if condition == "auto":
            return self.estimate_condition(photos, near=near) if len(photos) >= MIN_PHOTOS else None
        return condition

    def estimate_condition(self, photos: Sequence[Query], *, near: Near = None) -> Condition:
        """What these photos have in common, such as night: it makes photos taken in this condition easier to find.

        Up to 200 of them, spread evenly, are encoded and searched as they are; those that cannot be decoded are left
        out. A 360° photo counts once, with the mean of its views. A condition of fewer than 20 photos, or of few
        places, has no effect (see `Condition.weight`).

        Args:
            photos: of many places, 20 or more.
            near: as for `localize`.
        """
        check_queries(photos, 1, None)
        sampled = [photos[row] for row in spread(len(photos), SAMPLED).tolist()]
        total, count, first = np.zeros(self.place_map.manifest.vector_dim), 0, list[Floats]()
        for loaded in split_into_chunks(read_queries(sampled, self.encoder.sizes, self.views, self.workers)):
            queries = readable(loaded)
            if not queries:
                continue
            encoded = self.encode(queries)
            found = self.retrieve([view for views in encoded for view in views], 1, area_of(near))
            row = 0
            for views in encoded:
                total += np.mean([view.vector for view in views], axis=0, dtype=np.float64)
                if found.ids.size:
                    first.append(found.latlon[row + int(found.distances[row : row + len(views), 0].argmin()), 0])
                row += len(views)
            count += len(queries)
        mean = (total / max(count, 1)).astype(np.float32)
        return Condition(mean, count, count_places(first), self.vector_space)

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

    alone = isinstance(path, str | Path)
    least = min_confidence if alone else 0.0  # of several maps, after their fixes were compared
    maps = map(PlaceMap, [path] if isinstance(path, str | Path) else path)
    localizers = [
        Localizer(own, place_map, search, min_confidence=least, views=views, batch=batch, workers=workers)
        for place_map, own in load_map_models(maps, model, device, precision)
    ]
    if alone:
        return localizers[0]
    names = map_names([localizer.place_map.path for localizer in localizers])
    return SeveralMaps(dict(zip(names, localizers, strict=True)), min_confidence)
