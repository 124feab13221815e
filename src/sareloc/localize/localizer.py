"""Localizer: a model and a map that say where photos were taken."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path

import torch

from sareloc.errors import ArgumentError, MapError, PhotoError
from sareloc.loading import load_images
from sareloc.localize.calibration import calibrate_by_map
from sareloc.localize.estimate import MIN_CONFIDENCE, Calibration, Fix, Match, estimate
from sareloc.localize.rerank import SPREAD, Reranker
from sareloc.localize.walk import chance_of_place, estimate_walk
from sareloc.maps import Area, Circle, Matches, PlaceMap, load_map_model
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import Image
from sareloc.photos import decode

Photo = str | Path | bytes | Image
"""A file, its bytes, or pixels."""
Near = Area | Fix | None

AROUND_M = 500.0
AT_ONCE = 32  # photos decoded before they are described
FEW = 8


@dataclass(frozen=True)
class Search:
    """How matches are searched. A calibration belongs to the search that it was fitted with."""

    candidates: int = 20
    """How many matches are fused into a fix."""
    rerank: int = 0
    """Re-rank the top N matches by local features; 0: no re-ranking. Reads the map's photos, and is slower."""

    def __post_init__(self) -> None:
        for field, least in (("candidates", 1), ("rerank", 0)):
            if getattr(self, field) < least:
                raise ArgumentError(f"{field} must be {least} or more, found {getattr(self, field)}")

    @property
    def name(self) -> str:
        """The options that are not at their defaults, such as "rerank=50"; "plain" if all are."""
        chosen = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != f.default]
        return " ".join(chosen) or "plain"

    @property
    def note(self) -> str:
        """The name under which a map stores the calibration of this search."""
        return f"calibration {self.name}"


def map_calibration(place_map: PlaceMap, search: Search) -> Calibration:
    """The calibration stored in a map for this search, else one fitted to the map's own photos."""
    stored = place_map.notes.get(search.note)
    if stored is not None:
        return Calibration.from_json(stored)
    plain = calibrate_by_map(place_map, search.candidates)
    return replace(plain, temperature=SPREAD * plain.temperature) if search.rerank else plain


class Localizer:
    """Says where photos were taken, with a map and the model that it was built with.

    search: how matches are searched. calibration: default: see `map_calibration`; fitting one searches the map for 256
    of its photos. min_confidence: a fix of a lower confidence has no position. batch: photos described at once.
    workers: processes that decode photos. Raises MapError if the map has no photos or was built with another model.
    """

    def __init__(
        self,
        model: PlaceModel,
        place_map: PlaceMap,
        search: Search | None = None,
        *,
        calibration: Calibration | None = None,
        min_confidence: float = MIN_CONFIDENCE,
        batch: int = 8,
        workers: int = 0,
    ) -> None:
        if not len(place_map):
            raise MapError(f'map {place_map.path} holds no photos: add some with "sareloc map add"')
        if not 0 <= min_confidence <= 1:
            raise ArgumentError(f"min_confidence is a probability, 0 to 1: found {min_confidence}")
        place_map.check_model(model)
        self.model = model
        self.place_map = place_map
        self.search = search or Search()
        self.min_confidence = min_confidence
        self.batch = batch
        self.workers = workers
        self._reranker = Reranker(model, place_map, batch=batch, workers=workers) if self.search.rerank else None
        self._given = calibration
        self.calibration = calibration or map_calibration(place_map, self.search)
        """The parameters of confidence and radius."""

    def recalibrated(self) -> Localizer:
        """This localizer with the calibration that its map has now; one given as an argument is kept."""
        fresh = copy.copy(self)
        fresh.calibration = self._given or map_calibration(self.place_map, self.search)
        return fresh

    def localize(self, photo: Photo, *, near: Near = None, top: int = 5) -> Fix:
        """Where a photo was taken; raises PhotoError if it cannot be decoded.

        near: search only there; a `Fix` means within 500 m of it (and its radius), or anywhere if it has no position.
        top: how many matches the fix lists; all if the map holds fewer.
        """
        (found,) = self.localize_many([photo], near=near, top=top)
        if isinstance(found, PhotoError):
            raise found
        return found

    def localize_many(self, photos: Sequence[Photo], *, near: Near = None, top: int = 5) -> list[Fix | PhotoError]:
        """Where each photo was taken, in order; for one that cannot be decoded, the error that says why."""
        return list(self.localize_each(photos, near=near, top=top))

    def localize_each(self, photos: Sequence[Photo], *, near: Near = None, top: int = 5) -> Iterator[Fix | PhotoError]:
        """As `localize_many`, each answer as soon as it is known, in constant memory."""
        _check(photos, top)
        for found in self._search(photos, _area(near), top):
            if isinstance(found, PhotoError):
                yield found
                continue
            fused = found[: self.search.candidates]
            fix = estimate(fused, self.calibration, min_confidence=self.min_confidence)
            yield replace(fix, matches=found[:top])

    def localize_walk(
        self, photos: Sequence[Photo], reach_m: float | Sequence[float], *, near: Near = None, top: int = 5
    ) -> list[Fix | PhotoError]:
        """As `localize_many`, for the photos of one walk, whose places are estimated together (see `estimate_walk`).

        The photos must be given in the order they were taken in: they are not sorted here.

        reach_m: the largest distance between two photos that follow each other; one number, or one for each of the
        T - 1 steps, such as a speed in m/s times the seconds between them. A photo that cannot be decoded counts as one
        without matches.
        """
        _check(photos, top)
        found = list(self._search(photos, _area(near), top))
        walk = [() if isinstance(one, PhotoError) else one[: self.search.candidates] for one in found]
        chance = chance_of_place(self.place_map)
        fixes = estimate_walk(walk, reach_m, self.calibration, chance=chance, min_confidence=self.min_confidence)
        return [
            one if isinstance(one, PhotoError) else replace(fix, matches=one[:top])
            for one, fix in zip(found, fixes, strict=True)
        ]

    def find_matches(self, images: Sequence[Image], k: int, near: Area | None = None) -> Matches:
        """The k photos of the map most like each image; more if re-ranking looks at more."""
        dim = self.place_map.manifest.dim
        descriptors = self.model.encode(images, dim=None if dim == self.model.dim else dim, batch=self.batch).numpy()
        matches = self.place_map.search(descriptors, max(k, self.search.rerank), near)
        if self._reranker is not None:
            matches = self._reranker.rerank(images, matches, self.search.rerank)
        return matches

    def load(self, photos: Sequence[Photo]) -> Iterator[Image | PhotoError]:
        """Pixels of photos, in order, at the model's size; for one that cannot be decoded, the error."""
        size = self.model.preprocess.size
        files = [photo for photo in photos if isinstance(photo, str | Path)]
        # starting workers takes longer than decoding a few photos
        in_workers = load_images(files, size, workers=self.workers) if self.workers and len(files) > FEW else None
        for row, photo in enumerate(photos):
            is_file = isinstance(photo, str | Path)
            if not isinstance(photo, str | Path | bytes):
                yield photo
            elif is_file and in_workers is not None:
                yield next(in_workers)[1]
            else:
                try:
                    yield decode(photo, size=size, name=None if is_file else f"photo {row}")
                except PhotoError as error:
                    yield error

    def _search(self, photos: Sequence[Photo], near: Area | None, top: int) -> Iterator[tuple[Match, ...] | PhotoError]:
        waiting = self.load(photos)
        while loaded := list(islice(waiting, AT_ONCE)):
            images = [image for image in loaded if not isinstance(image, PhotoError)]
            found = iter(_lists(self.find_matches(images, max(top, self.search.candidates), near)) if images else ())
            for image in loaded:
                yield image if isinstance(image, PhotoError) else next(found)


def _check(photos: Sequence[Photo], top: int) -> None:
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


def open_localizer(
    path: str | Path,
    model: str | Path | PlaceModel | None = None,
    search: Search | None = None,
    *,
    min_confidence: float = MIN_CONFIDENCE,
    device: torch.device | str | None = None,
    batch: int = 8,
    workers: int = 0,
) -> Localizer:
    """Open a map (a file or an address) with the model that it was built with.

    model: a model, a checkpoint or a packaged model's name; default: the packaged model that the map was built with.
    device: where a model that is loaded here runs; default: the GPU if there is one. For the others see `Localizer`.
    """
    place_map = PlaceMap(path)
    if not isinstance(model, PlaceModel):
        model = load_map_model(place_map.manifest, place_map.path.name, model, device)
    return Localizer(model, place_map, search, min_confidence=min_confidence, batch=batch, workers=workers)
