"""Uploaded photos: read from requests, and added to the map.

Added photos are stored beside the map, in `city-photos` for city.gpkg, named by the SHA-256 of their content. The views
of a 360° photo are entries of the map, as `map build` adds them.
"""

from __future__ import annotations

import hashlib
import math
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
from fastapi import Request
from starlette.datastructures import FormData, UploadFile

from sareloc.arrays import Image
from sareloc.errors import MapError, PhotoError, PositionError
from sareloc.maps import MapFile, MapPhoto, open_map_file
from sareloc.maps.expand import read_view_options, write_view_options
from sareloc.maps.features import add_missing_features, read_keypoints
from sareloc.maps.file import name_in_map
from sareloc.maps.whitening import map_model
from sareloc.models import PlaceModel
from sareloc.photos import Address, Geotag, SizeRule, ViewOptions, decode, parse_address, read_exif_geotag
from sareloc.photos.addresses import View
from sareloc.photos.decoding import open_photo
from sareloc.photos.images import part_digest
from sareloc.photos.panoramas import UNUSABLE, Panorama
from sareloc.photos.views import cut_photo, read_views
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


def public_name(file: str) -> str:
    """The name of a photo in the map, for every client: of an absolute path, which shows the folders of this machine,
    the last part."""
    absolute = PurePosixPath(file).is_absolute() or PureWindowsPath(file).is_absolute()
    return shown_name(file) if absolute else file


ENDINGS = {"JPEG": ".jpg", "MPO": ".jpg", "PNG": ".png", "WEBP": ".webp", "AVIF": ".avif", "TIFF": ".tif"}


@dataclass(frozen=True, eq=False)
class NewImage:
    """A decoded image to add to the map: a photo, or a view of a 360° photo."""

    pixels: Image
    """At the model's size."""
    geotag: Geotag
    width: int
    height: int
    view: View | None = None
    """Of a 360° photo."""


@dataclass(frozen=True, eq=False)
class NewPhoto:
    """A photo to add to the map."""

    content: bytes
    ending: str
    """Ending of its file name, by its content."""
    images: tuple[NewImage, ...]
    """The photo, or the views of a 360° photo."""
    views: ViewOptions
    """How 360° photos were cut."""


def examine_upload(
    upload: Upload, position: Geotag | None, size: SizeRule, max_pixels: int, views: ViewOptions
) -> NewPhoto:
    """Decode an uploaded photo and read its geotag; `position` is used if it has none.

    Raises PhotoError if it cannot be decoded or has no position.

    views: how a 360° photo is cut. One with GPano tags that cannot be used is an ordinary photo.
    """
    with open_photo(upload.content, name=upload.name, max_pixels=max_pixels) as opened:
        ending = ENDINGS.get(opened.format or "", ".heic")
        width, height = opened.size
    panorama, cut = _views(upload, views)
    if panorama is None:
        pixels = [decode(upload.content, size=size, name=upload.name, max_pixels=max_pixels)]
    else:
        pixels = read_views(upload.content, panorama, cut, size=size, name=upload.name, max_pixels=max_pixels)
    geotag = read_exif_geotag(upload.content) or position
    if geotag is None:
        raise PhotoError(upload.name, "has no position: send one in the fields lat and lon")
    images: tuple[NewImage, ...]
    if panorama is None:
        images = (NewImage(pixels[0], geotag, width, height),)
    else:
        images = tuple(
            NewImage(image, replace(geotag, heading_deg=panorama.heading_of(view)), view.width, view.height, view)
            for image, view in zip(pixels, cut, strict=True)
        )
    return NewPhoto(upload.content, ending, images, views)


def _views(upload: Upload, views: ViewOptions) -> tuple[Panorama | None, tuple[View, ...]]:
    try:
        return cut_photo(upload.content, views, name=upload.name)
    except PhotoError as error:
        if error.reason.startswith(UNUSABLE):
            return None, ()
        raise


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

    def view_options(self) -> ViewOptions:
        """How the map's 360° photos are cut into views."""
        with open_map_file(self.map_path) as file:
            return read_view_options(file) or ViewOptions()

    def add(self, photos: Sequence[NewPhoto]) -> list[tuple[int, ...]]:
        """Add photos and return the ids of their images; an image that the map already has keeps its id."""
        digests = [_digests(photo) for photo in photos]
        with open_map_file(self.map_path, write=True) as file:
            known = file.known([digest for row in digests for digest in row])
            new = {
                digest: (photo, image)
                for photo, row in zip(photos, digests, strict=True)
                for digest, image in zip(row, photo.images, strict=True)
                if digest not in known
            }
            if new:
                self._add_new(file, new)
            return [tuple(_id_of(file, digest) for digest in row) for row in digests]

    def _add_new(self, file: MapFile, new: dict[bytes, tuple[NewPhoto, NewImage]]) -> None:
        model = map_model(self.model, file)
        dim = None if file.manifest.dim == model.dim else file.manifest.dim
        pixels = [image.pixels for _, image in new.values()]
        descriptors = model.encode(pixels, dim=dim, batch=self.batch).numpy()
        folder = photos_folder(self.map_path)
        folder.mkdir(exist_ok=True)
        cut = next((photo.views for photo, image in new.values() if image.view is not None), None)
        if cut is not None and read_view_options(file) is None:
            write_view_options(file, cut)
        records = [_record(_store(folder, photo), image, digest, file) for digest, (photo, image) in new.items()]
        file.add(records, descriptors)
        keypoints = read_keypoints(file)
        if keypoints is not None:
            add_missing_features(file, keypoints, device=self.model.device, progress=False)

    def remove(self, photo_id: int) -> bool:
        """Remove a photo, and its file if it was added by `add` and the map has no other view of it.

        Returns whether the map had the photo.
        """
        with open_map_file(self.map_path, write=True) as file:
            rows = file.query("SELECT file FROM photos WHERE fid = ?", (photo_id,))
            if not rows or not file.remove(np.array([photo_id])):
                return False
            path = parse_address(self.map_path.parent / rows[0][0]).file
            if path.parent == photos_folder(self.map_path) and not _has_images(file, path):
                _remove_stored(path)
            return True


def _digests(photo: NewPhoto) -> list[bytes]:
    """What identifies the images of a photo, as `content_digest`."""
    whole = hashlib.sha256(photo.content).digest()
    fragments = (Address(Path(), image.view).fragment for image in photo.images)
    return [part_digest(whole, fragment) if fragment else whole for fragment in fragments]


def _has_images(file: MapFile, path: Path) -> bool:
    """Whether the map has this photo, or a view of it."""
    name = name_in_map(file.path, path)
    find = "SELECT 1 FROM photos WHERE file = ? OR (file > ? AND file < ?) LIMIT 1"
    return bool(file.query(find, (name, f"{name}#", f"{name}$")))  # "$" follows "#": names of views are between them


def _remove_stored(path: Path) -> None:
    """Delete a file that is named by the SHA-256 of its content, as `_store` names it."""
    try:
        if hashlib.sha256(path.read_bytes()).hexdigest() == path.stem:
            path.unlink()
    except FileNotFoundError:
        pass


def _store(folder: Path, photo: NewPhoto) -> Path:
    path = folder / f"{hashlib.sha256(photo.content).hexdigest()}{photo.ending}"
    if not path.exists():
        beside = path.with_name(f".{uuid.uuid4().hex}")
        try:
            beside.write_bytes(photo.content)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
    return path


def _record(path: Path, image: NewImage, digest: bytes, file: MapFile) -> MapPhoto:
    status, name = path.stat(), name_in_map(file.path, Address(path, image.view).path)
    return MapPhoto(name, image.geotag, image.width, image.height, digest, status.st_size, status.st_mtime_ns)


def _id_of(file: MapFile, digest: bytes) -> int:
    found = file.known([digest])
    if not found:
        raise MapError(f"a photo was removed from map {file.path} by another process while it was being added")
    return found[digest].photo_id
