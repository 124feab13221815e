"""Uploaded photos: read from requests, and added to the map.

Added photos are stored beside the map, in `city-photos` for city.gpkg, named by the SHA-256 of their content.
"""

from __future__ import annotations

import hashlib
import math
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from fastapi import Request
from starlette.datastructures import FormData, UploadFile

from sareloc.errors import MapError, PhotoError, PositionError
from sareloc.maps import MapFile, MapPhoto, open_map_file
from sareloc.maps.features import add_missing_features, read_keypoints
from sareloc.maps.file import name_in_map
from sareloc.maps.whitening import map_model
from sareloc.models import PlaceModel
from sareloc.photos import Geotag, SizeRule, decode, read_exif_geotag
from sareloc.photos.decoding import open_photo
from sareloc.serve.config import Limits
from sareloc.serve.guard import Problem

FIELD = "photos"
LONGEST_NAME = 255
MAX_FIELDS = 8
LONGEST_FIELD = 1024


@dataclass(frozen=True)
class Upload:
    """A photo of a request, not decoded."""

    name: str
    """The last part of the file name in the form; repeated in the answer, and used for nothing else."""
    content: bytes


def is_form(request: Request) -> bool:
    """Whether the body is a form rather than a photo."""
    return request.headers.get("content-type", "").lower().startswith("multipart/form-data")


async def read_photo(request: Request) -> Upload:
    """The photo that is the body of a request. Raises Problem (400) if the body is empty."""
    content = await request.body()
    if not content:
        raise Problem(400, "the body is empty: send a photo as the body, or several photos as a form")
    return Upload("photo", content)


async def read_form(request: Request, limits: Limits) -> tuple[list[Upload], FormData]:
    """The photos of a form, in order, and its other fields. Raises Problem (400, 415) if there are none."""
    if not is_form(request):
        raise Problem(415, f"send the photos as multipart/form-data, in fields named {FIELD}")
    try:
        form = await request.form(max_files=limits.max_files, max_fields=MAX_FIELDS, max_part_size=LONGEST_FIELD)
    except ValueError as malformed:  # an unknown character set
        raise Problem(400, "the form is malformed: its field names cannot be decoded") from malformed
    try:
        files = form.getlist(FIELD)
        if not files:
            raise Problem(400, f"the form has no photos: send them in fields named {FIELD}")
        return [await _upload(file) for file in files], form
    finally:
        await form.close()


def read_position(form: FormData) -> Geotag | None:
    """The geotag in the fields lat and lon of a form; None without them. Raises Problem (422) if invalid."""
    given = [form.get(name) for name in ("lat", "lon")]
    if given == [None, None]:
        return None
    try:
        latitude, longitude = (float(value) for value in given if isinstance(value, str))
        if not math.isfinite(latitude + longitude):
            raise ValueError
        return Geotag((latitude, longitude))
    except PositionError as invalid:
        raise Problem(422, str(invalid)) from invalid
    except ValueError as malformed:
        raise Problem(422, "the fields lat and lon must be two numbers, in degrees") from malformed


async def _upload(file: UploadFile | str) -> Upload:
    if isinstance(file, str):
        raise Problem(400, f"the field {FIELD} must be a file, found text")
    return Upload(shown_name(file.filename), await file.read())


def shown_name(given: str | None) -> str:
    """The last part of a file name, without unprintable characters."""
    last = (given or "").replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[:LONGEST_NAME] or "photo"


ENDINGS = {"JPEG": ".jpg", "MPO": ".jpg", "PNG": ".png", "WEBP": ".webp", "AVIF": ".avif", "TIFF": ".tif"}


@dataclass(frozen=True, eq=False)
class NewPhoto:
    """A decoded photo to add to the map."""

    content: bytes
    image: npt.NDArray[np.uint8]
    """(H, W, 3) at the model's size."""
    geotag: Geotag
    ending: str
    """Ending of its file name, by its content."""
    width: int
    height: int


def examine_upload(upload: Upload, position: Geotag | None, size: SizeRule, max_pixels: int) -> NewPhoto | PhotoError:
    """Decode an uploaded photo and read its geotag; `position` is used if it has none. Errors are returned."""
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
    """The folder of added photos: `city-photos` beside city.gpkg."""
    return map_path.with_name(f"{map_path.stem}-photos")


class Adder:
    """Adds photos to a map in batches: one run of the model and one transaction for each.

    Local features are added in a further transaction, if the map holds those of its other photos."""

    def __init__(self, model: PlaceModel, map_path: Path, batch: int) -> None:
        self.model = model
        self.map_path = map_path
        self.batch = batch

    def add(self, photos: Sequence[NewPhoto]) -> list[int]:
        """Add photos and return their ids; a photo whose content the map already has keeps its id."""
        digests = [hashlib.sha256(photo.content).digest() for photo in photos]
        with open_map_file(self.map_path, write=True) as file:
            known = file.known(digests)
            new = {digest: photo for digest, photo in zip(digests, photos, strict=True) if digest not in known}
            if new:
                self._add_new(file, new)
            return [_id_of(file, digest) for digest in digests]

    def _add_new(self, file: MapFile, new: dict[bytes, NewPhoto]) -> None:
        model = map_model(self.model, file)
        dim = None if file.manifest.dim == model.dim else file.manifest.dim
        images = [photo.image for photo in new.values()]
        descriptors = model.encode(images, dim=dim, batch=self.batch).numpy()
        folder = photos_folder(self.map_path)
        folder.mkdir(exist_ok=True)
        stored = {digest: _store(folder / f"{digest.hex()}{photo.ending}", photo) for digest, photo in new.items()}
        file.add([_record(photo, stored[digest], digest, file) for digest, photo in new.items()], descriptors)
        keypoints = read_keypoints(file)
        if keypoints is not None:
            add_missing_features(file, keypoints, device=self.model.device, progress=False)

    def remove(self, photo_id: int) -> bool:
        """Remove a photo, and its file if it was added by `add`. Returns whether the map had the photo."""
        with open_map_file(self.map_path, write=True) as file:
            rows = file.query("SELECT file, sha256 FROM photos WHERE fid = ?", (photo_id,))
            if not rows or not file.remove(np.array([photo_id])):
                return False
            ((name, digest),) = rows
            path = self.map_path.parent / name
            was_added = path.parent == photos_folder(self.map_path) and path.stem == digest.hex()
            if was_added and not file.known([digest]):
                path.unlink(missing_ok=True)
            return True


def _store(path: Path, photo: NewPhoto) -> Path:
    if not path.exists():
        beside = path.with_name(f".{uuid.uuid4().hex}")
        try:
            beside.write_bytes(photo.content)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
    return path


def _record(photo: NewPhoto, path: Path, digest: bytes, file: MapFile) -> MapPhoto:
    status, name = path.stat(), name_in_map(file.path, path)
    return MapPhoto(name, photo.geotag, photo.width, photo.height, digest, status.st_size, status.st_mtime_ns)


def _id_of(file: MapFile, digest: bytes) -> int:
    found = file.known([digest])
    if not found:
        raise MapError(f"a photo was removed from map {file.path} by another process while it was being added")
    return found[digest].photo_id
