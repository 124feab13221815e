"""Routes of the map's photos: where they are, how they look, adding and removing them."""

import asyncio
import hmac
from functools import partial
from pathlib import Path as FilePath
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from sareloc.errors import PhotoError
from sareloc.serve.catalogue import allowed_path, draw_thumbnail, etag_of
from sareloc.serve.guard import Problem, problem_response
from sareloc.serve.localize_routes import BOX, area
from sareloc.serve.schemas import MapAnswer, PhotosAnswer, curl, form_body, said
from sareloc.serve.service import Service
from sareloc.serve.uploads import read_form, read_position

# annotations are evaluated here: they hold the limits of the service at hand


LARGEST_ID = 2**63 - 1
PhotoId = Annotated[int, Path(ge=1, le=LARGEST_ID, description="The map's id of the photo.")]


class GeoJSONResponse(JSONResponse):
    """GeoJSON, by its own name (RFC 7946)."""

    media_type = "application/geo+json"


bearer = HTTPBearer(auto_error=False, description="The token that the service was started with.")


def map_routes(service: Service) -> APIRouter:
    """GET /map, GET /photos/{id}/thumbnail, POST /photos and DELETE /photos/{id}."""
    router = APIRouter(tags=["map"])
    limits = service.limits

    @router.get(
        "/map",
        summary="Where are the photos?",
        response_class=GeoJSONResponse,
        responses={200: {"model": MapAnswer}, **said(421, 422, 503)},
        openapi_extra=curl("'/map?box=48.85,2.28,48.87,2.31&limit=100'"),
    )
    async def photos_of_map(
        box: Annotated[str | None, BOX] = None,
        limit: Annotated[int, Query(ge=1, le=limits.max_features, description="Photos to show.")] = 1000,
    ) -> Response:
        """Photos of the map, of one box or of all, as GeoJSON; where they are too many, an even sample."""
        near = area(box, None)
        return await asyncio.to_thread(lambda: GeoJSONResponse(service.catalogue.geojson(near, limit)))

    @router.get(
        "/photos/{photo_id}/thumbnail",
        summary="How does a photo look?",
        response_class=Response,
        responses={
            200: {"content": {"image/jpeg": {}}, "description": "A JPEG."},
            304: {"description": "As the client has it already."},
            **said(404, 421, 422, 503),
        },
        openapi_extra=curl("'/photos/7/thumbnail?size=256' -o photo.jpg"),
    )
    async def thumbnail(
        request: Request,
        photo_id: PhotoId,
        size: Annotated[int, Query(ge=32, le=1024, description="Pixels of its longer side, at most.")] = 256,
    ) -> Response:
        """A photo of the map, small; a 404 for one that is gone, damaged or outside the folders that may be shown."""
        try:
            path, etag = await asyncio.to_thread(_shown_file, service, photo_id, size)
            headers = {"ETag": etag, "Cache-Control": "private, max-age=3600"}
            if etag in request.headers.get("if-none-match", ""):
                return Response(status_code=304, headers=headers)
            jpeg = await service.off_loop(partial(draw_thumbnail, path, size))
        except (OSError, PhotoError):
            # one answer, whatever the cause: nobody learns which files this machine has
            raise Problem(404, "there is no photo of this id that can be shown") from None
        return Response(jpeg, media_type="image/jpeg", headers=headers)

    async def allowed(given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
        wanted = service.serving.token
        if wanted is None:
            raise Problem(403, "photos cannot be added or removed here: the service was started without a token")
        if given is None or not hmac.compare_digest(given.credentials.encode(), wanted.encode()):
            raise Problem(
                401, "send the token of this service: Authorization: Bearer ...", {"WWW-Authenticate": "Bearer"}
            )

    @router.post(
        "/photos",
        summary="Add photos.",
        status_code=201,
        dependencies=[Depends(allowed)],
        responses={201: {"model": PhotosAnswer}, **said(400, 401, 403, 408, 413, 415, 421, 422, 503)},
        openapi_extra={
            "requestBody": form_body(
                lat={"type": "number", "minimum": -90, "maximum": 90, "description": "Of photos without a geotag."},
                lon={"type": "number", "minimum": -180, "maximum": 180},
            ),
            **curl("-H 'Authorization: Bearer TOKEN' -F photos=@new.jpg -F lat=48.8584 -F lon=2.2945 /photos"),
        },
    )
    async def add(request: Request) -> Response:
        """Add the photos of a form to the map: the next question finds them.

        The fields `lat` and `lon` give the position of photos that have none themselves. The answer names each photo's
        id, also of those that the map held already, or says why a photo was left out; where all were, it is a 422.
        """
        uploads, form = await read_form(request, limits)
        added = await service.add(uploads, read_position(form))
        told = [
            {"photo": upload.name, "error": one.reason}
            if isinstance(one, PhotoError)
            else {"photo": upload.name, "id": one}
            for upload, one in zip(uploads, added, strict=True)
        ]
        if all(isinstance(one, PhotoError) for one in added):
            return problem_response(422, f"no photo was added: {added[0]}", photos=told)
        return JSONResponse({"photos": told}, 201)

    @router.delete(
        "/photos/{photo_id}",
        summary="Remove a photo.",
        status_code=204,
        dependencies=[Depends(allowed)],
        responses=said(401, 403, 404, 421, 422, 503),
        openapi_extra=curl("-X DELETE -H 'Authorization: Bearer TOKEN' /photos/7"),
    )
    async def remove(photo_id: PhotoId) -> Response:
        """Remove a photo from the map, and its file where it had been sent here; other files stay."""
        if not await asyncio.to_thread(service.adder.remove, photo_id):
            raise Problem(404, f"the map holds no photo {photo_id}")
        return Response(status_code=204)

    return router


def _shown_file(service: Service, photo_id: int, size: int) -> tuple[FilePath, str]:
    """The file of a photo, and the ETag of its thumbnail. Raises FileNotFoundError if it may not be shown."""
    file = service.catalogue.file_of(photo_id)
    path = None if file is None else allowed_path(service.live.place_map.photo_path(file), service.photo_folders)
    if path is None:
        raise FileNotFoundError
    return path, etag_of(path, size)
