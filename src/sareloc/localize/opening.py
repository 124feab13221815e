"""A localizer from a map's file: the map says which model it wants."""

from __future__ import annotations

from pathlib import Path

import torch

from sareloc.checkpoint import load_model
from sareloc.errors import MapError, WeightsError
from sareloc.localize.estimate import MIN_CONFIDENCE
from sareloc.localize.localizer import Localizer
from sareloc.localize.searching import Search
from sareloc.models.place_model import PlaceModel
from sareloc.place_map import PlaceMap


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

    model: a model, a checkpoint or a packaged model's name; by default the packaged model of the name that the map
    gives. device: where a model that is loaded here runs; by default the GPU where there is one.
    """
    place_map = PlaceMap(path)
    if not isinstance(model, PlaceModel):
        model = _load(place_map, model, device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return Localizer(model, place_map, search, min_confidence=min_confidence, batch=batch, workers=workers)


def _load(place_map: PlaceMap, model: str | Path | None, device: torch.device | str) -> PlaceModel:
    if model is not None:
        return load_model(model, device)
    wanted = place_map.manifest
    try:
        return load_model(wanted.model, device)
    except WeightsError as unknown:
        raise MapError(
            f"map {place_map.path.name} was built by model {wanted.model!r} ({wanted.fingerprint}), which does not "
            "come with sareloc: give its checkpoint as the model (--model)"
        ) from unknown
