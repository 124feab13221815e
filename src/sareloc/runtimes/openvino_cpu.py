"""A model on Intel's OpenVINO: the ONNX file of it, compiled for this processor."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor

from sareloc.errors import need
from sareloc.export import INPUT, export_onnx
from sareloc.models.place_model import PlaceModel
from sareloc.models.precision import best_dtype
from sareloc.models.preprocess import check_size
from sareloc.runtimes.runtime_model import RuntimeModel


def on_openvino(model: PlaceModel) -> RuntimeModel:
    """The whole model compiled by OpenVINO, for as many threads as torch would use (extra `openvino`)."""
    openvino = need("openvino", "openvino")
    need("onnx", "openvino,onnx")
    settings = {
        "INFERENCE_PRECISION_HINT": "bf16" if best_dtype("cpu") == torch.bfloat16 else "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        export_onnx(model, file)
        request = openvino.Core().compile_model(str(file), "CPU", settings).create_infer_request()

    def compute(images: Tensor) -> Tensor:
        check_size(images.shape[2], images.shape[3])
        # the answer lies in OpenVINO's own memory until the next question
        return torch.from_numpy(request.infer({INPUT: images.contiguous().numpy()})[0].copy())

    return RuntimeModel(model, "openvino", compute)
