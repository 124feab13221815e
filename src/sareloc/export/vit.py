"""DINOv2 as ONNX operators, for images of one size: the position embeddings of that size are constants.

The factors of LayerScale and of attention are folded into the linear layers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sareloc.export.graph import Graph, Ranges, add_layer, attend
from sareloc.models.backbones import DINOv2
from sareloc.models.backbones.dinov2 import PATCH_PX, patches


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
