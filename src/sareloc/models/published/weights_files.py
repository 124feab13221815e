"""From the arrays of a published NetVLAD network to a PlaceModel that computes the same."""

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

# Tensors from a weights file, safely, and into a module, strictly.

NAMES_SHOWN = 6
STATE_DICTS = ("state_dict", "model_state_dict")  # the keys under which training scripts store the tensors


CALLED = (  # what pickles of weights call: containers, tensors and their storages, numbers of numpy
    r"(collections\.OrderedDict|(__builtin__|builtins)\.set|_codecs\.encode|numpy\..+"
    r"|torch\._utils\._rebuild_(tensor|tensor_v2|parameter|parameter_with_state)|torch\.nn\.parameter\.Parameter"
    r"|torch\.(storage\.|cuda\.)?\w*Storage|torch\.(Size|device|[a-z]+[0-9]+\w*))"
)


class _Ignored:
    """Stands for the numpy numbers and arrays, such as recalls, that training scripts store beside the weights.

    They are not needed, and numpy's own constructors would allocate whatever size a file asks for.
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

    A training script's record is searched for its `state_dict` or `model_state_dict`; `module.`, which data-parallel
    training puts into names, is taken out. Nothing is unpickled but tensors, plain containers and numbers: raises
    WeightsError if the file holds any other object.
    """
    path = need_file(path)
    stored: Any = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    while isinstance(stored, dict) and (keys := [k for k in STATE_DICTS if isinstance(stored.get(k), dict)]):
        stored = stored[keys[0]]
    tensors = stored.items() if isinstance(stored, dict) else ()
    if not tensors or not all(isinstance(name, str) and isinstance(v, Tensor) for name, v in tensors):
        held = f"the keys {_listed(map(str, stored))}" if isinstance(stored, dict) else f"a {type(stored).__name__}"
        raise WeightsError(
            f"{path} holds {held}, not tensors by name: what is needed is the state dict, "
            f"alone or under the key 'state_dict'"
        )
    for name, tensor in tensors:
        _check_dense(name, tensor, path)
    return {name.removeprefix("module.").replace(".module.", "."): v for name, v in tensors}


def need_file(path: str | Path) -> Path:
    """The path, if there is a file."""
    if not (path := Path(path)).is_file():
        raise WeightsError(f"there is no weights file {path}")
    return path


def _check_dense(name: str, tensor: Tensor, path: Path) -> None:
    """Refuse tensors that are not real numbers, or whose numbers are not all in the file, such as repeated ones."""
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise WeightsError(f"{path}: tensor {name} holds {tensor.dtype}: real numbers are expected")
    stored = tensor.untyped_storage().nbytes()
    if stored > path.stat().st_size or tensor.numel() * tensor.element_size() > stored:
        raise WeightsError(f"{path}: tensor {name} of shape {tuple(tensor.shape)} is larger than what the file holds")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as wrong:
        raise WeightsError(f"{path} is not a safetensors file, or damaged ({wrong}): get it again") from wrong


def _read_torch(path: Path) -> Any:
    _check_pickles(path)
    try:
        with torch.serialization.safe_globals(NUMPY_VALUES), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a foreign pickle's protocol, said before it is refused
            return torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as wrong:
        named = re.search(r"GLOBAL (\S+) was not", str(wrong))
        raise _refusal(path, named.group(1) if named else "Python objects") from wrong
    except Exception as wrong:  # of a dozen types, wherever the damage is
        raise WeightsError(
            f"{path} is neither a safetensors file nor one that torch.save wrote, or it is damaged ({wrong})"
        ) from wrong


def _refusal(path: Path, objects: str) -> WeightsError:
    return WeightsError(
        f"{path} is refused: it is a pickle that holds {objects} beside tensors, and opening such a pickle can "
        f"run any program or take any memory. Where the file was made, save the tensors alone, with "
        f"torch.save(model.state_dict(), ...) or safetensors.torch.save_file(model.state_dict(), ...)"
    )


def _check_pickles(path: Path) -> None:
    """Refuse a file that takes far more memory than its size, by reading it without unpacking or computing anything.

    torch.save does not compress its zip archive. Of the functions that torch allows in a pickle, some allocate, copy or
    re-encode as much as they are told to: only those that weights need are let through.
    """
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":  # the format from before torch 1.6: five pickles, then the numbers
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
    except Exception as wrong:  # of several types, wherever the damage is
        raise WeightsError(f"{path} is damaged: its zip archive cannot be read ({wrong})") from wrong
    if not small:
        raise WeightsError(
            f"{path} is refused: it is a compressed archive that unpacks to {unpacked / 1e6:,.0f} MB, and torch.save "
            f"does not compress. If it is genuine, save it again with torch.save"
        )
    for content in pickles:
        _check_pickle(io.BytesIO(content), path)


def _check_pickle(stream: BinaryIO, path: Path) -> None:
    """Read one pickle, without running it."""
    try:
        steps = [(step.name, argument) for step, argument, _ in pickletools.genops(stream)]
    except Exception as wrong:  # of several types, wherever the damage is
        raise WeightsError(f"{path} is damaged, or not a file that torch.save wrote ({wrong})") from wrong
    called = {str(argument).replace(" ", ".") for name, argument in steps if name == "GLOBAL"}
    for name in sorted(called):
        if not re.fullmatch(CALLED, name):
            raise _refusal(path, name)
    if "_codecs.encode" in called:
        for text in {argument for _, argument in steps if isinstance(argument, str)}:
            if _is_binary_codec(text):
                raise _refusal(path, f"the encoding {text!r}")


def _is_binary_codec(name: str) -> bool:
    """Whether it names a codec that is not of text, such as hex: its output can be encoded again, and grows."""
    try:
        codecs.lookup(name)
    except Exception:  # no codec, or no name that one could have
        return False
    try:
        "".encode(name)
    except LookupError:
        return True
    return False


def load_strictly(module: nn.Module, tensors: Mapping[str, Tensor], source: str | Path) -> None:
    """Copy tensors into a module's parameters and buffers; whatever does not fit exactly is named in the error.

    Only `num_batches_tracked` may be missing: files from before 2018 do not have it, and nothing depends on it.
    """
    wanted = module.state_dict()
    counters = {name: v for name, v in wanted.items() if name.endswith("num_batches_tracked")}
    given = {**counters, **tensors}
    complaints = [
        f"{trouble}: {_listed(names)}"
        for trouble, names in (
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
            ("not finite", [n for n in wanted if n in given and not given[n].isfinite().all()]),
        )
        if names
    ]
    if complaints:
        kind = getattr(module, "name", type(module).__name__)
        raise WeightsError(f"{source} does not fit {kind}: tensors {'; '.join(complaints)}")
    module.load_state_dict(given)


def take(tensors: Mapping[str, Tensor], name: str, source: str | Path, dims: int) -> Tensor:
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


ROUNDS = 100
RELATIVE_ERROR = 1e-7
ROWS_IN_DOUBLE = 256  # at a time: 4096 x 32768 doubles never exist at once


def assemble(
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
    """A model in evaluation mode from its arrays; `norm` is how the original's NetVLAD scales to unit length.

    convolutions: the backbone's tensors by their own names. vlad: `assign` (K, D), `centres` (K, D) and, where the
    network has one, `bias` (K,).
    """
    base = make_backbone(backbone, cut=cut)
    load_strictly(base, convolutions, source)
    if vlad["assign"].ndim != 2 or vlad["assign"].shape[1] != base.channels or not len(vlad["assign"]):
        raise WeightsError(
            f"{source}: NetVLAD's weight for the assignment must be (K, {base.channels}), "
            f"found {tuple(vlad['assign'].shape)}"
        )
    layer = NetVLAD(base.channels, clusters=len(vlad["assign"]), bias="bias" in vlad, norm=norm)
    load_strictly(layer, vlad, source)
    if whitening is not None and len(whitening.mean) != layer.dim:
        raise WeightsError(f"{source}: the whitening is for {len(whitening.mean)} dimensions, NetVLAD has {layer.dim}")
    return PlaceModel(preprocess, base, layer, whitening, name=name).eval()


def whitening_of_layer(weight: Tensor, bias: Tensor, source: str | Path) -> Whitening:
    """The whitening `L2(projection (x - mean))` that equals a stored layer `L2(weight x + bias)`.

    weight: (dim, D). Its mean is the shortest m with `weight m = -bias`, by conjugate gradients on `W W^T` after
    scaling W's rows to unit length: a PCA's rows are orthogonal, so that one round is enough.
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
    for _ in range(ROUNDS):
        if left.norm() <= RELATIVE_ERROR * target.norm():
            return Whitening(mean.float(), weight)
        change = spread(direction)
        mean += left.dot(left) / change.dot(change) * change
        before, left = left, target - project(mean)
        direction = left + left.dot(left) / before.dot(before) * direction
    raise WeightsError(f"{source}: the whitening's rows depend on each other, so that no mean gives its bias")
