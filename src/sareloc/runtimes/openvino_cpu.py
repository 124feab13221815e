"""A model on Intel's OpenVINO: its backbone as an ONNX file, compiled for this processor."""

from __future__ import annotations

import torch
from torch import Tensor

from sareloc.errors import need
from sareloc.export import INPUT, features_onnx
from sareloc.models.folding import fold_norms
from sareloc.models.place_model import PlaceModel
from sareloc.models.precision import best_dtype
from sareloc.models.preprocess import check_size
from sareloc.runtimes.activation_ranges import find_ranges
from sareloc.runtimes.int8 import check_fast_int8
from sareloc.runtimes.runtime_model import RuntimeModel


def on_openvino(model: PlaceModel, *, int8: bool = False) -> RuntimeModel:
    """The backbone compiled by OpenVINO, for as many threads as torch would use (extra `openvino`).

    `int8`: convolutions in 8-bit integers, on processors with VNNI. Aggregation and whitening stay with torch, in
    float32.
    """
    openvino = need("openvino", "openvino")
    need("onnx", "openvino,onnx")
    settings = {
        "INFERENCE_PRECISION_HINT": "bf16" if best_dtype("cpu") == torch.bfloat16 else "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    if int8:
        check_fast_int8()
    folded = fold_norms(model)
    core = openvino.Core()
    layers = core.read_model(features_onnx(folded, find_ranges(folded) if int8 else None))
    request = core.compile_model(layers, "CPU", settings).create_infer_request()

    def compute(images: Tensor) -> Tensor:
        check_size(images.shape[2], images.shape[3])
        # the answer lies in OpenVINO's own memory until the next question
        maps = torch.from_numpy(request.infer({INPUT: images.contiguous().numpy()})[0])
        pooled: Tensor = model.aggregation(maps)
        return pooled if model.whitening is None else model.whitening(pooled)

    return RuntimeModel(model, "openvino-int8" if int8 else "openvino", compute)
