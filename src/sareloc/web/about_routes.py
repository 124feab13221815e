"""Routes about the service itself: the page, its settings, its health, what it counts."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from sareloc import __version__
from sareloc.web import metrics
from sareloc.web.docs_page import docs_page, style_policy
from sareloc.web.page import START, read_assets
from sareloc.web.problems import Problem
from sareloc.web.schemas import HealthAnswer, SettingsAnswer, said
from sareloc.web.service import Service


def about_routes(service: Service) -> APIRouter:
    """GET /, /assets/{name}, /settings, /health and /metrics."""
    router = APIRouter(tags=["about"])
    assets = read_assets()

    def show(request: Request, name: str) -> Response:
        asset = assets.get(name)
        if asset is None:
            raise Problem(404, f"the page has no file {name!r}" if assets else "this installation has no page")
        headers = {"ETag": asset.etag, "Cache-Control": "no-cache"}
        if asset.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(asset.content, media_type=asset.media_type, headers=headers)

    @router.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return show(request, START)

    @router.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        page = docs_page(request.app.openapi(), str(request.base_url).rstrip("/"))
        return HTMLResponse(page, headers={"Content-Security-Policy": style_policy()})

    @router.get("/assets/{name:path}", include_in_schema=False)
    async def asset(request: Request, name: str) -> Response:
        return show(request, name)

    @router.get(
        "/settings", summary="What a page needs to know.", responses={200: {"model": SettingsAnswer}, **said(421)}
    )
    async def settings() -> Response:
        """The name of the map, where tiles come from, and what may be sent."""
        serving = service.serving
        return JSONResponse(
            {
                "name": service.name,
                "tiles": serving.tiles,
                "attribution": serving.attribution,
                "max_bytes": service.limits.max_bytes,
                "max_files": service.limits.max_files,
                "max_features": service.limits.max_features,
                "adding": serving.token is not None,
                "heatmap": serving.heatmap,
            }
        )

    @router.get("/health", summary="Is it well?", responses={200: {"model": HealthAnswer}, **said(421, 503)})
    async def health() -> Response:
        """What is served; a 503 where the map cannot be read."""
        photos = await asyncio.to_thread(service.catalogue.count)
        manifest = service.live.place_map.manifest
        told = {"photos": photos, "model": manifest.model, "fingerprint": manifest.fingerprint, "version": __version__}
        return JSONResponse({"status": "ok", **told})

    @router.get(
        "/metrics",
        summary="What the service counts.",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}, "description": "Prometheus text."}, **said(421)},
    )
    async def counted() -> Response:
        """Requests, their times, photos and batches, as Prometheus reads them."""
        return Response(service.metrics.text(), media_type=metrics.MEDIA_TYPE)

    return router
