"""Weights files of others: read their tensors without executing pickled code, and assemble a `PlaceModel` of them."""

from __future__ import annotations

import codecs
import io
import pickletools
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO
from zipfile import ZIP_STORED, ZipFile

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from sareloc.errors import WeightsError
from sareloc.models.aggregation import NetVLAD, Norm
from sareloc.models.backbones import make_backbone
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import Preprocess
from sareloc.models.whitening import Whitening

NAMES_SHOWN = 6
MAX_ITERATIONS = 100  # of conjugate gradients
RELATIVE_ERROR = 1e-7
ROWS_IN_DOUBLE = 256  # at a time: 4096 x 32768 doubles would take 1 GB
STATE_DICTS = ("state_dict", "model_state_dict")  # the keys under which training scripts store the tensors
ALLOWED = (  # callables in pickles of weights: containers, tensors and their storages, numpy numbers
    r"(collections\.OrderedDict|(__builtin__|builtins)\.set|_codecs\.encode|numpy\..+"
    r"|torch\._utils\._rebuild_(tensor|tensor_v2|parameter|parameter_with_state)|torch\.nn\.parameter\.Parameter"
    r"|torch\.(storage\.|cuda\.)?\w*Storage|torch\.(Size|device|[a-z]+[0-9]+\w*))"
)


class _Ignored:
    """Replaces numpy numbers and arrays, such as recalls, that training scripts store beside the weights.

    They are not needed, and numpy's constructors would allocate any size that a file declares.
    """

    def __init__(self, *arguments: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


NUMPY_VALUES: list[Any] = [
    (_Ignored, name)
    for name in (
        *(f"numpy.{home}.multiarray.{made}" for home in ("core", "_core") for made in ("scalar", "_reconstruct")),
        "numpy.dtype",
        "numpy.ndarray",
    )
]


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """The named tensors of a .safetensors file or of a file that torch.save wrote (.pth, .pt, .pth.tar), on the CPU.

    In a training checkpoint the tensors are those under `state_dict` or `model_state_dict`; the prefix `module.` of
    data-parallel training is removed from names. Only tensors, plain containers and numbers are unpickled: raises
    WeightsError if the file contains any other object.
    """
    path = existing_file(path)
    stored: Any = _read_safetensors(path) if _is_safetensors(path) else _read_torch(path)
    while isinstance(stored, dict) and (keys := [k for k in STATE_DICTS if isinstance(stored.get(k), dict)]):
        stored = stored[keys[0]]
    tensors = stored.items() if isinstance(stored, dict) else ()
    if not tensors or not all(isinstance(name, str) and isinstance(v, Tensor) for name, v in tensors):
        held = f"the keys {_listed(map(str, stored))}" if isinstance(stored, dict) else f"a {type(stored).__name__}"
        raise WeightsError(
            f"{path} contains {held}, not named tensors: expected a state dict, alone or under the key 'state_dict'"
        )
    for name, tensor in tensors:
        _check_dense(name, tensor, path)
    return {name.removeprefix("module.").replace(".module.", "."): v for name, v in tensors}


def read_tensor(path: str | Path) -> Tensor:
    """The only tensor of a file that torch.save wrote, on the CPU. Raises WeightsError if it contains anything else."""
    path = existing_file(path)
    stored = _read_torch(path)
    if not isinstance(stored, Tensor):
        raise WeightsError(f"{path} contains a {type(stored).__name__}: expected one tensor")
    _check_dense("in it", stored, path)
    return stored.detach()


def existing_file(path: str | Path) -> Path:
    """The path. Raises WeightsError if there is no file."""
    if not (path := Path(path)).is_file():
        raise WeightsError(f"there is no weights file {path}")
    return path


def _check_dense(name: str, tensor: Tensor, path: Path) -> None:
    """Raises WeightsError if a tensor is not of real numbers, or larger than its stored data, as after `expand`."""
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise WeightsError(f"{path}: tensor {name} has type {tensor.dtype}: expected real numbers")
    stored = tensor.untyped_storage().nbytes()
    if stored > path.stat().st_size or tensor.numel() * tensor.element_size() > stored:
        raise WeightsError(f"{path}: tensor {name} of shape {tuple(tensor.shape)} is larger than the file")


def _is_safetensors(path: Path) -> bool:
    """Whether it has the name of such a file, or begins as one: eight bytes of length, then JSON."""
    with path.open("rb") as file:
        head = file.read(9)
    return path.suffix == ".safetensors" or head[8:] == b"{"


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as wrong:
        raise WeightsError(f"{path} is not a safetensors file, or damaged ({wrong}): get it again") from wrong


def _read_torch(path: Path) -> Any:
    _check_pickles(path)
    try:
        with torch.serialization.safe_globals(NUMPY_VALUES), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about a pickle protocol that is then refused
            return torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as wrong:
        named = re.search(r"GLOBAL (\S+) was not", str(wrong))
        raise _refusal(path, named.group(1) if named else "Python objects") from wrong
    except Exception as wrong:  # damaged files raise a dozen types
        raise WeightsError(
            f"{path} is neither a safetensors file nor one that torch.save wrote, or it is damaged ({wrong})"
        ) from wrong


def _refusal(path: Path, objects: str) -> WeightsError:
    return WeightsError(
        f"{path} is refused: it is a pickle that contains {objects} beside tensors, and loading such a pickle can "
        f"execute code or exhaust memory. Where the file was made, save only the tensors, with "
        f"torch.save(model.state_dict(), ...) or safetensors.torch.save_file(model.state_dict(), ...)"
    )


def _check_pickles(path: Path) -> None:
    """Raises WeightsError if loading the file could take far more memory than its size; nothing is unpickled for it.

    torch.save does not compress its zip archive. Some of the functions that torch allows in a pickle allocate, copy or
    re-encode any amount of data: only those that weights need are allowed here.
    """
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":  # the format before torch 1.6: five pickles, then the data
            file.seek(0)
            for _ in range(5):
                if not file.peek(1):
                    break
                _check_pickle(file, path)
            return
    try:
        with ZipFile(path) as archive:
            entries = archive.infolist()
            unpacked = sum(entry.file_size for entry in entries)
            packed = any(entry.compress_type != ZIP_STORED for entry in entries)
            small = not packed and unpacked <= path.stat().st_size
            pickles = [archive.read(e) for e in entries if small and e.filename.lower().endswith("data.pkl")]
    except Exception as wrong:  # damaged files raise several types
        raise WeightsError(f"{path} is damaged: its zip archive cannot be read ({wrong})") from wrong
    if not small:
        raise WeightsError(
            f"{path} is refused: it is a compressed archive that unpacks to {unpacked / 1e6:,.0f} MB, and torch.save "
            f"does not compress. If it is genuine, save it again with torch.save"
        )
    for content in pickles:
        _check_pickle(io.BytesIO(content), path)


def _check_pickle(stream: BinaryIO, path: Path) -> None:
    """Check the callables of one pickle without unpickling it."""
    try:
        steps = [(step.name, argument) for step, argument, _ in pickletools.genops(stream)]
    except Exception as wrong:  # damaged files raise several types
        raise WeightsError(f"{path} is damaged, or not a file that torch.save wrote ({wrong})") from wrong
    called = {str(argument).replace(" ", ".") for name, argument in steps if name == "GLOBAL"}
    for name in sorted(called):
        if not re.fullmatch(ALLOWED, name):
            raise _refusal(path, name)
    if "_codecs.encode" in called:
        for text in {argument for _, argument in steps if isinstance(argument, str)}:
            if _is_binary_codec(text):
                raise _refusal(path, f"the encoding {text!r}")


def _is_binary_codec(name: str) -> bool:
    """Whether this is the name of a non-text codec, such as hex: its output can be encoded again, and grows."""
    try:
        codecs.lookup(name)
    except Exception:  # no such codec, or not a valid name
        return False
    try:
        "".encode(name)
    except LookupError:
        return True
    return False


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
    problems = [
        f"{problem}: {_listed(names)}"
        for problem, names in (
            ("missing", [n for n in wanted if n not in given]),
            ("unexpected", [n for n in given if n not in wanted]),
            (
                "of another shape",
                [
                    f"{n} {tuple(given[n].shape)} instead of {tuple(v.shape)}"
                    for n, v in wanted.items()
                    if n in given and given[n].shape != v.shape
                ],
            ),
            (
                "of another type",
                [
                    f"{n} {given[n].dtype} instead of {v.dtype}"
                    for n, v in wanted.items()
                    if n in given and given[n].is_floating_point() != v.is_floating_point()
                ],
            ),
            ("not finite", [n for n in wanted if n in given and not _is_finite(given[n])]),
        )
        if names
    ]
    if problems:
        kind = getattr(module, "name", type(module).__name__)
        raise WeightsError(f"{source} does not fit {kind}: tensors {'; '.join(problems)}")
    if assign:
        given = {name: tensor.detach().to(wanted[name].dtype).contiguous() for name, tensor in given.items()}
    module.load_state_dict(given, assign=assign)


def _is_finite(tensor: Tensor) -> bool:
    return tensor.is_meta or bool(tensor.isfinite().all())


def float_tensor(tensors: Mapping[str, Tensor], name: str, source: str | Path, dims: int) -> Tensor:
    """One tensor by its name, float32. Raises WeightsError if it is missing or not of floats in `dims` dimensions."""
    if name not in tensors:
        raise WeightsError(f"{source} has no tensor {name!r}: it has {_listed(sorted(tensors))}")
    tensor = tensors[name]
    if tensor.ndim != dims or not tensor.is_floating_point() or not tensor.numel():
        raise WeightsError(
            f"{source}: tensor {name} must be floats in {dims} dimensions, found {tensor.dtype} {tuple(tensor.shape)}"
        )
    return tensor.float()


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


def assemble_model(
    name: str,
    preprocess: Preprocess,
    backbone: str,
    convolutions: Mapping[str, Tensor],
    vlad: Mapping[str, Tensor],
    whitening: Whitening | None,
    source: str | Path,
    *,
    norm: Norm,
    cut: str | None = None,
) -> PlaceModel:
    """A model in evaluation mode from its tensors.

    convolutions: the backbone's tensors by their names in `Backbone`. vlad: `assign` (K, D), `centres` (K, D) and, if
    the network has one, `bias` (K,). norm: the original's normalization to unit length (see `Norm`).
    """
    base = make_backbone(backbone, cut=cut)
    load_strictly(base, convolutions, source)
    if vlad["assign"].ndim != 2 or vlad["assign"].shape[1] != base.channels or not len(vlad["assign"]):
        raise WeightsError(
            f"{source}: the assignment weight of NetVLAD must be (K, {base.channels}), "
            f"found {tuple(vlad['assign'].shape)}"
        )
    layer = NetVLAD(base.channels, clusters=len(vlad["assign"]), bias="bias" in vlad, norm=norm)
    load_strictly(layer, vlad, source)
    if whitening is not None and len(whitening.mean) != layer.dim:
        raise WeightsError(f"{source}: the whitening is for {len(whitening.mean)} dimensions, NetVLAD has {layer.dim}")
    return PlaceModel(preprocess, base, layer, whitening, name=name).eval()


def whitening_from_linear(weight: Tensor, bias: Tensor, source: str | Path) -> Whitening:
    """The whitening `L2(projection (x - mean))` that equals a linear layer `L2(weight x + bias)`.

    weight: (dim, D). The mean is the minimum-norm m with `weight m = -bias`, by conjugate gradients on `W W^T` after
    scaling the rows of W to unit length; the rows of a PCA are orthogonal, so one iteration is enough.
    """
    if not (weight.numel() and weight.isfinite().all() and bias.isfinite().all()):
        raise WeightsError(f"{source}: weight and bias of the whitening must be finite numbers")
    if bias.shape != weight.shape[:1]:
        raise WeightsError(f"{source}: the whitening has {len(weight)} rows but a bias of shape {tuple(bias.shape)}")
    lengths = torch.linalg.vector_norm(weight, dim=1).double().clamp(min=1e-30)
    parts = [slice(i, i + ROWS_IN_DOUBLE) for i in range(0, len(weight), ROWS_IN_DOUBLE)]

    def project(point: Tensor) -> Tensor:  # (D,) -> (dim,)
        projected: Tensor = torch.cat([weight[p].double() @ point for p in parts]) / lengths
        return projected

    def spread(values: Tensor) -> Tensor:  # (dim,) -> (D,)
        return torch.stack([(values / lengths)[p] @ weight[p].double() for p in parts]).sum(dim=0)

    target = -bias.double() / lengths
    mean = torch.zeros(weight.shape[1], dtype=torch.float64)
    left, direction = target, target
    for _ in range(MAX_ITERATIONS):
        if left.norm() <= RELATIVE_ERROR * target.norm():
            return Whitening(mean.float(), weight)
        change = spread(direction)
        mean += left.dot(left) / change.dot(change) * change
        before, left = left, target - project(mean)
        direction = left + left.dot(left) / before.dot(before) * direction
    raise WeightsError(f"{source}: the rows of the whitening are linearly dependent, and no mean gives its bias")
