"""The HTTP service: localizes photos by a map, with an API for programs and a page for people (extra `serve`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sareloc.config_files import merge_options
from sareloc.errors import need
from sareloc.serve.config import Limits, ServeConfig, Serving

if TYPE_CHECKING:
    import torch
    from fastapi import FastAPI

    from sareloc.localize import Localizer, SeveralMaps
    from sareloc.localize.localizer import Maps
    from sareloc.models import PlaceModel, Precision

__all__ = ["Limits", "ServeConfig", "Serving", "make_app"]


def make_app(
    place_map: Localizer | SeveralMaps | str | Path | Maps,
    model: str | Path | PlaceModel | None = None,
    *,
    config: ServeConfig | None = None,
    device: torch.device | str | None = None,
    precision: Precision = "auto",
    **options: Any,
) -> FastAPI:
    """The service as an ASGI app, for uvicorn or another server.

    Args:
        place_map: the path or address of a map, which may be empty, or a list of them, which are asked at once; or a
            localizer.
        model: as in `open_localizer`; ignored for a localizer, which has its own, as the options of the search, the
            batch and the minimum confidence.
        config: what the service shows and to whom, limits on requests, and how it answers.
        device: where a model that is loaded here runs; default: the GPU if there is one.
        precision: its number format (see `load_model`).
        options: deprecated: serving, limits, search, min_confidence and batch, which are options of `config`.
    """
    for module in ("fastapi", "python_multipart", "prometheus_client"):
        need(module, "serve")
    from sareloc.localize import Localizer, Search, SeveralMaps
    from sareloc.localize.several import map_names
    from sareloc.maps import PlaceMap
    from sareloc.maps.store import load_map_models
    from sareloc.serve.app import build_app
    from sareloc.serve.live_map import LiveMap, LiveMaps

    config = merge_options(config or ServeConfig(), options, records=("serving", "limits", "search"))
    if isinstance(place_map, Localizer):
        place_map = SeveralMaps(dict.fromkeys(map_names([place_map.place_map.path]), place_map), config.min_confidence)
    if isinstance(place_map, SeveralMaps):
        live = {name: LiveMap(one.model, one.place_map, one) for name, one in place_map.localizers.items()}
        batch = min(one.encoder.batch for one in place_map.localizers.values())
        config = replace(config, batch=batch, min_confidence=place_map.min_confidence)
    else:
        maps = [PlaceMap(path) for path in ([place_map] if isinstance(place_map, str | Path) else place_map)]
        least = config.min_confidence if len(maps) == 1 else 0.0  # of several maps, after their fixes were compared
        search = Search(config.candidates, config.verify)
        localizing: dict[str, Any] = {"search": search, "min_confidence": least, "batch": config.batch}
        live, names = {}, map_names([one.path for one in maps])
        for name, (one, own) in zip(names, load_map_models(maps, model, device, precision), strict=True):
            one.check_model(own)
            live[name] = LiveMap(own, one, Localizer(own, one, **localizing) if len(one) else None, **localizing)
    return build_app(LiveMaps(live, config.min_confidence), config)
