"""Aggregations and whitening as ONNX operators; each is the formula of the class it is named after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sareloc.export.backbone import add_layer
from sareloc.export.graph import Graph
from sareloc.models.aggregation import CRN, NORM_EPS, Aggregation, Average, GeM, Maximum, NetVLAD
from sareloc.models.whitening import Whitening

UNIT_EPS = 1e-12  # of torch.nn.functional.normalize


def add_aggregation(graph: Graph, aggregation: Aggregation, features: str) -> str:
    """Feature maps (B, C, h, w) -> unit vectors (B, dim)."""
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
    """What scales x to unit length along an axis, which stays, according to the layer's norm."""
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


def _netvlad(graph: Graph, layer: NetVLAD, features: str) -> str:
    x = graph.add("Reshape", features, graph.ints(0, layer.channels, -1))  # (B, D, S)
    scale = _unit_scale(graph, layer, x, 1)  # (B, 1, S)
    logits = graph.add("Mul", graph.add("MatMul", graph.floats(layer.assign, "assign"), x), scale)  # (B, K, S)
    if layer.bias is not None:
        logits = graph.add("Add", logits, graph.floats(layer.bias[:, None], "bias"))
    assigned = graph.add("Softmax", logits, axis=1)
    if isinstance(layer, CRN):
        assigned = graph.add("Mul", assigned, _weight_of_locations(graph, layer, features))
    sums = graph.add("MatMul", graph.add("Mul", assigned, scale), graph.add("Transpose", x, perm=[0, 2, 1]))
    total = graph.add("ReduceSum", assigned, graph.ints(2), keepdims=1)
    vlad = graph.add("Sub", sums, graph.add("Mul", total, graph.floats(layer.centres, "centres")))  # (B, K, D)
    return graph.add("Reshape", graph.add("Mul", vlad, _unit_scale(graph, layer, vlad, 2)), graph.ints(0, layer.dim))


def _weight_of_locations(graph: Graph, layer: CRN, features: str) -> str:
    halved = graph.add("AveragePool", features, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    evidence = [graph.add("Relu", add_layer(graph, conv, halved)) for conv in layer.context]
    summed = graph.add("ReduceSum", graph.add("Concat", *evidence, axis=1), graph.ints(1), keepdims=1)
    mask = graph.add("Relu", graph.add("Add", summed, graph.floats(layer.context_bias, "context_bias")))
    size = graph.add("Concat", graph.add("Shape", mask, end=2), graph.add("Shape", features, start=2), axis=0)
    # roi and scales, which Resize has before the size, are left out
    resized = graph.add("Resize", mask, "", "", size, mode="linear", coordinate_transformation_mode="half_pixel")
    return graph.add("Reshape", resized, graph.ints(0, 1, -1))


POOLS: dict[type[Aggregation], Callable[[Graph, Any, str], str]] = {
    NetVLAD: _netvlad,
    CRN: _netvlad,
    GeM: _gem,
    Average: _average,
    Maximum: _maximum,
}
