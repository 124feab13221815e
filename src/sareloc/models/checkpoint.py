"""A model on disk: its spec as JSON, its weights as safetensors, how it was trained as JSON. Never pickle.

A checkpoint is a folder (`spec.json`, `weights.safetensors`, and `training.json` where there is something to tell), or
a single `.safetensors` file that carries the same JSON in its metadata. Both give their format version, how the weights
are stored, and the fingerprint of the model they open to, by which damage is noticed.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from sareloc.devices import find_device
from sareloc.errors import ArgumentError, WeightsError
from sareloc.files import writing
from sareloc.models.place_model import ModelSpec, PlaceModel, fingerprint, model_of_spec
from sareloc.models.runtime import RUNTIMES, run_on

# Weights as they are stored: float32, float16, or int8 with one scale for each row; and back.

Storage = Literal["float32", "float16", "int8"]
ROW_SCALE = "#row-scale"  # marks the scales of an int8 tensor; no parameter's name has a "#"
SMALL = 1 << 15  # up to so many numbers stay float32, such as NetVLAD's 64 centres: little to save, much hangs on them


def pack(weights: Mapping[str, Tensor], storage: Storage) -> dict[str, Tensor]:
    """Tensors as they are stored, on the CPU, contiguous; `unpack` makes float32 of them again.

    "float16" halves and "int8" quarters the large tensors; an int8 tensor comes with `name#row-scale`, the step of each
    row (output channel), max|row| / 127: no number is farther off than half a step. Biases, statistics, tensors of up
    to 32,768 numbers, and those with numbers beyond float16's range stay float32.
    """
    if storage not in get_args(Storage):
        raise ArgumentError(f"unknown storage {storage!r}: known are {', '.join(get_args(Storage))}")
    packed = {}
    for name, tensor in weights.items():
        full = tensor.detach().cpu().contiguous()
        if full.is_floating_point():
            full = full.float()
        packed[name] = full
        if storage == "float32" or not full.is_floating_point() or full.ndim < 2 or full.numel() <= SMALL:
            continue
        if storage == "int8":
            scale = full.flatten(1).abs().amax(dim=1) / 127
            steps = full / _along_rows(scale.clamp(min=torch.finfo(torch.float32).tiny), full)
            packed[name] = steps.round().clamp(-127, 127).to(torch.int8)
            packed[name + ROW_SCALE] = scale
        elif (half := full.half()).isfinite().all():
            packed[name] = half
    return packed


def unpack(packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stored tensors as a model wants them: what was scaled is multiplied out, floats become float32."""
    weights = {}
    for name, tensor in packed.items():
        if not name.endswith(ROW_SCALE):
            scale = packed.get(name + ROW_SCALE)
            full = tensor.float() if tensor.is_floating_point() or scale is not None else tensor
            weights[name] = full if scale is None else full * _along_rows(scale, full)
    return weights


def _along_rows(scale: Tensor, like: Tensor) -> Tensor:
    """(rows,) shaped to multiply a tensor row by row."""
    return scale.view(-1, *[1] * (like.ndim - 1))


FORMAT = "sareloc-checkpoint"
VERSION = 1
SPEC, WEIGHTS, TRAINING = "spec.json", "weights.safetensors", "training.json"
SINGLE_FILE, OLD = ".safetensors", ".old"
STORED_FLOATS, STORED_COUNTS = ("F64", "F32", "F16", "BF16", "I8"), ("I64",)  # safetensors' names of types
PICKLES = (".pth", ".pt", ".tar", ".ckpt", ".pkl", ".pickle", ".bin")

PACKAGED = {name: Path(__file__).parents[1] / "weights" / f"{name}{SINGLE_FILE}" for name in ("default", "fast")}
"""Models that come with the package, by name: the one for most, and a small one for slow machines."""


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says about itself."""

    spec: ModelSpec
    storage: str
    fingerprint: str
    training: Any
    """What `save_checkpoint` was told about the training; None: nothing."""


def save_checkpoint(
    model: PlaceModel,
    path: str | Path,
    *,
    storage: Storage = "float32",
    training: Mapping[str, Any] | None = None,
) -> None:
    """Write a model: a path that ends in .safetensors becomes a single file, any other a folder.

    storage: "float32" keeps every bit, "float16" halves the file, "int8" quarters it (see `pack`). training: anything
    that JSON can hold. A checkpoint that stands there already is replaced once the new one is complete.
    """
    path = Path(path)
    packed = pack(model.state_dict(), storage)
    about: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "storage": storage,
        "fingerprint": fingerprint(model.spec(), unpack(packed)),
        "spec": json.loads(model.spec().to_json()),
    }
    told = {} if training is None else {"training": dict(training)}
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            if path.suffix == SINGLE_FILE:
                _refuse_to_replace(path, unless=not path.is_dir())
                _save_tensors(packed, beside, {"sareloc": json.dumps(about | told)})
                os.replace(beside, path)
            else:
                _refuse_to_replace(path, unless=not path.exists() or (path / SPEC).is_file())
                beside.mkdir()
                _save_tensors(packed, beside / WEIGHTS)
                for name, content in {SPEC: about, **({TRAINING: told["training"]} if told else {})}.items():
                    (beside / name).write_text(json.dumps(content, indent=2) + "\n")
                _replace_folder(beside, path)
        finally:
            if beside.is_dir():
                shutil.rmtree(beside)
            beside.unlink(missing_ok=True)


def _save_tensors(tensors: dict[str, Tensor], file: Path, metadata: dict[str, str] | None = None) -> None:
    """With the rights of any new file: safetensors alone makes files that nobody but their owner can read."""
    file.touch()
    rights = file.stat().st_mode
    save_file(tensors, file, metadata)
    file.chmod(rights)


def _refuse_to_replace(path: Path, *, unless: bool) -> None:
    if not unless:
        raise WeightsError(
            f"{path} exists and is not a checkpoint of this kind, it stays as it is: choose another path"
        )


def _replace_folder(new: Path, path: Path) -> None:
    """A folder cannot be renamed onto a full one: the old one is renamed first, and deleted at the end."""
    if path.exists():
        os.replace(path, new.with_name(f"{new.name}{OLD}"))
    os.replace(new, path)
    for old in _old_folders(path):
        shutil.rmtree(old)


def _old_folders(path: Path) -> list[Path]:
    """Checkpoints that were renamed to make place for another at this path and not deleted yet."""
    return sorted(path.parent.glob(f".{glob.escape(path.name)}.????????{OLD}"))


def _complete(path: Path) -> Path:
    """The path of the checkpoint: if a process was killed while it replaced a folder, that of the old checkpoint."""
    return path if path.exists() else next(iter(_old_folders(path)), path)


def open_checkpoint(path: str | Path) -> PlaceModel:
    """The model that `save_checkpoint` wrote, on the CPU, in evaluation mode.

    Whatever cannot be used is a WeightsError that says why: no checkpoint, a pickle, a newer format, a missing,
    unexpected or misshapen tensor, damage.
    """
    path = _complete(Path(path))
    manifest = read_manifest(path)
    file = path / WEIGHTS if path.is_dir() else path
    _refuse_unsafe(file)
    try:
        model = model_of_spec(manifest.spec)
        _check_tensors(path, file, model.state_dict())
        weights = unpack(load_file(file))
    except SafetensorError as wrong:
        raise WeightsError(f"{file} is damaged or cut short ({wrong}): get the checkpoint again") from wrong
    except ArgumentError as wrong:
        raise WeightsError(f"{path} describes a model that this sareloc cannot assemble: {wrong}") from wrong
    model = model.to_empty(device="cpu")
    model.load_state_dict(weights)
    if (found := model.fingerprint()) != manifest.fingerprint:
        raise WeightsError(
            f"{path} is damaged: it should open to model {manifest.fingerprint}, it opens to {found}; "
            f"get the checkpoint again"
        )
    return model


def _check_tensors(path: Path, file: Path, wanted: Mapping[str, Tensor]) -> None:
    """Compare the header of the weights file with what the spec asks for, before any tensor is read or allocated."""
    with safe_open(file, framework="pt") as opened:
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
        given = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    scales = {name + ROW_SCALE for name, (kind, _) in given.items() if kind == "I8"}
    for trouble, names in (
        ("misses", (wanted.keys() | scales) - given.keys()),
        ("holds unexpected", given.keys() - wanted.keys() - scales),
    ):
        if names:
            raise WeightsError(f"{path} {trouble} tensors: {', '.join(sorted(names))}; it does not fit its own {SPEC}")
    for name, tensor in wanted.items():
        kind, shape = given[name]
        if shape != tensor.shape:
            raise WeightsError(f"{path}: tensor {name} has shape {shape}, the model wants {tuple(tensor.shape)}")
        if kind not in (STORED_FLOATS if tensor.is_floating_point() else STORED_COUNTS):
            raise WeightsError(f"{path}: tensor {name} has type {kind}, the model wants {tensor.dtype}")
        if kind == "I8" and given[name + ROW_SCALE] != ("F32", shape[:1]):
            raise WeightsError(f"{path}: tensor {name}{ROW_SCALE} must be F32 with one number for each row of {name}")


def load_model(name_or_path: str | Path, device: torch.device | str | None = "cpu") -> PlaceModel:
    """A model by the name of one that comes with the package ("default", "fast"), or by the path of its checkpoint.

    device: "cpu", "cuda", "cuda:N", "mps", or one of `RUNTIMES`, which describe faster on a CPU: "openvino",
    "openvino-int8" (see `run_on`); None: the GPU if there is one, else the CPU. Raises ArgumentError if it is unknown
    or not on this machine.
    """
    if str(device) in RUNTIMES:
        return run_on(open_checkpoint(find_checkpoint(name_or_path)), str(device))
    found = find_device(device)
    return open_checkpoint(find_checkpoint(name_or_path)).to(found)


def find_checkpoint(name_or_path: str | Path) -> Path:
    """Where the checkpoint of a model is. A name is a packaged model's whatever files are about: "./fast" is a file."""
    if isinstance(name_or_path, str) and name_or_path in PACKAGED:
        path = PACKAGED[name_or_path]
        if not path.is_file():
            raise WeightsError(
                f"the model {name_or_path!r} comes with sareloc, but its file {path} is missing: install sareloc "
                f"again, or give the path of a checkpoint"
            )
        return path
    path = _complete(Path(name_or_path))
    if not path.exists():
        raise WeightsError(
            f"no model {str(name_or_path)!r}: there is no checkpoint at that path, and the names of models "
            f"that come with sareloc are: {', '.join(sorted(PACKAGED))}"
        )
    return path


def find_packaged(fingerprint: str) -> str | None:
    """The name of the packaged model of this fingerprint; None: it does not come with this sareloc."""
    there = (name for name, path in PACKAGED.items() if path.is_file())
    return next((name for name in there if read_manifest(PACKAGED[name]).fingerprint == fingerprint), None)


def read_manifest(path: str | Path) -> Manifest:
    """What a checkpoint says about itself, without reading its weights."""
    path = _complete(Path(path))
    try:
        about = _read_description(path)
        if about.get("format") != FORMAT:
            raise WeightsError(f"{path} is not a checkpoint: its format is {about.get('format')!r}, not {FORMAT!r}")
        if about["version"] > VERSION:
            raise WeightsError(
                f"{path} has format version {about['version']}, this sareloc reads up to {VERSION}: "
                f"pip install --upgrade sareloc"
            )
        spec = ModelSpec.from_json(json.dumps(about["spec"]))
        return Manifest(spec, about["storage"], about["fingerprint"], about.get("training"))
    except ArgumentError as wrong:
        raise WeightsError(f"{path}: its description is damaged ({wrong}): get the checkpoint again") from wrong
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
        raise WeightsError(f"{path}: its description is damaged ({wrong!r}): get the checkpoint again") from wrong


def _read_description(path: Path) -> Any:
    """The JSON of a checkpoint, "training" included."""
    if path.is_dir():
        if not (path / SPEC).is_file():
            raise WeightsError(f"{path} is not a checkpoint: the folder has no {SPEC}")
        about = json.loads((path / SPEC).read_text())
        if (path / TRAINING).is_file():
            about["training"] = json.loads((path / TRAINING).read_text())
        return about
    _refuse_unsafe(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except SafetensorError as wrong:
        raise WeightsError(f"{path} is not a checkpoint, or damaged ({wrong})") from wrong
    if "sareloc" not in metadata:
        raise WeightsError(
            f"{path} is not a checkpoint but a safetensors file without sareloc's description: "
            f"weights alone go into a backbone by load_backbone_weights"
        )
    return json.loads(metadata["sareloc"])


def _refuse_unsafe(file: Path) -> None:
    """Missing files and pickles, by content rather than by name where the two disagree."""
    if not file.is_file():
        raise WeightsError(f"no file {file}")
    with file.open("rb") as opened:
        head = opened.read(9)
    # a safetensors file has its JSON's "{" after eight bytes of length
    pickled = head[8:] != b"{" and (head[:2] == b"PK" or head[:1] == b"\x80" or file.suffix in PICKLES)
    if pickled:
        raise WeightsError(
            f"{file} is a pickle, which can run any program when it is opened, and is refused: "
            f"published weights are read by load_published and load_backbone_weights"
        )
