"""Queries, decoded: ordinary photos, and 360° photos as their views."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sareloc.arrays import Image
from sareloc.errors import PhotoError
from sareloc.geometry import feature_size
from sareloc.loading import Loaded, load_images
from sareloc.photos import (
    MAX_PIXELS,
    Address,
    Panorama,
    PhotoSource,
    SizeRule,
    View,
    ViewOptions,
    decode,
    read_focal_35mm,
    read_source,
    resized,
)
from sareloc.photos.geotags import view_focal_35mm
from sareloc.photos.panoramas import UNUSABLE
from sareloc.photos.views import cut_photo, read_views, untagged_sphere, views_of

FEW = 8  # photos: starting workers takes longer than decoding so many

Photo = str | Path | bytes | Image | PhotoSource
"""A file, its bytes, pixels, or a record of one of them."""

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


@dataclass(frozen=True, eq=False)
class QueryPanorama:
    """A decoded 360° query: its views, which answer together."""

    panorama: Panorama
    views: tuple[View, ...]
    images: tuple[QueryImage, ...]
    """Of the views."""


def images_of(query: QueryImage | QueryPanorama) -> tuple[QueryImage, ...]:
    """The images of a query: itself, or the views of a 360° photo."""
    return query.images if isinstance(query, QueryPanorama) else (query,)


def read_query(
    photo: Photo,
    size: SizeRule,
    *,
    detail: bool,
    cut: ViewOptions | None = None,
    name: str | None = None,
    max_pixels: int = MAX_PIXELS,
) -> QueryImage | QueryPanorama:
    """Decode a query to the model's size and, if `detail`, to that of local features.

    Pixels are used as they are given, and resized for local features. cut: how 360° photos are cut into views; default:
    twelve around. Raises PhotoError if the photo cannot be decoded.
    """
    if isinstance(photo, PhotoSource):
        return _read_source(photo, size, detail=detail, cut=cut, max_pixels=max_pixels)
    if not isinstance(photo, str | Path | bytes):
        return QueryImage(photo, at_feature_size(photo) if detail else None)
    panorama, views = _views(photo, cut or ViewOptions(), name)
    if panorama is not None:
        images = read_views(photo, panorama, views, size=size, name=name, max_pixels=max_pixels)
        if not detail:
            return _panorama(panorama, views, images, None)
        close = read_views(photo, panorama, views, size=feature_size, name=name, max_pixels=max_pixels)
        return _panorama(panorama, views, images, close)
    image = decode(photo, size=size, name=name, max_pixels=max_pixels)
    if not detail:
        return QueryImage(image)
    closer = decode(photo, size=feature_size, name=name, max_pixels=max_pixels)
    return QueryImage(image, closer, read_focal_35mm(photo))


def read_queries(
    photos: Sequence[Photo | QueryImage | QueryPanorama],
    size: SizeRule,
    *,
    detail: bool,
    cut: ViewOptions | None = None,
    workers: int = 0,
) -> Iterator[QueryImage | QueryPanorama | PhotoError]:
    """Each query decoded, in order, or the error that says why it cannot be; files in worker processes if many."""
    files = [photo for photo in photos if isinstance(photo, str | Path)]
    if workers > 0 and len(files) > FEW:
        from_workers = _read_in_workers(files, size, detail, cut or ViewOptions(), workers)
    else:
        from_workers = None
    for row, photo in enumerate(photos):
        if isinstance(photo, QueryImage | QueryPanorama):
            yield photo
        elif isinstance(photo, str | Path) and from_workers is not None:
            yield next(from_workers)
        else:
            try:
                name = f"photo {row}" if isinstance(photo, bytes) else None
                yield read_query(photo, size, detail=detail, cut=cut, name=name)
            except PhotoError as error:
                yield error


def at_feature_size(image: Image) -> Image:
    """An image at the size of local features."""
    return resized(image, *feature_size(*image.shape[:2]))


def _read_source(
    source: PhotoSource, size: SizeRule, *, detail: bool, cut: ViewOptions | None, max_pixels: int
) -> QueryImage | QueryPanorama:
    """As `read_query`; pixels are resized to the model's size, as those of a photo are.

    Pixels have no GPano tags: they are cut if they are 2:1 and `cut.untagged`.
    """
    pixels = source.pixels
    panorama = None if pixels is None else untagged_sphere(pixels.shape[1], pixels.shape[0], cut or ViewOptions())
    if pixels is not None and panorama is not None:
        views = views_of(panorama, cut)
        rules = (size, feature_size) if detail else (size,)
        read = [read_views(pixels, panorama, views, size=rule, name=source.name) for rule in rules]
        return _panorama(panorama, views, read[0], read[1] if detail else None)
    if pixels is not None:
        close = read_source(source, feature_size) if detail else None
        return QueryImage(read_source(source, size), close, source.focal_35mm)
    assert isinstance(source.image, str | Path | bytes)
    found = read_query(source.image, size, detail=detail, cut=cut, name=source.name, max_pixels=max_pixels)
    if source.focal_35mm is None or isinstance(found, QueryPanorama):
        return found
    return replace(found, focal_35mm=source.focal_35mm)


def _read_in_workers(
    files: Sequence[str | Path], size: SizeRule, detail: bool, cut: ViewOptions, workers: int
) -> Iterator[QueryImage | QueryPanorama | PhotoError]:
    found = [_views(file, cut, None) for file in files]
    addresses = [
        address
        for file, (_, views) in zip(files, found, strict=True)
        for address in ([Address(Path(file), view).path for view in views] or [Path(file)])
    ]
    images = load_images(addresses, size, workers=workers)
    details = load_images(addresses, feature_size, workers=workers) if detail else None
    for file, (panorama, views) in zip(files, found, strict=True):
        count = max(len(views), 1)
        read: list[Loaded] = [next(images)[1] for _ in range(count)]
        close: list[Loaded] = [] if details is None else [next(details)[1] for _ in range(count)]
        wrong = [one for one in (*read, *close) if isinstance(one, PhotoError)]
        if wrong:
            yield wrong[0] if panorama is None else PhotoError(file, wrong[0].reason)
        elif panorama is None:
            yield QueryImage(_pixels(read[0]), *((_pixels(close[0]), read_focal_35mm(file)) if close else ()))
        else:
            yield _panorama(panorama, views, [*map(_pixels, read)], [*map(_pixels, close)] or None)


def _views(photo: str | Path | bytes, cut: ViewOptions, name: str | None) -> tuple[Panorama | None, tuple[View, ...]]:
    """The panorama that a query is, and its views; None: it is an ordinary photo, or cannot be opened."""
    try:
        return cut_photo(photo, cut, name=name)
    except PhotoError as error:
        if error.reason.startswith(UNUSABLE):
            log.warning(f"{error}; used as an ordinary photo")
        return None, ()


def _panorama(
    panorama: Panorama, views: tuple[View, ...], images: Sequence[Image], close: Sequence[Image] | None
) -> QueryPanorama:
    cut = (
        QueryImage(image, None if close is None else close[row], view_focal_35mm(view))
        for row, (image, view) in enumerate(zip(images, views, strict=True))
    )
    return QueryPanorama(panorama, views, tuple(cut))


def _pixels(loaded: Loaded) -> Image:
    assert not isinstance(loaded, PhotoError)
    return loaded
