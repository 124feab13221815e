"""Routes that give a client its own photo back: as a small JPEG, which every browser shows (POST /preview), and with
its position in it (POST /geotag), written as by `sareloc geotag`. Nothing of the photo is stored.

Annotations are evaluated here (no `from __future__ import annotations`), as in `sareloc.serve.routes`.
"""

from functools import partial
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from sareloc.errors import PhotoError
from sareloc.localize import Fix
from sareloc.photos import ImageRecord
from sareloc.photos.photo_file import read_metadata
from sareloc.photos.raw import RAW
from sareloc.photos.xmp import xmp_with_geotag
from sareloc.serve.guard import Problem, read_photo
from sareloc.serve.pictures import draw_thumbnail
from sareloc.serve.schemas import curl, photo_body, problem_responses
from sareloc.serve.service import Service

T = TypeVar("T")

JPEG, XMP = "image/jpeg", "application/rdf+xml"
WITH_EXIF = (JPEG, "image/png", "image/tiff", "image/webp")
"""The formats that a position is written into; of the others a sidecar is written."""
LARGEST_RADIUS_M = 20_100_000.0  # half of the Earth's circumference


def own_photo_routes(service: Service) -> APIRouter:
    """POST /preview and POST /geotag."""
    router = APIRouter(tags=["localize"])
    max_pixels = service.config.max_pixels

    @router.post(
        "/preview",
        summary="A photo as a small JPEG.",
        response_class=Response,
        responses={
            200: {"content": {JPEG: {}}, "description": "A JPEG."},
            **problem_responses(400, 408, 413, 421, 422, 503),
        },
        openapi_extra={
            "requestBody": photo_body(),
            **curl("--data-binary @photo.heic '/preview?size=512' -o photo.jpg"),
        },
    )
    async def preview(
        request: Request,
        size: Annotated[int, Query(ge=32, le=1024, description="Maximum length of the longer side in pixels.")] = 1024,
    ) -> Response:
        """The photo upright and without metadata, for formats that browsers do not show, such as HEIC and TIFF."""
        photo = await read_photo(request)
        return Response(await _read(service, partial(draw_thumbnail, photo, size, max_pixels)), media_type=JPEG)

    @router.post(
        "/geotag",
        summary="A photo with its position.",
        response_class=Response,
        responses={
            200: {
                "content": {media_type: {} for media_type in (*WITH_EXIF, XMP)},
                "description": "Of a JPEG, PNG, WebP or TIFF: the photo with the position in its EXIF. Of another "
                "format: an XMP sidecar.",
            },
            **problem_responses(400, 408, 413, 421, 422, 503),
        },
        openapi_extra={
            "requestBody": photo_body(),
            **curl(
                "--data-binary @photo.jpg '/geotag?lat=48.8584&lon=2.2945&radius_m=12.4&confidence=0.93' -o tagged.jpg"
            ),
        },
    )
    async def geotag(
        request: Request,
        lat: Annotated[
            float, Query(ge=-90, le=90, allow_inf_nan=False, description="Latitude of the answer in degrees.")
        ],
        lon: Annotated[
            float, Query(ge=-180, le=180, allow_inf_nan=False, description="Longitude of the answer in degrees.")
        ],
        radius_m: Annotated[
            float, Query(ge=0, le=LARGEST_RADIUS_M, allow_inf_nan=False, description="Radius of the answer in metres.")
        ],
        confidence: Annotated[float, Query(ge=0, le=1, allow_inf_nan=False, description="Confidence of the answer.")],
    ) -> Response:
        """The photo with the position of an answer of `POST /localize`.

        The position is marked as an estimate as by `sareloc geotag`, by radius and confidence. Of a JPEG, PNG, WebP
        or TIFF only the EXIF changes. The answer for a photo of another format is an XMP sidecar, to be stored as
        photo.heic.xmp beside photo.heic.
        """
        photo, fix = await read_photo(request), Fix((lat, lon), radius_m, confidence, ())
        content, media_type = await _read(service, partial(tagged, photo, fix, max_pixels))
        return Response(content, media_type=media_type)

    return router


async def _read(service: Service, work: partial[T]) -> T:
    """The result of `work` in a decoding thread. Raises Problem: 422 if the photo cannot be used, 503 if the service is
    busy; the photo is one of those that `Limits.queue` bounds."""
    try:
        with service.queries.reserve(1):
            return await service.in_decoder(work)
    except PhotoError as unreadable:
        raise Problem(422, str(unreadable)) from unreadable


def tagged(photo: ImageRecord, fix: Fix, max_pixels: int) -> tuple[bytes, str]:
    """An uploaded photo with the position of a fix, or an XMP sidecar of it, and the media type.

    Raises PhotoError if it is not a photo, or if its EXIF cannot be changed.
    """
    from sareloc.localize.formats import estimated_geotag  # few photos are asked for with their position
    from sareloc.photos import photo_with_geotag
    from sareloc.photos.containers import file_kind

    assert isinstance(photo.image, bytes)
    metadata = read_metadata(photo.image, name=photo.name, max_pixels=max_pixels)  # refuses what is no photo
    geotag, estimate = estimated_geotag(fix)
    kind = None if metadata.format == RAW else file_kind(photo.image[:12])
    if kind is None:
        return xmp_with_geotag(geotag, estimate), XMP
    return photo_with_geotag(photo.image, geotag, estimate, name=photo.name), f"image/{kind}"
