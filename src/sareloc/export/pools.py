"""Aggregations and whitening as ONNX operators: from the backbone's output to unit vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sareloc.errors import ArgumentError
from sareloc.export.layers import FLOAT, Graph, add_layer, attend, unit
from sareloc.models.aggregation import (
    CRN,
    NORM_EPS,
    VLAD,
    Aggregation,
    Average,
    ClassToken,
    CosPlace,
    GeM,
    Maximum,
    NetVLAD,
)
from sareloc.models.heads import ROUNDS, SALAD, BoQ, MegaLoc, MixVPR
from sareloc.models.place_model import Whitening


def add_aggregation(graph: Graph, aggregation: Aggregation, features: str, token: str | None) -> str:
    """Feature maps (B, C, h, w) and, if needed, class tokens (B, C) -> unit vectors (B, dim).

    Raises ArgumentError if the aggregation's type is not in `POOLS`.
    """
    if type(aggregation) not in POOLS:
        raise ArgumentError(f"the model cannot be exported: no ONNX operators are known for {aggregation.name}")
    given = (features, token) if aggregation.needs_token else (features,)
    return unit(graph, POOLS[type(aggregation)](graph, aggregation, *given))


def add_whitening(graph: Graph, whitening: Whitening, descriptors: str, dim: int) -> str:
    """Unit vectors -> unit vectors of `dim` dimensions."""
    centred = graph.add("Sub", descriptors, graph.floats(whitening.mean, "whitening_mean"))
    projection = graph.floats(whitening.projection[:dim], "whitening_projection")
    return unit(graph, graph.add("Gemm", centred, projection, transB=1))


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
    pooled = _gem(graph, layer.gem, unit(graph, features))
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


def _vlad(graph: Graph, layer: VLAD, features: str) -> str:
    x = unit(graph, graph.add("Reshape", features, graph.ints(0, layer.channels, -1)))  # (B, D, S)
    directions = nn.functional.normalize(layer.centres, dim=1)
    nearest = graph.add("ArgMax", graph.add("MatMul", graph.floats(directions, "directions"), x), axis=1)  # (B, 1, S)
    numbers = graph.add("Reshape", graph.ints(*range(layer.clusters)), graph.ints(1, -1, 1))
    assigned = graph.add("Cast", graph.add("Equal", nearest, numbers), to=FLOAT)  # (B, K, S)
    sums = graph.add("MatMul", assigned, graph.add("Transpose", x, perm=[0, 2, 1]))
    total = graph.add("ReduceSum", assigned, graph.ints(2), keepdims=1)
    vlad = graph.add("Sub", sums, graph.add("Mul", total, graph.floats(layer.centres, "centres")))
    return graph.add("Reshape", unit(graph, vlad, 2), graph.ints(0, layer.dim))


def _salad(graph: Graph, layer: SALAD, features: str, token: str) -> str:
    flat = graph.ints(0, 0, -1)
    local = graph.add("Reshape", add_layer(graph, layer.cluster_features, features), flat)  # (B, l, S)
    scores = graph.add("Reshape", add_layer(graph, layer.score, features), flat)  # (B, K, S)
    assigned = graph.add("Exp", _assign(graph, scores, layer))
    clusters = unit(graph, graph.add("MatMul", local, graph.add("Transpose", assigned, perm=[0, 2, 1])))  # (B, l, K)
    flattened = graph.add("Reshape", clusters, graph.ints(0, layer.cluster_dim * layer.clusters))
    return graph.add("Concat", unit(graph, add_layer(graph, layer.token_features, token)), flattened, axis=1)


def _assign(graph: Graph, scores: str, layer: SALAD) -> str:
    """`sareloc.models.heads.assign`, its rounds written one after the other."""
    one_row = graph.add("ReduceMax", scores, graph.ints(1), keepdims=1)
    dustbin = graph.add(
        "Expand", graph.floats(layer.dust_bin.reshape(1, 1, 1), "dust_bin"), graph.add("Shape", one_row)
    )
    padded = graph.add("Concat", scores, dustbin, axis=1)  # (B, K + 1, S)
    locations = graph.add("Cast", graph.add("Shape", scores, start=2), to=FLOAT)
    spare = graph.add("Log", graph.add("Sub", locations, graph.floats(float(layer.clusters))))
    clusters = graph.floats(torch.zeros(1, layer.clusters, 1))
    received = graph.add("Concat", clusters, graph.add("Reshape", spare, graph.ints(1, 1, 1)), axis=1)
    given = padded
    for _ in range(ROUNDS):
        rows = graph.add("Sub", received, graph.add("ReduceLogSumExp", given, graph.ints(2), keepdims=1))
        mass = graph.add("Add", padded, rows)
        columns = graph.add("ReduceLogSumExp", mass, graph.ints(1), keepdims=1)
        given = graph.add("Sub", padded, columns)
    return graph.add("Slice", graph.add("Sub", mass, columns), graph.ints(0), graph.ints(-1), graph.ints(1))


def _megaloc(graph: Graph, layer: MegaLoc, features: str, token: str) -> str:
    return add_layer(graph, layer.linear, unit(graph, _salad(graph, layer, features, token)))


def _mixvpr(graph: Graph, layer: MixVPR, features: str) -> str:
    x = graph.add("Reshape", features, graph.ints(0, layer.channels, layer.height * layer.width))  # (B, C, S)
    for mixer in layer.mix:
        x = graph.add("Add", x, add_layer(graph, mixer.get_submodule("mix"), x))
    projected = add_layer(graph, layer.channel_proj, graph.add("Transpose", x, perm=[0, 2, 1]))
    rows = add_layer(graph, layer.row_proj, graph.add("Transpose", projected, perm=[0, 2, 1]))
    return graph.add("Reshape", rows, graph.ints(0, layer.dim))


def _boq(graph: Graph, layer: BoQ, features: str) -> str:
    x = graph.add("Reshape", add_layer(graph, layer.proj_c, features), graph.ints(0, layer.width, -1))
    local = add_layer(graph, layer.norm_input, graph.add("Transpose", x, perm=[0, 2, 1]))  # (B, S, width)
    answers = []
    block: Any
    for block in layer.boqs:
        encoder = block.encoder
        attended = graph.add("Add", local, _boq_attention(graph, encoder.self_attn, local, local))
        normed = add_layer(graph, encoder.norm1, attended)
        inner = add_layer(graph, encoder.linear2, graph.add("Relu", add_layer(graph, encoder.linear1, normed)))
        local = add_layer(graph, encoder.norm2, graph.add("Add", normed, inner))
        with torch.no_grad():  # what the queries ask does not depend on the image
            queries = block.norm_q(block.queries + block.self_attn(block.queries, block.queries))
        found = _boq_attention(graph, block.cross_attn, graph.floats(queries, "queries"), local)
        answers.append(add_layer(graph, block.norm_out, found))
    joined = graph.add("Transpose", graph.add("Concat", *answers, axis=1), perm=[0, 2, 1])
    return graph.add("Reshape", add_layer(graph, layer.fc, joined), graph.ints(0, layer.dim))


def _boq_attention(graph: Graph, layer: Any, queries: str, x: str) -> str:
    weights, biases = layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3)
    scale = (len(biases[0]) // layer.heads) ** -0.5
    q = graph.linear(queries, weights[0] * scale, biases[0] * scale)
    k, v = (graph.linear(x, weight, bias) for weight, bias in zip(weights[1:], biases[1:], strict=True))
    return add_layer(graph, layer.out_proj, attend(graph, q, k, v, layer.heads))


POOLS: dict[type[Aggregation], Callable[..., str]] = {
    NetVLAD: _netvlad,
    CRN: _netvlad,
    GeM: _gem,
    CosPlace: _cosplace,
    Average: _average,
    Maximum: _maximum,
    ClassToken: lambda graph, _, features, token: token,
    SALAD: _salad,
    MegaLoc: _megaloc,
    VLAD: _vlad,
    MixVPR: _mixvpr,
    BoQ: _boq,
}
