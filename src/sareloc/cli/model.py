"""`sareloc model` and `sareloc export`: packaged models, descriptions, published files as checkpoints, ONNX."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sareloc.cli.options import Json, Model

if TYPE_CHECKING:
    from sareloc.models.checkpoint import CheckpointManifest
    from sareloc.models.preprocess import Preprocess

WIDTH = 100
STEP = "  "


def list_models(*, as_json: Json = False) -> None:
    """List the packaged models, one per line: architecture, size and fingerprint."""
    from sareloc.models.checkpoint import PACKAGED, find_checkpoint, read_checkpoint_manifest

    for name in PACKAGED:
        path = find_checkpoint(name)
        manifest = read_checkpoint_manifest(path)
        print(_json(name, path, manifest) if as_json else f"{name:<10}{_shape(path, manifest)}")


def model_info(model: Model = None, *, as_json: Json = False) -> None:
    """Print a model's architecture and training record: photos, options, results, limits, licences."""
    from sareloc.models.checkpoint import STANDARD, find_checkpoint

    model = model or STANDARD
    path = find_checkpoint(model)
    manifest = _manifest(path)
    print(_json(model, path, manifest) if as_json else "\n".join(description(model, path, manifest)))


def _manifest(path: Path) -> CheckpointManifest:
    """The description of a checkpoint; of a published file, which has none, that of its model."""
    from sareloc.models.checkpoint import CheckpointManifest, is_checkpoint, load_model, read_checkpoint_manifest

    if is_checkpoint(path):
        return read_checkpoint_manifest(path)
    published = load_model(path)
    return CheckpointManifest(published.spec(), "published", published.fingerprint(), None)


def convert(
    file: Path,
    out: Path,
    *,
    storage: Literal["float32", "float16", "int8"] = "float32",
    pca: Path | None = None,
    centres: Path | None = None,
) -> None:
    """Write a network that others published as a checkpoint.

    The file is recognized by its tensors: MegaLoc, SALAD, BoQ, MixVPR, CosPlace, EigenPlaces, DINOv2, OpenIBL,
    pytorch-NetVlad, Patch-NetVLAD, deep-visual-geo-localization-benchmark, or NetVLAD's own release. Nothing in it is
    executed.

    Parameters
    ----------
    file
        The published file: .pth, .ckpt, .torch, .safetensors, .mat; or a checkpoint, to store it otherwise.
    out
        The checkpoint to write: one file if it ends in .safetensors, else a folder.
    storage
        Number format of the weights: float16 halves the file, int8 quarters it.
    pca
        OpenIBL's separate file of PCA parameters (.h5).
    centres
        AnyLoc's VLAD centres (c_centers.pt), for a file of DINOv2.
    """
    from sareloc.models.checkpoint import find_checkpoint, load_model, read_checkpoint_manifest, save_checkpoint
    from sareloc.models.published import load_published

    beside = pca is not None or centres is not None
    model = load_published(file, pca=pca, centres=centres) if beside else load_model(find_checkpoint(file))
    save_checkpoint(model, out, storage=storage)
    saved = read_checkpoint_manifest(out)
    print(
        f"{out}: {model.name}, {model.dim} dimensions, {_bytes(out) / 1e6:,.1f} MB, fingerprint {saved.fingerprint}; "
        f"use it with --model {out}"
    )


def description(name: str, path: Path, manifest: CheckpointManifest) -> Iterator[str]:
    """The description of a checkpoint, as lines of text."""
    spec = manifest.spec
    options = ", ".join(f"{option} {value}" for option, value in spec.options.items())
    resize = spec.preprocess.resize
    size = f"{resize[0]} x {resize[1]}" if isinstance(resize, tuple) else resize and f"at most {resize}"
    yield from lines(
        {
            "model": name,
            "file": f"{path}, {_bytes(path) / 1e6:.1f} MB, {manifest.storage}",
            "fingerprint": manifest.fingerprint,
            "photos": f"resized to {size} pixels, {spec.preprocess.interpolation}" if size else "not resized",
            "backbone": f"{spec.backbone}, up to {spec.cut}",
            "aggregation": f"{spec.aggregation} ({options})" if options else spec.aggregation,
            "whitening": "none" if spec.whitening is None else f"to {spec.whitening} dimensions",
        }
    )
    if manifest.training is not None:
        yield ""
        yield from lines(manifest.training)


def lines(value: Any, indent: str = "") -> Iterator[str]:
    """JSON as indented text: one line for each flat value, nested values indented below their name."""
    named = value.items() if isinstance(value, dict) else [("-", item) for item in value]
    for name, item in named:
        if isinstance(item, dict | list) and any(isinstance(part, dict | list | str) for part in _parts(item)):
            yield f"{indent}{name}:"
            yield from lines(item, indent + STEP)
        else:
            start = f"{indent}{name} " if name == "-" else f"{indent}{name}: "
            yield from textwrap.wrap(_flat(item), WIDTH, initial_indent=start, subsequent_indent=indent + STEP) or [
                start
            ]


def _parts(item: Any) -> list[Any]:
    return list(item.values()) if isinstance(item, dict) else list(item)


def _flat(item: Any) -> str:
    if isinstance(item, dict):
        return ", ".join(f"{name} {_flat(part)}" for name, part in item.items())
    if isinstance(item, list):
        return ", ".join(map(_flat, item))
    return f"{item:g}" if isinstance(item, float) else str(item)


def _shape(path: Path, manifest: CheckpointManifest) -> str:
    spec = manifest.spec
    dims = "" if spec.whitening is None else f", {spec.whitening} dimensions"
    return f"{spec.backbone}-{spec.aggregation}{dims}, {_bytes(path) / 1e6:.1f} MB, {manifest.fingerprint}"


def _json(name: str, path: Path, manifest: CheckpointManifest) -> str:
    return json.dumps(
        {"model": name, "file": str(path), "bytes": _bytes(path)} | asdict(manifest) | {"spec": manifest.spec.to_dict()}
    )


def _bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]))


def export_command(model: Model = None, *, onnx: Path, dim: int | None = None) -> None:
    """Write a model as one ONNX file: uint8 RGB images (batch, 3, height, width) in, unit descriptors out.

    Pixel normalisation is part of the graph; resizing is not: the size rule is printed, and stored in the file's
    metadata as "resize" and "interpolation".

    Parameters
    ----------
    onnx
        The file to write.
    dim
        Dimensions of the descriptors (the first ones of the whitening); default: all.
    """
    from sareloc.export import INPUT, OUTPUT, export_onnx
    from sareloc.models.checkpoint import STANDARD, load_model
    from sareloc.models.preprocess import MIN_SIDE_PX

    loaded = load_model(model or STANDARD)
    export_onnx(loaded, onnx, dim=dim)
    print(
        f"{onnx}: {loaded.name} {loaded.fingerprint()}, {onnx.stat().st_size / 1e6:,.1f} MB, "
        f"{INPUT} uint8 (batch, 3, height, width) -> {OUTPUT} float32 (batch, {dim or loaded.dim})"
    )
    print(f"photos: RGB, upright, {size_rule(loaded.preprocess)}; at least {MIN_SIDE_PX} px each way")


def size_rule(preprocess: Preprocess) -> str:
    """The size rule of the model's input, as text."""
    if preprocess.resize is None:
        return "not resized"
    if isinstance(preprocess.resize, int):
        return (
            f"resized ({preprocess.interpolation}, antialiased) so that the longer side is {preprocess.resize} px, "
            f"aspect kept; smaller photos stay as they are"
        )
    height, width = preprocess.resize
    turned = "" if height == width else f", portrait photos to {width} x {height}"
    return f"resized ({preprocess.interpolation}, antialiased) to {height} x {width} px (height x width){turned}"
