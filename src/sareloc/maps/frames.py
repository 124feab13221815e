"""Adding images that are not files to a map: frames of a camera, messages of a recording.

A map stores such an image under the URL frame://NAME, with its descriptor and local features: it can be found and
verified, but not shown. The same image added again is recognized by its content. A 360° photo is added as its views.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sareloc.errors import PhotoError, PositionError
from sareloc.maps.examine import Tally, pick_new
from sareloc.maps.expand import untagged_note
from sareloc.maps.store import MapPhoto, MapStore
from sareloc.models.place_model import PlaceModel
from sareloc.photos import (
    Geotag,
    PhotoSource,
    SizeRule,
    ViewOptions,
    image_size,
    looks_like_panorama,
    parse_address,
    read_focal_35mm,
    read_source,
)
from sareloc.photos.decoding import open_photo, target_size
from sareloc.photos.finding import FRAME
from sareloc.photos.panoramas import UNUSABLE
from sareloc.photos.sources import cut_source

if TYPE_CHECKING:
    from sareloc.geometry.local_features import LocalFeatureExtractor

AT_ONCE = 32  # sources whose images are in memory

Frame = tuple[PhotoSource, MapPhoto]


def are_sources(photos: object) -> bool:
    """Whether these are records of `PhotoSource`: a list of them, or an iterator."""
    if isinstance(photos, str | Path):
        return False
    return not isinstance(photos, Sequence) or (len(photos) > 0 and isinstance(photos[0], PhotoSource))


def chunks(sources: Iterable[PhotoSource]) -> Iterator[list[PhotoSource]]:
    """The sources, some at a time."""
    waiting = iter(sources)
    while chunk := list(islice(waiting, AT_ONCE)):
        yield chunk


def cut_panoramas(sources: Iterable[PhotoSource], options: ViewOptions, tally: Tally) -> Iterator[PhotoSource]:
    """The sources, 360° photos as their views (see `cut_source`), which are counted.

    Those with GPano tags that cannot be used, and those that look like full spheres without tags, are noted.
    """
    untagged: list[str] = []
    for source in sources:
        try:
            views = cut_source(source, options)
        except PhotoError as error:
            if error.reason.startswith(UNUSABLE):
                tally.notes.append(f"{error}; used as an ordinary photo")
            views = None  # reading the source reports other errors
        if views is None:
            if not options.untagged and _is_sphere(source):
                untagged.append(source.name)
            yield source
        else:
            tally.panoramas += 1
            yield from views
    if untagged:
        tally.notes.append(untagged_note(untagged))


def split_sources(
    sources: Sequence[PhotoSource], size: SizeRule, tally: Tally
) -> tuple[dict[Path, Geotag], list[Frame]]:
    """The sources that are files, with their geotags, and the others.

    Those without a position, and images that cannot be decoded or do not fit the model's `size`, are counted.
    """
    files: dict[Path, Geotag] = {}
    frames: list[Frame] = []
    for source in sources:
        try:
            geotag = source.geotag
            if geotag is None:
                tally.untagged.append(source.name)
            elif isinstance(source.image, str | Path):
                files[Path(source.image)] = geotag
            else:
                frames.append((source, _examine(source, geotag, size)))
        except PositionError as error:
            tally.unreadable.append(PhotoError(source.name, str(error)))
        except PhotoError as error:
            tally.unreadable.append(error)
    return files, frames


def add_frames(
    store: MapStore,
    model: PlaceModel,
    frames: Sequence[Frame],
    tally: Tally,
    *,
    batch: int,
    extractor: LocalFeatureExtractor | None,
    keypoints: int,
) -> None:
    """Add images to a map, and count them and their local features.

    `extractor`: of the local features; None: they are not stored.
    """
    images = {photo.sha256: source for source, photo in frames}
    new, changed = pick_new(
        ((photo.file, photo) for _, photo in frames), store, store.entries([photo.file for _, photo in frames]), tally
    )
    if changed:
        store.update(changed)
    if new:
        photos = [photo for _, photo in new]
        pixels = [read_source(images[photo.sha256], model.preprocess.resizing) for photo in photos]
        dim = None if store.manifest.dim == model.dim else store.manifest.dim
        tally.count_written(photos, store.add(photos, model.encode(pixels, dim=dim, batch=batch).numpy()))
    if extractor is not None:
        tally.features += _add_features(store, images, extractor, keypoints)


def _is_sphere(source: PhotoSource) -> bool:
    """Whether an image has the proportions of a full sphere; False if it cannot be opened."""
    try:
        if isinstance(source.image, str | Path):
            return not parse_address(source.image).fragment and looks_like_panorama(*image_size(source.image))
        if isinstance(source.image, bytes):
            with open_photo(source.image) as image:
                return looks_like_panorama(*image.size)
        return source.pixels is not None and looks_like_panorama(source.pixels.shape[1], source.pixels.shape[0])
    except PhotoError:
        return False


def _examine(source: PhotoSource, geotag: Geotag, size: SizeRule) -> MapPhoto:
    image = read_source(source, lambda height, width: (height, width))
    content = source.image if isinstance(source.image, bytes) else image.tobytes()
    height, width = image.shape[:2]
    target_size(size, height, width, source.name)  # raises PhotoError if the image is too small
    digest = hashlib.sha256(content).digest()
    return MapPhoto(f"{FRAME}{source.name}", geotag, width, height, digest, len(content), 0)


def _add_features(
    store: MapStore, images: dict[bytes, PhotoSource], extractor: LocalFeatureExtractor, keypoints: int
) -> int:
    """Extract and store the local features of the images, by content, that have none in the map; returns how many."""
    from sareloc.geometry.local_features import feature_size, focal_px_of, pack_features

    ids = {entry.photo_id: digest for digest, entry in store.known(list(images)).items()}
    held = store.features(np.array(list(ids), dtype=np.int64))
    missing = {photo_id: images[digest] for photo_id, digest in ids.items() if photo_id not in held}
    found = extractor.extract([read_source(source, feature_size) for source in missing.values()], keypoints)
    blobs = [
        pack_features(replace(features, focal_px=focal_px_of(_focal_35mm(source), features.size)))
        for features, source in zip(found, missing.values(), strict=True)
    ]
    return store.write_features(np.array(list(missing), dtype=np.int64), blobs)


def _focal_35mm(source: PhotoSource) -> float | None:
    if source.focal_35mm is not None or not isinstance(source.image, bytes):
        return source.focal_35mm
    return read_focal_35mm(source.image)
