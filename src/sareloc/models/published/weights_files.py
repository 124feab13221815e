"""Weights files of others: read their tensors without executing pickled code, and assemble a `PlaceModel` of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from sareloc.errors import ArgumentError, WeightsError
from sareloc.models.aggregation import Norm, Option, make_aggregation
from sareloc.models.backbones import Backbone, make_backbone
from sareloc.models.checkpoint import existing_file, listed, open_safetensors
from sareloc.models.place_model import PlaceModel, Whitening
from sareloc.models.preprocess import Preprocess
from sareloc.models.published.torch_files import MAX_DIMS, MAX_NAME, MAX_NUMBERS, StoredTensor, read_torch_file

MIN_ITERATIONS, MAX_ITERATIONS = 25, 100  # of conjugate gradients, for a large and for a small matrix
NUMBERS_TO_ITERATE = 1_000_000_000  # iterations times numbers of the matrix: about a second
RELATIVE_ERROR = 1e-7
NUMBERS_AT_A_TIME = 1 << 20  # in double precision: 4096 x 32768 of them would take 1 GB
STATE_DICTS = ("state_dict", "model_state_dict")  # the keys under which training scripts store the tensors
MAX_NESTED = 4  # state dicts in state dicts
MAX_TENSORS = 10_000
DTYPES = {  # of weights, by safetensors' names
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
}


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """The named tensors of a .safetensors file or of a file that torch.save wrote (.pth, .pt, .pth.tar), on the CPU.

    In a training checkpoint the tensors are those under `state_dict` or `model_state_dict`; the prefix `module.` of
    data-parallel training is removed from names. Only tensors, plain containers and numbers are unpickled: raises
    WeightsError if the file contains any other object.
    """
    path = existing_file(path)
    if _is_safetensors(path):
        return _renamed(_read_safetensors(path), path)
    file = read_torch_file(path)
    stored = file.content
    for _ in range(MAX_NESTED):
        inner = [stored[k] for k in STATE_DICTS if isinstance(stored.get(k), dict)] if isinstance(stored, dict) else []
        stored = inner[0] if inner else stored
    if not isinstance(stored, dict) or not stored or not all(isinstance(v, StoredTensor) for v in stored.values()):
        held = f"the keys {listed(stored)}" if isinstance(stored, dict) else f"a {type(stored).__name__}"
        raise WeightsError(
            f"{path} contains {held}, not named tensors: expected a state dict, alone or under the key 'state_dict'"
        )
    _check_tensors({name: (v.dtype, v.shape) for name, v in stored.items()}, path)
    return _renamed(file.load(stored), path)


def read_tensor(path: str | Path) -> Tensor:
    """The only tensor of a file that torch.save wrote, on the CPU. Raises WeightsError if it contains anything else."""
    path = existing_file(path)
    file = read_torch_file(path)
    if not isinstance(file.content, StoredTensor):
        raise WeightsError(f"{path} contains a {type(file.content).__name__}: expected one tensor")
    only = {"in it": file.content}
    _check_tensors({name: (v.dtype, v.shape) for name, v in only.items()}, path)
    return file.load(only)["in it"]


def _check_tensors(tensors: Mapping[str, tuple[torch.dtype | str, tuple[int, ...]]], path: Path) -> None:
    """Raises WeightsError if the types and shapes of tensors, or their names, are not those of weights."""
    if not 1 <= len(tensors) <= MAX_TENSORS:
        raise WeightsError(f"{path} has {len(tensors):,} tensors, expected 1 to {MAX_TENSORS:,}")
    for name, (dtype, shape) in tensors.items():
        if len(name) > MAX_NAME:
            raise WeightsError(f"{path}: the name of a tensor has {len(name):,} characters: {name[:40]!r} ...")
        if dtype not in DTYPES.values():
            raise WeightsError(f"{path}: tensor {name} has type {dtype}: expected real numbers")
        if len(shape) > MAX_DIMS or math.prod(max(1, side) for side in shape) > MAX_NUMBERS:
            shown = f"{len(shape)} dimensions" if len(shape) > MAX_DIMS else f"shape {shape}"
            raise WeightsError(f"{path}: tensor {name} has {shown}, too many for weights")


def _renamed(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The tensors without the prefix of data-parallel training. Raises WeightsError if two have one name then."""
    renamed = {name.removeprefix("module.").replace(".module.", "."): v for name, v in tensors.items()}
    if len(renamed) < len(tensors):
        raise WeightsError(f"{path} has tensors with the same name with and without 'module.'")
    return renamed


def _is_safetensors(path: Path) -> bool:
    """Whether it has the name of such a file, or begins as one: eight bytes of length, then JSON."""
    with path.open("rb") as file:
        head = file.read(9)
    return path.suffix == ".safetensors" or head[8:] == b"{"


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    with open_safetensors(path) as opened:
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
        kinds = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
        _check_tensors({name: (DTYPES.get(dtype, dtype), shape) for name, (dtype, shape) in kinds.items()}, path)
        return {name: opened.get_tensor(name) for name in slices}


def load_strictly(
    module: nn.Module, tensors: Mapping[str, Tensor], source: str | Path, *, assign: bool = False
) -> None:
    """Copy tensors into a module's parameters and buffers. Raises WeightsError, with their names, if any does not fit.

    assign: use the tensors themselves, for a module on the device "meta". Only `num_batches_tracked` may be missing:
    files from before 2018 do not have it, and it is not used.
    """
    wanted = module.state_dict()
    counters = {
        name: torch.zeros_like(v, device="cpu") for name, v in wanted.items() if name.endswith("num_batches_tracked")
    }
    given = {**counters, **tensors}
    both = [(name, given[name], tensor) for name, tensor in wanted.items() if name in given]
    shapes = [(n, tuple(found.shape), tuple(like.shape)) for n, found, like in both if found.shape != like.shape]
    types = [(n, f.dtype, like.dtype) for n, f, like in both if f.is_floating_point() != like.is_floating_point()]
    found = {
        "missing": [name for name in wanted if name not in given],
        "unexpected": [name for name in given if name not in wanted],
        "of another shape": [f"{name} {has} instead of {needs}" for name, has, needs in shapes],
        "of another type": [f"{name} {has} instead of {needs}" for name, has, needs in types],
        "not finite": [name for name, tensor, _ in both if not is_finite(tensor)],
    }
    if problems := [f"{problem}: {listed(names)}" for problem, names in found.items() if names]:
        kind = getattr(module, "name", type(module).__name__)
        raise WeightsError(f"{source} does not fit {kind}: tensors {'; '.join(problems)}")
    if assign:
        given = {name: tensor.detach().to(wanted[name].dtype).contiguous() for name, tensor in given.items()}
    module.load_state_dict(given, assign=assign)


def is_finite(tensor: Tensor) -> bool:
    """Whether all numbers are finite; in parts, since a tensor can be as large as its file."""
    return tensor.is_meta or all(
        bool(part.isfinite().all()) for part in torch.split(tensor.flatten(), NUMBERS_AT_A_TIME)
    )


def float_tensor(tensors: Mapping[str, Tensor], name: str, source: str | Path, dims: int) -> Tensor:
    """One tensor by its name, as stored. Raises WeightsError if it is missing or not of floats in `dims` dimensions."""
    if name not in tensors:
        raise WeightsError(f"{source} has no tensor {name!r}: it has {listed(sorted(tensors))}")
    tensor = tensors[name]
    if tensor.ndim != dims or not tensor.is_floating_point() or not tensor.numel():
        raise WeightsError(
            f"{source}: tensor {name} must be floats in {dims} dimensions, found {tensor.dtype} {tuple(tensor.shape)}"
        )
    return tensor


def empty_backbone(name: str, cut: str | None = None) -> Backbone:
    """A backbone on the device "meta", to which tensors are assigned: random weights of a transformer take seconds."""
    with torch.device("meta"):
        return make_backbone(name, cut=cut)


def assemble_model(
    base: Backbone,
    layers: Mapping[str, Tensor],
    aggregation: str,
    options: Mapping[str, Option],
    head: Mapping[str, Tensor],
    preprocess: Preprocess,
    source: str | Path,
    *,
    whitening: Whitening | None = None,
    family: str | None = None,
) -> PlaceModel:
    """A model in evaluation mode from its tensors. Raises WeightsError if they do not fit.

    Args:
        base: an empty backbone.
        layers: the tensors of the backbone, as published.
        aggregation: one of `AGGREGATIONS`.
        options: its arguments.
        head: its tensors.
        preprocess: of the model.
        source: the file, for errors.
        whitening: of the vectors of the aggregation; default: none.
        family: end of the model's name; default: the aggregation.
    """
    load_strictly(base, base.published_tensors(layers), source, assign=True)
    try:
        with torch.device("meta"):
            aggregated = make_aggregation(aggregation, base.channels, options)
    except ArgumentError as wrong:
        raise WeightsError(f"{source}: its tensors are those of no {aggregation} that can be made: {wrong}") from wrong
    load_strictly(aggregated, head, source, assign=True)
    if whitening is not None and len(whitening.mean) != aggregated.dim:
        raise WeightsError(
            f"{source}: the whitening is for {len(whitening.mean)} dimensions, {aggregation} has {aggregated.dim}"
        )
    return PlaceModel(preprocess, base, aggregated, whitening, name=f"{base.name}-{family or aggregation}").eval()


def netvlad_options(vlad: Mapping[str, Tensor], norm: Norm) -> dict[str, Option]:
    """The options of the NetVLAD with these tensors: `assign` (K, D) and, if it has one, `bias` (K,)."""
    return {"clusters": len(vlad["assign"]), "bias": "bias" in vlad, "norm": norm}


def whitening_from_linear(weight: Tensor, bias: Tensor, source: str | Path) -> Whitening:
    """The whitening `L2(projection (x - mean))` that equals a linear layer `L2(weight x + bias)`.

    weight: (dim, D). The mean is the minimum-norm m with `weight m = -bias`, by conjugate gradients on `W W^T` after
    scaling the rows of W to unit length; the rows of a PCA are orthogonal, so one iteration is enough.
    """
    if not (weight.numel() and is_finite(weight) and is_finite(bias)):
        raise WeightsError(f"{source}: weight and bias of the whitening must be finite numbers")
    if bias.shape != weight.shape[:1]:
        raise WeightsError(f"{source}: the whitening has {len(weight)} rows but a bias of shape {tuple(bias.shape)}")
    rows = max(1, NUMBERS_AT_A_TIME // weight.shape[1])
    parts = [slice(i, i + rows) for i in range(0, len(weight), rows)]
    memory = torch.empty(rows, weight.shape[1], dtype=torch.float64)
    lengths = torch.ones(len(weight), dtype=torch.float64)

    def in_double(part: slice) -> Tensor:
        return memory[: len(weight[part])].copy_(weight[part])

    def project(point: Tensor) -> Tensor:  # (D,) -> (dim,)
        projected = torch.empty_like(lengths)
        for part in parts:
            torch.mv(in_double(part), point, out=projected[part])
        return projected / lengths

    def spread(values: Tensor) -> Tensor:  # (dim,) -> (D,)
        scaled, total = values / lengths, torch.zeros(weight.shape[1], dtype=torch.float64)
        for part in parts:
            total.addmv_(in_double(part).T, scaled[part])
        return total

    for part in parts:
        torch.linalg.vector_norm(in_double(part), dim=1, out=lengths[part])
    lengths.clamp_(min=1e-30)

    target = -bias.double() / lengths
    mean = torch.zeros(weight.shape[1], dtype=torch.float64)
    left, direction = target, target
    for _ in range(max(MIN_ITERATIONS, min(MAX_ITERATIONS, NUMBERS_TO_ITERATE // weight.numel()))):
        if left.norm() <= RELATIVE_ERROR * target.norm():
            return Whitening(mean.float(), weight.float())
        change = spread(direction)
        mean += left.dot(left) / change.dot(change) * change
        before, left = left, target - project(mean)
        direction = left + left.dot(left) / before.dot(before) * direction
    raise WeightsError(f"{source}: the rows of the whitening are linearly dependent, and no mean gives its bias")
