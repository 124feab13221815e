"""`sareloc train`: from places to a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sareloc.checkpoint import load_model
from sareloc.datasets import load_dataset
from sareloc.errors import look_up
from sareloc.training import Training, train
from sareloc.training.recipes import RECIPES
from sareloc.training.start import start_model


def train_command(
    datasets: Annotated[list[str], Parameter(negative=())],
    *,
    out: Path,
    root: Path | None = None,
    recipe: str | None = None,
    model: str | None = None,
    backbone: str = "vgg16",
    aggregation: str = "netvlad",
    weights: Path | None = None,
    resume: bool = False,
    knobs: Annotated[Training, Parameter(name="*")] = Training(),  # noqa: B008
) -> None:
    """Train a model on the train split of one or several datasets; keep the epoch that does best on their val splits.

    Parameters
    ----------
    datasets
        Names of datasets, or folders or CSVs of your own. Several are learned from together.
    out
        The folder of the run: its state, history, best and finished model.
    root
        Where the photos of a named dataset are.
    recipe
        A row of the paper's tables, such as sare-joint or netvlad; sets the loss and its kernel.
    model
        A checkpoint to start from, instead of backbone, aggregation and weights.
    backbone
        The backbone of a new model.
    aggregation
        The aggregation of a new model.
    weights
        Published weights of the new model's backbone, such as torchvision's VGG16.
    resume
        Go on with the run in the folder, to the same numbers as an uninterrupted one.
    """
    if recipe is not None:
        knobs = replace(knobs, **look_up(RECIPES, recipe, "recipe"))
    places, validation = ([load_dataset(name, root, split) for name in datasets] for split in ("train", "val"))
    size = (knobs.height or 480, knobs.width or 640)
    if model is not None:
        start = load_model(model)
    else:
        start = start_model(
            [town.database for town in places], backbone=backbone, aggregation=aggregation, weights=weights, size=size,
            seed=knobs.seed, workers=knobs.workers,
        )  # fmt: skip
    run = train(start, places, knobs, validation=validation, out=out, resume=resume)
    print(f"kept: {run.best.line()}")
    print(f"model: {out / 'model.safetensors'} ({run.model.dim} dimensions, fingerprint {run.model.fingerprint()})")
