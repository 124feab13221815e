"""Routes that take a query photo: POST /localize, POST /inliers and POST /heatmap.

Annotations are evaluated here (no `from __future__ import annotations`): they contain the limits of the service.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from sareloc.errors import PhotoError, PositionError
from sareloc.geometry import InlierPairs
from sareloc.localize import Fix
from sareloc.maps import Area, Box, Circle
from sareloc.photos import file_of
from sareloc.serve.guard import Problem, has_token
from sareloc.serve.schemas import (
    FixAnswer,
    FixesAnswer,
    InliersAnswer,
    curl,
    form_body,
    photo_body,
    problem_responses,
)
from sareloc.serve.service import FailedPhotoError, Service
from sareloc.serve.uploads import is_form, public_name, read_form, read_photo

T = TypeVar("T")

LARGEST_ID = 2**63 - 1
DIGITS = 4  # of fractions: a tenth of a pixel in photos of a thousand
NUMBER = r"[+-]?[0-9]{1,9}(\.[0-9]{0,20})?"
BOX = Query(
    description="Restrict to a box: south,west,north,east in degrees; west > east crosses the antimeridian.",
    pattern=rf"^{NUMBER}(,{NUMBER}){{3}}$",
    examples=["48.85,2.28,48.87,2.31"],
)
CIRCLE = Query(
    description="Restrict to a circle: latitude,longitude,radius in metres.",
    pattern=rf"^{NUMBER}(,{NUMBER}){{2}}$",
    examples=["48.8584,2.2945,500"],
)


def localize_routes(service: Service) -> APIRouter:
    """POST /localize, POST /inliers and POST /heatmap."""
    router = APIRouter(tags=["localize"])
    limits = service.limits
    body = photo_body()
    body["content"] |= form_body()["content"]

    @router.post(
        "/localize",
        summary="Localize photos.",
        responses={200: {"model": FixAnswer | FixesAnswer}, **problem_responses(400, 408, 413, 421, 422, 503)},
        openapi_extra={
            "requestBody": body,
            **curl("--data-binary @photo.jpg '/localize?top=3'", "-F photos=@one.jpg -F photos=@two.jpg /localize"),
        },
    )
    async def localize(
        request: Request,
        top: Annotated[int, Query(ge=1, le=limits.max_matches, description="Number of matches in the answer.")] = 5,
        box: Annotated[str | None, BOX] = None,
        circle: Annotated[str | None, CIRCLE] = None,
    ) -> Response:
        """If the body is a photo, the answer is one object, as printed by `sareloc localize --json`.

        If the body is a form with one or several files in the field `photos`, the answer is `{"fixes": [...]}`: one
        such object for each photo in order, or `{"photo", "error"}` for a photo that cannot be decoded or fails.
        """
        near, names = area(box, circle), photo_names(request, service)
        if is_form(request):
            uploads, _ = await read_form(request, limits)
            fixes = await service.localize(uploads, near, top)
            answers = [_to_json(upload.name, fix, names) for upload, fix in zip(uploads, fixes, strict=True)]
            return JSONResponse({"fixes": answers})
        (fix,) = await service.localize([await read_photo(request)], near, top)
        return JSONResponse(_to_json("photo", decodable(fix), names))

    @router.post(
        "/inliers",
        summary="Matched local features.",
        responses={200: {"model": InliersAnswer}, **problem_responses(400, 404, 408, 413, 421, 422, 503)},
        openapi_extra={"requestBody": photo_body(), **curl("--data-binary @photo.jpg '/inliers?id=7'")},
    )
    async def inliers(
        request: Request,
        photo_id: Annotated[
            int, Query(alias="id", ge=1, le=LARGEST_ID, description="Id of the photo in the map, such as of a match.")
        ],
    ) -> Response:
        """Where the photo and a photo of the map show the same points: their matched local features that agree.

        404 if the photo of the map may not be shown (as for its thumbnail), or if matches are not verified, because the
        map holds no local features or the service was started with `--verify 0`.
        """
        if not service.live.verifies:
            raise Problem(404, "matches are not verified: the map holds no local features, or --verify is 0")
        try:
            file, path = await asyncio.to_thread(service.shown_file, photo_id)
        except OSError:
            raise not_shown() from None
        if not await asyncio.to_thread(file_of(path).is_file):
            raise not_shown()
        pairs = decodable(await service.inlier_pairs(await read_photo(request), photo_id, file))
        if pairs is None:
            raise not_shown()
        return JSONResponse(_pairs_to_json(photo_id, pairs))

    @router.post(
        "/heatmap",
        summary="Heat map of a photo.",
        response_class=Response,
        responses={
            200: {"content": {"image/png": {}}, "description": "A transparent PNG to lay over the photo."},
            **problem_responses(400, 404, 408, 413, 421, 422, 503),
        },
        openapi_extra={"requestBody": photo_body(), **curl("--data-binary @photo.jpg /heatmap -o heat.png")},
    )
    async def heatmap(request: Request) -> Response:
        """The parts of the photo that its descriptor depends on (occlusion heat map).

        The PNG has the aspect ratio of the photo, its longer side 512 px; it is transparent where covering the photo
        does not change the descriptor.
        """
        if not service.serving.heatmap:
            raise Problem(404, "heat maps are switched off (--no-heatmap)")
        png = await service.heatmap(await read_photo(request))
        return Response(decodable(png), media_type="image/png")

    return router


def area(box: str | None, circle: str | None) -> Area | None:
    """The area that the parameters restrict the search to; None without any. Raises Problem (422) if invalid."""
    if box is not None and circle is not None:
        raise Problem(422, "box and circle exclude each other: send one of them")
    try:
        if circle is not None:
            latitude, longitude, radius_m = map(float, circle.split(","))
            return Circle((latitude, longitude), radius_m)
        if box is not None:
            south, west, north, east = map(float, box.split(","))
            return Box(south, west, north, east)
    except PositionError as wrong:
        raise Problem(422, str(wrong)) from wrong
    return None


def photo_names(request: Request, service: Service) -> Callable[[str], str]:
    """How the answer to a request names photos of the map: as the map does if it has the token, else `public_name`."""
    return str if has_token(request, service.serving.token) else public_name


def decodable(answer: T | PhotoError) -> T:
    """The answer about a photo. Raises Problem: 422 if the photo cannot be decoded, 500 if the service failed."""
    if isinstance(answer, PhotoError):
        raise Problem(500 if isinstance(answer, FailedPhotoError) else 422, str(answer))
    return answer


def not_shown() -> Problem:
    """The answer about a photo of the map that is missing, damaged or may not be shown.

    One answer for all causes: clients must not learn which files exist on this machine.
    """
    return Problem(404, "there is no photo with this id that may be shown")


def _pairs_to_json(photo_id: int, pairs: InlierPairs) -> dict[str, Any]:
    return {
        "id": photo_id,
        "inliers": len(pairs),
        "geometry": "homography" if pairs.planar else "epipolar",
        "query_size": pairs.query_size,
        "photo_size": pairs.photo_size,
        "query_xy": pairs.query_xy.round(DIGITS).tolist(),
        "photo_xy": pairs.photo_xy.round(DIGITS).tolist(),
    }


def _to_json(name: str, fix: Fix | PhotoError, names: Callable[[str], str]) -> dict[str, Any]:
    if isinstance(fix, PhotoError):
        return {"photo": name, "error": fix.reason}
    answer = fix.to_json(name)
    for match in answer["matches"]:
        match["photo"] = names(match["photo"])
    return answer
