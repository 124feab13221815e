"""Routes that ask about a photo: where it was taken, and what in it mattered."""

from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from sareloc.errors import PhotoError, PositionError
from sareloc.localize import Fix
from sareloc.maps import Area, Box, Circle
from sareloc.serve.guard import Problem
from sareloc.serve.schemas import FixAnswer, FixesAnswer, curl, form_body, photo_body, said
from sareloc.serve.service import Service
from sareloc.serve.uploads import is_form, read_form, read_photo

# annotations are evaluated here: they hold the limits of the service at hand


T = TypeVar("T")

NUMBER = r"[+-]?[0-9]{1,9}(\.[0-9]{0,20})?"
BOX = Query(
    description="Only between these: south,west,north,east in degrees; west > east crosses the antimeridian.",
    pattern=rf"^{NUMBER}(,{NUMBER}){{3}}$",
    examples=["48.85,2.28,48.87,2.31"],
)
CIRCLE = Query(
    description="Only within a radius of a position: latitude,longitude,metres.",
    pattern=rf"^{NUMBER}(,{NUMBER}){{2}}$",
    examples=["48.8584,2.2945,500"],
)


def asking_routes(service: Service) -> APIRouter:
    """POST /localize and POST /heatmap."""
    router = APIRouter(tags=["ask"])
    limits = service.limits
    body = photo_body()
    body["content"] |= form_body()["content"]

    @router.post(
        "/localize",
        summary="Where was this photo taken?",
        responses={200: {"model": FixAnswer | FixesAnswer}, **said(400, 408, 413, 421, 422, 503)},
        openapi_extra={
            "requestBody": body,
            **curl("--data-binary @photo.jpg '/localize?top=3'", "-F photos=@one.jpg -F photos=@two.jpg /localize"),
        },
    )
    async def localize(
        request: Request,
        top: Annotated[int, Query(ge=1, le=limits.max_matches, description="Matches to list.")] = 5,
        box: Annotated[str | None, BOX] = None,
        circle: Annotated[str | None, CIRCLE] = None,
    ) -> Response:
        """One photo as the body gives one object, as `sareloc localize --json` prints it.

        A form with one or several files in the field `photos` gives `{"fixes": [...]}`, one for each in order: such an
        object, or `{"photo", "error"}` for one that cannot be read.
        """
        near = area(box, circle)
        if is_form(request):
            uploads, _ = await read_form(request, limits)
            fixes = await service.localize(uploads, near, top)
            told = [_told(upload.name, fix) for upload, fix in zip(uploads, fixes, strict=True)]
            return JSONResponse({"fixes": told})
        (fix,) = await service.localize([await read_photo(request)], near, top)
        return JSONResponse(readable(fix).to_json("photo"))

    @router.post(
        "/heatmap",
        summary="What in this photo mattered?",
        response_class=Response,
        responses={
            200: {"content": {"image/png": {}}, "description": "A PNG to lay over the photo."},
            **said(400, 404, 408, 413, 421, 422, 503),
        },
        openapi_extra={"requestBody": photo_body(), **curl("--data-binary @photo.jpg /heatmap -o heat.png")},
    )
    async def heatmap(request: Request) -> Response:
        """An overlay of the photo's shape, its longer side 512 px: coloured where the fix depends on the photo."""
        if not service.serving.heatmap:
            raise Problem(404, "this service draws no heat maps")
        png = await service.heat(await read_photo(request))
        return Response(readable(png), media_type="image/png")

    return router


def area(box: str | None, circle: str | None) -> Area | None:
    """The part of the map that the parameters ask for."""
    if box is not None and circle is not None:
        raise Problem(422, "choose one of box and circle")
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


def readable(answer: T | PhotoError) -> T:
    """The answer about a photo; one that cannot be read is a 422 that says why."""
    if isinstance(answer, PhotoError):
        raise Problem(422, str(answer))
    return answer


def _told(name: str, fix: Fix | PhotoError) -> dict[str, Any]:
    return {"photo": name, "error": fix.reason} if isinstance(fix, PhotoError) else fix.to_json(name)
