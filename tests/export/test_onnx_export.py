"""The ONNX file gives torch's descriptors, in any batch and size, and says what it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from sareloc.cli import app
from sareloc.errors import ArgumentError, MissingExtraError
from sareloc.export import export_onnx
from sareloc.models import (
    PlaceModel,
    Preprocess,
    Whitening,
    make_aggregation,
    make_backbone,
    make_model,
    save_checkpoint,
)

SIZES = [(1, 64, 64), (2, 81, 115), (2, 112, 65)]


def lively(model: PlaceModel) -> PlaceModel:
    """Weights such that every part matters: statistics of batch norms, biases and the context network drawn anew."""
    rng = torch.Generator().manual_seed(3)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1, generator=rng)
            module.running_var.uniform_(0.5, 1.5, generator=rng)
        if isinstance(module, nn.Conv2d) and module.bias is not None:
            nn.init.normal_(module.bias, std=0.1, generator=rng)
    return model


def whitened(model: PlaceModel, dim: int) -> PlaceModel:
    rng = torch.Generator().manual_seed(4)
    mean, projection = (torch.randn(*shape, model.dim, generator=rng) for shape in ((), (dim,)))
    model.whitening = Whitening(mean / model.dim**0.5, projection)
    return model


def make(backbone: str, aggregation: str, **options: object) -> PlaceModel:
    return lively(make_model(backbone, aggregation, rng=torch.Generator().manual_seed(2), **options))  # type: ignore[arg-type]


def sharp(model: PlaceModel) -> PlaceModel:
    """Assignments so unequal that clusters get from all down to 1e-14 of a location, where the norms differ."""
    shares = -torch.arange(16.0) * 2
    with torch.no_grad():
        model.aggregation.bias = nn.Parameter(shares)  # type: ignore[assignment]
        model.aggregation.assign.mul_(0.01)  # type: ignore[operator]
    return model


MODELS = {
    "the paper's": lambda: whitened(make("vgg16", "netvlad"), 48),
    "lite": lambda: whitened(make("efficientnet-lite0", "netvlad", clusters=8), 32),
    "lite-gem": lambda: make("efficientnet-lite0", "gem", cut="head"),
    "resnet-crn": lambda: make("resnet18", "crn", clusters=4),
    "resnet-crn-deep": lambda: make("resnet18", "crn", cut="layer4", clusters=4),
    "resnet-cosplace": lambda: make("resnet18", "cosplace", cut="layer4", out_dim=16),
    "resnet50-max": lambda: make("resnet50", "max"),
    "alexnet-crn-bias": lambda: make("alexnet", "crn", bias=True, clusters=4),
    "alexnet-clamped": lambda: sharp(make("alexnet", "netvlad", norm="clamped", clusters=16)),
    "alexnet-smoothed": lambda: sharp(make("alexnet", "netvlad", norm="smoothed", clusters=16)),
    "alexnet-avg": lambda: make("alexnet", "avg"),
}


def run(path: Path, images: torch.Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(["descriptors"], {"images": images.numpy()})[0]  # type: ignore[no-any-return]


def pixels(batch: int, height: int, width: int) -> torch.Tensor:
    """Smooth pictures that differ: noise looks alike to every network."""
    rng = torch.Generator().manual_seed(height + width)
    coarse = torch.rand(batch, 3, 5, 7, generator=rng) * 255
    return nn.functional.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 255).to(torch.uint8)


@pytest.mark.parametrize("name", MODELS)
def test_onnxruntime_gives_the_descriptors_of_torch(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    export_onnx(model, tmp_path / "model.onnx")
    for shape in SIZES:
        images = pixels(*shape)
        expected = model.encode(images, precision="float32").numpy()
        found = run(tmp_path / "model.onnx", images)
        assert found.dtype == np.float32
        assert found.shape == (shape[0], model.dim)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
        assert (1 - (found * expected).sum(axis=1)).max() < 1e-5
        if len(found) > 1:  # or the comparison could not fail
            assert 1 - float(found[0] @ found[1]) > 1e-3


def test_pixels_of_other_scales_and_statistics(tmp_path: Path) -> None:
    pixel = Preprocess((123.7, 116.8, 103.9), (1.0, 2.0, 1.5), scale=255.0, resize=None)
    base = make_backbone("alexnet", rng=torch.Generator().manual_seed(1))
    model = PlaceModel(pixel, base, make_aggregation("gem", base.channels), name="ours v2").eval()
    export_onnx(model, tmp_path / "model.onnx")
    images = pixels(2, 70, 90)
    expected = model.encode(images, precision="float32").numpy()
    np.testing.assert_allclose(run(tmp_path / "model.onnx", images), expected, atol=1e-5)


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    model = whitened(make("alexnet", "netvlad", clusters=4, size=(96, 128)), 16)
    export_onnx(model, tmp_path / "deep" / "model.onnx", dim=9)
    stored = onnx.load(tmp_path / "deep" / "model.onnx")
    about = {entry.key: entry.value for entry in stored.metadata_props}
    assert about["model"] == "alexnet-netvlad"
    assert about["fingerprint"] == model.fingerprint()
    assert about["dim"] == "9"
    assert json.loads(about["resize"]) == [96, 128]
    assert about["spec"] == model.spec().to_json()
    images = pixels(2, 96, 128)
    np.testing.assert_allclose(
        run(tmp_path / "deep" / "model.onnx", images),
        model.encode(images, dim=9, precision="float32").numpy(),
        atol=1e-5,
    )
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["model.onnx"]


def test_what_cannot_be_exported_is_reported(tmp_path: Path) -> None:
    model = make("alexnet", "gem")
    with pytest.raises(ArgumentError, match="256 dimensions"):
        export_onnx(model, tmp_path / "model.onnx", dim=9)
    model.backbone.features[1] = nn.GELU()  # type: ignore[index, operator]
    with pytest.raises(ArgumentError, match="GELU"):
        export_onnx(model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_without_the_extra_its_pip_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r'pip install "sareloc\[onnx\]"'):
        export_onnx(make_model("alexnet", "avg"), tmp_path / "x.onnx")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make("alexnet", "gem")
    save_checkpoint(model, tmp_path / "model.safetensors")
    app(
        ["export", str(tmp_path / "model.safetensors"), "--onnx", str(tmp_path / "model.onnx")],
        result_action="return_value",
    )
    assert model.fingerprint() in capsys.readouterr().out
    images = pixels(1, 80, 64)
    expected = model.encode(images, precision="float32").numpy()
    np.testing.assert_allclose(run(tmp_path / "model.onnx", images), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ((480, 640), ["480 x 640", "640 x 480", "portrait"]),
        ((256, 256), ["256 x 256"]),
        (512, ["longer side", "512", "smaller"]),
        (None, ["not resized"]),
    ],
)
def test_the_command_prints_the_size_that_photos_must_be_resized_to(
    size: Any, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_checkpoint(make_model("alexnet", "avg", size=size), tmp_path / "m.safetensors")
    app(["export", str(tmp_path / "m.safetensors"), "--onnx", str(tmp_path / "m.onnx")], result_action="return_value")
    printed = capsys.readouterr().out
    for word in [*words, "64"]:
        assert word in printed
    assert ("portrait" in printed) == ("portrait" in words)
    if size is not None:
        assert "bilinear" in printed
