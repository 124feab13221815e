"""Routes that take a query photo (POST /localize, /inliers, /heatmap), and those of the map's photos: list,
thumbnail, add, remove.

Annotations are evaluated here (no `from __future__ import annotations`): they contain the limits of the service.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path as FilePath
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer

from sareloc.errors import PhotoError, PositionError
from sareloc.geo import enclosing_box
from sareloc.geometry import InlierPairs
from sareloc.localize import Fix
from sareloc.maps import Area, Box, Circle, ListedPhoto, ListedPhotos
from sareloc.photos import file_of
from sareloc.serve.guard import (
    Problem,
    has_token,
    is_form,
    problem_response,
    public_name,
    read_form,
    read_photo,
    read_position,
)
from sareloc.serve.pictures import draw_thumbnail, etag_of
from sareloc.serve.schemas import (
    FixAnswer,
    FixesAnswer,
    InliersAnswer,
    MapAnswer,
    PhotosAnswer,
    curl,
    form_body,
    photo_body,
    problem_responses,
)
from sareloc.serve.served_map import ServedMap
from sareloc.serve.service import FailedPhotoError, Service

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
MAP_NAME = Query(
    alias="map",
    max_length=1024,
    description="Name of the map, as in answers; required if the service has several.",
    examples=["city.gpkg"],
)


def localize_routes(service: Service) -> APIRouter:
    """POST /localize, POST /inliers and POST /heatmap."""
    router = APIRouter(tags=["localize"])
    config = service.config
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
        top: Annotated[int, Query(ge=1, le=config.max_matches, description="Number of matches in the answer.")] = 5,
        box: Annotated[str | None, BOX] = None,
        circle: Annotated[str | None, CIRCLE] = None,
    ) -> Response:
        """If the body is a photo, the answer is one object, as printed by `sareloc localize --json`.

        If the body is a form with one or several files in the field `photos`, the answer is `{"fixes": [...]}`: one
        such object for each photo in order, or `{"photo", "error"}` for a photo that cannot be decoded or fails.
        """
        near, names = area(box, circle), photo_names(request, service)
        if is_form(request):
            uploads, _ = await read_form(request, config.max_files)
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
        map_name: Annotated[str | None, MAP_NAME] = None,
    ) -> Response:
        """Where the photo and a photo of the map show the same points: their matched local features that agree.

        404 if the photo of the map may not be shown (as for its thumbnail), or if matches are not verified, because the
        map holds no local features or the service was started with `--verify 0`.
        """
        served = service.map_named(map_name)
        if not served.live.verifies:
            raise Problem(404, "matches are not verified: the map holds no local features, or --verify is 0")
        try:
            file, path = await asyncio.to_thread(served.shown_file, photo_id)
        except OSError:
            raise not_shown() from None
        if not await asyncio.to_thread(file_of(path).is_file):
            raise not_shown()
        pairs = decodable(await service.inlier_pairs(served, await read_photo(request), photo_id, file))
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
        """The parts of the photo that its descriptor depends on (occlusion heat map), by the model of the first map.

        The PNG has the aspect ratio of the photo, its longer side 512 px; it is transparent where covering the photo
        does not change the descriptor.
        """
        if not service.config.heatmap:
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
    return str if has_token(request, service.config.token) else public_name


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


PhotoId = Annotated[int, Path(ge=1, le=LARGEST_ID, description="Id of the photo in the map.")]


class GeoJSONResponse(JSONResponse):
    """GeoJSON with its own media type (RFC 7946)."""

    media_type = "application/geo+json"


bearer = HTTPBearer(auto_error=False, description="The token of the service (--token).")


def map_routes(service: Service) -> APIRouter:
    """GET /map, GET /photos/{id}/thumbnail, POST /photos and DELETE /photos/{id}."""
    router = APIRouter(tags=["map"])
    config = service.config

    @router.get(
        "/map",
        summary="List photos.",
        response_class=GeoJSONResponse,
        responses={200: {"model": MapAnswer}, **problem_responses(421, 422, 503)},
        openapi_extra=curl("'/map?box=48.85,2.28,48.87,2.31&limit=100'"),
    )
    async def photos_of_map(
        request: Request,
        box: Annotated[str | None, BOX] = None,
        limit: Annotated[int, Query(ge=1, le=config.max_features, description="Maximum photos in the answer.")] = 1000,
        map_name: Annotated[
            str | None, Query(alias="map", max_length=1024, description="Only photos of this map; default: of all.")
        ] = None,
    ) -> Response:
        """Photos of the maps as GeoJSON, of one box or all; if they exceed the limit, an even sample."""
        near, names = area(box, None), photo_names(request, service)

        def listed() -> Response:
            found = service.list_photos(near, limit, map_name)
            return GeoJSONResponse(map_geojson(found, names, several=len(service.maps) > 1))

        return await asyncio.to_thread(listed)

    @router.get(
        "/photos/{photo_id}/thumbnail",
        summary="Thumbnail of a photo.",
        response_class=Response,
        responses={
            200: {"content": {"image/jpeg": {}}, "description": "A JPEG."},
            304: {"description": "Unchanged since the ETag of the request."},
            **problem_responses(404, 421, 422, 503),
        },
        openapi_extra=curl("'/photos/7/thumbnail?size=256' -o photo.jpg"),
    )
    async def thumbnail(
        request: Request,
        photo_id: PhotoId,
        size: Annotated[int, Query(ge=32, le=1024, description="Maximum length of the longer side in pixels.")] = 256,
        map_name: Annotated[str | None, MAP_NAME] = None,
    ) -> Response:
        """A photo of the map as a small JPEG; 404 if its file is missing, damaged or may not be shown."""
        served = service.map_named(map_name)
        try:
            path, etag = await asyncio.to_thread(_shown_file, served, photo_id, size)
            headers = {"ETag": etag, "Cache-Control": "private, max-age=3600"}
            if etag in request.headers.get("if-none-match", ""):
                return Response(status_code=304, headers=headers)
            jpeg = await service.in_decoder(partial(draw_thumbnail, path, size))
        except (OSError, PhotoError):
            raise not_shown() from None
        return Response(jpeg, media_type="image/jpeg", headers=headers)

    async def check_token(request: Request) -> None:
        if service.config.token is None:
            raise Problem(403, "photos cannot be added or removed: the service was started without a token")
        if not has_token(request, service.config.token):
            raise Problem(
                401,
                "authentication failed: send the token of this service in the header Authorization: Bearer TOKEN",
                {"WWW-Authenticate": "Bearer"},
            )

    @router.post(
        "/photos",
        summary="Add photos.",
        status_code=201,
        dependencies=[Depends(bearer), Depends(check_token)],
        responses={201: {"model": PhotosAnswer}, **problem_responses(400, 401, 403, 408, 413, 415, 421, 422, 503)},
        openapi_extra={
            "requestBody": form_body(
                lat={
                    "type": "number",
                    "minimum": -90,
                    "maximum": 90,
                    "description": "For photos without a geotag.",
                },
                lon={"type": "number", "minimum": -180, "maximum": 180},
                map={"type": "string", "description": "Name of the map; required if the service has several."},
            ),
            **curl("-H 'Authorization: Bearer TOKEN' -F photos=@new.jpg -F lat=48.8584 -F lon=2.2945 /photos"),
        },
    )
    async def add(request: Request) -> Response:
        """Add the photos of a form to the map, or to the one that the field `map` names; the next query can match them.

        The fields `lat` and `lon` are the position of photos without a geotag. The answer has the id of each photo,
        also of those that the map already had, or the reason why it was not added; if no photo was added, the status
        is 422. A 360° photo (one with GPano tags) is cut into views, as by `sareloc map build`: `ids` has the id of
        each, `id` is that of the first.
        """
        uploads, form = await read_form(request, config.max_files)
        named = form.get("map")
        served = service.map_named(named if isinstance(named, str) else None)
        added = await service.add(served, uploads, read_position(form))
        results = [_added(upload.name, one) for upload, one in zip(uploads, added, strict=True)]
        if all(isinstance(one, PhotoError) for one in added):
            status = 500 if any(isinstance(one, FailedPhotoError) for one in added) else 422
            return problem_response(status, f"no photo was added: {added[0]}", photos=results)
        return JSONResponse({"photos": results}, 201)

    @router.delete(
        "/photos/{photo_id}",
        summary="Remove a photo.",
        status_code=204,
        dependencies=[Depends(bearer), Depends(check_token)],
        responses=problem_responses(401, 403, 404, 421, 422, 503),
        openapi_extra=curl("-X DELETE -H 'Authorization: Bearer TOKEN' /photos/7"),
    )
    async def remove(photo_id: PhotoId, map_name: Annotated[str | None, MAP_NAME] = None) -> Response:
        """Remove a photo from the map, or a view of a 360° photo.

        The file is deleted if it was added by POST /photos and the map has no other view of it; other files are kept.
        """
        if not await asyncio.to_thread(service.map_named(map_name).adder.remove, photo_id):
            raise Problem(404, f"the map has no photo with id {photo_id}")
        return Response(status_code=204)

    return router


def map_geojson(listed: Mapping[str, ListedPhotos], names: Callable[[str], str], *, several: bool) -> dict[str, Any]:
    """A FeatureCollection of photos, with the extent of the maps and the counts of their photos, in all and inside.

    Args:
        listed: the photos of each map.
        names: how photos of the maps are named.
        several: whether each photo has the name of its map.
    """
    box = enclosing_box([one.extent for one in listed.values() if one.extent is not None])
    features = [
        _feature(photo, names, {"map": name} if several else {}) for name, one in listed.items() for photo in one.photos
    ]
    return {
        "type": "FeatureCollection",
        **({} if box is None else {"bbox": [box.west, box.south, box.east, box.north]}),
        "total": sum(one.total for one in listed.values()),
        "inside": sum(one.inside for one in listed.values()),
        "features": features,
    }


def _added(name: str, ids: tuple[int, ...] | PhotoError) -> dict[str, Any]:
    """The answer about a photo that was sent: the ids of its images, or why it was not added."""
    if isinstance(ids, PhotoError):
        return {"photo": name, "error": ids.reason}
    return {"photo": name, "id": ids[0]} | ({"ids": list(ids)} if len(ids) > 1 else {})


def _feature(photo: ListedPhoto, names: Callable[[str], str], more: dict[str, str]) -> dict[str, Any]:
    latitude, longitude = photo.latlon
    return {
        "type": "Feature",
        "id": photo.photo_id,
        "geometry": {"type": "Point", "coordinates": [longitude, latitude]},
        "properties": {"photo": names(photo.file), "heading_deg": photo.heading_deg, "time": photo.time, **more},
    }


def _shown_file(served: ServedMap, photo_id: int, size: int) -> tuple[FilePath, str]:
    """The file of a photo and the ETag of its thumbnail. Raises OSError if it is missing or may not be shown."""
    _, path = served.shown_file(photo_id)
    return path, etag_of(path, size)
