"""Places with their photos opened for training, and several of them as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from tqdm import tqdm

from sareloc.datasets.places import Places
from sareloc.errors import ArgumentError
from sareloc.models import PlaceModel
from sareloc.training.inputs import Inputs, JoinedInputs, Keep, choose_keep, open_inputs
from sareloc.training.recipes import Training


@dataclass(frozen=True, eq=False)
class Town:
    """Places and their inputs: rows of the database first, then rows of the queries."""

    places: Places
    inputs: Inputs


def open_towns(
    model: PlaceModel,
    towns: Sequence[Places | Town],
    knobs: Training,
    dtype: torch.dtype,
    device: torch.device,
    *,
    progress: bool = True,
) -> list[Town]:
    """Read every photo of these places once; the unreadable ones are named and left out."""
    closed = [town for town in towns if isinstance(town, Places)]
    keep: Keep = "pixels" if knobs.augmented and knobs.keep == "auto" else knobs.keep
    if closed and keep == "auto":  # decided for all of them together: they share the memory, and a step mixes them
        count = sum(len(places.database) + len(places.queries) for places in closed)
        keep = choose_keep(model, count, *training_size(model, knobs), dtype, device)
    opened = [
        _open(model, town, knobs, keep, dtype, device, progress) if isinstance(town, Places) else town for town in towns
    ]
    if len({town.inputs.stage for town in opened}) > 1:
        found = ", ".join(f"{town.places.name}: {town.inputs.stage}" for town in opened)
        raise ArgumentError(f"towns that are trained on together hold either pixels or features, found {found}")
    return opened


def join_inputs(towns: Sequence[Town]) -> tuple[Inputs, int]:
    """The inputs of all towns, the databases of all of them first, then their queries; and how many are database."""
    databases = [len(town.places.database) for town in towns]
    if len(towns) == 1:
        return towns[0].inputs, databases[0]
    first = [(p, np.arange(count)) for p, count in enumerate(databases)]
    last = [(p, np.arange(databases[p], len(town.inputs))) for p, town in enumerate(towns)]
    part = np.concatenate([np.full(len(rows), p) for p, rows in (*first, *last)])
    rows = np.concatenate([rows for _, rows in (*first, *last)])
    return JoinedInputs([town.inputs for town in towns], part, rows), sum(databases)


def _open(
    model: PlaceModel,
    places: Places,
    knobs: Training,
    keep: Keep,
    dtype: torch.dtype,
    device: torch.device,
    progress: bool,
) -> Town:
    height, width = training_size(model, knobs)
    database = len(places.database)
    photos = [places.database.path(i) for i in range(database)]
    photos += [places.queries.path(i) for i in range(len(places.queries))]
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
