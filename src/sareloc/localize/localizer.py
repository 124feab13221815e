"""A localizer from a map's file: the map says which model it wants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

import torch

from sareloc.errors import ArgumentError, MapError, PhotoError
from sareloc.loading import load_images
from sareloc.localize.calibration import MIN_CONFIDENCE, Calibration
from sareloc.localize.estimate import estimate, estimate_walk
from sareloc.localize.fix import Fix, Match
from sareloc.localize.rerank import SPREAD, Reranker
from sareloc.localize.self_calibration import calibrate_by_map, chance_of_place
from sareloc.maps import Area, Circle, Matches, PlaceMap
from sareloc.maps.store import load_map_model
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import Image
from sareloc.photos import decode

# Localizer: a model and a map, asked where photos were taken.

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
    """Re-rank the top N matches by local features; default: no re-ranking. Reads the map's photos, and takes time."""

    def __post_init__(self) -> None:
        for field, least in (("candidates", 1), ("rerank", 0)):
            if getattr(self, field) < least:
                raise ArgumentError(f"{field} must be {least} or more, found {getattr(self, field)}")

    @property
    def name(self) -> str:
        """The options that are not at their defaults, such as "rerank=50", else "plain"; names stored calibrations."""
        chosen = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != f.default]
        return " ".join(chosen) or "plain"


class Localizer:
    """Says where photos were taken, by the map that `model` has built.

    search: how matches are looked for. calibration: by default the one stored in the map for this search, else one
    that the map gives by itself for a plain search. min_confidence: a fix that is less sure is none. batch: photos
    described at once. workers: processes that decode photos.
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
        self._given = calibration

    @cached_property
    def calibration(self) -> Calibration:
        """What confidence and radius come from."""
        if self._given is not None:
            return self._given
        stored = self.place_map.notes.get(self.note)
        if stored is not None:
            return Calibration.from_json(stored)
        plain = calibrate_by_map(self.place_map, self.search.candidates)
        return replace(plain, temperature=SPREAD * plain.temperature) if self.search.rerank else plain

    @property
    def note(self) -> str:
        """Under which name the map keeps the calibration of this search."""
        return f"calibration {self.search.name}"

    @cached_property
    def _reranker(self) -> Reranker:
        return Reranker(self.model, self.place_map, batch=self.batch, workers=self.workers)

    def localize(self, photo: Photo, *, near: Near = None, top: int = 5) -> Fix:
        """Where a photo was taken; a photo that cannot be decoded is a PhotoError.

        near: look only there; a `Fix` means within 500 m of it (and its radius), or anywhere if it has no position.
        top: how many matches the fix lists; all there are where the map holds fewer.
        """
        (found,) = self.localize_many([photo], near=near, top=top)
        if isinstance(found, PhotoError):
            raise found
        return found

    def localize_many(self, photos: Sequence[Photo], *, near: Near = None, top: int = 5) -> list[Fix | PhotoError]:
        """Where each photo was taken, in order; for one that cannot be decoded, the error that says why."""
        return list(self.localize_each(photos, near=near, top=top))

    def localize_each(self, photos: Sequence[Photo], *, near: Near = None, top: int = 5) -> Iterator[Fix | PhotoError]:
        """As `localize_many`, each answer as soon as it is known, in memory that does not grow with their number."""
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
        """As `localize_many`, for the photos of one walk, which support one another (see `estimate_walk`).

        The photos must be given in the order they were taken in: they are not sorted here.

        reach_m: how far apart two photos that follow each other can have been taken; one number, or one for each of
        the T - 1 steps, such as a speed in m/s times the seconds between them. A photo that cannot be decoded counts
        as one that shows nothing of the map.
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
        """The photos of the map most like each image, k of them or as many as re-ranking has put in a new order."""
        dim = self.place_map.manifest.dim
        descriptors = self.model.encode(images, dim=None if dim == self.model.dim else dim, batch=self.batch).numpy()
        matches = self.place_map.search(descriptors, max(k, self.search.rerank), near)
        if self.search.rerank:
            matches = self._reranker.rerank(images, matches, self.search.rerank)
        return matches

    def load(self, photos: Sequence[Photo]) -> Iterator[Image | PhotoError]:
        """Pixels of photos, in order, at the model's size, or why there are none."""
        files = [photo for photo in photos if isinstance(photo, str | Path)]
        size = self.model.preprocess.size
        # a worker takes longer to start than to decode a few photos
        decoded = load_images(files, size, workers=self.workers if len(files) > FEW else 0)
        for row, photo in enumerate(photos):
            if isinstance(photo, str | Path):
                yield next(decoded)[1]
            elif isinstance(photo, bytes):
                try:
                    yield decode(photo, size=size, name=f"photo {row}")
                except PhotoError as error:
                    yield error
            else:
                yield photo

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
        raise ArgumentError("these photos are a single one: put it in a list, or ask localize")
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
    """Open a map with its model, ready to be asked.

    model: a model, a checkpoint or a packaged model's name; by default the packaged model that the map was built by.
    device: where a model that is loaded here runs; by default the GPU where there is one.
    """
    place_map = PlaceMap(path)
    if not isinstance(model, PlaceModel):
        model = load_map_model(place_map.manifest, place_map.path.name, model, device)
    return Localizer(model, place_map, search, min_confidence=min_confidence, batch=batch, workers=workers)
