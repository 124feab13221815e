"""The HTTP service: localizes photos by a map, with an API for programs and a page for people (extra `serve`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sareloc.config_files import merge_options
from sareloc.errors import need
from sareloc.serve.config import Limits, ServeConfig, Serving

if TYPE_CHECKING:
    import torch
    from fastapi import FastAPI

    from sareloc.localize import Localizer
    from sareloc.models import PlaceModel, Precision

__all__ = ["Limits", "ServeConfig", "Serving", "make_app"]


def make_app(
    place_map: Localizer | str | Path,
    model: str | Path | PlaceModel | None = None,
    *,
    config: ServeConfig | None = None,
    device: torch.device | str | None = None,
    precision: Precision = "auto",
    **options: Any,
) -> FastAPI:
    """The service as an ASGI app, for uvicorn or another server.

    Args:
        place_map: the path or address of a map, which may be empty, or a localizer.
        model: as in `open_localizer`; ignored for a localizer, which has its own, as the options of the search, the
            batch and the minimum confidence.
        config: what the service shows and to whom, limits on requests, and how it answers.
        device: where a model that is loaded here runs; default: the GPU if there is one.
        precision: its number format (see `load_model`).
        options: deprecated: serving, limits, search, min_confidence and batch, which are options of `config`.
    """
    for module in ("fastapi", "python_multipart", "prometheus_client"):
        need(module, "serve")
    from sareloc.localize import Localizer, Search
    from sareloc.serve.app import build_app
    from sareloc.serve.live_map import LiveMap, open_live_map

    config = merge_options(config or ServeConfig(), options, records=("serving", "limits", "search"))
    batch = config.batch
    if isinstance(place_map, Localizer):
        live, batch = LiveMap(place_map.model, place_map.place_map, place_map), place_map.encoder.batch
    else:
        search = Search(config.candidates, config.verify)
        live = open_live_map(place_map, model, search, config.min_confidence, device, precision, batch)
    return build_app(live, batch, config, config)
