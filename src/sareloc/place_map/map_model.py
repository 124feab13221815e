"""The model that goes with a map: the one that is asked for, or the packaged one that the map was built by."""

from __future__ import annotations

from pathlib import Path

import torch

from sareloc.checkpoint import find_packaged, load_model
from sareloc.errors import MapError
from sareloc.models.place_model import PlaceModel
from sareloc.place_map.records import Manifest


def load_map_model(
    manifest: Manifest, map_name: str, model: str | Path | None = None, device: torch.device | str | None = None
) -> PlaceModel:
    """The model of a map. By default it is found by the map's fingerprint, since a name may come to mean another model.

    map_name: what an error calls the map. model: a checkpoint or a packaged model's name. device: by default the GPU
    where there is one.
    """
    model = model or find_packaged(manifest.fingerprint)
    if model is None:
        raise MapError(
            f"map {map_name} was built by model {manifest.model!r} ({manifest.fingerprint}), which does not come with "
            "this sareloc: give its checkpoint as the model (--model)"
        )
    return load_model(model, device)
