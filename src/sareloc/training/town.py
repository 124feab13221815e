"""Places with their photos opened for training."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from tqdm import tqdm

from sareloc.datasets.places import Places
from sareloc.errors import ArgumentError
from sareloc.models import PlaceModel
from sareloc.training.inputs import Inputs, Keep, open_inputs
from sareloc.training.recipes import Training


@dataclass(frozen=True, eq=False)
class Town:
    """Places and their inputs: rows of the database first, then rows of the queries."""

    places: Places
    inputs: Inputs


def open_town(
    model: PlaceModel,
    places: Places,
    knobs: Training,
    dtype: torch.dtype,
    device: torch.device,
    *,
    progress: bool = True,
) -> Town:
    """Read every photo of these places once; the unreadable ones are named and left out."""
    height, width = training_size(model, knobs)
    database = len(places.database)
    photos = [places.database.path(i) for i in range(database)]
    photos += [places.queries.path(i) for i in range(len(places.queries))]
    keep: Keep = "pixels" if knobs.augment and knobs.keep == "auto" else knobs.keep
    opened = open_inputs(
        model, photos, height=height, width=width, keep=keep, workers=knobs.workers, dtype=dtype, device=device,
        batch=knobs.batch, progress=progress,
    )  # fmt: skip
    if opened.failures:
        tqdm.write(f"{len(opened.failures)} photos cannot be read and are left out:")
        for failure in opened.failures:
            tqdm.write(f"  {failure}")
    split = int(np.searchsorted(opened.rows, database))
    readable = replace(
        places,
        database=places.database.take(opened.rows[:split]),
        queries=places.queries.take(opened.rows[split:] - database),
    )
    return Town(readable, opened.inputs)


def training_size(model: PlaceModel, knobs: Training) -> tuple[int, int]:
    """Height and width of the training images: the knobs', else the model's own."""
    if knobs.height and knobs.width:
        return knobs.height, knobs.width
    resize = model.preprocess.resize
    if not isinstance(resize, tuple):
        raise ArgumentError(
            f"the model's size rule is {resize!r}, but training images share one size: give height and width"
        )
    return resize
