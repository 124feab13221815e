"""The training loop, on one page.

An epoch visits every query that has a potential positive, in random order. Before each block of `refresh_every`
queries all photos are described anew and the block's tuples are mined from those descriptors; then the tuples are
learned, `tuples_per_step` at a time. After each epoch the validation set is judged and the run is saved, so that a
stopped run goes on from there to the same numbers. What is random is drawn from (seed, epoch, block) alone.

Epoch 0 is the start. It is judged as the epochs after it are, and kept if none of them has a better recall@5 on
validation. A start that comes with a whitening is a finished model: it is also judged with that whitening, beside what
the training made of it with the whitening that is saved, and the training's result is kept only if it is better.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from sareloc.datasets.places import Places
from sareloc.errors import ArgumentError, DatasetError, SarelocError
from sareloc.models import PlaceModel
from sareloc.models.checkpoint import save_checkpoint
from sareloc.models.preprocess import best_dtype
from sareloc.models.whitening import Whitening, in_order
from sareloc.training.config import GEO_CLASSIFICATION, TrainingConfig
from sareloc.training.data import TrainingSet, join_inputs, open_datasets
from sareloc.training.distributed import Network, Ranks, local_device, start_ranks
from sareloc.training.learners import CellLearner, Learner, TupleLearner
from sareloc.training.mining import check_minable, find_neighbourhoods, join_neighbourhoods
from sareloc.training.run_folder import EpochRecord, RunFolder, RunState, optimizer_tensors, restore_optimizer
from sareloc.training.validation import (
    PHOTOS_PER_DIM,
    choose_photos,
    cut_whitening,
    describe_database,
    fit_to_datasets,
    load_weights,
    mean_recall,
    photos_suffice,
    scale_to,
    whitening_dim,
    with_whitening,
)

LOOK_EVERY = 20  # steps between two looks at the loss: each look waits for the GPU


@dataclass(frozen=True, eq=False)
class Run:
    """A finished training: the model that was kept, whitened if that was asked for, and every epoch's record."""

    model: PlaceModel
    history: tuple[EpochRecord, ...]
    """Epoch 0, which is the start, and those after it, all judged alike."""
    start: EpochRecord
    """Epoch 0, judged with the whitening that the start came with."""
    best: EpochRecord
    """The epoch that was kept, judged with the whitening that it is saved with; epoch 0: the start was kept."""

    def line(self) -> str:
        """What the training gained, in one line for a person."""
        trained = self.history[-1].epoch
        if math.isnan(self.best.recall_5):
            if not trained:
                return "no epoch was trained and there is no validation set: the start is kept"
            return f"no validation set: the last epoch, {trained}, is kept, not compared with the start"
        if not self.best.epoch:
            why = "no epoch beat the start" if trained else "no epoch was trained"
            return f"{why}: the start is kept, recall@1 {self.best.recall_1:.1%} on validation"
        gained = ", ".join(
            f"recall@{n} {before:.1%} -> {after:.1%}"
            for n, before, after in (
                (1, self.start.recall_1, self.best.recall_1),
                (5, self.start.recall_5, self.best.recall_5),
            )
        )
        return f"{gained} on validation; best epoch {self.best.epoch}"


def train(
    model: PlaceModel,
    places: Places | TrainingSet | Sequence[Places | TrainingSet],
    config: TrainingConfig | None = None,
    *,
    validation: Places | TrainingSet | Sequence[Places | TrainingSet] = (),
    out: Path | str | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Run:
    """Train `model` on `places` and keep the epoch with the best recall@5 on `validation` (without it: the last).

    Both may be several: a tuple's negatives then come from all datasets, also from those without queries, and recall is
    the mean over the validation sets.
    The model is changed in place and ends with the best epoch's weights, or with those it came with where no epoch
    beats them. Its whitening is fitted on database photos (`config.dim`), after training or, to be trained as well,
    before; a model that comes with one keeps it where these photos are too few (`photos_suffice`). `out` is a folder
    that the run is saved to after every epoch; `resume` goes on from what is there, to the same numbers as an
    uninterrupted run. Under `torchrun` the processes share the work, and the result is that of one process.
    """
    config = config or TrainingConfig()
    device = local_device()
    ranks = start_ranks(device)
    progress = progress and ranks.first
    dtype = best_dtype(device) if config.precision == "auto" else getattr(torch, config.precision)
    folder, state = RunFolder(Path(out)) if out is not None else None, None
    if folder:
        folder.prepare(resume=resume)
        state = folder.open(asdict(config))
        if state:
            load_weights(model, folder.open_start())

    model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    dim = whitening_dim(model.whitening, config)
    came_with = model.whitening = cut_whitening(model.whitening, dim)
    start_weights = _copy_weights(model)
    if folder and ranks.first:
        folder.save_config(config)
        if not state:
            save_checkpoint(model, folder.start)
    model.whitening = None  # the descriptors that are learned are the aggregation's
    if config.train_from is not None:
        model.backbone.freeze_below(config.train_from)
    datasets, validation_sets = (
        open_datasets(
            model, [p] if isinstance(p, Places | TrainingSet) else p, config, dtype, device, progress=progress
        )
        for p in (places, validation)
    )
    if not datasets:
        raise ArgumentError("no places to train on: give at least one dataset")
    for validation_set in validation_sets:
        if not len(validation_set.places.queries):
            raise DatasetError(
                f"{validation_set.places.name}: the validation set has no queries: give some, or none of it"
            )
    network = Network(model, datasets[0].inputs.stage, dtype)
    kept = None if came_with is None or photos_suffice(datasets, dim, config) else came_with
    if kept and ranks.first:
        tqdm.write(
            f"the database photos are too few to fit a whitening of {dim} dimensions to them ({PHOTOS_PER_DIM} a "
            f"dimension): the start's, of {kept.dim}, is kept"
        )
    if config.whitening != "after":
        rows = choose_photos(datasets, config)
        model.whitening = (
            scale_to(kept, describe_database(network, datasets, rows, config, ranks)).to(device)
            if kept
            else fit_to_datasets(network, datasets, dim, config, ranks)
        )
        model.whitening.projection.requires_grad_(True)
    judged_with = model.whitening or kept
    learner = make_learner(network, datasets, config, ranks)
    optimizer = make_optimizer(learner, config)

    def judge(record: EpochRecord, whitening: Whitening | None) -> EpochRecord:
        if not validation_sets:
            return record
        with with_whitening(model, whitening):
            return record.judged(mean_recall(model, validation_sets, config, dtype, ranks))

    start = state.start if state else judge(EpochRecord.of_start(), came_with or judged_with)
    history, best_weights = _restore(state, model, learner, optimizer)

    while not _is_over(history, config):
        if history:
            record = _learn_epoch(history[-1].epoch, learner, optimizer, config, progress=progress)
            record = judge(record, judged_with)
        else:
            record = judge(start, judged_with) if came_with is not kept else start
        history = (*history, record)
        if progress:
            tqdm.write(record.line())
        if best_epoch(history) is record:
            best_weights = _copy_weights(model)
            if folder and ranks.first:
                with with_whitening(model, judged_with):
                    save_checkpoint(model, folder.best, training=asdict(config) | {"epoch": record.epoch})
        if folder and ranks.first:
            tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
            tensors |= {f"best.{name}": tensor for name, tensor in best_weights.items()}
            tensors |= learner.tensors() | optimizer_tensors(optimizer)
            folder.save(RunState(tensors, history, start), asdict(config))
            if config.tensorboard:
                folder.log(record)

    model.load_state_dict(best_weights)
    model.eval()
    best = best_epoch(history)
    if config.whitening == "learned" or (config.whitening == "refitted" and kept):
        assert model.whitening is not None
        known = describe_database(network, datasets, choose_photos(datasets, config), config, ranks)
        model.whitening = in_order(model.whitening, known)
    elif kept:
        model.whitening = kept
    elif dim:
        model.whitening = fit_to_datasets(network, datasets, dim, config, ranks)
        best = judge(best, model.whitening)
    if came_with and (not best.epoch or best.recall_5 <= start.recall_5):
        load_weights(model, start_weights)
        best = start
    if folder and ranks.first:
        about = {"history": [asdict(r) for r in history], "start": asdict(start), "kept": asdict(best)}
        save_checkpoint(model, folder.model, training=asdict(config) | about)
    return Run(model, history, start, best)


def make_learner(network: Network, datasets: Sequence[TrainingSet], config: TrainingConfig, ranks: Ranks) -> Learner:
    """Geo-classification learns from cells, every other loss from tuples; datasets without tuples are refused here."""
    if config.loss == GEO_CLASSIFICATION:
        if len(datasets) > 1:
            raise ArgumentError(f"geo-classification learns the cells of one dataset, found {len(datasets)} datasets")
        return CellLearner(network, datasets[0].places, datasets[0].inputs, config, ranks)
    found = []
    for dataset in datasets:
        near = find_neighbourhoods(
            dataset.places,
            positive_min_m=config.positive_min_m,
            positive_radius_m=config.positive_radius_m,
            negative_radius_m=config.negative_radius_m,
        )
        if (
            len(dataset.places.queries) or len(datasets) == 1
        ):  # a dataset where nobody asks still gives negatives to the others
            check_minable(dataset.places, near, config.negatives)
        skipped = len(near.positives) - len(near.trainable)
        if skipped and ranks.first:
            tqdm.write(
                f"{dataset.places.name}: {skipped} of {len(near.positives)} queries have no potential positive and are "
                "skipped"
            )
        found.append((near, len(dataset.places.database)))
    inputs, database = join_inputs(datasets)
    return TupleLearner(network, join_neighbourhoods(found), inputs, database, config, ranks)


def make_optimizer(learner: Learner, config: TrainingConfig) -> torch.optim.Optimizer:
    """SGD with momentum, as in the paper, or AdamW."""
    if config.optimizer == "adamw":
        return torch.optim.AdamW(learner.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    return torch.optim.SGD(
        learner.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
    )


def learning_rate(config: TrainingConfig, epoch: int) -> float:
    """The learning rate of this epoch (from 0)."""
    if config.schedule == "cosine":
        return config.lr * 0.5 * (1 + math.cos(math.pi * epoch / config.epochs))
    return float(config.lr * 0.5 ** config.halvings(epoch))


def best_epoch(history: tuple[EpochRecord, ...]) -> EpochRecord:
    """The first epoch with the highest recall@5 on validation; where none was judged, the last."""
    judged = [record for record in history if not math.isnan(record.recall_5)]
    return max(judged, key=lambda record: record.recall_5) if judged else history[-1]


def _learn_epoch(
    epoch: int, learner: Learner, optimizer: torch.optim.Optimizer, config: TrainingConfig, *, progress: bool
) -> EpochRecord:
    lr = learning_rate(config, epoch)
    for group in optimizer.param_groups:
        group["lr"] = lr
    began = time.perf_counter()
    losses: list[Tensor] = []
    tuples = images = 0
    bar = tqdm(total=learner.steps(epoch), desc=f"epoch {epoch + 1}", unit="step", disable=not progress)
    for step in learner.epoch(epoch, optimizer):
        losses.append(step.loss)
        tuples, images = tuples + step.tuples, images + step.images
        bar.update()
        if len(losses) % LOOK_EVERY == 0:
            rate = images / (time.perf_counter() - began)
            bar.set_postfix_str(f"loss {_finite(losses[-LOOK_EVERY:], epoch):.4f}, {rate:.0f} images/s")
    bar.close()
    mean = _finite(losses, epoch)
    return EpochRecord(epoch + 1, mean, lr, tuples, images, time.perf_counter() - began)


def _finite(losses: list[Tensor], epoch: int) -> float:
    """The mean of some losses; a loss that is not a number stops the run before it spoils what was learned."""
    mean = float(torch.stack(losses).mean()) if losses else 0.0
    if not math.isfinite(mean):
        raise SarelocError(
            f"the loss became {mean} in epoch {epoch + 1}: lower lr or use precision float32; the run can be resumed "
            "from the epoch before"
        )
    return mean


def _copy_weights(model: PlaceModel) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


def _restore(
    state: RunState | None, model: PlaceModel, learner: Learner, optimizer: torch.optim.Optimizer
) -> tuple[tuple[EpochRecord, ...], Mapping[str, Tensor]]:
    """Put model, learner and optimizer where the state says; the history and the best weights so far."""
    if state is None:
        return (), {}
    model.load_state_dict(state.part("model"))
    learner.restore(state.tensors)
    restore_optimizer(optimizer, state.tensors)
    return state.history, state.part("best")


def _is_over(history: tuple[EpochRecord, ...], config: TrainingConfig) -> bool:
    """Whether all epochs are done, or `patience` of them without a better recall@5."""
    if not history:
        return False
    last = history[-1].epoch
    patience = math.inf if config.patience is None else config.patience
    return last >= config.epochs or (last > 0 and last - best_epoch(history).epoch >= patience)
