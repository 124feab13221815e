"""The HTTP service: localizes photos by a map, with an API for programs and a page for people (extra `serve`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sareloc.errors import need
from sareloc.serve.config import Limits, Serving

if TYPE_CHECKING:
    import torch
    from fastapi import FastAPI

    from sareloc.localize import Localizer, Search
    from sareloc.models import PlaceModel, Precision

__all__ = ["Limits", "Serving", "make_app"]


def make_app(
    place_map: Localizer | str | Path,
    model: str | Path | PlaceModel | None = None,
    search: Search | None = None,
    *,
    serving: Serving | None = None,
    limits: Limits | None = None,
    min_confidence: float = 0.5,
    device: torch.device | str | None = None,
    precision: Precision = "auto",
    batch: int = 8,
) -> FastAPI:
    """The service as an ASGI app, for uvicorn or another server.

    place_map: the path or address of a map, which may be empty, or a localizer. model, search, min_confidence, device,
    precision, batch: as in `open_localizer`; ignored for a localizer, which has its own.
    """
    for module in ("fastapi", "python_multipart", "prometheus_client"):
        need(module, "serve")
    from sareloc.localize import Localizer
    from sareloc.serve.app import build_app
    from sareloc.serve.live_map import LiveMap, open_live_map

    if isinstance(place_map, Localizer):
        live, batch = LiveMap(place_map.model, place_map.place_map, place_map), place_map.encoder.batch
    else:
        live = open_live_map(place_map, model, search, min_confidence, device, precision, batch)
    return build_app(live, batch, serving or Serving(), limits or Limits())
