"""Transformers on other runtimes: the ONNX file and OpenVINO give torch's descriptors, 8-bit integers nearly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from tests.export.test_onnx_export import pixels, run, whitened
from tests.models.transformers import TINY, tiny_transformers  # noqa: F401
from tests.runtimes.test_runtimes import needs_vnni

from sareloc.cli import app
from sareloc.errors import ArgumentError
from sareloc.export import INPUT, export_onnx
from sareloc.export.onnx import features_onnx
from sareloc.models import PlaceModel, make_model, run_on, save_checkpoint
from sareloc.runtimes.openvino import activation_ranges

pytestmark = pytest.mark.usefixtures("tiny_transformers")
SALAD = {"clusters": 8, "cluster_dim": 4, "token_dim": 8, "hidden": 16}


def make(backbone: str, aggregation: str, size: object = (112, 126), **options: object) -> PlaceModel:
    """Weights such that every part matters: biases, LayerScale, norms and the attention's contrast drawn anew."""
    rng = torch.Generator().manual_seed(2)
    model = make_model(backbone, aggregation, size=size, rng=rng, **options)  # type: ignore[arg-type]
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=rng)
            if name.endswith(("bias", "gamma")) or ("norm" in name and weight.ndim == 1):
                weight += 0.3 * noise
            elif "blocks" in name and weight.ndim == 2:
                weight *= 5
            elif ".score." in name:
                weight *= 10  # or the first round of the optimal transport would be the last to change anything
            elif name.endswith(("cls_token", "register_tokens", "pos_embed")):
                weight += 0.5 * noise
    return model


MODELS = {
    "cls": lambda: make("dinov2-tiny", "cls"),
    "cls, other size": lambda: whitened(make("dinov2-tiny-reg", "cls", (117, 66)), 8),
    "salad": lambda: make("dinov2-tiny-reg", "salad", **SALAD),
    "megaloc": lambda: make("dinov2-tiny", "megaloc", out_dim=20, **SALAD),
    "boq": lambda: make("dinov2-tiny-gated", "boq", (64, 65), width=16, queries=5, rows=3, heads=2),
    "mixvpr": lambda: make("dinov2-tiny-reg", "mixvpr", height=8, width=9, out_channels=6, rows=2),
    "cosplace": lambda: make("dinov2-tiny-gated", "cosplace", out_dim=9),
    "vlad of values": lambda: make("dinov2-tiny", "vlad", cut="block1-value", clusters=4),
    "gem of a block": lambda: make("dinov2-tiny-reg", "gem", cut="block0"),
    "trained positions": lambda: make("dinov2-tiny", "cls", (518, 518)),
}


@pytest.mark.usefixtures("openvino")
@pytest.mark.parametrize("name", MODELS)
def test_other_runtimes_give_the_descriptors_of_torch(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    assert isinstance(model.preprocess.resize, tuple)
    images = pixels(3, *model.preprocess.resize)
    expected = model.encode(images, precision="float32").numpy()
    assert 1 - float(expected[0] @ expected[1]) > 1e-4  # or the comparison could not fail
    export_onnx(model, tmp_path / "model.onnx")
    np.testing.assert_allclose(run(tmp_path / "model.onnx", images), expected, atol=1e-5)
    np.testing.assert_allclose(run(tmp_path / "model.onnx", images[1:2]), expected[1:2], atol=1e-5)
    found = run_on(model, "openvino").encode(images).numpy()
    assert (1 - (found * expected).sum(axis=1)).max() < 1e-3  # bfloat16 where the processor has it


@pytest.mark.parametrize("aggregation", ["mixvpr", "boq"])
def test_heads_of_transformers_are_exported_on_convolutional_networks(aggregation: str, tmp_path: Path) -> None:
    options = {"mixvpr": {"height": 5, "width": 6, "out_channels": 8}, "boq": {"width": 16, "queries": 4, "rows": 2}}
    model = make("alexnet", aggregation, (96, 112), **options[aggregation])
    export_onnx(model, tmp_path / "model.onnx")
    images = pixels(2, 96, 112)
    expected = model.encode(images, precision="float32").numpy()
    np.testing.assert_allclose(run(tmp_path / "model.onnx", images), expected, atol=1e-5)


@pytest.mark.usefixtures("openvino")
def test_openvino_takes_any_sizes() -> None:
    model = make("dinov2-tiny-reg", "salad", None, **SALAD)
    fast = run_on(model, "openvino")
    for size in ((64, 64), (70, 97), (64, 64)):
        images = pixels(2, *size)
        expected = model.encode(images, precision="float32")
        assert (1 - (fast.encode(images) * expected).sum(dim=1)).max() < 1e-3
    assert fast.fingerprint() == model.fingerprint()


def integers(model: PlaceModel, images: torch.Tensor) -> torch.Tensor:
    """Descriptors of the model in 8-bit integers, computed by onnxruntime exactly as the graph says."""
    size = (images.shape[2], images.shape[3])
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(features_onnx(model, activation_ranges(model), size), options)
    with torch.no_grad():
        return model.aggregate(torch.from_numpy(session.run(None, {INPUT: images.numpy()})[0]))


@pytest.mark.parametrize("backbone", TINY)
def test_integers_are_near_torch(backbone: str) -> None:
    aggregation, options = ("cls", {}) if backbone == "dinov2-tiny" else ("salad", SALAD)
    model = make(backbone, aggregation, **options)
    images = pixels(3, 112, 126)
    expected, found = model.encode(images, precision="float32"), integers(model, images)
    assert (found * expected).sum(dim=1).min() > 0.995
    assert not torch.allclose(found, expected, atol=1e-5)  # they are rounded


@pytest.mark.usefixtures("openvino")
@needs_vnni
def test_openvino_computes_in_integers() -> None:
    model = make("dinov2-tiny", "cls")
    images = pixels(3, 112, 126)
    found = run_on(model, "openvino-int8").encode(images)
    assert (found * model.encode(images, precision="float32")).sum(dim=1).min() > 0.995


def test_every_linear_layer_has_integer_weights() -> None:
    model = make("dinov2-tiny", "cls")
    ranges = activation_ranges(model)
    layers = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    assert list(ranges) == [f"blocks.{block}.{layer}" for block in range(2) for layer in layers]
    stored = onnx.load_from_string(features_onnx(model, ranges, (64, 64))).graph.initializer
    weights = [tensor for tensor in stored if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) == 2]
    assert len(weights) == 2 * 6  # queries, keys and values are separate layers


def test_a_layer_whose_range_one_channel_takes_stays_in_floats() -> None:
    model = make("dinov2-tiny", "cls")
    before = set(activation_ranges(model))
    with torch.no_grad():
        model.get_parameter("backbone.blocks.1.norm2.bias")[3] = 500.0
        model.get_parameter("backbone.blocks.1.mlp.fc1.weight")[:, 3] = 0.0
    assert before - set(activation_ranges(model)) == {"blocks.1.mlp.fc1"}
    images = pixels(3, 112, 126)
    expected = model.encode(images, precision="float32")
    assert (integers(model, images) * expected).sum(dim=1).min() > 0.995


def test_the_file_takes_the_size_of_the_model(tmp_path: Path) -> None:
    export_onnx(make("dinov2-tiny", "cls"), tmp_path / "model.onnx")
    shape = onnx.load(tmp_path / "model.onnx").graph.input[0].type.tensor_type.shape
    assert [side.dim_value for side in shape.dim] == [0, 3, 112, 126]


@pytest.mark.parametrize(
    ("aggregation", "size", "options", "words"),
    [
        ("cls", None, {}, "one size.*own size"),
        ("cls", 224, {}, "one size.*224 px"),
        ("salad", (64, 64), {"clusters": 64}, "64 clusters needs more locations"),
        ("mixvpr", (112, 112), {"height": 7, "width": 8}, "7 x 8 locations"),
    ],
)
def test_a_model_without_a_usable_size_is_refused(
    aggregation: str, size: object, options: dict[str, int], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match=words):
        export_onnx(make("dinov2-tiny", aggregation, size, **options), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("openvino")
def test_weights_beyond_protobufs_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sareloc.export.onnx.MAX_BYTES", 1000)
    with pytest.raises(ArgumentError, match="GB of weights"):
        run_on(make("dinov2-tiny", "cls"), "openvino").encode(pixels(1, 64, 64))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make("dinov2-tiny-reg", "salad", (112, 112), **SALAD)
    save_checkpoint(model, tmp_path / "model.safetensors")
    files = [str(tmp_path / "model.safetensors"), "--onnx", str(tmp_path / "model.onnx")]
    app(["export", *files], result_action="return_value")
    assert "112 x 112" in capsys.readouterr().out
    images = pixels(2, 112, 112)
    expected = model.encode(images, precision="float32").numpy()
    np.testing.assert_allclose(run(tmp_path / "model.onnx", images), expected, atol=1e-5)
