"""Checkpoints: a model's spec and training record as JSON, its weights as safetensors. Pickles are never loaded.

A checkpoint is a folder (`spec.json`, `weights.safetensors`, optionally `training.json`), or a single `.safetensors`
file with the same JSON in its metadata. Both contain the format version, the storage format of the weights, and the
fingerprint of the model, which detects damage.
"""

from __future__ import annotations

import glob
import json
import math
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sareloc.errors import ArgumentError, WeightsError
from sareloc.files import writing
from sareloc.models.place_model import (
    RUNTIMES,
    ModelSpec,
    PlaceModel,
    fingerprint,
    fingerprint_of_parts,
    model_from_spec,
    run_on,
)
from sareloc.models.preprocess import Precision, find_device, number_format

Storage = Literal["float32", "float16", "int8"]
ROW_SCALE = "#row-scale"  # marks the scales of an int8 tensor; no parameter's name has a "#"
SMALL = 1 << 15  # tensors up to this size stay float32, such as NetVLAD's 64 centres: little to save, and sensitive


def pack_weights(weights: Mapping[str, Tensor], storage: Storage) -> dict[str, Tensor]:
    """Tensors in their storage format, on the CPU, contiguous; `unpack_weights` restores float32.

    "float16" halves and "int8" quarters the large tensors; an int8 tensor comes with `name#row-scale`, the step of each
    row (output channel), max|row| / 127: the rounding error is at most half a step. Biases, statistics, tensors of up
    to 32,768 numbers, and those with numbers outside float16's range stay float32.
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


def unpack_weights(packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stored tensors as float32, int8 rows multiplied by their scales."""
    weights = {}
    for name, tensor in packed.items():
        if not name.endswith(ROW_SCALE):
            scale = packed.get(name + ROW_SCALE)
            full = tensor.float() if tensor.is_floating_point() or scale is not None else tensor
            weights[name] = full if scale is None else full * _along_rows(scale, full)
    return weights


def _along_rows(scale: Tensor, like: Tensor) -> Tensor:
    """(rows,) reshaped to multiply a tensor row by row."""
    return scale.view(-1, *[1] * (like.ndim - 1))


FORMAT = "sareloc-checkpoint"
VERSION = 1
SPEC, WEIGHTS, TRAINING = "spec.json", "weights.safetensors", "training.json"
SINGLE_FILE, OLD = ".safetensors", ".old"
STORED_FLOATS, STORED_COUNTS = ("F64", "F32", "F16", "BF16", "I8"), ("I64",)  # safetensors' names of types
NUMBERS_AT_A_TIME = 1 << 20  # of a tensor while its fingerprint is computed
MAX_JSON = 1 << 22  # bytes
MAX_HEADER = 1 << 22  # bytes of a safetensors file's header; one tensor takes about 100
NAMES_SHOWN = 6
MAX_QUOTED = 300  # characters
PICKLES = (".pth", ".pt", ".tar", ".ckpt", ".pkl", ".pickle", ".bin")

PACKAGED = {name: Path(__file__).parents[1] / "weights" / f"{name}{SINGLE_FILE}" for name in ("default", "fast")}
"""Packaged models, by name: a larger and a smaller one."""
STANDARD = "fast"
"""The packaged model that is taken where none is named: trained on photos that anybody may use; with verified matches
it finds about as much as the larger one."""


@dataclass(frozen=True)
class CheckpointManifest:
    """The description in a checkpoint."""

    spec: ModelSpec
    storage: str
    fingerprint: str
    training: Any
    """The training record given to `save_checkpoint`; None: there is none."""


def save_checkpoint(
    model: PlaceModel,
    path: str | Path,
    *,
    storage: Storage = "float32",
    training: Mapping[str, Any] | None = None,
) -> None:
    """Write a model to a path; an existing checkpoint is replaced when the new one is complete.

    Args:
        model: the model.
        path: a single file if it ends in .safetensors, else a folder.
        storage: "float32" is lossless, "float16" halves the file, "int8" quarters it (see `pack_weights`).
        training: a training record, any JSON object; default: none.
    """
    path = Path(path)
    packed = pack_weights(model.state_dict(), storage)
    about: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "storage": storage,
        "fingerprint": fingerprint(model.spec(), unpack_weights(packed)),
        "spec": json.loads(model.spec().to_json()),
    }
    record = {} if training is None else {"training": dict(training)}
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            if path.suffix == SINGLE_FILE:
                _refuse_to_replace(path, unless=not path.is_dir())
                _save_tensors(packed, beside, {"sareloc": json.dumps(about | record)})
                os.replace(beside, path)
            else:
                _refuse_to_replace(path, unless=not path.exists() or (path / SPEC).is_file())
                beside.mkdir()
                _save_tensors(packed, beside / WEIGHTS)
                for name, content in {SPEC: about, **({TRAINING: record["training"]} if record else {})}.items():
                    (beside / name).write_text(json.dumps(content, indent=2) + "\n")
                _replace_folder(beside, path)
        finally:
            if beside.is_dir():
                shutil.rmtree(beside)
            beside.unlink(missing_ok=True)


def _save_tensors(tensors: dict[str, Tensor], file: Path, metadata: dict[str, str] | None = None) -> None:
    """Write with the permissions of any new file: safetensors makes files that only their owner can read."""
    file.touch()
    rights = file.stat().st_mode
    save_file(tensors, file, metadata)
    file.chmod(rights)


def _refuse_to_replace(path: Path, *, unless: bool) -> None:
    if not unless:
        raise WeightsError(
            f"{path} exists and is not a checkpoint of this kind; it is not overwritten: choose another path"
        )


def _replace_folder(new: Path, path: Path) -> None:
    """A folder cannot be renamed onto a non-empty one: the old one is renamed first, and deleted at the end."""
    if path.exists():
        os.replace(path, new.with_name(f"{new.name}{OLD}"))
    os.replace(new, path)
    for old in _old_folders(path):
        shutil.rmtree(old)


def _old_folders(path: Path) -> list[Path]:
    """Checkpoints that a replacement at this path has renamed and not yet deleted."""
    return sorted(path.parent.glob(f".{glob.escape(path.name)}.????????{OLD}"))


def _complete(path: Path) -> Path:
    """The path of the checkpoint: if a process was killed while it replaced a folder, that of the old checkpoint."""
    return path if path.exists() else next(iter(_old_folders(path)), path)


def open_checkpoint(path: str | Path) -> PlaceModel:
    """The model that `save_checkpoint` wrote, on the CPU, in evaluation mode.

    Raises WeightsError if it is no checkpoint, a pickle, of a newer format, damaged, or if a tensor is missing,
    unexpected or of a wrong shape.
    """
    path = _complete(Path(path))
    manifest = read_checkpoint_manifest(path)
    file = path / WEIGHTS if path.is_dir() else path
    _refuse_unsafe(file)
    try:
        model = model_from_spec(manifest.spec)
    except ArgumentError as wrong:
        raise WeightsError(
            f"{path} describes a model that this version of sareloc does not support: {_brief(wrong)}"
        ) from wrong
    with open_safetensors(file) as opened:
        _check_tensors(path, opened, model.state_dict())
        wanted = sorted((name, tuple(tensor.shape)) for name, tensor in model.state_dict().items())
        parts = ((name, shape, _parts(opened, name, shape)) for name, shape in wanted)
        if (found := fingerprint_of_parts(model.spec(), parts)) != manifest.fingerprint:
            raise WeightsError(
                f"{path} is damaged: expected a model of fingerprint {manifest.fingerprint[:16]!r}, found {found!r}; "
                f"get the checkpoint again"
            )
        model = model.to_empty(device="cpu")
        model.load_state_dict(unpack_weights({name: opened.get_tensor(name) for name in opened.keys()}))  # noqa: SIM118
    return model


def _parts(opened: Any, name: str, shape: tuple[int, ...]) -> Iterator[Tensor]:
    """A tensor of an opened file, unpacked a few rows at a time: in int8, all of it would need four times the file."""
    if not shape:
        yield opened.get_tensor(name)
        return
    stored = {name: opened.get_slice(name)}
    if stored[name].get_dtype() == "I8":
        stored[name + ROW_SCALE] = opened.get_slice(name + ROW_SCALE)
    rows = max(1, NUMBERS_AT_A_TIME // max(1, math.prod(shape[1:])))
    for start in range(0, shape[0], rows):
        yield unpack_weights({key: part[start : start + rows] for key, part in stored.items()})[name]


def _check_tensors(path: Path, opened: Any, wanted: Mapping[str, Tensor]) -> None:
    """Compare the header of the weights file with the spec, before any tensor is read or allocated."""
    slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
    given = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    scales = {name + ROW_SCALE for name, (kind, _) in given.items() if kind == "I8"}
    for trouble, names in (
        ("lacks", (wanted.keys() | scales) - given.keys()),
        ("contains unexpected", given.keys() - wanted.keys() - scales),
    ):
        if names:
            raise WeightsError(f"{path} {trouble} tensors: {listed(sorted(names))}; it does not fit its own {SPEC}")
    for name, tensor in wanted.items():
        kind, shape = given[name]
        if shape != tensor.shape:
            raise WeightsError(f"{path}: tensor {name} has shape {shape}, expected {tuple(tensor.shape)}")
        if kind not in (STORED_FLOATS if tensor.is_floating_point() else STORED_COUNTS):
            raise WeightsError(f"{path}: tensor {name} has type {kind}, expected {tensor.dtype}")
        if kind == "I8" and given[name + ROW_SCALE] != ("F32", shape[:1]):
            raise WeightsError(f"{path}: tensor {name}{ROW_SCALE} must be F32 with one number for each row of {name}")


def load_model(
    name_or_path: str | Path, device: torch.device | str | None = "cpu", precision: Precision = "auto"
) -> PlaceModel:
    """A packaged model by its name, or a model by the path of its checkpoint or published file.

    A published file is recognized by its content (see `load_published`); `sareloc model convert` makes a checkpoint
    of it, which opens faster.

    Args:
        name_or_path: "default", "fast", or a path.
        device: "cpu", "cuda", "cuda:N", "mps", or one of `RUNTIMES`, which describe faster on a CPU: "openvino",
            "openvino-int8" (see `run_on`); None: the GPU if there is one, else the CPU.
        precision: the number format in which the model computes descriptors: "float32", "bfloat16", or "auto" (see
            `number_format`).

    Raises:
        ArgumentError: if the device is unknown or not available on this machine.
    """
    runtime = str(device) if str(device) in RUNTIMES else None
    found = find_device("cpu" if runtime else device)
    number_format(found, precision)  # an unknown one is refused before anything is read
    model = _open(find_checkpoint(name_or_path))
    model.precision = precision
    return run_on(model, runtime) if runtime else model.to(found)


def _open(path: Path) -> PlaceModel:
    if is_checkpoint(path):
        return open_checkpoint(path)
    from sareloc.models.published import load_published

    return load_published(path)


def is_checkpoint(path: str | Path) -> bool:
    """Whether a path is that of a checkpoint, and not of a file that others published; raises nothing."""
    path = _complete(Path(path))
    if path.is_dir() or not path.is_file():
        return True  # what is wrong with it is said when it is opened
    try:
        with open_safetensors(path) as file:
            return "sareloc" in (file.metadata() or {})
    except (WeightsError, OSError):
        return path.suffix == SINGLE_FILE


def find_checkpoint(name_or_path: str | Path) -> Path:
    """The path of a model's checkpoint. The name of a packaged model takes precedence over a file: write "./fast"."""
    if isinstance(name_or_path, str) and name_or_path in PACKAGED:
        path = PACKAGED[name_or_path]
        if not path.is_file():
            raise WeightsError(
                f"the file {path} of the packaged model {name_or_path!r} is missing: install sareloc again, "
                f"or give the path of a checkpoint"
            )
        return path
    path = _complete(Path(name_or_path))
    if not path.exists():
        raise WeightsError(
            f"no model {str(name_or_path)!r}: there is no checkpoint at that path, and the packaged models are: "
            f"{', '.join(sorted(PACKAGED))}"
        )
    return path


def find_packaged(fingerprint: str) -> str | None:
    """The name of the packaged model with this fingerprint; None: there is none."""
    there = (name for name, path in PACKAGED.items() if path.is_file())
    return next((name for name in there if read_checkpoint_manifest(PACKAGED[name]).fingerprint == fingerprint), None)


def read_checkpoint_manifest(path: str | Path) -> CheckpointManifest:
    """The description in a checkpoint, without reading its weights."""
    path = _complete(Path(path))
    try:
        about = _read_description(path)
        if about.get("format") != FORMAT:
            raise WeightsError(
                f"{path} is not a checkpoint: its format is {_brief(about.get('format'))!r}, not {FORMAT!r}"
            )
        if about["version"] > VERSION:
            raise WeightsError(
                f"{path} has format version {_brief(about['version'])}, this version of sareloc reads up to {VERSION}: "
                f"pip install --upgrade sareloc"
            )
        if not all(isinstance(about[field], str) for field in ("storage", "fingerprint")):
            raise ArgumentError("storage and fingerprint must be text")
        spec = ModelSpec.from_json(json.dumps(about["spec"]))
        return CheckpointManifest(spec, about["storage"], about["fingerprint"], about.get("training"))
    except ArgumentError as wrong:
        raise WeightsError(f"{path}: its description is damaged ({_brief(wrong)}): get the checkpoint again") from wrong
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
        raise WeightsError(
            f"{path}: its description is damaged ({_brief(repr(wrong))}): get the checkpoint again"
        ) from wrong


def _read_description(path: Path) -> Any:
    """The JSON of a checkpoint, with "training"."""
    if path.is_dir():
        if not (path / SPEC).is_file():
            raise WeightsError(f"{path} is not a checkpoint: the folder has no {SPEC}")
        about = _read_json(path / SPEC)
        if (path / TRAINING).is_file():
            about["training"] = _read_json(path / TRAINING)
        return about
    _refuse_unsafe(path)
    with open_safetensors(path, "a checkpoint") as file:
        metadata = file.metadata() or {}
    if "sareloc" not in metadata:
        raise WeightsError(
            f"{path} is not a checkpoint but a safetensors file without sareloc's description: open a published "
            f"network with load_model or load_published, the weights of a backbone with load_backbone_weights"
        )
    return json.loads(metadata["sareloc"])


def _read_json(file: Path) -> Any:
    if (size := file.stat().st_size) > MAX_JSON:
        raise WeightsError(f"{file} has {size / 1e6:,.1f} MB, expected at most {MAX_JSON / 1e6:,.1f}")
    return json.loads(file.read_text())


def _brief(said: object) -> str:
    """The beginning of what an error says: it may quote a file."""
    text = str(said)
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]} ..."


def _refuse_unsafe(file: Path) -> None:
    """Raises WeightsError if the file is missing or a pickle, judged by its content rather than its name."""
    with existing_file(file).open("rb") as opened:
        head = opened.read(9)
    # a safetensors file has its JSON's "{" after eight bytes of length
    pickled = head[8:] != b"{" and (head[:2] == b"PK" or head[:1] == b"\x80" or file.suffix in PICKLES)
    if pickled:
        raise WeightsError(
            f"{file} is a pickle, which can execute code when it is loaded, and is refused: "
            f"read published weights with load_published or load_backbone_weights"
        )


def existing_file(path: str | Path) -> Path:
    """The path. Raises WeightsError if there is no file, or if it is a folder, a pipe or a device; opens nothing."""
    if not (path := Path(path)).exists():
        raise WeightsError(f"there is no weights file {path}")
    if not path.is_file():
        raise WeightsError(f"{path} is {'a folder' if path.is_dir() else 'a pipe, a socket or a device'}, not a file")
    return path


@contextmanager
def open_safetensors(path: Path, what: str = "a safetensors file") -> Iterator[Any]:
    """A safetensors file, opened by `safe_open`. Raises WeightsError if it is damaged, or if its header is too long."""
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
    if MAX_HEADER < header < path.stat().st_size:
        raise WeightsError(
            f"{path}: the header of the safetensors file has {header / 1e6:,.1f} MB, expected at most "
            f"{MAX_HEADER / 1e6:,.1f}"
        )
    try:
        with safe_open(path, framework="pt") as opened:
            yield opened
    except SafetensorError as wrong:
        raise WeightsError(f"{path} is not {what}, or damaged ({wrong}): get it again") from wrong


def listed(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    names = [name[:MAX_QUOTED] for name in names]
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
