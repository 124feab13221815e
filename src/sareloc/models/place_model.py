"""The model: preprocess + backbone + aggregation + whitening; from images to unit descriptors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sareloc.errors import ArgumentError, look_up
from sareloc.models.aggregation import Aggregation, Option, make_aggregation
from sareloc.models.backbones import Backbone, make_backbone
from sareloc.models.preprocess import Precision, Preprocess, Resize, autocast, number_format
from sareloc.photos import Image, ImageRecord
from sareloc.photos.read_image import check_several

MAX_DIM = 1 << 24
RUNTIMES = {
    "openvino": "sareloc.runtimes.openvino:on_openvino",
    "openvino-int8": "sareloc.runtimes.openvino:on_openvino_int8",
}
"""Runtimes that describe faster than torch on a CPU, with the function that makes a `RuntimeModel` of a model."""

Compute = Callable[[Tensor], Tensor]
"""uint8 images (B, 3, H, W) on the CPU -> float32 descriptors (B, model.dim), unit rows."""

BEFORE: dict[str, dict[str, Option]] = {"mixvpr": {"row_bias": False}}
"""Options that aggregations got after files had been written, with the values that these files stand for."""


@dataclass(frozen=True)
class ModelSpec:
    """Everything about a model except its weights: enough to assemble it."""

    name: str
    preprocess: Preprocess
    backbone: str
    cut: str
    train_from: str
    aggregation: str
    options: Mapping[str, Option]
    """The aggregation's arguments, such as `clusters`."""
    whitening: int | None
    """Dimensions after whitening; None: no whitening."""

    def __post_init__(self) -> None:
        for field in ("name", "backbone", "cut", "train_from", "aggregation"):
            if not isinstance(value := getattr(self, field), str):
                raise ArgumentError(f"{field} of a model must be text, found {value!r}")
        if not isinstance(self.options, Mapping):
            raise ArgumentError(f"options (in files: knobs) of a model must be an object, found {self.options!r}")
        integer = isinstance(self.whitening, int) and not isinstance(self.whitening, bool)
        if self.whitening is not None and not (integer and 1 <= self.whitening <= MAX_DIM):
            raise ArgumentError(
                f"whitening of a model must be the dimensions, an integer from 1 to {MAX_DIM:,} or None, "
                f"found {self.whitening!r}"
            )

    def to_dict(self) -> dict[str, Any]:
        """The spec as it is stored: the aggregation's options are called "knobs" in files and fingerprints.

        Bilinear interpolation and the values in `BEFORE` are not written: files from before there were others keep
        their fingerprints.
        """
        stored = asdict(self)
        former = BEFORE.get(self.aggregation, {})
        stored["knobs"] = {k: v for k, v in stored.pop("options").items() if k not in former or v != former[k]}
        if self.preprocess.interpolation == "bilinear":
            del stored["preprocess"]["interpolation"]
        return stored

    def to_json(self) -> str:
        """One line, the same for equal specs."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> ModelSpec:
        """The spec that `to_json` wrote. Raises ArgumentError, which names the field, if it is not one."""
        given = json.loads(text)
        _check_keys(given, {f.name for f in fields(ModelSpec)} - {"options"} | {"knobs"}, "the spec of a model")
        _check_keys(
            given["preprocess"], {f.name for f in fields(Preprocess)}, "preprocess of a model", {"interpolation"}
        )
        # JSON has lists where the records hold tuples
        pixels: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given["preprocess"].items()}
        knobs = given.pop("knobs")
        given["options"] = {**BEFORE.get(str(given["aggregation"]), {}), **knobs} if isinstance(knobs, dict) else knobs
        return ModelSpec(**{**given, "preprocess": Preprocess(**pixels)})


def _check_keys(given: Any, wanted: set[str], what: str, optional: Set[str] = frozenset()) -> None:
    if not isinstance(given, dict):
        raise ArgumentError(f"{what} must be a JSON object, found {given!r}")
    found = set(given)
    if found | optional != wanted:
        raise ArgumentError(
            f"{what} must have exactly the fields {', '.join(sorted(wanted))}; "
            f"missing {sorted(wanted - found - optional)}, unexpected {sorted(found - wanted)}"
        )


class Whitening(nn.Module):
    """`y = L2(projection (x - mean))`; the first k coordinates, scaled to unit length again, are the k-D whitening.

    `mean` (D,) and `projection` (dim, D), rows ordered by decreasing eigenvalue. The projection is frozen
    unless its `requires_grad_` is set.
    """

    mean: Tensor

    def __init__(self, mean: Tensor, projection: Tensor) -> None:
        super().__init__()
        if mean.ndim != 1 or projection.ndim != 2 or projection.shape[1] != len(mean):
            raise ArgumentError(
                f"whitening: expected mean (D,) and projection (dim, D), "
                f"found {tuple(mean.shape)} and {tuple(projection.shape)}"
            )
        self.register_buffer("mean", mean)
        self.projection = nn.Parameter(projection, requires_grad=False)

    @property
    def dim(self) -> int:
        """Length of the whitened descriptor."""
        return len(self.projection)

    def forward(self, descriptors: Tensor, dim: int | None = None) -> Tensor:
        """Descriptors (B, D) -> unit rows (B, dim); a smaller `dim` keeps the first coordinates."""
        if descriptors.ndim != 2 or descriptors.shape[1] != len(self.mean):
            raise ArgumentError(
                f"whitening: expected descriptors (B, {len(self.mean)}), found {tuple(descriptors.shape)}"
            )
        if dim is not None and not 1 <= dim <= self.dim:
            raise ArgumentError(f"dim of this whitening must be 1 to {self.dim}, found {dim}")
        with torch.autocast(descriptors.device.type, enabled=False):
            return F.normalize(F.linear(descriptors - self.mean, self.projection[:dim]), dim=1)


class PlaceModel(nn.Module):
    """Images -> unit descriptors; descriptors of photos of one place are near each other.

    Preprocessing is part of the model: it takes RGB pixels and applies its own size rule and pixel statistics.

    Args:
        preprocess: size rule and pixel statistics.
        backbone: pixels -> feature map.
        aggregation: feature map -> vector.
        whitening: vector -> descriptor; default: the vector is the descriptor.
        name: name of a packaged or published model.
        precision: the number format in which descriptors are computed (see `number_format`); checkpoints do not store
            it.
    """

    def __init__(
        self,
        preprocess: Preprocess,
        backbone: Backbone,
        aggregation: Aggregation,
        whitening: Whitening | None = None,
        name: str | None = None,
        precision: Precision = "auto",
    ) -> None:
        super().__init__()
        if backbone.channels != aggregation.channels:
            raise ArgumentError(
                f"{backbone.name} has {backbone.channels} output channels, "
                f"{aggregation.name} expects {aggregation.channels}"
            )
        if aggregation.needs_token and not backbone.has_token:
            raise ArgumentError(
                f"{aggregation.name} needs a transformer's class token, which {backbone.name} does not have: use a "
                f"dinov2 backbone, or another aggregation"
            )
        self.preprocess = preprocess
        self.backbone = backbone
        self.aggregation = aggregation
        self.whitening = whitening
        self.name = name or f"{backbone.name}-{aggregation.name}"
        self.precision: Precision = precision

    @property
    def dim(self) -> int:
        """Length of the descriptor."""
        return self.aggregation.dim if self.whitening is None else self.whitening.dim

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    @property
    def runs_on(self) -> torch.device | str:
        """Where `encode` is computed: a torch device, or the name of one of `RUNTIMES`."""
        return self.device

    def feature_map(self, images: Tensor) -> Tensor:
        """RGB images (B, 3, H, W), uint8 or floats in [0, 1], from 64 px each way -> (B, C, h, w), with gradients."""
        return self.backbone.split(self.backbone(self.pixels(images)))[0]

    def aggregate(self, output: Tensor) -> Tensor:
        """The backbone's output, with a transformer's class token, -> unit vectors (B, D), not whitened."""
        pooled: Tensor = self.aggregation(*self.backbone.split(output))
        return pooled

    def lower(self, images: Tensor) -> Tensor:
        """The output of the frozen layers for images as in `feature_map`: constant during training."""
        return self.backbone.lower(self.pixels(images))

    def upper(self, features: Tensor) -> Tensor:
        """The trained layers: from the output of `lower` to unit vectors (B, D), not whitened."""
        return self.aggregate(self.backbone.upper(features))

    def pixels(self, images: Tensor) -> Tensor:
        """Images as in `feature_map`, normalised for the backbone: floats (B, 3, H, W)."""
        return self.preprocess.normalise(images).contiguous(memory_format=torch.channels_last)

    def forward(self, images: Tensor, dim: int | None = None) -> Tensor:
        """RGB images as in `feature_map`, already resized -> unit rows (B, dim), with gradients.

        A `dim` smaller than the model's keeps the first coordinates of the whitened descriptor, scaled to unit length.
        """
        if self.whitening is None and dim not in (None, self.dim):
            raise ArgumentError(
                f"{self.name} has no whitening, so its {self.dim} dimensions cannot be reduced to {dim}: "
                f"fit one with fit_whitening"
            )
        pooled = self.aggregate(self.backbone(self.pixels(images)))
        if self.whitening is None:
            return pooled
        whitened: Tensor = self.whitening(pooled, dim)
        return whitened

    def encode(
        self,
        images: Tensor | Sequence[Image | ImageRecord],
        *,
        dim: int | None = None,
        batch: int = 8,
        precision: Precision | None = None,
    ) -> Tensor:
        """Descriptors (N, dim) of N images: float32 unit rows on the CPU, in the images' order, without gradients.

        By the network as it is trained, also in evaluation mode: batch norms are not folded into the convolutions. What
        a map stores is given by `sareloc.describe`, which folds them and differs in the last bits.

        Args:
            images: of any sizes from 64 px up (see `read_image`), resized to the model's size; or a uint8 tensor
                (N, 3, H, W), not resized.
            dim: keep the first `dim` coordinates of a whitened descriptor; default: all.
            batch: most images at a time; those of equal size share a batch.
            precision: number format of the backbone, see `number_format`; default: the model's own.

        Raises:
            PhotoError: if an image cannot be read, or is too small.
        """
        check_several(images, "encode([image])")
        with self._encoding(dim, precision):
            found = torch.empty(len(images), self.dim if dim is None else dim)
            for rows, pixels in self.preprocess.batches(images, batch):
                found[rows] = self._describe(pixels, dim)
        return found

    def _encoding(self, dim: int | None, precision: Precision | None) -> AbstractContextManager[None]:
        """The context of `encode`."""
        return evaluating(self, precision)

    def _describe(self, pixels: Tensor, dim: int | None) -> Tensor:
        """Descriptors on the CPU of uint8 images (B, 3, H, W)."""
        return self(pixels.to(self.device), dim).float().cpu()  # type: ignore[no-any-return]

    def spec(self) -> ModelSpec:
        """Everything except the weights."""
        return ModelSpec(
            self.name,
            self.preprocess,
            self.backbone.name,
            self.backbone.cut,
            self.backbone.train_from,
            self.aggregation.name,
            self.aggregation.options(),
            None if self.whitening is None else self.whitening.dim,
        )

    def fingerprint(self) -> str:
        """16 hex digits over everything a descriptor depends on: equal in every process and on every device.

        The weights enter as float32; the model's name and which layers are trained do not enter.
        """
        return fingerprint(self.spec(), self.state_dict())


def fingerprint(spec: ModelSpec, weights: Mapping[str, Tensor]) -> str:
    """16 hex digits over a spec and the weights that go with it."""
    return fingerprint_of_parts(spec, ((name, tuple(weights[name].shape), [weights[name]]) for name in sorted(weights)))


def fingerprint_of_parts(spec: ModelSpec, weights: Iterable[tuple[str, tuple[int, ...], Iterable[Tensor]]]) -> str:
    """The same over weights in the order of their names, each with its shape and its parts along dimension 0."""
    digest = hashlib.sha256(replace(spec, name="", train_from="").to_json().encode())
    for name, shape, parts in weights:
        digest.update(f"{name} {shape} ".encode())
        for part in parts:
            tensor = part.detach().cpu()
            numbers = (tensor.float() if tensor.is_floating_point() else tensor).contiguous().numpy()
            digest.update(numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).data)
    return digest.hexdigest()[:16]


@contextmanager
def evaluating(model: PlaceModel, precision: Precision | None = None) -> Iterator[None]:
    """No gradients, evaluation mode, convolutions in `precision`; afterwards every module has its former mode.

    precision: default: the model's own.
    """
    dtype = number_format(model.device, precision or model.precision)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), autocast(model.device, dtype):
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
    **options: Option,
) -> PlaceModel:
    """A model with random weights, in evaluation mode; default: the paper's VGG16 + NetVLAD.

    Args:
        backbone: one of `BACKBONES`.
        aggregation: one of `AGGREGATIONS`.
        size: (height, width), a longest side, or None for the photos' own size (see `Preprocess`).
        cut: see `make_backbone`.
        train_from: see `make_backbone`.
        name: of the model; default: made of its parts.
        rng: the source of random weights; default: torch's generator.
        options: the aggregation's, such as `clusters=64`; default of mixvpr's `height` and `width`: those of the
            feature map at `size`, which must be square.
    """
    base = make_backbone(backbone, cut=cut, train_from=train_from, rng=rng)
    pixels = Preprocess(base.pixel_mean, base.pixel_std, resize=size)
    if aggregation == "mixvpr" and not options.keys() & {"height", "width"}:
        options |= _locations(base, size)
    return PlaceModel(pixels, base, make_aggregation(aggregation, base.channels, options, rng=rng), name=name).eval()


def _locations(base: Backbone, size: Resize) -> dict[str, Option]:
    """Height and width of the feature map of images of one size."""
    if not isinstance(size, tuple) or size[0] != size[1]:
        raise ArgumentError(
            f"mixvpr needs square images, since portrait photos are resized to the transposed size; found {size}: use "
            "(320, 320), as published, or another square (in a training config: height = 320, width = 320)"
        )
    with torch.no_grad():
        features, _ = base.split(base(torch.zeros(1, 3, *size)))
    return {"height": features.shape[2], "width": features.shape[3]}


def model_from_spec(spec: ModelSpec) -> PlaceModel:
    """The model that a spec describes, in evaluation mode, on the device "meta": shapes without memory.

    `to_empty(device=...)` allocates the weights, which must then be loaded.
    """
    with torch.device("meta"):
        base = make_backbone(spec.backbone, cut=spec.cut, train_from=spec.train_from)
        aggregation = make_aggregation(spec.aggregation, base.channels, spec.options)
        if aggregation.dim > MAX_DIM:
            raise ArgumentError(f"{spec.aggregation} has {aggregation.dim:,} dimensions, more than {MAX_DIM:,}")
        whitening = None
        if spec.whitening is not None:
            whitening = Whitening(torch.empty(aggregation.dim), torch.empty(spec.whitening, aggregation.dim))
    return PlaceModel(spec.preprocess, base, aggregation, whitening, spec.name).eval()


def run_on(model: PlaceModel, runtime: str) -> RuntimeModel:
    """The same model with `encode` computed by another runtime; for computing descriptors, not for training.

    "openvino": the backbone by OpenVINO (extra `openvino`), in the model's `precision` as it is now; in float32 where
    OpenVINO cannot multiply bfloat16. "openvino-int8": in 8-bit integers, on processors with VNNI. Descriptors differ
    from torch's by less than those of two photos of one place do, so that the fingerprint and all maps stay valid.
    """
    module, function = look_up(RUNTIMES, runtime, "runtime").split(":")
    made: RuntimeModel = getattr(import_module(module), function)(model)
    return made


def with_whitening(model: PlaceModel, whitening: Whitening) -> PlaceModel:
    """A model of the same layers, with this whitening after them; raises ArgumentError if it has one already.

    The layers are shared; the fingerprint differs.
    """
    if model.whitening is not None:
        raise ArgumentError(f"{model.name} has a whitening, to {model.dim} dimensions: it cannot get another")
    if model.dim != len(whitening.mean):
        raise ArgumentError(f"{model.name} has {model.dim} dimensions, the whitening is of {len(whitening.mean)}")
    whitening = whitening.to(model.device)
    whitened = PlaceModel(model.preprocess, model.backbone, model.aggregation, whitening, model.name, model.precision)
    whitened.train(model.training)
    if not isinstance(model, RuntimeModel):
        return whitened
    compute = model.compute
    return RuntimeModel(whitened, model.runtime, lambda images: whitening(compute(images)))


class RuntimeModel(PlaceModel):
    """A model that shares the layers of another, and so its fingerprint, and computes `encode` by another runtime.

    Args:
        model: the model whose layers it shares.
        runtime: a name of `RUNTIMES`.
        compute: images -> descriptors, see `Compute`.
    """

    def __init__(self, model: PlaceModel, runtime: str, compute: Compute) -> None:
        super().__init__(
            model.preprocess, model.backbone, model.aggregation, model.whitening, model.name, model.precision
        )
        self.eval()
        self.runtime = runtime
        self.compute = compute

    @property
    def runs_on(self) -> str:
        """The name of one of `RUNTIMES`."""
        return self.runtime

    def _encoding(self, dim: int | None, precision: Precision | None) -> AbstractContextManager[None]:
        """Raises ArgumentError if a `precision` is given: the runtime has compiled one."""
        if precision is not None:
            raise ArgumentError(
                f"{self.runtime} was compiled in one precision, found precision={precision!r} for a call: give it when "
                "the model is loaded"
            )
        if dim is not None and not (dim == self.dim or (self.whitening is not None and 1 <= dim <= self.dim)):
            raise ArgumentError(f"{self.name} has {self.dim} dimensions, which cannot be reduced to {dim}")
        return torch.no_grad()

    def _describe(self, pixels: Tensor, dim: int | None) -> Tensor:
        # the first coordinates of a whitened descriptor, scaled to unit length, are the smaller whitening
        descriptors = self.compute(pixels)
        return descriptors if dim is None else F.normalize(descriptors[:, :dim], dim=1)
