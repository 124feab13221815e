"""Photos that come over the network into the map: kept beside it, under the hash of their content."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sareloc.errors import MapError, PhotoError
from sareloc.models.place_model import PlaceModel
from sareloc.photos import Geotag, SizeRule, decode, read_exif_geotag
from sareloc.photos.decoding import open_photo
from sareloc.place_map import open_map_file
from sareloc.place_map.map_file import MapFile
from sareloc.place_map.records import Photo
from sareloc.web.uploads import Upload

ENDINGS = {"JPEG": ".jpg", "MPO": ".jpg", "PNG": ".png", "WEBP": ".webp", "AVIF": ".avif", "TIFF": ".tif"}


@dataclass(frozen=True, eq=False)
class NewPhoto:
    """A photo that shall be in the map, decoded."""

    content: bytes
    image: npt.NDArray[np.uint8]
    """(H, W, 3) at the model's size."""
    geotag: Geotag
    ending: str
    """Of its file's name, by its content."""
    width: int
    height: int


def examine_upload(upload: Upload, position: Geotag | None, size: SizeRule, max_pixels: int) -> NewPhoto | PhotoError:
    """A photo that was sent, ready to be added; `position` counts where it has no geotag of its own."""
    try:
        image = decode(upload.content, size=size, name=upload.name, max_pixels=max_pixels)
        with open_photo(upload.content, name=upload.name, max_pixels=max_pixels) as opened:
            ending = ENDINGS.get(opened.format or "", ".heic")
            width, height = opened.size
    except PhotoError as error:
        return error
    geotag = read_exif_geotag(upload.content) or position
    if geotag is None:
        return PhotoError(upload.name, "has no position: send one in the fields lat and lon")
    return NewPhoto(upload.content, image, geotag, ending, width, height)


def photos_folder(map_path: Path) -> Path:
    """Where photos that were sent are kept: `city-photos` beside city.gpkg."""
    return map_path.with_name(f"{map_path.stem}-photos")


class Adder:
    """Adds photos to a map, some at a time: one run of the model and one transaction."""

    def __init__(self, model: PlaceModel, map_path: Path, batch: int) -> None:
        self.model = model
        self.map_path = map_path
        self.batch = batch

    def add(self, photos: Sequence[NewPhoto]) -> list[int]:
        """The ids of these photos in the map; one whose content is there already keeps its id."""
        digests = [hashlib.sha256(photo.content).digest() for photo in photos]
        with open_map_file(self.map_path, write=True) as file:
            known = {digest for digest in digests if file.find(digest)}
            new = {digest: photo for digest, photo in zip(digests, photos, strict=True) if digest not in known}
            if new:
                self._add_new(file, new)
            return [_id_of(file, digest) for digest in digests]

    def _add_new(self, file: MapFile, new: dict[bytes, NewPhoto]) -> None:
        dim = None if file.manifest.dim == self.model.dim else file.manifest.dim
        images = [photo.image for photo in new.values()]
        descriptors = self.model.encode(images, dim=dim, batch=self.batch).numpy()
        folder = photos_folder(self.map_path)
        folder.mkdir(exist_ok=True)
        kept = {digest: _keep(folder / f"{digest.hex()}{photo.ending}", photo) for digest, photo in new.items()}
        file.add([_record(photo, kept[digest], digest, file) for digest, photo in new.items()], descriptors)

    def remove(self, photo_id: int) -> bool:
        """Forget a photo, and delete its file where it had been sent here; says whether the map held it."""
        with open_map_file(self.map_path, write=True) as file:
            rows = file.query("SELECT file, sha256 FROM photos WHERE fid = ?", (photo_id,))
            if not rows or not file.remove(np.array([photo_id])):
                return False
            ((name, digest),) = rows
            path = self.map_path.parent / name
            ours = path.parent == photos_folder(self.map_path) and path.stem == digest.hex()
            if ours and file.find(digest) is None:
                path.unlink(missing_ok=True)
            return True


def _keep(path: Path, photo: NewPhoto) -> Path:
    if not path.exists():
        beside = path.with_name(f".{uuid.uuid4().hex}")
        try:
            beside.write_bytes(photo.content)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
    return path


def _record(photo: NewPhoto, path: Path, digest: bytes, file: MapFile) -> Photo:
    status, name = path.stat(), file.file_name(path)
    return Photo(name, photo.geotag, photo.width, photo.height, digest, status.st_size, status.st_mtime_ns)


def _id_of(file: MapFile, digest: bytes) -> int:
    found = file.find(digest)
    if found is None:
        raise MapError(f"a photo was removed from map {file.path} while it was being added")
    return found[0]
