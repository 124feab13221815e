"""A training run on disk: what it has learned, how far it is, and its history. Survives being killed at any moment.

    RUN/
      state.safetensors   weights, optimizer, memory of hard negatives, history: everything a resumed run needs
      best.safetensors    checkpoint of the epoch with the best recall@5 on validation
      model.safetensors   checkpoint of that epoch with its whitening, written when training ends
      history.csv         one line per epoch; with `tensorboard`, the same as event files

Each file is written beside its place and renamed, `state` last: what it says is always on disk already.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sareloc.errors import ArgumentError, WeightsError, need
from sareloc.files import replacing

STATE_VERSION = 1


@dataclass(frozen=True)
class EpochRecord:
    """One epoch (from 1): what was learned from, and how well the model did on the validation set after it."""

    epoch: int
    loss: float
    """Mean over the epoch's steps, after the reduction."""
    lr: float
    tuples: int
    images: int
    """Photos that went through the network in learning steps; describing all photos for mining comes on top."""
    seconds: float
    """Learning and mining; judging not included."""
    recall_1: float = math.nan
    """Share of all validation queries; not a number where there was no validation set."""
    recall_5: float = math.nan
    recall_10: float = math.nan

    def judged(self, recall: Mapping[int, float]) -> EpochRecord:
        """The same epoch with its recall@1, 5 and 10 on the validation set."""
        return replace(self, recall_1=recall[1], recall_5=recall[5], recall_10=recall[10])

    def line(self) -> str:
        """One line for a person."""
        rate = self.images / max(self.seconds, 1e-9)
        text = f"epoch {self.epoch}: loss {self.loss:.4f}, {self.seconds:.0f} s, {rate:.0f} images/s"
        if math.isnan(self.recall_5):
            return text
        return f"{text}, recall@1/5/10 {self.recall_1:.1%} / {self.recall_5:.1%} / {self.recall_10:.1%}"


@dataclass(frozen=True, eq=False)
class RunState:
    """Everything a resumed run needs: tensors by name, and the epochs done."""

    tensors: Mapping[str, Tensor]
    history: tuple[EpochRecord, ...]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors under `prefix.`, without it."""
        return {k.removeprefix(f"{prefix}."): v for k, v in self.tensors.items() if k.startswith(f"{prefix}.")}


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run."""

    path: Path

    @property
    def best(self) -> Path:
        """Checkpoint of the best epoch."""
        return self.path / "best.safetensors"

    @property
    def model(self) -> Path:
        """Checkpoint of the finished model."""
        return self.path / "model.safetensors"

    def start(self, knobs: dict[str, Any], *, resume: bool) -> RunState | None:
        """Make the folder, or find the state to go on from.

        A folder with a state is gone on from only if asked to, and only with the knobs it was begun with.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        file = self.path / "state.safetensors"
        if not file.exists():
            return None
        if not resume:
            raise ArgumentError(f"{self.path} holds a run already: resume it with --resume, or choose another folder")
        return _open_state(file, knobs)

    def save(self, state: RunState, knobs: dict[str, Any]) -> None:
        """Write the history, then the state."""
        table = io.StringIO(newline="")
        writer = csv.DictWriter(table, [f.name for f in fields(EpochRecord)])
        writer.writeheader()
        writer.writerows(asdict(record) for record in state.history)
        replace_text(self.path / "history.csv", table.getvalue())
        about = {
            "version": STATE_VERSION,
            "history": [asdict(r) for r in state.history],
            "knobs": knobs,
        }
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.tensors.items()}
        with replacing(self.path / "state.safetensors") as beside:
            save_file(tensors, beside, metadata={"sareloc_run": json.dumps(about)})

    def log(self, record: EpochRecord) -> None:
        """Add the epoch's numbers to TensorBoard's event files in this folder (extra `tensorboard`)."""
        need("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(self.path))
        for name, value in asdict(record).items():
            if name != "epoch" and not math.isnan(value):
                writer.add_scalar(name, value, record.epoch)
        writer.close()


def _open_state(file: Path, knobs: dict[str, Any]) -> RunState:
    try:
        with safe_open(file, framework="pt") as opened:
            about = json.loads((opened.metadata() or {}).get("sareloc_run", "null"))
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as broken:
        raise WeightsError(f"{file} is not the state of a run ({broken}): remove it to start anew") from broken
    if not isinstance(about, dict) or about.get("version") != STATE_VERSION:
        raise WeightsError(f"{file} is not a state that this version can go on from: start a new run")
    changed = [
        k
        for k in knobs
        if about["knobs"].get(k) != knobs[k] and k not in {"epochs", "patience", "workers", "tensorboard"}
    ]
    if changed:
        was = ", ".join(f"{k} was {about['knobs'].get(k)!r}, is {knobs[k]!r}" for k in changed)
        raise ArgumentError(f"{file.parent} was begun with other knobs ({was}): resume with those, or start a new run")
    return RunState(tensors, tuple(EpochRecord(**r) for r in about["history"]))


def replace_text(path: Path, text: str) -> None:
    """Write a text file beside its place and rename it."""
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's memory (momenta and the like), by parameter number, as plain tensors."""
    state = optimizer.state_dict()["state"]
    return {
        f"optimizer.{number}.{name}": torch.as_tensor(value)
        for number, slots in state.items()
        for name, value in slots.items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give the optimizer its memory back."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, number, name = key.split(".", 2)
            state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
