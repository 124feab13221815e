"""Export a model to ONNX: uint8 images in, unit descriptors out, with dynamic batch and, but for transformers, sizes.

The graph is built here, layer by layer, and not by torch.onnx: with dynamic image sizes torch's exporter takes minutes
for EfficientNet-lite0, whose padding depends on the size, and its integer division of negative numbers differs from
Python's. The layers and their order come from tracing the backbone with torch.fx; transformers have functions of their
own in `layers`.
"""

from __future__ import annotations

import json
import operator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import fx

from sareloc import __version__
from sareloc.errors import ArgumentError, need
from sareloc.export.layers import FLOAT, UINT8, End, Graph, Ranges, add_layer, add_vit, split_grid
from sareloc.export.pools import add_aggregation, add_whitening
from sareloc.files import replacing
from sareloc.models.backbones import Backbone
from sareloc.models.dinov2 import DINOv2, patches
from sareloc.models.fused import trace_layers
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import MIN_SIDE_PX

if TYPE_CHECKING:
    from kornia.feature.xfeat import XFeatModel

INPUT, OUTPUT = "images", "descriptors"
MAX_BYTES = 1 << 31  # of a protobuf message
XFEAT_CHANNELS = [64, 65, 1]  # of its descriptors, logits of keypoints, reliability


def export_onnx(model: PlaceModel, path: str | Path, *, dim: int | None = None) -> None:
    """Write a model, with the normalisation of pixels, as one ONNX file (extra `onnx`).

    Input `images`: uint8 (batch, 3, height, width), RGB, upright, from 64 px each way; the caller resizes images as
    the metadata fields `resize` and `interpolation` say, antialiased. A transformer's file takes images of one size,
    the model's (height, width). Output `descriptors`: float32 (batch, dim), unit rows. Metadata of the file: `model`,
    `fingerprint`, `dim`, `resize` (see `Preprocess`: [height, width], a longest side, or null), `interpolation`,
    `least_side_px`, `spec` (the model's spec as JSON) and `made_by`.

    Args:
        model: the model.
        path: of the file.
        dim: the number of leading coordinates to keep, as in `encode`; default: all.

    Raises:
        ArgumentError: if the model cannot be reduced to `dim`, has a layer without an ONNX operator, is a transformer
            without a (height, width), or exceeds the 2 GB of a protobuf message.
    """
    onnx = need("onnx", "onnx")
    wanted = model.dim if dim is None else dim
    if not 1 <= wanted <= model.dim or (model.whitening is None and wanted != model.dim):
        raise ArgumentError(f"{model.name} has {model.dim} dimensions, it cannot be exported with {wanted}")
    _check_bytes(model)
    size = fixed_size(model)
    graph = Graph()
    output = add_backbone(graph, model.backbone, _add_normalisation(graph, model), size=size)
    given = split_grid(graph, model.backbone, output) if isinstance(model.backbone, DINOv2) else (output, None)
    descriptors = add_aggregation(graph, model.aggregation, *given)
    if model.whitening is not None:
        descriptors = add_whitening(graph, model.whitening, descriptors, wanted)
    built = graph.build(
        "".join(c if c.isalnum() else "_" for c in model.name),
        _images(size),
        (OUTPUT, FLOAT, ["batch", wanted]),
        descriptors,
        **_metadata(model, wanted),
    )
    onnx.checker.check_model(built, full_check=True)
    with replacing(path) as beside:
        onnx.save(built, beside)


def fixed_size(model: PlaceModel) -> tuple[int, int] | None:
    """The (height, width) that the model is exported for; None: any, as a convolutional network.

    Raises ArgumentError if a transformer's model has no (height, width), or its aggregation is not for that size.
    """
    if not isinstance(model.backbone, DINOv2):
        return None
    size = model.preprocess.resize
    if not isinstance(size, tuple):
        rule = "the photos' own size" if size is None else f"a longest side of {size} px"
        raise ArgumentError(
            f"{model.name} is a transformer, which is exported for images of one size, and takes {rule}: make the "
            f"model with a size of (height, width)"
        )
    with torch.no_grad():  # the aggregation checks the size of the feature map
        grid = torch.zeros(1, model.backbone.channels, *map(patches, size), device=model.device)
        model.aggregation(grid, grid[:, :, 0, 0])
    return size


def _check_bytes(model: PlaceModel) -> None:
    weights_bytes = 4 * sum(tensor.numel() for tensor in model.state_dict().values())
    if weights_bytes >= MAX_BYTES:
        raise ArgumentError(
            f"{model.name} has {weights_bytes / 1e9:.1f} GB of weights, the limit of an ONNX file is 2.1 GB"
        )


def features_onnx(model: PlaceModel, ranges: Ranges | None = None, size: tuple[int, int] | None = None) -> bytes:
    """The backbone, with the normalisation of pixels, as the bytes of an ONNX file; the output is the backbone's.

    `ranges`: activation ranges of the layers to quantize to 8-bit integers; default: none, all in float32. `size`: a
    transformer's image size.
    """
    _check_bytes(model)
    graph = Graph()
    features = add_backbone(graph, model.backbone, _add_normalisation(graph, model), ranges, size)
    output: End = ("features", FLOAT, ["batch", model.backbone.channels, "h", "w"])
    built: bytes = graph.build("backbone", _images(size), output, features).SerializeToString()
    return built


def _images(size: tuple[int, int] | None) -> End:
    """The input of images; `size`: (height, width), None: any."""
    return INPUT, UINT8, ["batch", 3, *(size or ("height", "width"))]


def xfeat_onnx(network: XFeatModel) -> bytes:
    """XFeat's network, its batch norms folded, as the bytes of an ONNX file.

    Input `images`: float32 (batch, 1, height, width), sides multiples of 32. Output `maps`: (batch, 130, height / 8,
    width / 8), the network's three outputs along the channels.
    """
    graph = Graph()
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
    images: End = (INPUT, FLOAT, ["batch", 1, "height", "width"])
    output: End = ("maps", FLOAT, ["batch", sum(XFEAT_CHANNELS), "h", "w"])
    built: bytes = graph.build("xfeat", images, output, maps).SerializeToString()
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
        "interpolation": model.preprocess.interpolation,
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


def add_backbone(
    graph: Graph,
    backbone: Backbone,
    images: str,
    ranges: Ranges | None = None,
    size: tuple[int, int] | None = None,
) -> str:
    """Normalised images (B, 3, H, W) -> the feature map; inputs of layers named in `ranges` are quantized to 8 bits.

    `size`: H and W, which a transformer needs; its output has the class token as well (see `DINOv2`).
    A quantized value replaces the original for all later layers: OpenVINO 2026.4 computes wrong results if one layer
    reads it as integers and another as floats.
    """
    if isinstance(backbone, DINOv2):
        assert size is not None
        return add_vit(graph, backbone, images, size, ranges)
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
