"""Every option of training with the paper's value, and the recipes: named options of the paper's tables."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

from sareloc.errors import ArgumentError, look_up
from sareloc.losses import LOSSES, loss_options, make_loss
from sareloc.models.preprocess import MIN_SIDE_PX

GEO_CLASSIFICATION = "geo-classification"
LOSS_OPTIONS = {"kernel": "kernel", "kernel_width": "width", "margin": "margin"}
"""The options of `TrainingConfig` that only some losses have, each with its name as an option of the loss."""


@dataclass(frozen=True)
class TrainingConfig:
    """Every option of training. The defaults are the paper's for Pitts30k; modern options are off."""

    loss: str = "sare-ind"
    """sare-ind, sare-joint, triplet, contrastive, n-pair, angular, lifted, ratio or geo-classification."""
    kernel: Literal["gaussian", "cauchy", "exponential"] | None = None
    """Kernel of a SARE loss; by default gaussian."""
    kernel_width: float | None = None
    """Distance at which that kernel falls off; by default 1, the paper's. A narrow one learns from what is not yet told
    apart and leaves the rest alone."""
    margin: float | None = None
    """Margin of triplet (0.1), contrastive (0.7) or lifted (1); by default the loss's own."""
    reduction: Literal["pairs", "tuples"] = "pairs"
    """Divide a step's loss by its (tuple, negative) pairs, as the authors do, or by its tuples: 10 times the step."""

    negatives: int = 10
    """Negatives of a tuple."""
    tuples_per_step: int = 4
    """Tuples of a step, over all processes together."""
    tuples_at_once: int = 4
    """Tuples that go through the network together; 1 fits a small GPU, and the step is the same."""
    positive_min_m: float = 1.0
    """A potential positive is farther than this, in metres: the query's own panorama is none."""
    positive_radius_m: float = 10.0
    """A potential positive is at most this far, in metres."""
    negative_radius_m: float = 25.0
    """A negative is farther than this, in metres."""
    pool: int = 1000
    """Random database photos among which a query's hard negatives are looked for."""
    remembered: int = 10
    """Hard negatives that a query remembers from its last visit and that join its pool."""
    refresh_every: int = 1000
    """Queries between two descriptions of all photos; doubles whenever the learning rate halves."""

    epochs: int = 30
    """Epochs at most; 0: evaluate the start and save it."""
    patience: int | None = None
    """Stop after so many epochs without a better recall@5 on validation; by default never."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: float = 0.001
    """Learning rate: 0.001 for Pitts30k, 0.0001 for Pitts250k."""
    momentum: float = 0.9
    weight_decay: float = 0.001
    schedule: Literal["halving", "cosine"] = "halving"
    """Halve the learning rate every `halve_every` epochs, or let it fall along a cosine to zero."""
    halve_every: int = 5
    """Epochs between two halvings."""
    train_from: str | None = None
    """The lowest trained part of the backbone; by default the model's own (VGG16: conv5_1, as in the paper)."""
    cell_m: float = 25.0
    """Side of the cells of geo-classification, in metres."""

    crop: float = 0.0
    """Strength of random crops and turns of the training images, 0 (none) to 1. With crops or light half of the tuples
    are mirrored, and the frozen part is computed anew in every step."""
    light: float = 0.0
    """Strength of random light and colours of the training images, 0 (none) to 1."""
    height: int | None = None
    """Height of the training images in pixels; by default the model's own size."""
    width: int | None = None
    """Width of the training images in pixels; by default the model's own size."""
    keep: Literal["auto", "features", "pixels", "nothing"] = "auto"
    """What stays in memory: the frozen part's features, pixels, or nothing (photos are decoded when needed)."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of the network; auto: bfloat16 where the processor has it."""
    compile: bool = False
    """Compile the trained part with torch.compile."""
    workers: int = 0
    """Processes that decode photos; 0: this one."""
    batch: int = 16
    """Photos described at once."""
    seed: int = 0
    tensorboard: bool = False
    """Also write the history as TensorBoard events into the run's folder."""

    dim: int | None = None
    """Dimensions after whitening, at most; 0: no whitening; default: those of the start's whitening, else 4096."""
    whitening: Literal["after", "learned", "refitted"] = "after"
    """Fit the whitening after training, as in the paper; or fit it to the start, and train it with the rest; or train
    it so, and in the end fit another one to what the network gives then, which finds more in datasets not trained on.
    Where there are fewer than two database photos per dimension, a start that has a whitening keeps it."""
    whitening_power: float = 1.0
    """How far the whitening evens out the directions: 1 all alike, as in the paper, 0 a plain PCA."""
    whitening_photos: int = 10_000
    """Database photos that the whitening is fitted on, at most; every dataset counts the same in it."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                if value < 0:
                    raise ArgumentError(f"{field.name} must not be negative, got {value}")
                if not math.isfinite(value):
                    raise ArgumentError(f"{field.name} must be a finite number, got {value}")
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ArgumentError(f"{name} must be at least {least}, got {value}")
        for name in ("lr", "cell_m"):
            if not getattr(self, name):
                raise ArgumentError(f"{name} must be above 0, got {getattr(self, name)}")
        if self.seed >= 2**63:
            raise ArgumentError(f"seed must be below 2^63, got {self.seed}")
        if not self.positive_min_m < self.positive_radius_m <= self.negative_radius_m:
            raise ArgumentError(
                "the radii must rise: positive_min_m < positive_radius_m <= negative_radius_m, got "
                f"{self.positive_min_m}, {self.positive_radius_m}, {self.negative_radius_m}"
            )
        if self.augmented and self.keep == "features":
            raise ArgumentError("augmented images have no features to keep: use keep=auto, or crop=0 and light=0")
        for name in ("crop", "light"):
            if getattr(self, name) > 1:
                raise ArgumentError(f"{name} is a strength, 0 to 1, got {getattr(self, name)}")
        if self.whitening != "after" and self.dim == 0:
            raise ArgumentError("a learned whitening has dimensions: give dim, or whitening=after")
        if (self.height is None) != (self.width is None):
            raise ArgumentError(f"give height and width together, got {self.height} and {self.width}")
        known = _options_of(self.loss)
        for name in LOSS_OPTIONS:
            if getattr(self, name) is not None and name not in known:
                having = ", ".join(loss for loss in LOSSES if name in _options_of(loss))
                raise ArgumentError(f"the loss {self.loss} has no {name}: the losses that have one are {having}")
        if self.loss != GEO_CLASSIFICATION:
            make_loss(self.loss, **self.loss_options())

    def loss_options(self) -> dict[str, Any]:
        """The options that were set for the loss, under its own names for them."""
        given = {name: getattr(self, option) for option, name in LOSS_OPTIONS.items()}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def augmented(self) -> bool:
        """Whether every step sees other images of the same photos."""
        return bool(self.crop or self.light)

    @property
    def mining_margin(self) -> float | None:
        """NetVLAD's triplet takes only negatives that violate its margin; the other losses take the nearest."""
        if self.loss != "triplet":
            return None
        return 0.1 if self.margin is None else self.margin

    def halvings(self, epoch: int) -> int:
        """How often the learning rate has halved, and the refresh interval doubled, by this epoch (from 0)."""
        return epoch // self.halve_every if self.schedule == "halving" else 0


LEAST = {
    "negatives": 1, "tuples_per_step": 1, "tuples_at_once": 1, "pool": 1, "refresh_every": 1, "halve_every": 1,
    "batch": 1, "height": MIN_SIDE_PX, "width": MIN_SIDE_PX, "whitening_photos": 2,
}  # fmt: skip
"""The smallest value of options for which 0 has no meaning."""

RECIPES: dict[str, dict[str, Any]] = {
    "sare-ind": {"loss": "sare-ind"},
    "sare-joint": {"loss": "sare-joint"},
    "sare-ind-cauchy": {"loss": "sare-ind", "kernel": "cauchy"},
    "sare-joint-cauchy": {"loss": "sare-joint", "kernel": "cauchy"},
    "sare-ind-exponential": {"loss": "sare-ind", "kernel": "exponential"},
    "sare-joint-exponential": {"loss": "sare-joint", "kernel": "exponential"},
    "netvlad": {"loss": "triplet"},
    "crn": {"loss": "triplet"},
    "contrastive": {"loss": "contrastive"},
    "n-pair": {"loss": "n-pair"},
    "angular": {"loss": "angular"},
    "lifted": {"loss": "lifted"},
    "ratio": {"loss": "ratio"},
    "geo-classification": {"loss": GEO_CLASSIFICATION},
}
"""The rows of the paper's tables. "crn" wants a model that aggregates by crn, started from what "netvlad" trained."""


def recipe(name: str, **options: Any) -> TrainingConfig:
    """The training of this row of the paper's tables; `options` take precedence over what the row sets.

    With another loss than the row's, the row's kernel stays where that loss has one.
    """
    row = look_up(RECIPES, name, "recipe")
    known = _options_of(options.get("loss", row["loss"]))
    return TrainingConfig(**{k: v for k, v in row.items() if k == "loss" or k in known} | options)


def _options_of(loss: str) -> set[str]:
    """Which of LOSS_OPTIONS this loss has."""
    own = {} if loss == GEO_CLASSIFICATION else loss_options(loss)
    return {option for option, name in LOSS_OPTIONS.items() if name in own}
