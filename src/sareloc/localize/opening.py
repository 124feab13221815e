"""A localizer from a map's file: the map says which model it wants."""

from __future__ import annotations

from pathlib import Path

import torch

from sareloc.localize.calibration import MIN_CONFIDENCE
from sareloc.localize.localizer import Localizer
from sareloc.localize.searching import Search
from sareloc.models.place_model import PlaceModel
from sareloc.place_map import PlaceMap
from sareloc.place_map.map_model import load_map_model


def open_localizer(
    path: str | Path,
    model: str | Path | PlaceModel | None = None,
    search: Search | None = None,
    *,
    min_confidence: float = MIN_CONFIDENCE,
    device: torch.device | str | None = None,
    batch: int = 8,
    workers: int = 0,
) -> Localizer:
    """Open a map with its model, ready to be asked.

    model: a model, a checkpoint or a packaged model's name; by default the packaged model that the map was built by.
    device: where a model that is loaded here runs; by default the GPU where there is one.
    """
    place_map = PlaceMap(path)
    if not isinstance(model, PlaceModel):
        model = load_map_model(place_map.manifest, place_map.path.name, model, device)
    return Localizer(model, place_map, search, min_confidence=min_confidence, batch=batch, workers=workers)
