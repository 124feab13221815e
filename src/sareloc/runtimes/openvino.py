"""A model on OpenVINO: its backbone as an ONNX graph, compiled for this processor, in bfloat16 or in 8-bit integers.

Quantization needs no calibration photos: activation ranges are measured on synthetic dead-leaves images.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from sareloc.errors import ArgumentError, need
from sareloc.models.fused import fold_norms, trace_layers
from sareloc.models.place_model import PlaceModel, RuntimeModel
from sareloc.models.preprocess import autocast, check_size, cpu_has_any, isa_limit, number_format

if TYPE_CHECKING:
    from kornia.feature.xfeat import XFeatModel

    from sareloc.export.layers import Ranges

HEIGHT, WIDTH, IMAGES, LEAVES = 240, 320, 4, 1000
FAST_INT8 = ("avx512_vnni", "avx_vnni", "amx_int8")  # without these, products of bytes saturate at 16 bits
CAPABILITIES = "OPTIMIZATION_CAPABILITIES"  # OpenVINO's name for the number formats that the processor multiplies
SIZES = 4  # image sizes for which a transformer stays compiled
MAX_ROUNDING = 0.1  # of the output's standard deviation; 0.02 to 0.07 without outliers
HEADROOM = 1.5  # photos hold stronger activations than the drawn images do


def on_openvino(model: PlaceModel) -> RuntimeModel:
    """A model whose backbone is compiled by OpenVINO for as many threads as torch uses (extra `openvino`).

    Aggregation and whitening stay in torch, in float32. A transformer is compiled for each image size when an image
    of it comes; the last `SIZES` are kept.
    """
    return _compile(model, int8=False)


def on_openvino_int8(model: PlaceModel) -> RuntimeModel:
    """As `on_openvino`, with convolutions and a transformer's linear layers in 8-bit integers.

    Raises ArgumentError if the processor has no VNNI.
    """
    if not has_fast_int8():
        raise ArgumentError("this processor does not multiply 8-bit integers (VNNI): use the device cpu or openvino")
    return _compile(model, int8=True)


def has_fast_int8() -> bool:
    """Whether this processor has instructions for products of 8-bit integers."""
    return cpu_has_any(FAST_INT8)


def _openvino() -> Any:
    """The module. Raises ArgumentError under an `isa_limit`: OpenVINO ignores it elsewhere and then crashes."""
    openvino = need("openvino", "openvino")
    need("onnx", "openvino,onnx")
    if (limit := isa_limit()) is not None:
        raise ArgumentError(
            f"OpenVINO crashes or computes wrong numbers under ONEDNN_MAX_CPU_ISA={limit}: unset it, or use device cpu"
        )
    return openvino


def _compile(model: PlaceModel, *, int8: bool) -> RuntimeModel:
    from sareloc.export.onnx import INPUT, features_onnx

    core = _openvino().Core()
    wanted = number_format("cpu", model.precision) == torch.bfloat16
    settings = _settings("bf16" if wanted and "BF16" in core.get_property("CPU", CAPABILITIES) else "f32")
    folded = fold_norms(model)
    ranges = activation_ranges(folded) if int8 else None

    @lru_cache(maxsize=SIZES)
    def request(size: tuple[int, int] | None) -> Any:
        layers = core.read_model(features_onnx(folded, ranges, size))
        return core.compile_model(layers, "CPU", settings).create_infer_request()

    if not model.backbone.has_token:
        request(None)  # for all sizes; a transformer has one for each size, when the size is known

    def compute(images: Tensor) -> Tensor:
        check_size(images.shape[2], images.shape[3])
        # the result is in OpenVINO's own memory and valid until the next request
        size = (images.shape[2], images.shape[3]) if model.backbone.has_token else None
        output = torch.from_numpy(request(size).infer({INPUT: images.contiguous().numpy()})[0])
        pooled = model.aggregate(output)
        return pooled if model.whitening is None else model.whitening(pooled)

    return RuntimeModel(model, "openvino-int8" if int8 else "openvino", compute)


def xfeat_on_openvino(network: XFeatModel) -> Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]:
    """XFeat's network, its batch norms folded, compiled for as many threads as torch uses (extra `openvino`).

    In float32: rounding would move keypoints. Takes grey images (B, 1, H, W), sides multiples of 32, and returns the
    network's three outputs. Safe from several threads.
    """
    from sareloc.export.onnx import INPUT, XFEAT_CHANNELS, xfeat_onnx

    core = _openvino().Core()
    compiled = core.compile_model(core.read_model(xfeat_onnx(network)), "CPU", _settings("f32"))
    request, lock = compiled.create_infer_request(), Lock()

    def compute(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with lock:  # each call uses all threads, so that calls side by side would not be faster
            maps = torch.from_numpy(request.infer({INPUT: images.contiguous().numpy()})[0])
        descriptors, logits, reliability = torch.split(maps, XFEAT_CHANNELS, dim=1)
        return descriptors, logits, reliability

    return compute


def _settings(precision: str) -> dict[str, str | int]:
    return {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }


def activation_ranges(model: PlaceModel) -> Ranges:
    """The activation range at the input of each layer to quantize; `model`: on the CPU, with its batch norms folded.

    Of a convolutional network the convolutions, or the max poolings in front of them, by node name; the first is left
    out: rounding its normalised pixels costs more accuracy than all other layers. Of a transformer see `linear_ranges`.
    """
    if model.backbone.has_token:
        return linear_ranges(model)
    root, graph = trace_layers(model.backbone)
    layers = {node: root.get_submodule(node.target) for node in graph.nodes if node.op == "call_module"}
    pools = {node for node, layer in layers.items() if isinstance(layer, nn.MaxPool2d)}
    convolutions = {node for node, layer in layers.items() if isinstance(layer, nn.Conv2d)}
    wanted = {node for node in pools | convolutions if node.args[0] not in pools and node.args[0].op != "placeholder"}
    seen: dict[str, tuple[float, float]] = {}

    class RangeRecorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            if n in wanted:
                x = self.env[n.args[0]]  # type: ignore[index]
                top = 6.0 if isinstance(layers.get(n.args[0]), nn.ReLU6) else HEADROOM * float(x.max())
                seen[n.name] = (min(0.0, HEADROOM * float(x.min())), max(0.0, top))
            return super().run_node(n)

    with torch.no_grad(), autocast("cpu", number_format("cpu", model.precision)):
        RangeRecorder(root, graph=graph).run(model.preprocess.normalise(dead_leaves_images()))
    return seen


def linear_ranges(model: PlaceModel) -> Ranges:
    """The activation range at the input of each linear layer of a transformer's blocks, by the layer's name.

    A layer is left out, and so stays in floats, if a few large activations take most of the range: if rounding its
    input changes its output by more than `MAX_ROUNDING` of the output's standard deviation.
    """
    from sareloc.export.layers import quantization_step

    seen: dict[str, tuple[float, float]] = {}

    def record(name: str, layer: nn.Linear, x: Tensor) -> None:
        lowest, highest = min(0.0, HEADROOM * float(x.min())), max(0.0, HEADROOM * float(x.max()))
        step = quantization_step(lowest, highest)
        changed = F.linear((x / step).round() * step - x, layer.weight)
        output = F.linear(x, layer.weight)
        if changed.norm() <= MAX_ROUNDING * (output - output.mean(dim=(0, 1))).norm():
            seen[name] = (lowest, highest)

    hooks = [
        layer.register_forward_pre_hook(lambda layer, inputs, name=name: record(name, layer, inputs[0].float()))
        for name, layer in model.backbone.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    try:
        with torch.no_grad(), autocast("cpu", number_format("cpu", model.precision)):
            model.backbone(model.preprocess.normalise(dead_leaves_images()))
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def dead_leaves_images() -> Tensor:
    """Dead-leaves images (4, 3, 240, 320): overlapping boxes whose sizes follow a power law, as in natural images."""
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
