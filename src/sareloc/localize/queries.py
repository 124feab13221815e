"""Queries: images of any kind, read at the sizes at which they are encoded, some at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from sareloc.errors import ArgumentError, PhotoError
from sareloc.geo import Area, Circle
from sareloc.loading import read_images
from sareloc.localize.condition import UsedCondition
from sareloc.localize.estimate import Fix
from sareloc.maps.notes import untagged_note
from sareloc.photos import Image, ImageRecord, ReadImage, SizeRule, ViewOptions
from sareloc.photos.decoding import TRUNCATED
from sareloc.photos.record import check_several

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
    check_several(photos)
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


def read_queries(
    photos: Sequence[Query], sizes: Sequence[SizeRule], views: ViewOptions, workers: int
) -> Iterator[ReadImage | PhotoError]:
    """The queries as they are read, in order; for one that cannot be read, the error.

    Args:
        photos: the queries; those that were read already, at these sizes, are passed on.
        sizes: at which they are encoded.
        views: how a 360° photo is cut.
        workers: processes that decode; 0: this one.
    """
    unread = [photo for photo in photos if not isinstance(photo, ReadImage)]
    loaded = read_images(unread, sizes, cut=views, workers=workers if len(unread) > FEW else 0) if unread else iter(())
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
