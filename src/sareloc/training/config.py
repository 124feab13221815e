"""Every option of training, the recipes of the paper's tables, and config files in TOML.

Defaults are the paper's values where it gives one; docs/paper.md lists what it leaves open, and what differs.

An option is documented once, below its field in `TrainingConfig`; its type, choices and default are read from there by
`read_config`, `config_text` and the command line. Precedence: command line, config file, recipe, default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sareloc.config_files import check_options, options_text, read_options
from sareloc.errors import ArgumentError, look_up

GEO_CLASSIFICATION = "geo-classification"
LOSS_OPTIONS = {"kernel": "kernel", "kernel_width": "width", "margin": "margin"}
"""The options of `TrainingConfig` that only some losses have, each with its name as an option of the loss."""


@dataclass(frozen=True)
class TrainingConfig:
    """Every option of training. Default: the paper's values for Pitts30k, where it gives one; newer options are off.

    Raises ArgumentError if a value has the wrong type, is out of range, or contradicts another option.
    """

    loss: str = "sare-ind"
    """Loss: sare-ind, sare-joint, triplet, contrastive, n-pair, angular, lifted, ratio or geo-classification."""
    kernel: Literal["gaussian", "cauchy", "exponential"] | None = None
    """Kernel of a SARE loss; default: gaussian."""
    kernel_width: float | None = None
    """Width of the kernel of a SARE loss; default: 1, as in the paper. With a narrow kernel only negatives that are
    almost as near as the positive have a gradient."""
    margin: float | None = None
    """Margin of the loss; default: 0.1 (triplet), 0.7 (contrastive), as in the paper, or 1 (lifted), as in the authors'
    code."""
    reduction: Literal["pairs", "tuples"] = "pairs"
    """Divisor of a step's summed loss: its (tuple, negative) pairs, as in the authors' code, or its tuples, which gives
    10 times the gradient."""

    negatives: int = 10
    """Negatives per tuple."""
    tuples_per_step: int = 4
    """Tuples per optimizer step, over all processes together."""
    tuples_at_once: int = 4
    """Tuples per forward pass; 1 needs the least GPU memory. Gradients are accumulated: the step is the same."""
    positive_min_m: float = 1.0
    """Potential positives are farther than this from the query, in metres: this excludes the query's own panorama."""
    positive_radius_m: float = 10.0
    """Potential positives are at most this far from the query, in metres."""
    negative_radius_m: float = 25.0
    """Negatives are farther than this from the query, in metres."""
    pool: int = 1000
    """Random database photos per query among which hard negatives are mined."""
    remembered: int = 10
    """Hard negatives of a query that are kept and added to its pool in the next epoch."""
    refresh_every: int = 1000
    """Queries between two computations of all descriptors; doubles whenever the learning rate halves."""

    epochs: int = 30
    """Maximum number of epochs; 0: evaluate and save the initial model."""
    patience: int | None = None
    """Stop after this many epochs without a better recall@5 on the validation sets; default: never."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """Optimizer."""
    lr: float = 0.001
    """Learning rate; in the paper 0.001 for Pitts30k, 0.0001 for Pitts250k, on which it trains geo-classification."""
    momentum: float = 0.9
    """Momentum of SGD."""
    weight_decay: float = 0.001
    """Weight decay."""
    schedule: Literal["halving", "cosine"] = "halving"
    """Learning rate schedule: halve it every `halve_every` epochs, or decrease it along a cosine to zero."""
    halve_every: int = 5
    """Epochs between two halvings of the learning rate."""
    warmup_steps: int = 0
    """Optimizer steps at the start of training in which the learning rate rises linearly from 0 to its value."""
    train_from: str | None = None
    """Lowest layer of the backbone that is trained, such as conv5_1; default: the model's own (VGG16: conv5_1, as in
    the paper)."""
    cell_m: float = 25.0
    """Side of the cells of geo-classification, in metres."""

    crop: float = 0.0
    """Strength of random crops and rotations of the training images, 0 (off) to 1. With crop or light above 0, half of
    the tuples are mirrored, and features of the frozen layers are computed in every step."""
    light: float = 0.0
    """Strength of random changes of brightness and colour of the training images, 0 (off) to 1."""
    height: int | None = None
    """Height of the training images in pixels; default: the model's own size."""
    width: int | None = None
    """Width of the training images in pixels; default: the model's own size."""
    keep: Literal["auto", "features", "pixels", "nothing"] = "auto"
    """What is kept in memory: features of the frozen layers, decoded pixels, or nothing (photos are decoded when they
    are needed). auto: the first of these that fits."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the convolutions; auto: that of the environment variable SARELOC_PRECISION if it is set, else
    bfloat16 where the device is fast in it."""
    compile: bool = False
    """Compile the trained layers with torch.compile."""
    workers: int = 0
    """Processes that decode photos; 0: decode in the main process."""
    batch: int = 16
    """Photos per forward pass when descriptors are computed for mining and validation."""
    seed: int = 0
    """Seed of all random numbers."""
    tensorboard: bool = False
    """Also write the history as TensorBoard events into the run folder."""

    dim: int | None = None
    """Maximum number of dimensions after whitening; 0: no whitening; default: those of the initial model's whitening,
    else 4096."""
    whitening: Literal["after", "learned", "refitted"] = "after"
    """after: fit the whitening after training, as in the paper. learned: fit it before training, then train it with the
    other layers. refitted: train it so, then fit it again, which generalizes better to other datasets. With fewer than
    two database photos per dimension, the initial model's whitening is kept, if it has one."""
    whitening_power: float = 1.0
    """Exponent of the whitening: 1 gives all dimensions the same variance, as in the paper; 0 is a PCA."""
    whitening_photos: int = 10_000
    """Maximum number of database photos to fit the whitening to; every dataset has the same weight."""

    def __post_init__(self) -> None:
        check_options(self)
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ArgumentError(f"{name} must be at least {least}, found {value}")
        for name in ("lr", "cell_m", "kernel_width"):
            if getattr(self, name) == 0:
                raise ArgumentError(f"{name} must be above 0, found {getattr(self, name)}")
        for name in ("crop", "light"):
            if getattr(self, name) > 1:
                raise ArgumentError(f"{name} is a strength, 0 to 1, found {getattr(self, name)}")
        if self.seed >= 2**63:
            raise ArgumentError(f"seed must be below 2^63, found {self.seed}")
        if not self.positive_min_m < self.positive_radius_m <= self.negative_radius_m:
            raise ArgumentError(
                "the radii must rise: positive_min_m < positive_radius_m <= negative_radius_m, got "
                f"{self.positive_min_m}, {self.positive_radius_m}, {self.negative_radius_m}"
            )
        if self.augmented and self.keep == "features":
            raise ArgumentError("features of augmented images cannot be kept: use keep=auto, or crop=0 and light=0")
        if self.whitening != "after" and self.dim == 0:
            raise ArgumentError("a learned whitening needs dimensions: set dim above 0, or whitening=after")
        if (self.height is None) != (self.width is None):
            raise ArgumentError(f"set height and width together, found {self.height} and {self.width}")
        known = _options_of(self.loss)
        for name in LOSS_OPTIONS:
            if getattr(self, name) is not None and name not in known:
                from sareloc.losses import LOSSES

                having = ", ".join(loss for loss in LOSSES if name in _options_of(loss))
                raise ArgumentError(f"the loss {self.loss} has no {name}: the losses that have one are {having}")

    def loss_options(self) -> dict[str, Any]:
        """The options that are set for the loss, under the names of `make_loss`."""
        given = {name: getattr(self, option) for option, name in LOSS_OPTIONS.items()}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def augmented(self) -> bool:
        """Whether training images are augmented."""
        return bool(self.crop or self.light)

    @property
    def mining_margin(self) -> float | None:
        """Margin that a mined negative must violate (NetVLAD's triplet); None: the nearest negatives are taken."""
        if self.loss != "triplet":
            return None
        return 0.1 if self.margin is None else self.margin

    def halvings(self, epoch: int) -> int:
        """How often the learning rate has halved, and the refresh interval doubled, by this epoch (from 0)."""
        return epoch // self.halve_every if self.schedule == "halving" else 0


LEAST = {
    "negatives": 1, "tuples_per_step": 1, "tuples_at_once": 1, "pool": 1, "refresh_every": 1, "halve_every": 1,
    "batch": 1, "height": 64, "width": 64, "whitening_photos": 2,
}  # fmt: skip
"""Smallest values of options for which 0 has no meaning, `MIN_SIDE_PX` of images; no number may be negative."""

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
    "geo-classification": {"loss": GEO_CLASSIFICATION, "lr": 0.0001},
}
"""The rows of the paper's tables, for Pitts30k, "geo-classification" for Pitts250k. "crn" is for a model with CRN
aggregation that starts from a trained "netvlad"."""

MODEL_RECIPES: dict[str, dict[str, Any]] = {
    "open-fast": {
        "loss": "sare-joint", "reduction": "tuples", "negatives": 6, "epochs": 5, "lr": 0.003, "schedule": "cosine",
        "refresh_every": 6000, "train_from": "block3", "crop": 0.5, "light": 0.5, "height": 288, "width": 384,
        "dim": 512, "whitening": "refitted", "whitening_power": 0.5, "batch": 64,
    },
}  # fmt: skip
"""How packaged models are trained; their initial models are `RECIPE_MODELS`."""
RECIPE_MODELS: dict[str, dict[str, Any]] = {
    "open-fast": {"backbone": "efficientnet-lite0", "cut": "block15", "clusters": 32}
}
"""Arguments of `start_model` that belong to a recipe; default: VGG16 with NetVLAD, as in the paper."""


def recipe(name: str, **options: Any) -> TrainingConfig:
    """The config of this row of the paper's tables, or of a packaged model; `options` take precedence over those of the
    row.

    With another loss than the row's, the row's kernel is used if that loss has one.
    """
    row = look_up({**RECIPES, **MODEL_RECIPES}, name, "recipe")
    known = _options_of(options.get("loss", row["loss"]))
    return TrainingConfig(**{k: v for k, v in row.items() if k not in LOSS_OPTIONS or k in known} | options)


def read_config(path: Path) -> dict[str, Any]:
    """The options that a TOML file sets, for `TrainingConfig(**options)` or `recipe(name, **options)`.

    Raises ArgumentError if the file is not TOML, if an option is unknown, or if a value has the wrong type.
    """
    return read_options(path, TrainingConfig)


def config_text(config: TrainingConfig, *, defaults: bool = False) -> str:
    """A TOML file with every option, its documentation and its value in `config`.

    A value that equals the default is written as a comment (`#lr = 0.001`), so that a recipe can still change it;
    `defaults`: write these too.
    """
    title = "Options of sareloc train DATASETS --config THIS_FILE --out RUN: they take precedence over --recipe."
    return options_text(config, title, defaults=defaults)


def _options_of(loss: str) -> set[str]:
    """Which of LOSS_OPTIONS this loss has. Raises ArgumentError, which lists the known ones, if it is unknown."""
    from sareloc.losses import LOSSES, loss_options  # here, as it imports torch, which the help needs not

    look_up({**LOSSES, GEO_CLASSIFICATION: None}, loss, "loss")
    own: Mapping[str, Any] = {} if loss == GEO_CLASSIFICATION else loss_options(loss)
    return {option for option, name in LOSS_OPTIONS.items() if name in own}
