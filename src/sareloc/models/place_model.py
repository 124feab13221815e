"""The model: preprocess + backbone + aggregation + whitening; from images to unit descriptors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from sareloc.errors import ArgumentError
from sareloc.models.aggregation import Aggregation, Knob, make_aggregation
from sareloc.models.backbones import Backbone, make_backbone
from sareloc.models.preprocess import Image, Preprocess, Resize, autocast
from sareloc.models.whitening import Whitening

MAX_DIM = 1 << 24


@dataclass(frozen=True)
class ModelSpec:
    """Everything about a model but its weights: enough to assemble it again."""

    name: str
    preprocess: Preprocess
    backbone: str
    cut: str
    train_from: str
    aggregation: str
    knobs: Mapping[str, Knob]
    """The aggregation's arguments, such as `clusters`."""
    whitening: int | None
    """Dimensions after whitening; None: no whitening."""

    def __post_init__(self) -> None:
        for field in ("name", "backbone", "cut", "train_from", "aggregation"):
            if not isinstance(value := getattr(self, field), str):
                raise ArgumentError(f"{field} of a model must be text, found {value!r}")
        if not isinstance(self.knobs, Mapping):
            raise ArgumentError(f"knobs of a model must be the aggregation's options by name, found {self.knobs!r}")
        whole = isinstance(self.whitening, int) and not isinstance(self.whitening, bool)
        if self.whitening is not None and not (whole and 1 <= self.whitening <= MAX_DIM):
            raise ArgumentError(
                f"whitening of a model must be a whole number of dimensions from 1 to {MAX_DIM:,} or None, "
                f"found {self.whitening!r}"
            )

    def to_json(self) -> str:
        """One line, the same for equal specs."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> ModelSpec:
        """The spec that `to_json` wrote. Raises ArgumentError, which names the field, if it is not one."""
        given = json.loads(text)
        _check_keys(given, ModelSpec, "the spec of a model")
        _check_keys(given["preprocess"], Preprocess, "preprocess of a model")
        # JSON has lists where the records hold tuples
        pixels: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given["preprocess"].items()}
        return ModelSpec(**{**given, "preprocess": Preprocess(**pixels)})


def _check_keys(given: Any, record: type, what: str) -> None:
    wanted = {f.name for f in fields(record)}
    if not isinstance(given, dict):
        raise ArgumentError(f"{what} must be a JSON object, found {given!r}")
    found = set(given)
    if found != wanted:
        raise ArgumentError(
            f"{what} must have exactly the fields {', '.join(sorted(wanted))}; "
            f"missing {sorted(wanted - found)}, unexpected {sorted(found - wanted)}"
        )


class PlaceModel(nn.Module):
    """Images of places -> unit descriptors; photos of one place lie near each other.

    The model owns its preprocessing: give it RGB pixels, it knows their statistics and the size it wants.
    """

    def __init__(
        self,
        preprocess: Preprocess,
        backbone: Backbone,
        aggregation: Aggregation,
        whitening: Whitening | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        if backbone.channels != aggregation.channels:
            raise ArgumentError(
                f"{backbone.name} gives {backbone.channels} channels, "
                f"{aggregation.name} was made for {aggregation.channels}"
            )
        self.preprocess = preprocess
        self.backbone = backbone
        self.aggregation = aggregation
        self.whitening = whitening
        self.name = name or f"{backbone.name}-{aggregation.name}"

    @property
    def dim(self) -> int:
        """Length of the descriptor."""
        return self.aggregation.dim if self.whitening is None else self.whitening.dim

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def feature_map(self, images: Tensor) -> Tensor:
        """RGB images (B, 3, H, W), uint8 or floats in [0, 1], from 64 px each way -> (B, C, h, w), with gradients."""
        features: Tensor = self.backbone(self.pixels(images))
        return features

    def lower(self, images: Tensor) -> Tensor:
        """What the frozen part makes of images as in `feature_map`: the same in every epoch of a training."""
        return self.backbone.lower(self.pixels(images))

    def upper(self, features: Tensor) -> Tensor:
        """What is trained: from `lower` to unit vectors (B, D), not whitened."""
        pooled: Tensor = self.aggregation(self.backbone.upper(features))
        return pooled

    def pixels(self, images: Tensor) -> Tensor:
        """Images as in `feature_map`, normalised as the backbone wants them: floats (B, 3, H, W)."""
        return self.preprocess.normalise(images).contiguous(memory_format=torch.channels_last)

    def forward(self, images: Tensor, dim: int | None = None) -> Tensor:
        """RGB images as in `feature_map`, already of the size they shall have -> (B, dim) unit rows, with gradients.

        A smaller `dim` than the model's keeps the first coordinates of the whitened descriptor, scaled to unit length.
        """
        if self.whitening is None and dim not in (None, self.dim):
            raise ArgumentError(
                f"{self.name} has no whitening, so that its {self.dim} dimensions cannot be cut to {dim}: "
                f"fit one with fit_whitening"
            )
        pooled: Tensor = self.aggregation(self.feature_map(images))
        if self.whitening is None:
            return pooled
        whitened: Tensor = self.whitening(pooled, dim)
        return whitened

    def encode(
        self,
        images: Tensor | Sequence[Image],
        *,
        dim: int | None = None,
        batch: int = 8,
        precision: torch.dtype | None = None,
    ) -> Tensor:
        """Descriptors (N, dim) of N images: float32 unit rows on the CPU, in the images' order, without gradients.

        `images`: a sequence of uint8 arrays (H, W, 3) or PIL images of any sizes from 64 px up, brought to the
        model's own size, or a uint8 tensor (N, 3, H, W), taken as it is. At most `batch` images are in work at a time;
        images of equal size share a batch. `precision`: the format of the convolutions; None: bfloat16 where the
        device is fast in it (`best_dtype`), torch.float32: torch's own float32 (TF32 on CUDA, unless that is off).
        """
        found = torch.empty(len(images), self.dim if dim is None else dim)
        with evaluating(self, precision):
            for rows, pixels in self.preprocess.batches(images, batch):
                found[rows] = self(pixels.to(self.device), dim).float().cpu()
        return found

    def spec(self) -> ModelSpec:
        """Everything but the weights."""
        return ModelSpec(
            self.name,
            self.preprocess,
            self.backbone.name,
            self.backbone.cut,
            self.backbone.train_from,
            self.aggregation.name,
            self.aggregation.knobs(),
            None if self.whitening is None else self.whitening.dim,
        )

    def fingerprint(self) -> str:
        """16 hex digits over all that a descriptor depends on: equal in every process, on every device.

        The weights count as float32; the model's name and which part is trained do not count.
        """
        return fingerprint(self.spec(), self.state_dict())


def fingerprint(spec: ModelSpec, weights: Mapping[str, Tensor]) -> str:
    """16 hex digits over a spec and the weights that go with it."""
    digest = hashlib.sha256(replace(spec, name="", train_from="").to_json().encode())
    for name in sorted(weights):
        tensor = weights[name].detach().cpu()
        numbers = (tensor.float() if tensor.is_floating_point() else tensor).contiguous().numpy()
        digest.update(f"{name} {numbers.shape} ".encode())
        digest.update(numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).data)
    return digest.hexdigest()[:16]


@contextmanager
def evaluating(model: PlaceModel, precision: torch.dtype | None = None) -> Iterator[None]:
    """No gradients, evaluation mode, fast convolutions; every part is back in its own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), autocast(model.device, precision):
            yield
    finally:
        for module, training in modes:
            module.training = training


def make_model(
    backbone: str = "vgg16",
    aggregation: str = "netvlad",
    *,
    size: Resize = (480, 640),
    cut: str | None = None,
    train_from: str | None = None,
    name: str | None = None,
    rng: torch.Generator | None = None,
    **knobs: Knob,
) -> PlaceModel:
    """A model with random weights, in evaluation mode; the paper's by default.

    `size`: (height, width), a longest side, or None for the photos' own (see `Preprocess`). `cut`, `train_from`: see
    `make_backbone`. `knobs`: the aggregation's, such as `clusters=64`. `rng`: where the random weights come from;
    torch's own generator by default.
    """
    base = make_backbone(backbone, cut=cut, train_from=train_from, rng=rng)
    pixels = Preprocess(base.pixel_mean, base.pixel_std, resize=size)
    return PlaceModel(pixels, base, make_aggregation(aggregation, base.channels, knobs, rng=rng), name=name).eval()


def model_of_spec(spec: ModelSpec) -> PlaceModel:
    """The model that a spec describes, in evaluation mode, on the device "meta": shapes without memory.

    `to_empty(device=...)` allocates the weights, which then have to be loaded.
    """
    with torch.device("meta"):
        base = make_backbone(spec.backbone, cut=spec.cut, train_from=spec.train_from)
        aggregation = make_aggregation(spec.aggregation, base.channels, spec.knobs)
        whitening = None
        if spec.whitening is not None:
            whitening = Whitening(torch.empty(aggregation.dim), torch.empty(spec.whitening, aggregation.dim))
    return PlaceModel(spec.preprocess, base, aggregation, whitening, spec.name).eval()
