"""A map of the service: which of its photos may be shown, and how photos are added to it and removed.

A map contains file names, and a map may come from an untrusted source: a photo is shown only if its real path is in a
folder that the operator allows.

Added photos are stored beside the map, in `city-photos` for city.gpkg, named by the SHA-256 of their content. The views
of a 360° photo are entries of the map, as `map build` adds them. What writes to a map is imported when the first photo
is added: few services add photos.
"""

from __future__ import annotations

import collections
import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sareloc.errors import ArgumentError, MapError, PhotoError
from sareloc.files import write_atomically
from sareloc.maps import MapPhoto, open_map_file, store_class
from sareloc.maps.notes import read_keypoints, read_view_options
from sareloc.models import PlaceModel
from sareloc.photos import Geotag, ImageRecord, ReadImage, SizeRule, ViewOptions, parse_address, read_image, stamp
from sareloc.photos.geotags import geotag_from_exif
from sareloc.photos.raw import RAW, RAW_EXTENSIONS
from sareloc.serve.batching import BatchQueue
from sareloc.serve.config import ServeConfig
from sareloc.serve.live_map import LiveMap

if TYPE_CHECKING:
    from sareloc.maps.writer import MapWriter

SUGGESTED = 3
ENDINGS = {"JPEG": ".jpg", "MPO": ".jpg", "PNG": ".png", "WEBP": ".webp", "AVIF": ".avif", "TIFF": ".tif", RAW: ".dng"}

Addition = tuple[ImageRecord, ReadImage]
"""A photo to add to the map: with its position, and as it was read."""


class ServedMap:
    """One of the maps: which of its photos may be shown, and how photos are added to it."""

    def __init__(self, name: str, live: LiveMap, config: ServeConfig) -> None:
        self.name = name
        self.live = live
        self.place_map = live.place_map
        self.photo_folders = photo_folders(live.place_map.path, config.photos)
        self.adder = Adder(live.model, live.place_map.path, config.batch)
        self.additions = BatchQueue[Addition, tuple[int, ...]](
            self.adder.add, batch=config.batch, bound=config.queue, name="add"
        )

    def hidden_photos(self) -> HiddenPhotos:
        """Photos without thumbnails, as they are not in the folders that may be shown; on a server, of a sample."""
        return hidden_photos(self.place_map.current_files(), self.place_map.path.parent, self.photo_folders)

    def shown_file(self, photo_id: int) -> tuple[str, Path]:
        """The name of a photo in the map and its real path. Raises FileNotFoundError if it may not be shown."""
        file = self.place_map.current_file(photo_id)
        path = None if file is None else allowed_path(self.place_map.photo_path(file), self.photo_folders)
        if file is None or path is None:
            raise FileNotFoundError
        return file, path


def photo_folders(map_path: Path, added: Iterable[Path]) -> tuple[Path, ...]:
    """The folders whose photos may be shown, as real paths: the map file's own, and `added`."""
    for folder in added:
        if not folder.is_dir():
            raise ArgumentError(f"--photos {folder} is not a folder: give a folder with photos of the map")
    own = (map_path.parent,) if store_class(map_path).is_file else ()
    return tuple(Path(os.path.realpath(folder)) for folder in (*own, *added))


def allowed_path(path: str | Path, folders: Iterable[Path]) -> Path | None:
    """The address with the real path of its file if that is in one of these folders (real paths) or their subfolders;
    else None."""
    address = parse_address(path)
    try:
        real = Path(os.path.realpath(address.file))
    except (OSError, ValueError):  # too long, or with a NUL
        return None
    return replace(address, file=real).path if any(real.is_relative_to(folder) for folder in folders) else None


@dataclass(frozen=True)
class HiddenPhotos:
    """Photos of a map that may not be shown."""

    count: int
    folders: tuple[str, ...]
    """Folders to allow: the one that contains all these photos, else those with most of them."""


def hidden_photos(files: Sequence[str], map_folder: Path, folders: Sequence[Path]) -> HiddenPhotos:
    """The photos of a map that are in none of the folders that may be shown; names are relative to `map_folder`."""
    hidden = collections.Counter[str]()
    for parent, count in collections.Counter(os.path.dirname(os.path.join(map_folder, file)) for file in files).items():
        if allowed_path(parent, folders) is None:
            hidden[os.path.abspath(parent)] += count
    common = os.path.commonpath(hidden) if hidden else ""
    if common and common != os.path.dirname(common):
        return HiddenPhotos(hidden.total(), (common,))
    return HiddenPhotos(hidden.total(), tuple(parent for parent, _ in hidden.most_common(SUGGESTED)))


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
        from sareloc.maps.examine import Tally, find_new, photos_of
        from sareloc.maps.writer import pack

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
        from sareloc.maps import MapConfig
        from sareloc.maps.writer import MapWriter

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
