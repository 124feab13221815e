"""`sareloc train`: from datasets to a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from sareloc.cli.options import ResumableStop, print_notes
from sareloc.config_files import toml_line
from sareloc.errors import ArgumentError
from sareloc.files import replacing
from sareloc.training.config import LOSS_OPTIONS, RECIPE_MODELS, TrainingConfig
from sareloc.wording import plural

if TYPE_CHECKING:
    from sareloc.datasets import Places

Shown = Parameter(show=True)
Start = Parameter(group="Initial model")


@dataclass(frozen=True, init=False)
class TrainFlags(TrainingConfig):
    """The options that the command line gave. It parses all of `TrainingConfig`, so that an option of the config file
    is refused with the name of its key, and shows those that are declared here."""

    epochs: Annotated[int, Shown] = TrainingConfig.epochs
    dim: Annotated[int | None, Shown] = TrainingConfig.dim
    workers: Annotated[int, Shown] = TrainingConfig.workers

    def __init__(self, **given: Any) -> None:
        object.__setattr__(self, "given", given)

    def checked(self) -> dict[str, Any]:
        """Raises ArgumentError if an option belongs in a config file."""
        given: dict[str, Any] = self.given  # type: ignore[attr-defined]
        for name, value in given.items():
            if name not in TrainFlags.__annotations__:
                raise ArgumentError(
                    f"{name} is set in a config file: write {toml_line(name, value)!r} into FILE.toml and give "
                    "--config FILE.toml (sareloc train --write-config FILE.toml writes one with every option)"
                )
        return given


def train_command(
    datasets: Annotated[list[str], Parameter(negative=(), show_default=False)] = [],  # noqa: B006
    *,
    out: Path | None = None,
    root: Path | None = None,
    recipe_name: Annotated[str | None, Parameter(name="recipe")] = None,
    config_file: Annotated[Path | None, Parameter(name="config")] = None,
    write_config: Path | None = None,
    resume: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    options: Annotated[TrainFlags, Parameter(name="*", show=False)] = TrainFlags(),  # noqa: B008
    model: Annotated[str | None, Start] = None,
    backbone: Annotated[str | None, Start] = None,
    aggregation: Annotated[str | None, Start] = None,
    weights: Annotated[Path | None, Start] = None,
) -> None:
    """Train a model on the train split of one or several datasets; keep the epoch that is best on their val splits.

    The initial model is evaluated as epoch 0 and kept if no epoch has a better recall@5. The other options of training
    are keys of a TOML file (--config).

    Parameters
    ----------
    datasets
        Names of datasets, folders or CSV files; several are trained on together. A dataset without train and val
        splits is split by position: a quarter of its queries, in an area apart from the rest, becomes the val split.
    out
        Run folder: state, history, config, best and final model.
    root
        Folder with the photos of a named dataset.
    recipe_name
        Row of the paper's tables, such as sare-joint or netvlad: sets the loss and its kernel. open-fast: how the
        packaged model `fast` was trained, with its backbone and image size.
    config_file
        TOML file with options of training. Options of the command line override it; it overrides the recipe.
    write_config
        Write a TOML file with every option, its value and its documentation, and exit.
    resume
        Continue the run in the run folder, with the same result as an uninterrupted one.
    model
        Model to start from: a checkpoint, the name of a packaged model, or a published file.
    backbone
        Backbone of a new model, such as resnet50 or dinov2-b; default: the recipe's, else vgg16.
    aggregation
        Aggregation of a new model, such as salad or boq; default: netvlad.
    weights
        Published weights of the new model's backbone, such as torchvision's VGG16 or DINOv2's; default for
        efficientnet-lite0: those of the extra "lite".
    """
    from sareloc.models.checkpoint import load_model
    from sareloc.training import RunFolder, read_config, recipe, start_model, train
    from sareloc.training.distributed import join_process_group, local_device

    given = ({} if config_file is None else read_config(config_file)) | options.checked()
    config = TrainingConfig(**given) if recipe_name is None else recipe(recipe_name, **given)
    if write_config is not None:
        _write_config(write_config, config)
        return
    if not datasets or out is None:
        raise ArgumentError(f"{'--out' if datasets else 'a dataset'} is missing: sareloc train DATASETS --out RUN")
    new = {"--backbone": backbone, "--aggregation": aggregation, "--weights": weights}
    described = [option for option, value in new.items() if value is not None]
    if model is not None and described:
        raise ArgumentError(f"--model excludes {' and '.join(described)}, which describe a new model: give one of them")
    if recipe_name is not None:
        of_loss = "".join(f", {name} {value}" for name in LOSS_OPTIONS if (value := getattr(config, name)) is not None)
        print(f"recipe {recipe_name}: loss {config.loss}{of_loss}")
    folder = RunFolder(out)
    folder.prepare(resume=resume)
    loaded = [_load_splits(name, root) for name in datasets]
    split_here = [part for made, *pair in loaded if made for part in pair if part]
    if split_here and join_process_group(local_device()).is_main:
        folder.save_split(split_here)
    places, validation = [train for _, train, _ in loaded], [val for _, _, val in loaded if val]
    if model is not None:
        start = load_model(model)
    else:
        named = {"backbone": backbone, "aggregation": aggregation}
        shape = {"backbone": "vgg16", "aggregation": "netvlad"} | RECIPE_MODELS.get(recipe_name or "", {})
        shape |= {key: value for key, value in named.items() if value is not None}
        start = start_model(
            [p.database for p in places], weights=weights, size=(config.height or 480, config.width or 640),
            seed=config.seed, workers=config.workers, **shape,
        )  # fmt: skip
    try:
        run = train(start, places, config, validation=validation, out=out, resume=resume)
    except KeyboardInterrupt:
        raise (ResumableStop if folder.can_resume else KeyboardInterrupt) from None
    print(run.line())
    print(f"model: {folder.model} ({run.model.dim} dimensions, fingerprint {run.model.fingerprint()})")


def _write_config(path: Path, config: TrainingConfig) -> None:
    from sareloc.training import config_text

    if path.exists():
        raise ArgumentError(f"{path} exists already: delete it, or give another name")
    with replacing(path) as beside:
        beside.write_text(config_text(config), encoding="utf-8")
    print(f"{path} is written: edit it, then run sareloc train DATASETS --config {path} --out RUN")


def _load_splits(name: str, root: Path | None) -> tuple[bool, Places, Places | None]:
    """Whether a dataset was split here, its train split, and its val split; without queries there is no val split."""
    from sareloc.datasets import load_dataset, split_places

    places = load_dataset(name, root, "train")
    print_notes(places.notes)
    if places.split != "all":
        return False, places, load_dataset(name, root, "val")
    if not len(places.queries):
        return False, places, None
    train, val = split_places(places)
    left_out = sum(map(len, (places.database, places.queries)))
    left_out -= sum(len(photos) for part in (train, val) for photos in (part.database, part.queries))
    counts = (
        f"{p.split} {plural(len(p.database), 'database photo')} and {plural(len(p.queries), 'query')}"
        for p in (train, val)
    )
    between = plural(left_out, "photo", ("is", "are"))
    print(
        f"{places.name} has no train and val splits, so it is split by "
        f"{'place' if places.protocol == 'place-id' else 'position'}: {', '.join(counts)}; {between} left out "
        "between them (see split.csv in the run folder)"
    )
    return True, train, val
