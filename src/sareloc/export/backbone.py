"""A backbone's layers as ONNX operators. The order of the layers is read off the backbone itself, by torch.fx."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from torch import fx, nn

from sareloc.errors import ArgumentError
from sareloc.export.graph import Graph
from sareloc.models.backbones import Backbone
from sareloc.models.backbones.efficientnet import _SameConv
from sareloc.models.folding import trace_layers

Ranges = Mapping[str, tuple[float, float]]
"""The lowest and the highest number that each layer is given, by the layer's name in the traced graph."""


def add_backbone(graph: Graph, backbone: Backbone, images: str, ranges: Ranges | None = None) -> str:
    """Normalised images (B, 3, H, W) -> the feature map; what layers named in `ranges` are given is rounded to 8 bits.

    Rounded for all who read it: a value that one layer reads as integers and another as floats comes out wrong in
    OpenVINO 2026.4.
    """
    root, layers = trace_layers(backbone)
    values: dict[fx.Node, str] = {}
    for node in layers.nodes:
        given = [values[argument] for argument in node.args if isinstance(argument, fx.Node)]
        if ranges is not None and node.name in ranges:
            given = [graph.rounded(given[0], *ranges[node.name])]
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
    raise AssertionError("a traced graph ends with its output")


def add_layer(graph: Graph, layer: nn.Module, x: str) -> str:
    """One layer of a kind that `LAYERS` knows."""
    if type(layer) not in LAYERS:
        raise ArgumentError(f"the model cannot be exported: no ONNX operator is known for the layer {layer}")
    return LAYERS[type(layer)](graph, layer, x)


def _conv(graph: Graph, layer: Any, x: str) -> str:
    weights = [graph.kernel(layer.weight, x)]
    if layer.bias is not None:
        weights.append(graph.floats(layer.bias, "bias"))
    # TensorFlow's padding depends on the image's size: ONNX has a word for it
    padding: dict[str, Any] = {"pads": [*layer.padding, *layer.padding]}
    if isinstance(layer, _SameConv):
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


def _relu6(graph: Graph, layer: nn.Module, x: str) -> str:
    return graph.add("Clip", x, graph.floats(0.0), graph.floats(6.0))


LAYERS: dict[type[nn.Module], Callable[[Graph, nn.Module, str], str]] = {
    nn.Conv2d: _conv,
    _SameConv: _conv,
    nn.BatchNorm2d: _norm,
    nn.MaxPool2d: _max_pool,
    nn.Identity: lambda graph, _, x: x,
    nn.ReLU: lambda graph, _, x: graph.add("Relu", x),
    nn.ReLU6: _relu6,
}
