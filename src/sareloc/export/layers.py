"""ONNX graphs under construction, the operators of single layers, and DINOv2.

DINOv2 is for images of one size: the position embeddings of that size are constants. The factors of LayerScale and of
attention are folded into the linear layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sareloc.errors import ArgumentError, need
from sareloc.models.backbones import SameConv
from sareloc.models.dinov2 import PATCH_PX, DINOv2, patches

OPSET = 18
FLOAT, UINT8 = 1, 2  # ONNX's numbers of types
IR_VERSION = 10  # the oldest with the operators used, so that older runtimes can open the file
MIN_STEP = 1e-30  # replaces a quantization step of 0
UNIT_EPS = 1e-12  # of torch.nn.functional.normalize

Ranges = Mapping[str, tuple[float, float]]
"""Activation range (lowest, highest) at the input of each quantized layer: of a convolutional network by the layer's
node name in the trace, of a transformer by the layer's own name."""
End = tuple[str, int, Sequence[int | str]]
"""Name, type and shape of an input or output; a text in the shape is the name of a dimension of any size."""


def quantization_step(lowest: float, highest: float) -> float:
    """The step of 8-bit numbers: 255 from 0 to `highest`, or 127 in each direction if `lowest` is negative."""
    return max(-lowest, highest, MIN_STEP) / (127 if lowest < 0 else 255)


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
        """x quantized to 8 bits, see `quantization_step`."""
        scale = self.floats(quantization_step(lowest, highest))
        zero = self._constant(np.zeros((), dtype=np.int8 if lowest < 0 else np.uint8), "zero")
        return self.add("DequantizeLinear", self.add("QuantizeLinear", x, scale, zero), scale, zero)

    def weight(self, weight: Tensor, x: str, axis: int = 0) -> str:
        """A layer's weight, output channels along `axis`; int8 with a scale for each if its input `x` is quantized."""
        if x not in self._quantized:
            return self.floats(weight, "weight")
        others = [i for i in range(weight.ndim) if i != axis]
        steps = weight.detach().abs().amax(dim=others, keepdim=True).clamp(min=MIN_STEP) / 127
        integers = (weight.detach() / steps).round().to(torch.int8).contiguous()
        zeros = self._constant(np.zeros(steps.numel(), dtype=np.int8), "zeros")
        stored = self._constant(integers.cpu().numpy(), "weight")
        return self.add("DequantizeLinear", stored, self.floats(steps.flatten(), "steps"), zeros, axis=axis)

    def linear(self, x: str, weight: Tensor, bias: Tensor | None) -> str:
        """x W^T + b along the last dimension, of a weight (out, in); in integers if `x` is quantized."""
        product = self.add("MatMul", x, self.weight(weight.T, x, axis=1))
        return product if bias is None else self.add("Add", product, self.floats(bias, "bias"))

    def _constant(self, numbers: np.ndarray[Any, Any], name: str) -> str:
        unique = f"{name}_{len(self._weights)}"
        self._weights.append(self._onnx.numpy_helper.from_array(numbers, unique))
        return unique

    def build(self, name: str, given: End, output: End, result: str, **metadata: str) -> Any:
        """The finished ModelProto with this input and output; `result` is the value to return as output."""
        helper = self._onnx.helper
        self._nodes.append(helper.make_node("Identity", [result], [output[0]]))
        ends = [[helper.make_tensor_value_info(*end)] for end in (given, output)]
        model = helper.make_model(
            helper.make_graph(self._nodes, name, *ends, self._weights),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="sareloc",
        )
        helper.set_model_props(model, metadata)
        return model


def add_layer(graph: Graph, layer: nn.Module, x: str) -> str:
    """The operators of one layer. Raises ArgumentError if its type is not in `LAYERS`."""
    if type(layer) not in LAYERS:
        raise ArgumentError(f"the model cannot be exported: no ONNX operator is known for the layer {layer}")
    return LAYERS[type(layer)](graph, layer, x)


def _conv(graph: Graph, layer: Any, x: str) -> str:
    weights = [graph.weight(layer.weight, x)]
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


def _layer_norm(graph: Graph, layer: Any, x: str) -> str:
    weight, bias = graph.floats(layer.weight, "norm"), graph.floats(layer.bias, "norm_bias")
    return graph.add("LayerNormalization", x, weight, bias, axis=-1, epsilon=layer.eps)


LAYERS: dict[type[nn.Module], Callable[[Graph, Any, str], str]] = {
    nn.Conv2d: _conv,
    SameConv: _conv,
    nn.BatchNorm2d: _norm,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _average_pool,
    nn.Sequential: _sequence,
    nn.LayerNorm: _layer_norm,
    nn.Linear: lambda graph, layer, x: graph.linear(x, layer.weight, layer.bias),
    nn.Identity: lambda graph, _, x: x,
    nn.Dropout: lambda graph, _, x: x,
    nn.ReLU: lambda graph, _, x: graph.add("Relu", x),
    nn.ReLU6: _relu6,
    nn.Sigmoid: lambda graph, _, x: graph.add("Sigmoid", x),
}


def unit(graph: Graph, x: str, axis: int = 1) -> str:
    """x scaled to unit length along an axis, as torch.nn.functional.normalize does."""
    length = graph.add("ReduceL2", x, graph.ints(axis), keepdims=1)
    return graph.add("Div", x, graph.add("Max", length, graph.floats(UNIT_EPS)))


def attend(graph: Graph, q: str, k: str, v: str, heads: int) -> str:
    """Attention of several heads: q (B, Q, C), k and v (B, S, C) -> (B, Q, C).

    The queries are already divided by the root of a head's channels.
    """
    queries, keys = _heads(graph, q, heads, [0, 2, 1, 3]), _heads(graph, k, heads, [0, 2, 3, 1])
    weights = graph.add("Softmax", graph.add("MatMul", queries, keys), axis=-1)
    found = graph.add("MatMul", weights, _heads(graph, v, heads, [0, 2, 1, 3]))  # (B, heads, Q, C / heads)
    return graph.add("Reshape", graph.add("Transpose", found, perm=[0, 2, 1, 3]), graph.ints(0, 0, -1))


def _heads(graph: Graph, x: str, heads: int, perm: list[int]) -> str:
    """(B, N, C) -> (B, N, heads, C / heads), its dimensions then permuted."""
    return graph.add("Transpose", graph.add("Reshape", x, graph.ints(0, 0, heads, -1)), perm=perm)


def add_vit(graph: Graph, backbone: DINOv2, images: str, size: tuple[int, int], ranges: Ranges | None = None) -> str:
    """Normalised images (B, 3, *size) -> the grid of tokens (B, C, h + 1, w), as `DINOv2` returns it.

    `ranges`: the linear layers to compute in 8-bit integers, by name, and the ranges of their inputs.
    """
    known = ranges or {}
    height, width = map(patches, size)
    special = 1 + backbone.vit.registers
    tokens = _embed(graph, backbone, images, size)
    for i, block in enumerate(backbone.blocks):
        tokens = _block(graph, block, tokens, {name: known.get(f"blocks.{i}.{name}") for name in LINEAR})
    if backbone.cut == "norm":
        tokens = add_layer(graph, backbone.norm, tokens)
    first = graph.add("Slice", tokens, graph.ints(0), graph.ints(special), graph.ints(1))
    row = graph.add("Pad", first, graph.ints(0, 0, 0, 0, width - special, 0))
    others = graph.add("Slice", tokens, graph.ints(special), graph.ints(special + height * width), graph.ints(1))
    grid = graph.add("Reshape", graph.add("Concat", row, others, axis=1), graph.ints(0, height + 1, width, -1))
    return graph.add("Transpose", grid, perm=[0, 3, 1, 2])


def split_grid(graph: Graph, backbone: DINOv2, grid: str) -> tuple[str, str]:
    """The feature map (B, C, h, w) and the class token (B, C) of a grid."""
    features = graph.add("Slice", grid, graph.ints(1), graph.ints(1 << 31), graph.ints(2))
    token = graph.add("Slice", grid, graph.ints(0, 0), graph.ints(1, 1), graph.ints(2, 3))
    return features, graph.add("Reshape", token, graph.ints(0, backbone.channels))


LINEAR = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2", "mlp.w12", "mlp.w3")
"""The linear layers of a block, by name; an MLP has fc1 and fc2, or if it is gated w12 and w3."""

BlockRanges = dict[str, tuple[float, float] | None]


def _embed(graph: Graph, backbone: DINOv2, images: str, size: tuple[int, int]) -> str:
    """Images -> tokens (B, N, C)."""
    embed, (height, width) = backbone.embed, map(patches, size)
    for side, axis_last in zip(size, (False, True), strict=True):
        images = _resized(graph, images, side, axis_last)
    patch = graph.add("Reshape", add_layer(graph, embed.proj, images), graph.ints(0, backbone.channels, -1))
    special = [embed.cls_token + embed.pos_embed[:, :1]]
    if embed.register_tokens is not None:
        special.append(embed.register_tokens)
    with torch.no_grad():
        constant = torch.cat([*special, embed.positions(height, width)], dim=1)
    count = 1 + backbone.vit.registers
    # zeros in front of the patches, so that the tokens of every image are added with the positions
    padded = graph.add("Pad", graph.add("Transpose", patch, perm=[0, 2, 1]), graph.ints(0, count, 0, 0, 0, 0))
    return graph.add("Add", padded, graph.floats(constant, "positions"))


def _resized(graph: Graph, images: str, side: int, is_width: bool) -> str:
    """Images whose height, or width, is resized to the nearest multiple of a patch: a product with a matrix."""
    wanted = patches(side) * PATCH_PX
    if wanted == side:
        return images
    rows = torch.eye(side).reshape(1, 1, side, side)
    # the resized rows of the unit matrix are the weights of the interpolation, (wanted, side)
    matrix = F.interpolate(rows, size=(wanted, side), mode="bilinear", antialias=True)[0, 0]
    if is_width:
        return graph.add("MatMul", images, graph.floats(matrix.T, "resize_width"))
    return graph.add("MatMul", graph.floats(matrix, "resize_height"), images)


def _block(graph: Graph, block: Any, tokens: str, ranges: BlockRanges) -> str:
    normed = add_layer(graph, block.norm1, tokens)
    qkv = block.attn.qkv
    if not hasattr(block, "mlp"):  # the values alone
        values = slice(2 * qkv.in_features, None)
        return graph.linear(normed, qkv.weight[values], qkv.bias[values])
    normed = _rounded(graph, normed, ranges["attn.qkv"])
    weights, biases = qkv.weight.chunk(3), qkv.bias.chunk(3)
    scales = ((qkv.in_features // block.attn.heads) ** -0.5, 1.0, 1.0)
    q, k, v = (
        graph.linear(normed, weight * scale, bias * scale)
        for weight, bias, scale in zip(weights, biases, scales, strict=True)
    )
    attended = _rounded(graph, attend(graph, q, k, v, block.attn.heads), ranges["attn.proj"])
    tokens = graph.add("Add", tokens, _scaled_linear(graph, attended, block.attn.proj, block.ls1.gamma))
    normed = add_layer(graph, block.norm2, tokens)
    return graph.add("Add", tokens, _mlp(graph, block.mlp, normed, block.ls2.gamma, ranges))


def _mlp(graph: Graph, mlp: Any, x: str, gamma: Tensor, ranges: BlockRanges) -> str:
    if hasattr(mlp, "w12"):
        x = _rounded(graph, x, ranges["mlp.w12"])
        parts = zip(mlp.w12.weight.chunk(2), mlp.w12.bias.chunk(2), strict=True)
        gate, value = (graph.linear(x, weight, bias) for weight, bias in parts)
        inner = graph.add("Mul", graph.add("Mul", gate, graph.add("Sigmoid", gate)), value)
        return _scaled_linear(graph, _rounded(graph, inner, ranges["mlp.w3"]), mlp.w3, gamma)
    inner = _gelu(graph, add_layer(graph, mlp.fc1, _rounded(graph, x, ranges["mlp.fc1"])))
    return _scaled_linear(graph, _rounded(graph, inner, ranges["mlp.fc2"]), mlp.fc2, gamma)


def _rounded(graph: Graph, x: str, limits: tuple[float, float] | None) -> str:
    return x if limits is None else graph.quantize(x, *limits)


def _scaled_linear(graph: Graph, x: str, layer: Any, gamma: Tensor) -> str:
    """gamma * (W x + b)."""
    return graph.linear(x, gamma[:, None] * layer.weight, gamma * layer.bias)


def _gelu(graph: Graph, x: str) -> str:
    """x (1 + erf(x / sqrt 2)) / 2; ONNX has an operator for it only since opset 20."""
    erf = graph.add("Erf", graph.add("Div", x, graph.floats(math.sqrt(2))))
    return graph.add("Mul", graph.add("Mul", x, graph.add("Add", erf, graph.floats(1.0))), graph.floats(0.5))
