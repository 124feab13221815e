"""The photos in a request: its whole body, or the files of a form."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastapi import Request
from starlette.datastructures import FormData, UploadFile

from sareloc.errors import PositionError
from sareloc.photos import Geotag
from sareloc.web.limits import Limits
from sareloc.web.problems import Problem

FIELD = "photos"
LONGEST_NAME = 255
MAX_FIELDS = 8
LONGEST_FIELD = 1024


@dataclass(frozen=True)
class Upload:
    """A photo as it was sent."""

    name: str
    """The last part of the name that its sender gave it; shown again, and used for nothing else."""
    content: bytes


def is_form(request: Request) -> bool:
    """Whether the body is a form rather than a photo."""
    return request.headers.get("content-type", "").lower().startswith("multipart/form-data")


async def read_photo(request: Request) -> Upload:
    """The photo that is the whole body."""
    content = await request.body()
    if not content:
        raise Problem(400, "the body is empty: send a photo as the body, or several as a form")
    return Upload("photo", content)


async def read_form(request: Request, limits: Limits) -> tuple[list[Upload], FormData]:
    """The photos of a form, in order, and its other fields."""
    if not is_form(request):
        raise Problem(415, f"send the photos as multipart/form-data, in fields named {FIELD}")
    try:
        form = await request.form(max_files=limits.max_files, max_fields=MAX_FIELDS, max_part_size=LONGEST_FIELD)
    except ValueError as garbled:  # a character set that no text was ever written in
        raise Problem(400, "the form cannot be read: its names are garbled") from garbled
    try:
        files = form.getlist(FIELD)
        if not files:
            raise Problem(400, f"the form holds no photos: send them in fields named {FIELD}")
        return [await _upload(file) for file in files], form
    finally:
        await form.close()


def read_position(form: FormData) -> Geotag | None:
    """The geotag that the fields lat and lon of a form give; None where there are none."""
    given = [form.get(name) for name in ("lat", "lon")]
    if given == [None, None]:
        return None
    try:
        latitude, longitude = (float(value) for value in given if isinstance(value, str))
        if not math.isfinite(latitude + longitude):
            raise ValueError
        return Geotag((latitude, longitude))
    except PositionError as nowhere:
        raise Problem(422, str(nowhere)) from nowhere
    except ValueError as no_number:
        raise Problem(422, "the fields lat and lon are two numbers, in degrees") from no_number


async def _upload(file: UploadFile | str) -> Upload:
    if isinstance(file, str):
        raise Problem(400, f"the field {FIELD} holds a text, not a file")
    return Upload(shown_name(file.filename), await file.read())


def shown_name(given: str | None) -> str:
    """The last part of a name, without what cannot be printed."""
    last = (given or "").replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[:LONGEST_NAME] or "photo"
