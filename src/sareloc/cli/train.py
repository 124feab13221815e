"""`sareloc train`: from places to a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from sareloc.cli import print_notes
from sareloc.datasets import Places, load_dataset, split_places
from sareloc.errors import ArgumentError
from sareloc.models.checkpoint import load_model
from sareloc.training import TrainingConfig, recipe, train
from sareloc.training.config import LOSS_OPTIONS
from sareloc.training.distributed import local_device, start_model, start_ranks
from sareloc.training.run_folder import RunFolder


class GivenOptions(TrainingConfig):
    """The options that the command line gave, and no others: the rest come from the recipe."""

    given: dict[str, Any]

    def __init__(self, **given: Any) -> None:
        object.__setattr__(self, "given", given)


def train_command(
    datasets: Annotated[list[str], Parameter(negative=())],
    *,
    out: Path,
    root: Path | None = None,
    recipe_name: Annotated[str | None, Parameter(name="recipe")] = None,
    model: str | None = None,
    backbone: str | None = None,
    aggregation: str | None = None,
    weights: Path | None = None,
    resume: bool = False,
    options: Annotated[GivenOptions, Parameter(name="*")] = GivenOptions(),  # noqa: B008
) -> None:
    """Train a model on the train split of one or several datasets; keep the epoch that does best on their val splits.

    The start is epoch 0, and is kept where no epoch beats it.

    Parameters
    ----------
    datasets
        Names of datasets, or folders or CSVs of your own. Several are learned from together. One without train and val
        parts is split by position: a quarter of its queries, in an area apart from the rest, validate.
    out
        The folder of the run: its state, history, best and finished model.
    root
        Where the photos of a named dataset are.
    recipe_name
        A row of the paper's tables, such as sare-joint or netvlad; sets the loss and its kernel. Options that are given
        take precedence.
    model
        A checkpoint to start from, instead of backbone, aggregation and weights.
    backbone
        The backbone of a new model; default: vgg16.
    aggregation
        The aggregation of a new model; default: netvlad.
    weights
        Published weights of the new model's backbone, such as torchvision's VGG16.
    resume
        Go on with the run in the folder, to the same numbers as an uninterrupted one.
    """
    training = TrainingConfig(**options.given) if recipe_name is None else recipe(recipe_name, **options.given)
    new = {"--backbone": backbone, "--aggregation": aggregation, "--weights": weights}
    described = [option for option, value in new.items() if value is not None]
    if model is not None and described:
        raise ArgumentError(
            f"--model gives the whole model, and {' and '.join(described)} describe a new one: give one or the other"
        )
    if recipe_name is not None:
        of_loss = "".join(
            f", {name} {value}" for name in LOSS_OPTIONS if (value := getattr(training, name)) is not None
        )
        print(f"recipe {recipe_name}: loss {training.loss}{of_loss}")
    folder = RunFolder(out)
    folder.prepare(resume=resume)
    parts = [_load_parts(name, root) for name in datasets]
    split = [part for made, *pair in parts if made for part in pair if part]
    if split and start_ranks(local_device()).first:
        folder.save_split(split)
    places, validation = [train for _, train, _ in parts], [val for _, _, val in parts if val]
    size = (training.height or 480, training.width or 640)
    if model is not None:
        start = load_model(model)
    else:
        start = start_model(
            [p.database for p in places], backbone=backbone or "vgg16", aggregation=aggregation or "netvlad",
            weights=weights, size=size, seed=training.seed, workers=training.workers,
        )  # fmt: skip
    run = train(start, places, training, validation=validation, out=out, resume=resume)
    print(run.line())
    print(f"model: {out / 'model.safetensors'} ({run.model.dim} dimensions, fingerprint {run.model.fingerprint()})")


def _load_parts(name: str, root: Path | None) -> tuple[bool, Places, Places | None]:
    """Whether a dataset was split here, its train part, and its val part; a dataset without queries has only train."""
    places = load_dataset(name, root, "train")
    print_notes(places.notes)
    if places.split != "all":
        return False, places, load_dataset(name, root, "val")
    if not len(places.queries):
        return False, places, None
    train, val = split_places(places)
    left_out = sum(map(len, (places.database, places.queries)))
    left_out -= sum(len(photos) for part in (train, val) for photos in (part.database, part.queries))
    counts = (f"{p.split} {len(p.database)} database photos and {len(p.queries)} queries" for p in (train, val))
    print(
        f"{places.name} has no train and val parts, so it is split by "
        f"{'place' if places.protocol == 'place-id' else 'position'}: {', '.join(counts)}; {left_out} photos between "
        "them are left out (see split.csv in the run's folder)"
    )
    return True, train, val
