"""The ASGI app: all routes behind the guard; here those of the page, settings, health and metrics."""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from sareloc import __version__
from sareloc.errors import ArgumentError
from sareloc.serve.config import ServeConfig
from sareloc.serve.guard import Guard, Problem, add_problem_handlers
from sareloc.serve.live_map import LiveMaps
from sareloc.serve.own_photo import own_photo_routes
from sareloc.serve.routes import localize_routes, map_routes
from sareloc.serve.schemas import HealthAnswer, SettingsAnswer, docs_page, problem_responses, style_policy
from sareloc.serve.served_map import ServedMap
from sareloc.serve.service import Service

START = "index.html"
TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".webmanifest": "application/manifest+json"}
"""Media types that the operating system's table may have wrong."""


def build_app(live: LiveMaps, config: ServeConfig) -> FastAPI:
    """The app of open maps; see `make_app`."""
    if config.token is not None and not all(one.place_map.store_class.is_file for one in live.maps.values()):
        raise ArgumentError(
            'photos are added to a map on a server by "sareloc map add", not over HTTP: start the service without a '
            "token"
        )
    for one in live.maps.values():
        one.model.eval()  # before threads share it
    service = Service(live, config)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(
        title="sareloc",
        version=__version__,
        summary="Where was this photo taken?",
        description=f"The service localizes photos in the map{'s' * (len(live.maps) > 1)} {service.name!r}.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load scripts from other servers
        redoc_url=None,
    )
    for routes in (localize_routes, own_photo_routes, map_routes, about_routes):
        app.include_router(routes(service))
    add_problem_handlers(app)
    app.add_middleware(Guard, config=config, registry=service.registry)
    app.state.service = service
    return app


def about_routes(service: Service) -> APIRouter:
    """GET /, /docs, /assets/{name}, /settings, /health and /metrics."""
    router = APIRouter(tags=["about"])
    assets = read_assets()

    def show(request: Request, name: str) -> Response:
        asset = assets.get(name)
        if asset is None:
            raise Problem(404, f"the page has no file {name!r}" if assets else "the page is not installed")
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
        "/settings",
        summary="Settings for clients.",
        responses={200: {"model": SettingsAnswer}, **problem_responses(421)},
    )
    async def settings() -> Response:
        """The name and the maps, the URL of base tiles, the limits of requests and the options of the service."""
        config = service.config
        return JSONResponse(
            {
                "name": service.name,
                "maps": list(service.maps),
                "tiles": config.tiles,
                "attribution": config.attribution,
                "max_bytes": config.max_bytes,
                "max_files": config.max_files,
                "max_features": config.max_features,
                "adding": config.token is not None,
                "heatmap": config.heatmap,
            }
        )

    @router.get(
        "/health", summary="Health check.", responses={200: {"model": HealthAnswer}, **problem_responses(421, 503)}
    )
    async def health() -> Response:
        """The number of photos in the maps, their models and the version of sareloc; 503 if a map cannot be read.

        `photos` is the sum, `model` and `fingerprint` are those of all maps, separated by commas if they differ.
        """
        maps = [await asyncio.to_thread(_map_health, served) for served in service.maps.values()]
        return JSONResponse(
            {
                "status": "ok",
                "photos": sum(one["photos"] for one in maps),
                **{key: ", ".join(dict.fromkeys(one[key] for one in maps)) for key in ("model", "fingerprint")},
                "maps": maps,
                "version": __version__,
            }
        )

    @router.get(
        "/metrics",
        summary="Metrics.",
        response_class=Response,
        responses={
            200: {"content": {"text/plain": {}}, "description": "Prometheus text."},
            **problem_responses(421),
        },
    )
    async def metrics() -> Response:
        """Requests, their durations, photos and batches, for Prometheus."""
        return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return router


def _map_health(served: ServedMap) -> dict[str, Any]:
    manifest = served.place_map.manifest
    return {
        "name": served.name,
        "photos": served.place_map.current_count(),
        "model": manifest.model,
        "fingerprint": manifest.fingerprint,
    }


@dataclass(frozen=True)
class Asset:
    """A file of the page."""

    content: bytes
    media_type: str
    etag: str


def read_assets() -> dict[str, Asset]:
    """The files of the page by name, read once: a request can name one of these and no other path."""
    folder = files("sareloc.serve") / "page"
    return {name: _asset(name, file.read_bytes()) for name, file in _files(folder, "")} if folder.is_dir() else {}


def _files(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for item in folder.iterdir():
        if item.name.startswith((".", "__")):
            continue
        if item.is_dir():
            yield from _files(item, f"{prefix}{item.name}/")
        else:
            yield prefix + item.name, item


def _asset(name: str, content: bytes) -> Asset:
    ending = name[name.rfind(".") :]
    kind = TYPES.get(ending) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    text = kind.startswith("text/")
    digest = hashlib.sha256(content).hexdigest()[:24]
    return Asset(content, f"{kind}; charset=utf-8" if text else kind, f'"{digest}"')
