"""The optimizer of a training, its learning rate, and its state as tensors of a run folder."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sareloc.training.config import TrainingConfig


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
