"""`sareloc export`: a model for other runtimes."""

from __future__ import annotations

from pathlib import Path

from sareloc.checkpoint import load_model
from sareloc.export import INPUT, OUTPUT, export_onnx


def export_command(model: str = "default", *, onnx: Path, dim: int | None = None) -> None:
    """Write a model as one ONNX file: uint8 RGB images (batch, 3, height, width) in, unit descriptors out.

    The normalisation of pixels is part of it; bringing photos to the model's size is not: the rule is in the file's
    metadata, as "resize".

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
