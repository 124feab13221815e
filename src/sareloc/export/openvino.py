"""A model on Intel's OpenVINO: its backbone as an ONNX file, compiled for this processor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from sareloc.errors import need
from sareloc.export import INPUT, Ranges, features_onnx
from sareloc.export.int8 import check_fast_int8
from sareloc.export.runtime import RuntimeModel
from sareloc.models.fused import fold_norms, trace_layers
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import autocast, best_dtype, check_size

# How large the numbers between a backbone's layers become, without any photo: on drawn images like streets.

HEIGHT, WIDTH, IMAGES, LEAVES = 240, 320, 4, 1000
HEADROOM = 1.5  # photos hold stronger activations than the drawn images do


def find_ranges(model: PlaceModel) -> Ranges:
    """The range of what each convolution is given; before a pooling, of what the pooling is given, as it is the same.

    Not of what the first one is given: to round normalised pixels would cost more than all the rest. `model`: on the
    CPU, with its batch norms folded.
    """
    root, graph = trace_layers(model.backbone)
    layers = {node: root.get_submodule(node.target) for node in graph.nodes if node.op == "call_module"}
    pools = {node for node, layer in layers.items() if isinstance(layer, nn.MaxPool2d)}
    convolutions = {node for node, layer in layers.items() if isinstance(layer, nn.Conv2d)}
    wanted = {node for node in pools | convolutions if node.args[0] not in pools and node.args[0].op != "placeholder"}
    seen: dict[str, tuple[float, float]] = {}

    class Watch(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            if n in wanted:
                x = self.env[n.args[0]]  # type: ignore[index]
                top = 6.0 if isinstance(layers.get(n.args[0]), nn.ReLU6) else HEADROOM * float(x.max())
                seen[n.name] = (min(0.0, HEADROOM * float(x.min())), max(0.0, top))
            return super().run_node(n)

    with torch.no_grad(), autocast("cpu"):
        Watch(root, graph=graph).run(model.preprocess.normalise(draw_leaves()))
    return seen


def draw_leaves() -> Tensor:
    """Images (4, 3, 240, 320) of boxes of all sizes that hide each other, known as dead leaves.

    Sizes fall as a power law, as those of things in photos do; edges are smooth.
    """
    rng = np.random.default_rng(0)
    images = np.full((IMAGES, 2 * HEIGHT, 2 * WIDTH, 3), 127.0, dtype=np.float32)
    for image in images:
        sizes = np.minimum(8 / rng.uniform(0.01, 1, (LEAVES, 2)), image.shape[:2]).astype(int)
        corners = rng.integers((-100, -100), image.shape[:2], (LEAVES, 2))
        colours = rng.normal(127, 50, (LEAVES, 1)) + rng.normal(0, 15, (LEAVES, 3))
        for first, last, colour in zip(corners, corners + sizes, colours, strict=True):
            rows, columns = (slice(max(0, a), max(0, b)) for a, b in zip(first, last, strict=True))
            image[rows, columns] = colour
    halved = images.reshape(IMAGES, HEIGHT, 2, WIDTH, 2, 3).mean(axis=(2, 4))
    return torch.from_numpy(halved.clip(0, 255).astype(np.uint8)).permute(0, 3, 1, 2)


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
