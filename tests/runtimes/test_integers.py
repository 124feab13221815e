"""Backbones in 8-bit integers as an ONNX graph: how and where numbers are rounded; two runtimes that agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from tests.runtimes.test_runtimes import blobs, make, needs_vnni
from torch import nn

from sareloc.export import INPUT
from sareloc.export.layers import FLOAT, Graph, add_layer
from sareloc.export.onnx import features_onnx
from sareloc.models.fused import fold_norms
from sareloc.runtimes.openvino import activation_ranges, dead_leaves_images


def run(model: bytes, **inputs: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    found: np.ndarray = onnxruntime.InferenceSession(model, options).run(None, inputs)[0]
    return found


@pytest.mark.parametrize("lowest", [0.0, -2.0])
@pytest.mark.parametrize("groups", [1, 4])
def test_an_integer_convolution_is_that_of_rounded_numbers(lowest: float, groups: int) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 8, 3, padding=1, groups=groups).requires_grad_(False)
    layer.weight[3] *= 100  # a channel with large weights must not cost the others their precision
    graph = Graph()
    found = add_layer(graph, layer, graph.quantize("x", lowest, 3.0))
    built = graph.build("conv", ("x", FLOAT, [1, 4, 6, 7]), ("y", FLOAT, [1, 8, 6, 7]), found)
    x = torch.empty(1, 4, 6, 7).uniform_(lowest - 1, 4)  # what is outside of the range is cut off
    step, least = (3 / 255, 0) if lowest == 0 else (3 / 127, -128)
    rounded = (x / step).round().clamp(least, 255 if lowest == 0 else 127) * step
    steps = layer.weight.flatten(1).abs().amax(dim=1).view(-1, 1, 1, 1) / 127
    expected = F.conv2d(rounded, (layer.weight / steps).round() * steps, layer.bias, padding=1, groups=groups)
    np.testing.assert_allclose(run(built.SerializeToString(), x=x.numpy()), expected.numpy(), atol=1e-4, rtol=1e-4)


def test_all_convolutions_but_the_first_are_rounded_before_poolings() -> None:
    plain = make("alexnet")
    ranges = activation_ranges(plain)
    assert [lowest for lowest, _ in ranges.values()] == [0.0] * 4  # of five convolutions; each stands behind a ReLU
    nodes = onnx.load_from_string(features_onnx(plain, ranges)).graph.node
    reads = {node.input[0]: node.op_type for node in nodes}
    assert [reads[node.output[0]] for node in nodes if node.op_type == "MaxPool"] == ["Conv"] * 2
    lite = activation_ranges(fold_norms(make("efficientnet-lite0")))
    assert len(lite) == 32
    behind_relu6 = [highest for lowest, highest in lite.values() if lowest == 0]
    assert len(behind_relu6) == 22
    assert set(behind_relu6) == {6.0}


def test_the_drawn_images_are_the_same_every_time_and_like_photos() -> None:
    images = dead_leaves_images()
    assert images.equal(dead_leaves_images())
    assert images.shape == (4, 3, 240, 320)
    assert 100 < images.float().mean() < 150
    assert 35 < images.float().std() < 70
    grey = images.float().mean(dim=1)
    assert (grey[:, :, 1:] - grey[:, :, :-1]).abs().median() < 5  # mostly surfaces, now and then an edge
    assert (grey[:, :, 1:] - grey[:, :, :-1]).abs().max() > 100


@needs_vnni
@pytest.mark.parametrize("backbone", ["alexnet", "efficientnet-lite0", "resnet18"])
def test_openvino_computes_what_the_integers_say(backbone: str, openvino: Any) -> None:
    folded = fold_norms(make(backbone))
    written = features_onnx(folded, activation_ranges(folded))
    images = blobs(2, 96, 131, seed=7).numpy()
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(written), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found, expected = compiled({INPUT: images})[0], run(written, **{INPUT: images})
    # where one rounds up and the other down, the next layers differ by a step
    assert np.linalg.norm(found - expected) < 0.15 * np.linalg.norm(expected)
