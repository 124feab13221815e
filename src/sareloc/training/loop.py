"""The training loop, on one page.

An epoch visits every query that has a potential positive, in random order. Before each block of `refresh_every`
queries the descriptors of all photos are computed, and the block's tuples are mined from them; then the network is
trained on these tuples, `tuples_per_step` at a time. After each epoch recall is measured on the validation sets and
the run is saved, so that a stopped run resumes to the same numbers. All random numbers depend on (seed, epoch, block)
alone.

Epoch 0 is the initial model. It is validated like the other epochs, and kept if none of them has a better recall@5. An
initial model with a whitening is a finished one: it is also validated with that whitening, and the trained model, with
the whitening that is saved, is kept only if it is better.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import backward
from tqdm import tqdm

from sareloc.datasets.places import Places
from sareloc.errors import ArgumentError, DatasetError, SarelocError
from sareloc.evaluation.judging import PROTOCOLS, evaluate_rankings
from sareloc.models import PlaceModel, Whitening
from sareloc.models.checkpoint import save_checkpoint
from sareloc.models.preprocess import number_format
from sareloc.training.config import TrainingConfig
from sareloc.training.data import TrainingSet, augment, open_datasets
from sareloc.training.distributed import (
    Network,
    ProcessGroup,
    compute_descriptors,
    data_parallel,
    gradient_sync,
    join_process_group,
    local_device,
)
from sareloc.training.mining import similarity
from sareloc.training.run_folder import EpochRecord, RunFolder, RunState, best_epoch, load_weights
from sareloc.training.tasks import Step, Task, count_steps, make_task
from sareloc.training.whitening import WhiteningFit, cut_whitening, use_whitening, whitening_dim
from sareloc.wording import plural

LOG_EVERY = 20  # steps between two readings of the loss: each reading waits for the GPU


@dataclass(frozen=True, eq=False)
class Run:
    """A finished training: the model that was kept, with its whitening, and the record of every epoch."""

    model: PlaceModel
    history: tuple[EpochRecord, ...]
    """Epoch 0, which is the initial model, and the others, all validated in the same way."""
    start: EpochRecord
    """Epoch 0, validated with the initial model's own whitening."""
    best: EpochRecord
    """The epoch that was kept, validated with the whitening that is saved; epoch 0: the initial model was kept."""

    def line(self) -> str:
        """What the training gained, in one line."""
        trained = self.history[-1].epoch
        if math.isnan(self.best.recall_5):
            if not trained:
                return "no epoch was trained and there is no validation set: the initial model is kept"
            return f"no validation set: the last epoch, {trained}, is kept, not compared with the initial model"
        if not self.best.epoch:
            why = "no epoch has a higher recall@5" if trained else "no epoch was trained"
            if higher := best_epoch(self.history).epoch:  # as it was validated in the loop
                why = f"epoch {higher} with the whitening that would be saved has no higher recall@5"
            recall = f"recall@1 {self.best.recall_1:.1%}, recall@5 {self.best.recall_5:.1%} on validation"
            return f"{why}: the initial model is kept, {recall}"
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
    """Train a model and keep the epoch with the best recall@5 on the validation sets (without them: the last).

    The model is changed in place: at the end it has the weights of the best epoch, or its own if no epoch is better.
    Its whitening is fitted to database photos; with too few of them a model that has a whitening keeps it. Under
    `torchrun` the processes share the work, and the result is that of one process.

    Args:
        model: the initial model.
        places: one dataset or several; negatives of a tuple come from all of them, also from those without queries.
        config: default: `TrainingConfig()`.
        validation: one dataset or several; recall is the mean over them.
        out: run folder, written after every epoch; default: none.
        resume: continue the run in `out`, to the same numbers as an uninterrupted run.
        progress: show progress bars and one line per epoch.

    Raises:
        ArgumentError: if `out` holds a run and `resume` is False, or a run of another model or config.
        DatasetError: if no tuple can be mined.
    """
    config = config or TrainingConfig()
    device = local_device()
    group = join_process_group(device)
    progress = progress and group.is_main
    dtype = number_format(device, config.precision)
    folder, state = RunFolder(Path(out)) if out is not None else None, None
    if folder:
        folder.prepare(resume=resume)
        state = folder.open(asdict(config))
        if state:
            folder.restore_start(model)
    folder = folder if group.is_main else None  # from here on it is written

    model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    dim = whitening_dim(model.whitening, config)
    start_whitening = model.whitening = cut_whitening(model.whitening, dim)
    start_weights = _copy_weights(model)
    if folder:
        folder.save_config(config)
        if not state:
            save_checkpoint(model, folder.start)
    model.whitening = None  # descriptors before whitening are trained
    if config.train_from is not None:
        model.backbone.freeze_below(config.train_from)
    datasets = open_datasets(model, _as_list(places), config, dtype, device, progress=progress)
    validation_sets = open_datasets(model, _as_list(validation), config, dtype, device, progress=progress)
    _check(datasets, validation_sets)
    network = Network(model, datasets[0].inputs.stage, dtype)
    fit = WhiteningFit(network, datasets, dim, config, group)
    kept = fit.kept(start_whitening)
    if config.whitening != "after":
        model.whitening = fit.trainable(kept)
    epoch_whitening = model.whitening or kept
    task = make_task(network, datasets, config, group)
    parallel = data_parallel(task.network, group, compiled=config.compile)
    optimizer = make_optimizer(task.network, config)

    def validate(record: EpochRecord, whitening: Whitening | None) -> EpochRecord:
        if not validation_sets:
            return record
        with use_whitening(model, whitening):
            return record.with_recall(mean_recall(model, validation_sets, config, dtype, group))

    start = state.start if state else validate(EpochRecord.of_start(), start_whitening or epoch_whitening)
    history, best_weights = _restore(state, model, task, optimizer)
    while not _is_over(history, config):
        if history:
            record = train_epoch(history[-1].epoch, task, parallel, optimizer, config, group, progress=progress)
            record = validate(record, epoch_whitening)
        else:
            record = validate(start, epoch_whitening) if start_whitening is not kept else start
        history = (*history, record)
        if progress:
            tqdm.write(record.line())
        if best_epoch(history) is record:
            best_weights = _copy_weights(model)
            if folder:
                with use_whitening(model, epoch_whitening):
                    save_checkpoint(model, folder.best, training=asdict(config) | {"epoch": record.epoch})
        if folder:
            tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
            tensors |= {f"best.{name}": tensor for name, tensor in best_weights.items()}
            tensors |= task.tensors() | optimizer_tensors(optimizer)
            folder.save(RunState(tensors, history, start), asdict(config))
            if config.tensorboard:
                folder.log(record)

    model.load_state_dict(best_weights)
    model.eval()
    best = best_epoch(history)
    model.whitening = fit.final(kept)
    if dim and not kept and config.whitening != "learned":  # fitted now: validate the best epoch with it
        best = validate(best, model.whitening)
    if start_whitening and (not best.epoch or best.recall_5 <= start.recall_5):
        load_weights(model, start_weights)
        best = start
    if folder:
        about = {"history": [asdict(r) for r in history], "start": asdict(start), "kept": asdict(best)}
        save_checkpoint(model, folder.model, training=asdict(config) | about)
    return Run(model, history, start, best)


def train_epoch(
    epoch: int, task: Task, network: nn.Module, optimizer: torch.optim.Optimizer, config: TrainingConfig,
    group: ProcessGroup, *, progress: bool = False,
) -> EpochRecord:  # fmt: skip
    """Train for one epoch: mine block by block, then step by step.

    Args:
        epoch: from 0.
        task: what the steps are made of.
        network: the task's network, or its data-parallel form.
        optimizer: of the network's trained parameters.
        config: schedule of the learning rate, augmentation and seed.
        group: this process among those that share the work.
        progress: show a progress bar.
    """
    lr = learning_rate(config, epoch)
    earlier = sum(count_steps(task, before) for before in range(epoch))
    order = np.random.default_rng((config.seed, epoch)).permutation(task.rows)
    every = task.block_size(epoch)
    device = next(network.parameters()).device
    losses: list[Tensor] = []
    tuples = images = skipped = 0
    began = time.perf_counter()
    expected = count_steps(task, epoch)
    bar = tqdm(total=expected, desc=f"epoch {epoch + 1}", unit="step", disable=not progress)
    for number, start in enumerate(range(0, len(order), every)):
        seed = draw_seed(config.seed, epoch, number)
        block = order[start : start + every]
        steps = task.make_steps(block, seed)  # mines
        if config.mining_margin is not None:
            skipped += len(block) - sum(step.tuples for step in steps)
            expected -= -(-len(block) // task.rows_per_step) - len(steps)
            bar.total = expected
            bar.set_postfix_str(f"{plural(skipped, 'tuple')} without a violating negative" if skipped else "")
        rng = torch.Generator().manual_seed(seed + group.rank)
        batches = task.inputs.batches([part.rows for step in steps for part in step.parts], device)
        network.train()
        for step in steps:
            for parameters in optimizer.param_groups:
                parameters["lr"] = lr * warmup(config, earlier + len(losses))
            losses.append(train_step(step, batches, network, optimizer, config, group, rng))
            tuples, images = tuples + step.tuples, images + step.images
            bar.update()
            if len(losses) % LOG_EVERY == 0:
                rate = images / (time.perf_counter() - began)
                without = f", {plural(skipped, 'tuple')} without a violating negative" if skipped else ""
                loss = _finite_mean(losses[-LOG_EVERY:], epoch)
                bar.set_postfix_str(f"loss {loss:.4f}, {rate:.0f} images/s{without}")
    bar.close()
    loss, seconds = _finite_mean(losses, epoch), time.perf_counter() - began
    return EpochRecord(epoch + 1, loss, lr, tuples, images, seconds, skipped=skipped)


def train_step(
    step: Step, batches: Iterator[Tensor], network: nn.Module, optimizer: torch.optim.Optimizer,
    config: TrainingConfig, group: ProcessGroup, rng: torch.Generator,
) -> Tensor:  # fmt: skip
    """One optimizer step; its loss over all ranks, a scalar on the device.

    The gradients of the step's parts add up, so that the result does not depend on how many photos fit into memory.
    """
    total = torch.zeros((), device=next(network.parameters()).device)
    optimizer.zero_grad(set_to_none=True)
    for part in step.parts:
        images = next(batches)
        if config.augmented:
            images = augment(images, rng, crop=config.crop, light=config.light, tuple_sizes=part.tuple_sizes)
        with gradient_sync(network, last=part is step.parts[-1]):
            loss = part.weight * part.losses(network(images)).sum() / step.divisor
            backward(loss * group.world_size)  # gradients are averaged over ranks; this makes it a sum
        total += loss.detach()
    optimizer.step()
    return group.sum(total)


def _finite_mean(losses: list[Tensor], epoch: int) -> float:
    """The mean of some losses; raises SarelocError if it is not finite, before the run is saved."""
    mean = float(torch.stack(losses).mean()) if losses else 0.0
    if not math.isfinite(mean):
        raise SarelocError(
            f"the loss became {mean} in epoch {epoch + 1}: lower lr or use precision float32; the run can be resumed "
            "from the epoch before"
        )
    return mean


def _is_over(history: tuple[EpochRecord, ...], config: TrainingConfig) -> bool:
    """Whether all epochs are done, or `patience` of them without a better recall@5."""
    if not history:
        return False
    last = history[-1].epoch
    patience = math.inf if config.patience is None else config.patience
    return last >= config.epochs or (last > 0 and last - best_epoch(history).epoch >= patience)


def _restore(
    state: RunState | None, model: PlaceModel, task: Task, optimizer: torch.optim.Optimizer
) -> tuple[tuple[EpochRecord, ...], Mapping[str, Tensor]]:
    """Restore model, task and optimizer; the history and the best weights so far."""
    if state is None:
        return (), {}
    model.load_state_dict(state.part("model"))
    task.restore(state.tensors)
    restore_optimizer(optimizer, state.tensors)
    return state.history, state.part("best")


def _copy_weights(model: PlaceModel) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


def _as_list(places: Places | TrainingSet | Sequence[Places | TrainingSet]) -> Sequence[Places | TrainingSet]:
    return [places] if isinstance(places, Places | TrainingSet) else places


def _check(datasets: Sequence[TrainingSet], validation_sets: Sequence[TrainingSet]) -> None:
    if not datasets:
        raise ArgumentError("no places to train on: give at least one dataset")
    for validation_set in validation_sets:
        if not len(validation_set.places.queries):
            raise DatasetError(
                f"{validation_set.places.name}: the validation set has no queries: add queries, or leave the set out"
            )


def draw_seed(*numbers: int) -> int:
    """One seed from several numbers, the same in every process."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint32)[0])


QUERIES_AT_ONCE = 1024


def mean_recall(
    model: PlaceModel,
    validation_sets: Sequence[TrainingSet],
    config: TrainingConfig,
    dtype: torch.dtype,
    group: ProcessGroup,
) -> dict[int, float]:
    """Recall@1, 5 and 10 on each validation set by its own protocol, averaged over the sets."""
    found = []
    for validation_set in validation_sets:
        network = Network(model, validation_set.inputs.stage, dtype)
        descriptors = compute_descriptors(network, validation_set.inputs, config.batch, group)
        found.append(recall_of_descriptors(validation_set.places, descriptors))
    return {n: sum(recall[n] for recall in found) / len(found) for n in found[0]}


def recall_of_descriptors(places: Places, descriptors: Tensor, ns: tuple[int, ...] = (1, 5, 10)) -> dict[int, float]:
    """Recall@N (shares of all queries) by the dataset's protocol.

    Args:
        places: the dataset.
        descriptors: (N, D) unit vectors of the database rows, then of the query rows, on any device in any precision.
        ns: the N of recall@N.
    """
    count = len(places.database)
    depth = min(count, PROTOCOLS[places.protocol].depth(places, max(ns)))
    rankings = [
        similarity(some, descriptors[:count]).topk(depth, dim=1).indices.cpu()
        for some in torch.split(descriptors[count:], QUERIES_AT_ONCE)
    ]
    recall = evaluate_rankings(places, torch.cat(rankings).numpy(), ns=ns).recall
    return {n: recall[n] / 100 for n in ns}


# ---------------------------------------------------------------- the optimizer


def make_optimizer(network: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """SGD with momentum, as in the paper, or AdamW, of the trained parameters of the network."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    lr, decay = config.lr, config.weight_decay
    if config.optimizer == "adamw":
        return torch.optim.AdamW(trained, lr=lr, weight_decay=decay)
    return torch.optim.SGD(trained, lr=lr, momentum=config.momentum, weight_decay=decay)


def learning_rate(config: TrainingConfig, epoch: int) -> float:
    """The learning rate of this epoch (from 0)."""
    if config.schedule == "cosine":
        return config.lr * 0.5 * (1 + math.cos(math.pi * epoch / config.epochs))
    return float(config.lr * 0.5 ** config.halvings(epoch))


def warmup(config: TrainingConfig, step: int) -> float:
    """The factor of the learning rate in this optimizer step, counted from 0 over all epochs."""
    return min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state (momenta and the like) as tensors, by parameter number."""
    state = optimizer.state_dict()["state"]
    return {
        f"optimizer.{number}.{name}": torch.as_tensor(value)
        for number, slots in state.items()
        for name, value in slots.items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Set the state that `optimizer_tensors` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, number, name = key.split(".", 2)
            state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
