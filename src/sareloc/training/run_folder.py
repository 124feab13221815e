"""The folder of a training run: state, history, config and checkpoints. A killed run can be resumed from it.

    RUN/
      config.toml         every option, to repeat the run with `sareloc train --config`
      start.safetensors   checkpoint that the run started from, with its whitening
      state.safetensors   weights, optimizer, hard negatives, history: what a resumed run needs beside start.safetensors
      best.safetensors    checkpoint of the epoch with the best recall@5 on the validation sets
      model.safetensors   checkpoint of that epoch with its whitening, or of the initial model if that is no worse;
                          written when training ends
      split.csv           which photos were trained on and validated on, if a dataset came without splits
      history.csv         one line per epoch, epoch 0 is the initial model; with `tensorboard`, the same as event files

Each file is written under a temporary name and renamed, `state` last, so that the files it refers to exist.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sareloc.datasets.places import Places
from sareloc.errors import ArgumentError, WeightsError, need
from sareloc.files import replacing, write_atomically
from sareloc.models import PlaceModel, Whitening
from sareloc.training.config import TrainingConfig, config_text
from sareloc.wording import plural

STATE_VERSION = 2
CONFIG_KEY = "knobs"  # of the config in a state file; states of older versions have it
MAY_CHANGE = {"epochs", "patience", "workers", "tensorboard"}
"""Options that a resumed run may change."""


@dataclass(frozen=True)
class EpochRecord:
    """One epoch: its training, and the recall on the validation sets after it. Epoch 0 is the initial model."""

    epoch: int
    loss: float
    """Mean over the epoch's steps, after the reduction; NaN in epoch 0."""
    lr: float
    tuples: int
    images: int
    """Photos in training steps; those encoded for mining are not counted."""
    seconds: float
    """Training and mining, without validation."""
    recall_1: float = math.nan
    """Share of all validation queries, as the other two; NaN without a validation set."""
    recall_5: float = math.nan
    recall_10: float = math.nan
    skipped: int = 0
    """Queries without a tuple: none of their negatives violates the margin (triplet)."""

    @staticmethod
    def of_start() -> EpochRecord:
        """Epoch 0, before its validation."""
        return EpochRecord(0, math.nan, 0.0, 0, 0, 0.0)

    def with_recall(self, recall: Mapping[int, float]) -> EpochRecord:
        """The same epoch with its recall@1, 5 and 10 on the validation sets."""
        return replace(self, recall_1=recall[1], recall_5=recall[5], recall_10=recall[10])

    def line(self) -> str:
        """One line of the log."""
        rate = self.images / max(self.seconds, 1e-9)
        text = f"epoch {self.epoch}: "
        text += f"loss {self.loss:.4f}, {self.seconds:.0f} s, {rate:.0f} images/s" if self.epoch else "initial model"
        if self.skipped:
            text += f", {self.skipped:,} of {plural(self.skipped + self.tuples, 'tuple')} had no violating negative"
        if math.isnan(self.recall_5):
            return text
        return f"{text}, recall@1/5/10 {self.recall_1:.1%} / {self.recall_5:.1%} / {self.recall_10:.1%}"


def best_epoch(history: tuple[EpochRecord, ...]) -> EpochRecord:
    """The first epoch with the highest recall@5 on the validation sets; without one, the last epoch."""
    validated = [record for record in history if not math.isnan(record.recall_5)]
    return max(validated, key=lambda record: record.recall_5) if validated else history[-1]


@dataclass(frozen=True, eq=False)
class RunState:
    """What a resumed run needs beside the initial model: tensors by name, and the history."""

    tensors: Mapping[str, Tensor]
    history: tuple[EpochRecord, ...]
    start: EpochRecord = field(default_factory=EpochRecord.of_start)
    """Epoch 0, validated with the initial model's own whitening."""

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors under `prefix.`, without it."""
        return {k.removeprefix(f"{prefix}."): v for k, v in self.tensors.items() if k.startswith(f"{prefix}.")}


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run."""

    path: Path

    @property
    def start(self) -> Path:
        """Checkpoint of the initial model."""
        return self.path / "start.safetensors"

    @property
    def best(self) -> Path:
        """Checkpoint of the best epoch."""
        return self.path / "best.safetensors"

    @property
    def model(self) -> Path:
        """Checkpoint of the final model."""
        return self.path / "model.safetensors"

    @property
    def _state(self) -> Path:
        return self.path / "state.safetensors"

    @property
    def can_resume(self) -> bool:
        """Whether the state of an epoch was saved, the initial model included."""
        return self._state.exists()

    def prepare(self, *, resume: bool) -> None:
        """Make the folder; raises ArgumentError if it holds a run and `resume` is False."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self.can_resume and not resume:
            raise ArgumentError(f"{self.path} holds a run already: resume it with --resume, or choose another folder")

    def save_config(self, config: TrainingConfig) -> None:
        """Write every option with its value."""
        write_atomically(self.path / "config.toml", config_text(config, defaults=True).encode())

    def open(self, config: dict[str, Any]) -> RunState | None:
        """The state to resume from, if any; raises ArgumentError if the run was started with another config."""
        return _open_state(self._state, config) if self.can_resume else None

    def restore_start(self, model: PlaceModel) -> None:
        """Load the weights that the run started from; raises ArgumentError if they are of another network."""
        begun, _ = _read_tensors(self.start)
        if others := differing_tensors(model, begun):
            raise ArgumentError(
                f"{self.path} holds a run of another model than the given one: {', '.join(others[:3])} and "
                f"{len(others)} tensors in all differ; resume it with --model {self.start}"
            )
        load_weights(model, begun)

    def save(self, state: RunState, config: dict[str, Any]) -> None:
        """Write the history, then the state."""
        table = io.StringIO(newline="")
        writer = csv.DictWriter(table, [f.name for f in fields(EpochRecord)])
        writer.writeheader()
        writer.writerows(asdict(record) for record in state.history)
        write_atomically(self.path / "history.csv", table.getvalue().encode())
        about = {
            "version": STATE_VERSION,
            "history": [asdict(r) for r in state.history],
            "start": asdict(state.start),
            CONFIG_KEY: config,
        }
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.tensors.items()}
        with replacing(self._state) as beside:
            save_file(tensors, beside, metadata={"sareloc_run": json.dumps(about)})

    def save_split(self, parts: Iterable[Places]) -> None:
        """Write which photos are in which part of a dataset: columns dataset, split, role, file."""
        table = io.StringIO(newline="")
        writer = csv.writer(table)
        writer.writerow(("dataset", "split", "role", "file"))
        for places in parts:
            for role, photos in (("database", places.database), ("query", places.queries)):
                writer.writerows((places.name, places.split, role, path) for path in photos.paths())
        write_atomically(self.path / "split.csv", table.getvalue().encode())

    def log(self, record: EpochRecord) -> None:
        """Add the epoch's numbers to TensorBoard's event files in this folder (extra `tensorboard`)."""
        need("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(self.path))
        for name, value in asdict(record).items():
            if name != "epoch" and not math.isnan(value):
                writer.add_scalar(name, value, record.epoch)
        writer.close()


def _read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file of a run, and its metadata."""
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as broken:
        raise WeightsError(f"{file} is not a file of a training run ({broken}): start a new run") from broken


def _open_state(file: Path, config: dict[str, Any]) -> RunState:
    tensors, metadata = _read_tensors(file)
    about = json.loads(metadata.get("sareloc_run", "null"))
    if not isinstance(about, dict) or about.get("version") != STATE_VERSION:
        raise WeightsError(f"{file} is not a state that this version can resume: start a new run")
    stored = asdict(TrainingConfig()) | about[CONFIG_KEY]  # an option that is newer than the run had no effect on it
    changed = [k for k in config if stored[k] != config[k] and k not in MAY_CHANGE]
    if changed:
        was = ", ".join(f"{k} was {stored[k]!r}, is {config[k]!r}" for k in changed)
        raise ArgumentError(
            f"{file.parent} was started with another config ({was}): resume with those, or start a new run"
        )
    return RunState(tensors, tuple(EpochRecord(**r) for r in about["history"]), EpochRecord(**about["start"]))


def differing_tensors(model: PlaceModel, weights: Mapping[str, Tensor]) -> list[str]:
    """Names of tensors, without those of whitenings, that only the model or only the weights have, or in two shapes."""
    own = model.state_dict()
    shapes = [{n: t.shape for n, t in part.items() if not n.startswith("whitening.")} for part in (own, weights)]
    return sorted({name for name, _ in shapes[0].items() ^ shapes[1].items()})


def load_weights(model: PlaceModel, weights: Mapping[str, Tensor]) -> None:
    """Load these weights into the model, with the whitening among them, or without one."""
    mean, projection = weights.get("whitening.mean"), weights.get("whitening.projection")
    whitening = None if mean is None or projection is None else Whitening(mean.clone(), projection.clone())
    model.whitening = whitening if whitening is None else whitening.to(model.device)
    model.load_state_dict(dict(weights))
