"""Export a model to ONNX: uint8 images in, unit descriptors out, with dynamic batch and image sizes.

The graph is built here, layer by layer, and not by torch.onnx: with dynamic image sizes torch's exporter takes minutes
for EfficientNet-lite0, whose padding depends on the size, and its integer division of negative numbers differs from
Python's. The layers and their order come from tracing the backbone with torch.fx.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from sareloc import __version__
from sareloc.errors import ArgumentError, need
from sareloc.files import replacing
from sareloc.models.aggregation import CRN, NORM_EPS, Aggregation, Average, CosPlace, GeM, Maximum, NetVLAD
from sareloc.models.backbones import Backbone, SameConv
from sareloc.models.fused import trace_layers
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import MIN_SIDE_PX
from sareloc.models.whitening import Whitening

if TYPE_CHECKING:
    from kornia.feature.xfeat import XFeatModel

INPUT, OUTPUT = "images", "descriptors"
OPSET = 18
IR_VERSION = 10  # the oldest with the operators used, so that older runtimes can open the file
FLOAT = 1  # ONNX's number for float32
MAX_BYTES = 1 << 31  # of a protobuf message
MIN_STEP = 1e-30  # replaces a quantization step of 0
UNIT_EPS = 1e-12  # of torch.nn.functional.normalize
XFEAT_CHANNELS = [64, 65, 1]  # of its descriptors, logits of keypoints, reliability

Ranges = Mapping[str, tuple[float, float]]
"""Activation range (lowest, highest) at the input of each quantized layer, by the layer's node name in the trace."""


def export_onnx(model: PlaceModel, path: str | Path, *, dim: int | None = None) -> None:
    """Write a model, with the normalisation of pixels, as one ONNX file (extra `onnx`).

    Input `images`: uint8 (batch, 3, height, width), RGB, upright, from 64 px each way; the caller resizes images as
    the metadata field `resize` says. Output `descriptors`: float32 (batch, dim), unit rows. `dim`: the number of
    leading coordinates to keep, as in `encode`; default: all. Metadata of the file: `model`, `fingerprint`, `dim`,
    `resize` (see `Preprocess`: [height, width], a longest side, or null), `least_side_px`, `spec` (the model's spec as
    JSON) and `made_by`. Raises ArgumentError if the model cannot be reduced to `dim`, has a layer without an ONNX
    operator, or exceeds the 2 GB of a protobuf message.
    """
    onnx = need("onnx", "onnx")
    wanted = model.dim if dim is None else dim
    if not 1 <= wanted <= model.dim or (model.whitening is None and wanted != model.dim):
        raise ArgumentError(f"{model.name} has {model.dim} dimensions, it cannot be exported with {wanted}")
    weights_bytes = 4 * sum(tensor.numel() for tensor in model.state_dict().values())
    if weights_bytes >= MAX_BYTES:
        raise ArgumentError(
            f"{model.name} has {weights_bytes / 1e9:.1f} GB of weights, the limit of an ONNX file is 2.1 GB"
        )
    graph, kinds = Graph(), onnx.TensorProto
    features = add_backbone(graph, model.backbone, _add_normalisation(graph, model))
    descriptors = add_aggregation(graph, model.aggregation, features)
    if model.whitening is not None:
        descriptors = add_whitening(graph, model.whitening, descriptors, wanted)
    built = graph.build(
        "".join(c if c.isalnum() else "_" for c in model.name),
        onnx.helper.make_tensor_value_info(INPUT, kinds.UINT8, ["batch", 3, "height", "width"]),
        onnx.helper.make_tensor_value_info(OUTPUT, kinds.FLOAT, ["batch", wanted]),
        descriptors,
        _metadata(model, wanted),
    )
    onnx.checker.check_model(built, full_check=True)
    with replacing(path) as beside:
        onnx.save(built, beside)


def features_onnx(model: PlaceModel, ranges: Ranges | None = None) -> bytes:
    """The model up to its feature map, as the bytes of an ONNX file.

    `ranges`: activation ranges of the layers to quantize to 8-bit integers; default: none, all in float32.
    """
    onnx = need("onnx", "onnx")
    graph, kinds = Graph(), onnx.TensorProto
    features = add_backbone(graph, model.backbone, _add_normalisation(graph, model), ranges)
    images_info = onnx.helper.make_tensor_value_info(INPUT, kinds.UINT8, ["batch", 3, "height", "width"])
    shape = ["batch", model.backbone.channels, "h", "w"]
    features_info = onnx.helper.make_tensor_value_info("features", kinds.FLOAT, shape)
    built: bytes = graph.build("backbone", images_info, features_info, features, {}).SerializeToString()
    return built


def xfeat_onnx(network: XFeatModel) -> bytes:
    """XFeat's network, its batch norms folded, as the bytes of an ONNX file.

    Input `images`: float32 (batch, 1, height, width), sides multiples of 32. Output `maps`: (batch, 130, height / 8,
    width / 8), the network's three outputs along the channels.
    """
    onnx = need("onnx", "onnx")
    graph, kinds = Graph(), onnx.TensorProto
    one, zero = graph.floats(torch.ones(1)), graph.floats(torch.zeros(1))
    x = graph.add("InstanceNormalization", INPUT, one, zero, epsilon=network.norm.eps)
    skipped = add_layer(graph, network.skip1, x)
    quarter = add_layer(graph, network.block2, graph.add("Add", add_layer(graph, network.block1, x), skipped))
    eighth = add_layer(graph, network.block3, quarter)
    sixteenth = add_layer(graph, network.block4, eighth)
    deepest = add_layer(graph, network.block5, sixteenth)
    summed = graph.add("Add", graph.add("Add", eighth, _enlarge(graph, sixteenth, 2)), _enlarge(graph, deepest, 4))
    descriptors = add_layer(graph, network.block_fusion, summed)
    reliability = add_layer(graph, network.heatmap_head, descriptors)
    logits = add_layer(graph, network.keypoint_head, graph.add("SpaceToDepth", x, blocksize=8))
    maps = graph.add("Concat", descriptors, logits, reliability, axis=1)
    images_info = onnx.helper.make_tensor_value_info(INPUT, kinds.FLOAT, ["batch", 1, "height", "width"])
    maps_info = onnx.helper.make_tensor_value_info("maps", kinds.FLOAT, ["batch", sum(XFEAT_CHANNELS), "h", "w"])
    built: bytes = graph.build("xfeat", images_info, maps_info, maps, {}).SerializeToString()
    return built


def _enlarge(graph: Graph, x: str, factor: int) -> str:
    scales = graph.floats(torch.tensor([1, 1, factor, factor]))
    # the optional input roi is omitted
    return graph.add("Resize", x, "", scales, mode="linear", coordinate_transformation_mode="half_pixel")


def _metadata(model: PlaceModel, dim: int) -> dict[str, str]:
    return {
        "model": model.name,
        "fingerprint": model.fingerprint(),
        "dim": str(dim),
        "resize": json.dumps(model.preprocess.resize),
        "least_side_px": str(MIN_SIDE_PX),
        "spec": model.spec().to_json(),
        "made_by": f"sareloc {__version__}",
    }


def _add_normalisation(graph: Graph, model: PlaceModel) -> str:
    pixels = model.preprocess
    std = torch.tensor(pixels.std).view(3, 1, 1)
    gain, offset = pixels.scale / 255 / std, -torch.tensor(pixels.mean).view(3, 1, 1) / std
    floats = graph.add("Cast", INPUT, to=FLOAT)
    return graph.add("Add", graph.add("Mul", floats, graph.floats(gain, "gain")), graph.floats(offset, "offset"))


def add_backbone(graph: Graph, backbone: Backbone, images: str, ranges: Ranges | None = None) -> str:
    """Normalised images (B, 3, H, W) -> the feature map; inputs of layers named in `ranges` are quantized to 8 bits.

    A quantized value replaces the original for all later layers: OpenVINO 2026.4 computes wrong results if one layer
    reads it as integers and another as floats.
    """
    root, layers = trace_layers(backbone)
    values: dict[fx.Node, str] = {}
    for node in layers.nodes:
        given = [values[argument] for argument in node.args if isinstance(argument, fx.Node)]
        if ranges is not None and node.name in ranges:
            given = [graph.quantize(given[0], *ranges[node.name])]
            values[node.args[0]] = given[0]
        if node.op == "placeholder":
            values[node] = images
        elif node.op == "call_module":
            values[node] = add_layer(graph, root.get_submodule(node.target), *given)
        elif node.op == "call_function" and node.target is operator.add:
            values[node] = graph.add("Add", *given)
        elif node.op == "output":
            return given[0]
        else:
            raise ArgumentError(f"{backbone.name} cannot be exported: no ONNX operator is known for {node.target}")
    raise AssertionError("a traced graph has an output node")


def add_layer(graph: Graph, layer: nn.Module, x: str) -> str:
    """The operators of one layer. Raises ArgumentError if its type is not in `LAYERS`."""
    if type(layer) not in LAYERS:
        raise ArgumentError(f"the model cannot be exported: no ONNX operator is known for the layer {layer}")
    return LAYERS[type(layer)](graph, layer, x)


def _conv(graph: Graph, layer: Any, x: str) -> str:
    weights = [graph.conv_weight(layer.weight, x)]
    if layer.bias is not None:
        weights.append(graph.floats(layer.bias, "bias"))
    # SameConv's padding depends on the size of its input, which ONNX has an attribute for
    padding: dict[str, Any] = {"pads": [*layer.padding, *layer.padding]}
    if isinstance(layer, SameConv):
        padding = {"auto_pad": "SAME_UPPER"}
    return graph.add(
        "Conv", x, *weights, kernel_shape=layer.kernel_size, strides=layer.stride, group=layer.groups, **padding
    )


def _norm(graph: Graph, layer: Any, x: str) -> str:
    statistics = (layer.weight, layer.bias, layer.running_mean, layer.running_var)
    return graph.add("BatchNormalization", x, *(graph.floats(s, "norm") for s in statistics), epsilon=layer.eps)


def _max_pool(graph: Graph, layer: Any, x: str) -> str:
    size, stride, margin = ([n, n] for n in (layer.kernel_size, layer.stride, layer.padding))
    return graph.add("MaxPool", x, kernel_shape=size, strides=stride, pads=[*margin, *margin])


def _average_pool(graph: Graph, layer: Any, x: str) -> str:
    size, stride = ([n, n] for n in (layer.kernel_size, layer.stride))
    return graph.add("AveragePool", x, kernel_shape=size, strides=stride)


def _sequence(graph: Graph, layers: Any, x: str) -> str:
    for layer in layers:
        x = add_layer(graph, layer, x)
    return x


def _relu6(graph: Graph, layer: nn.Module, x: str) -> str:
    return graph.add("Clip", x, graph.floats(0.0), graph.floats(6.0))


LAYERS: dict[type[nn.Module], Callable[[Graph, nn.Module, str], str]] = {
    nn.Conv2d: _conv,
    SameConv: _conv,
    nn.BatchNorm2d: _norm,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _average_pool,
    nn.Sequential: _sequence,
    nn.Identity: lambda graph, _, x: x,
    nn.ReLU: lambda graph, _, x: graph.add("Relu", x),
    nn.ReLU6: _relu6,
    nn.Sigmoid: lambda graph, _, x: graph.add("Sigmoid", x),
}


def add_aggregation(graph: Graph, aggregation: Aggregation, features: str) -> str:
    """Feature maps (B, C, h, w) -> unit vectors (B, dim). Raises ArgumentError if its type is not in `POOLS`."""
    if type(aggregation) not in POOLS:
        raise ArgumentError(f"the model cannot be exported: no ONNX operators are known for {aggregation.name}")
    return _unit(graph, POOLS[type(aggregation)](graph, aggregation, features))


def add_whitening(graph: Graph, whitening: Whitening, descriptors: str, dim: int) -> str:
    """Unit vectors -> unit vectors of `dim` dimensions."""
    centred = graph.add("Sub", descriptors, graph.floats(whitening.mean, "whitening_mean"))
    projection = graph.floats(whitening.projection[:dim], "whitening_projection")
    return _unit(graph, graph.add("Gemm", centred, projection, transB=1))


def _unit(graph: Graph, x: str) -> str:
    length = graph.add("ReduceL2", x, graph.ints(1), keepdims=1)
    return graph.add("Div", x, graph.add("Max", length, graph.floats(UNIT_EPS)))


def _unit_scale(graph: Graph, layer: NetVLAD, x: str, axis: int) -> str:
    """The factors that scale x to unit length along an axis, which is kept, according to the layer's norm."""
    squares = graph.add("ReduceSumSquare", x, graph.ints(axis), keepdims=1)
    if layer.norm == "clamped":
        bounded = graph.add("Max", squares, graph.floats(NORM_EPS**2))
    else:
        bounded = graph.add("Add", squares, graph.floats(NORM_EPS))
    return graph.add("Reciprocal", graph.add("Sqrt", bounded))


def _average(graph: Graph, layer: Any, features: str) -> str:
    return graph.add("ReduceMean", features, graph.ints(2, 3), keepdims=0)


def _maximum(graph: Graph, layer: Any, features: str) -> str:
    return graph.add("ReduceMax", features, graph.ints(2, 3), keepdims=0)


def _gem(graph: Graph, layer: GeM, features: str) -> str:
    powers = graph.add("Pow", graph.add("Max", features, graph.floats(1e-6)), graph.floats(layer.p))
    return graph.add("Pow", _average(graph, layer, powers), graph.floats(1 / layer.p))


def _cosplace(graph: Graph, layer: CosPlace, features: str) -> str:
    pooled = _gem(graph, layer.gem, _unit(graph, features))
    weight, bias = graph.floats(layer.linear.weight, "linear"), graph.floats(layer.linear.bias, "linear_bias")
    return graph.add("Gemm", pooled, weight, bias, transB=1)


def _netvlad(graph: Graph, layer: NetVLAD, features: str) -> str:
    x = graph.add("Reshape", features, graph.ints(0, layer.channels, -1))  # (B, D, S)
    scale = _unit_scale(graph, layer, x, 1)  # (B, 1, S)
    logits = graph.add("Mul", graph.add("MatMul", graph.floats(layer.assign, "assign"), x), scale)  # (B, K, S)
    if layer.bias is not None:
        logits = graph.add("Add", logits, graph.floats(layer.bias[:, None], "bias"))
    assigned = graph.add("Softmax", logits, axis=1)
    if isinstance(layer, CRN):
        assigned = graph.add("Mul", assigned, _location_weights(graph, layer, features))
    sums = graph.add("MatMul", graph.add("Mul", assigned, scale), graph.add("Transpose", x, perm=[0, 2, 1]))
    total = graph.add("ReduceSum", assigned, graph.ints(2), keepdims=1)
    vlad = graph.add("Sub", sums, graph.add("Mul", total, graph.floats(layer.centres, "centres")))  # (B, K, D)
    return graph.add("Reshape", graph.add("Mul", vlad, _unit_scale(graph, layer, vlad, 2)), graph.ints(0, layer.dim))


def _location_weights(graph: Graph, layer: CRN, features: str) -> str:
    halved = graph.add("AveragePool", features, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    evidence = [graph.add("Relu", add_layer(graph, conv, halved)) for conv in layer.context]
    summed = graph.add("ReduceSum", graph.add("Concat", *evidence, axis=1), graph.ints(1), keepdims=1)
    mask = graph.add("Relu", graph.add("Add", summed, graph.floats(layer.context_bias, "context_bias")))
    size = graph.add("Concat", graph.add("Shape", mask, end=2), graph.add("Shape", features, start=2), axis=0)
    # the optional inputs of Resize before the size, roi and scales, are omitted
    resized = graph.add("Resize", mask, "", "", size, mode="linear", coordinate_transformation_mode="half_pixel")
    return graph.add("Reshape", resized, graph.ints(0, 1, -1))


POOLS: dict[type[Aggregation], Callable[[Graph, Any, str], str]] = {
    NetVLAD: _netvlad,
    CRN: _netvlad,
    GeM: _gem,
    CosPlace: _cosplace,
    Average: _average,
    Maximum: _maximum,
}


class Graph:
    """An ONNX graph under construction: every method adds operators or constants and returns the output's name."""

    def __init__(self) -> None:
        self._onnx = need("onnx", "onnx")
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._quantized: set[str] = set()

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Apply an operator of the standard ONNX operator set."""
        output = f"{op.lower()}_{len(self._nodes)}"
        if op == "DequantizeLinear" or (op == "MaxPool" and inputs[0] in self._quantized):
            self._quantized.add(output)
        self._nodes.append(self._onnx.helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def floats(self, numbers: Tensor | float, name: str = "number") -> str:
        """A float32 constant, of any shape."""
        return self._constant(torch.as_tensor(numbers).detach().cpu().float().contiguous().numpy(), name)

    def ints(self, *numbers: int) -> str:
        """An int64 constant (n,), such as axes or a shape."""
        return self._constant(np.array(numbers, dtype=np.int64), "ints")

    def quantize(self, x: str, lowest: float, highest: float) -> str:
        """x quantized to 8 bits: 255 steps from 0 to `highest`, or 127 in each direction if `lowest` is negative."""
        kind, top = (np.uint8, 255) if lowest >= 0 else (np.int8, 127)
        scale = self.floats(max(-lowest, highest, MIN_STEP) / top)
        zero = self._constant(np.zeros((), dtype=kind), "zero")
        return self.add("DequantizeLinear", self.add("QuantizeLinear", x, scale, zero), scale, zero)

    def conv_weight(self, weight: Tensor, x: str) -> str:
        """A convolution's weight (out, ...); int8 with one scale per output channel if its input `x` is quantized."""
        if x not in self._quantized:
            return self.floats(weight, "weight")
        steps = weight.detach().flatten(1).abs().amax(dim=1).clamp(min=MIN_STEP) / 127
        integers = (weight.detach() / steps.view(-1, *[1] * (weight.ndim - 1))).round().to(torch.int8)
        zeros = self._constant(np.zeros(len(steps), dtype=np.int8), "zeros")
        stored = self._constant(integers.cpu().numpy(), "weight")
        return self.add("DequantizeLinear", stored, self.floats(steps, "steps"), zeros, axis=0)

    def _constant(self, numbers: np.ndarray[Any, Any], name: str) -> str:
        unique = f"{name}_{len(self._weights)}"
        self._weights.append(self._onnx.numpy_helper.from_array(numbers, unique))
        return unique

    def build(self, name: str, input_info: Any, output_info: Any, result: str, metadata: dict[str, str]) -> Any:
        """The finished ModelProto with this input and output; `result` is the value to return as output."""
        helper = self._onnx.helper
        self._nodes.append(helper.make_node("Identity", [result], [output_info.name]))
        model = helper.make_model(
            helper.make_graph(self._nodes, name, [input_info], [output_info], self._weights),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="sareloc",
        )
        helper.set_model_props(model, metadata)
        return model
