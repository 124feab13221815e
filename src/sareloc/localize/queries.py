"""Queries: images of any kind, read some at a time and encoded as the photos of a map."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from sareloc.encode import Encoder
from sareloc.errors import ArgumentError, MapError, PhotoError
from sareloc.geo import Area, Circle
from sareloc.geometry import KEYPOINTS
from sareloc.loading import read_images
from sareloc.localize.condition import UsedCondition
from sareloc.localize.estimate import Fix
from sareloc.maps import PlaceMap
from sareloc.maps.notes import untagged_note
from sareloc.maps.store import map_model
from sareloc.models.place_model import PlaceModel
from sareloc.photos import Image, ImageRecord, ReadImage, SizeRule, ViewOptions
from sareloc.photos.decoding import TRUNCATED
from sareloc.photos.read_image import check_several

Query = Image | ImageRecord | ReadImage
"""An image (a path, the bytes of a file, pixels), the record of one, or one that was read already."""
Near = Area | Fix | None
"""Where is searched: an area, or around a fix; None: everywhere."""

AROUND_M = 500.0
AT_ONCE = 32  # images that are read before they are encoded
FEW = 8  # files: starting workers takes longer than reading so many

log = logging.getLogger("sareloc.localize")


def check_queries(photos: Sequence[Query], top: int, condition: UsedCondition) -> None:
    """Raise ArgumentError if this is not a list of photos, no matches are asked for, or the condition is not one."""
    check_several(photos, "localize")
    if not len(photos):
        raise ArgumentError("no photos were given: name at least one")
    if top < 1:
        raise ArgumentError(f"top must be 1 or more, found {top}")
    if isinstance(condition, str) and condition != "auto":
        raise ArgumentError(f'condition must be a Condition, "auto" or None, found {condition!r}: see open_condition')


def area_of(near: Near) -> Area | None:
    """The area to search: within 500 m of a fix, and its radius; None: everywhere."""
    if not isinstance(near, Fix):
        return near
    return None if near.latlon is None else Circle(near.latlon, AROUND_M + (near.radius_m or 0.0))


def query_encoder(model: PlaceModel, place_map: PlaceMap, *, verify: bool = False, batch: int = 8) -> Encoder:
    """The encoder of a map's queries: it computes of an image what the map stores of its photos.

    Args:
        model: the model that the map was built with.
        place_map: the map.
        verify: extract local features also if the map's search vectors do not need them.
        batch: maximum number of images encoded at once.

    Raises:
        MapError: if the map has no photos or was built with another model.
    """
    if not len(place_map):
        raise MapError(f'map {place_map.path} holds no photos: add some with "sareloc map add"')
    place_map.check_model(model)
    made = place_map.manifest
    return Encoder(
        map_model(model, place_map),
        dim=made.dim,
        keypoints=KEYPOINTS if verify or made.aggregate_dim else 0,
        aggregate_dim=made.aggregate_dim,
        adaptation=place_map.adaptation(),
        batch=batch,
    )


def read_queries(
    photos: Sequence[Query], sizes: Sequence[SizeRule], views: ViewOptions, workers: int, *, digest: bool = False
) -> Iterator[ReadImage | PhotoError]:
    """The queries as they are read, in order; for one that cannot be read, the error.

    Args:
        photos: the queries; those that were read already, at these sizes, are passed on.
        sizes: at which they are encoded.
        views: how a 360° photo is cut.
        workers: processes that decode; 0: this one.
        digest: see `read_image`.
    """
    unread = [photo for photo in photos if not isinstance(photo, ReadImage)]
    few = len(unread) <= FEW
    loaded = iter(read_images(unread, sizes, cut=views, digest=digest, workers=0 if few else workers))
    for photo in photos:
        yield photo if isinstance(photo, ReadImage) else next(loaded)[1]


def with_warnings(loaded: Iterator[ReadImage | PhotoError]) -> Iterator[ReadImage | PhotoError]:
    """Queries as they are read; what is odd about them is logged."""
    spheres: list[str] = []
    for query in loaded:
        if isinstance(query, ReadImage):
            if query.note:
                log.warning(query.note)
            if query.truncated:
                log.warning(f"{query.name}: {TRUNCATED}")
            if query.is_untagged_sphere:
                spheres.append(query.name)
        yield query
    if spheres:
        log.warning(untagged_note(spheres))


def split_into_chunks(loaded: Iterator[ReadImage | PhotoError]) -> Iterator[list[ReadImage | PhotoError]]:
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


def readable(loaded: Sequence[ReadImage | PhotoError]) -> list[ReadImage]:
    """The queries that could be read."""
    return [query for query in loaded if not isinstance(query, PhotoError)]
