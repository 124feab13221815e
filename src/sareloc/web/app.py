"""The service as an ASGI app."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import torch
from fastapi import FastAPI

from sareloc import __version__
from sareloc.engines.milvus_address import is_milvus_address
from sareloc.errors import ArgumentError
from sareloc.localize import Localizer, Search, open_localizer
from sareloc.models.place_model import PlaceModel
from sareloc.place_map import PlaceMap, open_store
from sareloc.place_map.map_model import load_map_model
from sareloc.web.about_routes import about_routes
from sareloc.web.asking_routes import asking_routes
from sareloc.web.guard import Guard
from sareloc.web.limits import Limits, Serving, allowed_hosts, tile_host
from sareloc.web.live_map import LiveMap
from sareloc.web.map_routes import map_routes
from sareloc.web.problems import answer_problems
from sareloc.web.service import Service


def build_app(live: LiveMap, batch: int, serving: Serving, limits: Limits) -> FastAPI:
    """The app of a map that is open; see `make_app`."""
    if serving.token is not None and is_milvus_address(live.place_map.path):
        raise ArgumentError(
            'photos are added to a map on Milvus by "sareloc map add", not over HTTP: start the service without a token'
        )
    live.model.eval()  # several threads use it: none may find it in another mode
    service = Service(live, batch, serving, limits)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(
        title="sareloc",
        version=__version__,
        summary="Where was this photo taken?",
        description=f"Answers by the map {service.name!r}.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load their scripts from elsewhere
        redoc_url=None,
    )
    for routes in (asking_routes, map_routes, about_routes):
        app.include_router(routes(service))
    answer_problems(app)
    app.add_middleware(
        Guard, limits=limits, metrics=service.metrics, headers=safe_headers(serving.tiles), hosts=allowed_hosts(serving)
    )
    app.state.service = service
    return app


def safe_headers(tiles: str | None) -> dict[str, str]:
    """Headers that let a browser use nothing but this service and the tiles."""
    images = " ".join(filter(None, ("'self' data: blob:", tiles and tile_host(tiles))))
    return {
        "Content-Security-Policy": f"default-src 'self'; img-src {images}; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "strict-origin-when-cross-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(self), geolocation=(self), microphone=()",
    }


def open_live_map(
    path: str | Path,
    model: str | Path | PlaceModel | None,
    search: Search | None,
    min_confidence: float,
    device: torch.device | str | None,
    batch: int,
) -> LiveMap:
    """A map with its model, which unlike a localizer's may still be empty."""
    with open_store(path) as store:
        manifest = store.manifest
        empty = not store.count()
    if not empty:
        localizer = open_localizer(path, model, search, min_confidence=min_confidence, device=device, batch=batch)
        return LiveMap(localizer.model, localizer.place_map, localizer)
    place_map = PlaceMap(path)
    if not isinstance(model, PlaceModel):
        model = load_map_model(manifest, place_map.path.name, model, device)
    place_map.check_model(model)
    return LiveMap(model, place_map, None, search=search, min_confidence=min_confidence, batch=batch)


def live_map_of(localizer: Localizer) -> LiveMap:
    """The map of a localizer, asked as the localizer does."""
    return LiveMap(localizer.model, localizer.place_map, localizer)
