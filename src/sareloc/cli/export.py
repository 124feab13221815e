"""`sareloc export`: a model for other runtimes."""

from __future__ import annotations

from pathlib import Path

from sareloc.checkpoint import load_model
from sareloc.export import INPUT, OUTPUT, export_onnx
from sareloc.models.preprocess import MIN_SIDE_PX, Preprocess


def export_command(model: str = "default", *, onnx: Path, dim: int | None = None) -> None:
    """Write a model as one ONNX file: uint8 RGB images (batch, 3, height, width) in, unit descriptors out.

    The normalisation of pixels is part of it; resizing photos is not: the size is printed, and stored in the file's
    metadata as "resize".

    Parameters
    ----------
    model
        A model that comes with sareloc (default, fast), or a checkpoint.
    onnx
        The file to write.
    dim
        Give only the first so many dimensions of the descriptors.
    """
    loaded = load_model(model)
    export_onnx(loaded, onnx, dim=dim)
    print(
        f"{onnx}: {loaded.name} {loaded.fingerprint()}, {onnx.stat().st_size / 1e6:,.1f} MB, "
        f"{INPUT} uint8 (batch, 3, height, width) -> {OUTPUT} float32 (batch, {dim or loaded.dim})"
    )
    print(f"photos: RGB, upright, {size_rule(loaded.preprocess)}; at least {MIN_SIDE_PX} px each way")


def size_rule(preprocess: Preprocess) -> str:
    """The size that photos must be resized to before they are given to the model, for people to read."""
    if preprocess.resize is None:
        return "not resized"
    if isinstance(preprocess.resize, int):
        return (
            f"resized (bilinear, antialiased) so that the longer side is {preprocess.resize} px, aspect kept; "
            f"smaller photos stay as they are"
        )
    height, width = preprocess.resize
    turned = "" if height == width else f", portrait photos to {width} x {height}"
    return f"resized (bilinear, antialiased) to {height} x {width} px (height x width){turned}"
