"""Uploaded photos that are added to the map.

Added photos are stored beside the map, in `city-photos` for city.gpkg, named by the SHA-256 of their content. The views
of a 360° photo are entries of the map, as `map build` adds them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sareloc.errors import MapError, PhotoError
from sareloc.files import write_atomically
from sareloc.maps import MapConfig, MapPhoto, open_map_file
from sareloc.maps.examine import Tally, find_new, photos_of
from sareloc.maps.notes import read_keypoints, read_view_options
from sareloc.maps.writer import MapWriter, pack
from sareloc.models import PlaceModel
from sareloc.photos import Geotag, ImageRecord, ReadImage, SizeRule, ViewOptions, parse_address, read_image, stamp
from sareloc.photos.geotags import geotag_from_exif
from sareloc.photos.raw import RAW, RAW_EXTENSIONS

ENDINGS = {"JPEG": ".jpg", "MPO": ".jpg", "PNG": ".png", "WEBP": ".webp", "AVIF": ".avif", "TIFF": ".tif", RAW: ".dng"}

Addition = tuple[ImageRecord, ReadImage]
"""A photo to add to the map: with its position, and as it was read."""


def read_addition(
    upload: ImageRecord, position: Geotag | None, sizes: Sequence[SizeRule], max_pixels: int, views: ViewOptions
) -> Addition:
    """Read an uploaded photo and its geotag. Raises PhotoError if it cannot be read or has no measured position.

    Args:
        upload: the photo.
        position: for a photo without a geotag of its own, or with one that sareloc estimated.
        sizes: at which it is encoded.
        max_pixels: larger photos are refused.
        views: how a 360° photo is cut. One with GPano tags that cannot be used is an ordinary photo.
    """
    read = read_image(upload, sizes, cut=views, digest=True, max_pixels=max_pixels)
    assert read.metadata is not None
    own = geotag_from_exif(read.metadata.exif)
    geotag = own if own is not None and not own.estimated else position
    if geotag is None and own is not None:
        raise PhotoError(
            upload.name, "its position was estimated by sareloc: send a true one in the fields lat and lon"
        )
    if geotag is None:
        raise PhotoError(upload.name, "has no position: send one in the fields lat and lon")
    heading = geotag.heading_deg if read.panorama is None else read.panorama.heading_deg
    return replace(upload, position=geotag.latlon, heading_deg=heading, time=geotag.time), read


def photos_folder(map_path: Path) -> Path:
    """The folder of added photos: `city-photos` beside city.gpkg."""
    return map_path.with_name(f"{map_path.stem}-photos")


class Adder:
    """Adds photos to a map in batches, one transaction for each, and removes them."""

    def __init__(self, model: PlaceModel, map_path: Path, batch: int) -> None:
        self.model = model
        self.map_path = map_path
        self.batch = batch
        self._writer: MapWriter | None = None

    def view_options(self) -> ViewOptions:
        """How the map's 360° photos are cut into views."""
        with open_map_file(self.map_path) as file:
            return read_view_options(file) or ViewOptions()

    def add(self, additions: Sequence[Addition]) -> list[tuple[int, ...]]:
        """Add photos and return the ids of their images; an image that the map already has keeps its id."""
        with self._open_writer() as writer:
            store, tally = writer.open(), Tally()
            images = {_digest(image): image for _, read in additions for image in read.images}
            known = store.known(list(images))
            found: list[tuple[ImageRecord, MapPhoto]] = []
            for record, read in additions:
                if any(image.sha256 not in known for image in read.images):
                    path = _store(photos_folder(self.map_path), record, read)
                    stored = replace(record, name=str(path), image=path)
                    rows = photos_of(stored, read, writer.name_of(stored), stamp(path) or (0, 0))
                    found += [(stored, row) for row in rows if row.sha256 not in known]
            new, changed = find_new(found, store, {}, tally, restore=True)
            writer.update(changed)
            if new:
                encoded = writer.encoder(None, tally).encode([images[photo.sha256] for _, photo in new])
                packed = [(photo, one.vector, pack(one)) for (_, photo), one in zip(new, encoded, strict=True)]
                writer.write(packed, tally)
            ids = store.known(list(images))
            if missing := images.keys() - ids.keys():
                raise MapError(
                    f"{len(missing)} photos were removed from map {store.name} by another process while they were "
                    "being added"
                )
            return [tuple(ids[_digest(image)].photo_id for image in read.images) for _, read in additions]

    def _open_writer(self) -> MapWriter:
        """The writer, with its encoder, of the last photos, unless the map was given local features since."""
        with open_map_file(self.map_path) as file:
            manifest, keypoints = file.manifest, read_keypoints(file) or 0
        if self._writer is None or (self._writer.manifest, self._writer.keypoints) != (manifest, keypoints):
            config = MapConfig(keypoints=keypoints, batch=self.batch)
            self._writer = MapWriter(self.map_path, manifest, lambda: self.model, config)
        return self._writer

    def remove(self, photo_id: int) -> bool:
        """Remove a photo, and its file if it was added by `add` and the map has no other view of it.

        Returns whether the map had the photo.
        """
        with open_map_file(self.map_path, write=True) as file:
            photo = file.photos_of(np.array([photo_id])).get(photo_id)
            if photo is None or not file.remove(np.array([photo_id]), remember=True):
                return False
            path = parse_address(self.map_path.parent / photo.file).file
            if path.parent == photos_folder(self.map_path) and not file.has_images_of(file.photo_name(file.path, path)):
                _remove_stored(path)
            return True


def _digest(image: ReadImage) -> bytes:
    assert image.sha256 is not None
    return image.sha256


def _remove_stored(path: Path) -> None:
    """Delete a file that is named by the SHA-256 of its content, as `_store` names it."""
    try:
        if hashlib.sha256(path.read_bytes()).hexdigest() == path.stem:
            path.unlink()
    except FileNotFoundError:
        pass


def _store(folder: Path, record: ImageRecord, read: ReadImage) -> Path:
    """Write an uploaded photo to the folder, named by the SHA-256 of its content; returns its path."""
    assert isinstance(record.image, bytes)
    assert read.metadata is not None
    folder.mkdir(exist_ok=True)
    own = Path(record.name).suffix.lower()
    is_own = read.metadata.format == RAW and own in RAW_EXTENSIONS
    name = f"{hashlib.sha256(record.image).hexdigest()}{own if is_own else ENDINGS.get(read.metadata.format, '.heic')}"
    if not (folder / name).exists():
        write_atomically(folder / name, record.image)
    return folder / name
