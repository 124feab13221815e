"""Write a model as an ONNX file: pixels in, unit descriptors out, in any batch and of any size.

The operators are written out layer by layer rather than by torch.onnx: with free image sizes torch's exporter reasons
about every padding (minutes for EfficientNet-lite0), and rounds negative quotients the other way than Python does.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from sareloc import __version__
from sareloc.errors import ArgumentError, need
from sareloc.export.backbone import Ranges, add_backbone
from sareloc.export.graph import Graph
from sareloc.export.pooling import add_aggregation, add_whitening
from sareloc.files import replacing
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import MIN_SIDE_PX

INPUT, OUTPUT = "images", "descriptors"
FLOAT = 1  # ONNX's number for float32
LARGEST_BYTES = 1 << 31  # of a protobuf message


def export_onnx(model: PlaceModel, path: str | Path, *, dim: int | None = None) -> None:
    """Write the whole model, the normalisation of pixels included, as one ONNX file (extra `onnx`).

    Input `images`: uint8 (batch, 3, height, width), RGB, upright, any size from 64 px each way, brought to the size
    that the model wants by whoever calls it. Output `descriptors`: float32 (batch, dim), unit rows. `dim`: only the
    first so many coordinates, as in `encode`. The file's metadata say what it is: `model`, `fingerprint`, `dim`,
    `resize` (see `Preprocess`: [height, width], a longest side, or null), `least_side_px`, `spec` (all but the
    weights, as JSON) and `made_by`.
    """
    onnx = need("onnx", "onnx")
    wanted = model.dim if dim is None else dim
    if not 1 <= wanted <= model.dim or (model.whitening is None and wanted != model.dim):
        raise ArgumentError(f"{model.name} gives {model.dim} dimensions, it cannot be exported with {wanted}")
    weights_bytes = 4 * sum(tensor.numel() for tensor in model.state_dict().values())
    if weights_bytes >= LARGEST_BYTES:
        raise ArgumentError(f"{model.name} has {weights_bytes / 1e9:.1f} GB of weights, an ONNX file holds 2.1")
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
        about(model, wanted),
    )
    onnx.checker.check_model(built, full_check=True)
    with replacing(path) as beside:
        onnx.save(built, beside)


def features_onnx(model: PlaceModel, ranges: Ranges | None = None) -> bytes:
    """The model up to its feature map as an ONNX file's bytes; with `ranges`, convolutions in 8-bit integers."""
    onnx = need("onnx", "onnx")
    graph, kinds = Graph(), onnx.TensorProto
    features = add_backbone(graph, model.backbone, _add_normalisation(graph, model), ranges)
    given = onnx.helper.make_tensor_value_info(INPUT, kinds.UINT8, ["batch", 3, "height", "width"])
    wanted = onnx.helper.make_tensor_value_info("features", kinds.FLOAT, ["batch", model.backbone.channels, "h", "w"])
    built: bytes = graph.build("backbone", given, wanted, features, {}).SerializeToString()
    return built


def about(model: PlaceModel, dim: int) -> dict[str, str]:
    """What the file says of itself."""
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
