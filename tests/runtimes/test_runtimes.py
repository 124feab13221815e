"""Other ways to compute a descriptor: near enough to torch's that maps and fingerprints stay valid."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from sareloc.cli import app
from sareloc.errors import ArgumentError, MissingExtraError
from sareloc.geometry.local_features import Network, load_network
from sareloc.localize import Localizer
from sareloc.maps import MapConfig, PlaceMap, add_local_features, build_map
from sareloc.models import (
    RUNTIMES,
    PlaceModel,
    RuntimeModel,
    Whitening,
    init_netvlad,
    load_model,
    make_model,
    run_on,
    save_checkpoint,
)
from sareloc.runtimes.openvino import has_fast_int8

needs_vnni = pytest.mark.skipif(not has_fast_int8(), reason="this processor does not multiply 8-bit integers")
LIMITS = {
    "openvino": 0.002,
    "openvino-int8": 0.03,
}  # cosine distance to float32; random weights are the hardest case


def blobs(batch: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.rand(batch, 3, 6, 6, generator=rng) * 300 - 20
    return F.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 255).to(torch.uint8)


def make(backbone: str, dim: int | None = None) -> PlaceModel:
    """NetVLAD with the assignment that a real model starts from, or its sharpness would magnify every rounding."""
    rng = torch.Generator().manual_seed(2)
    model = make_model(backbone, clusters=4, size=None, rng=rng)
    for module in model.backbone.modules():
        if isinstance(module, nn.Conv2d) and module.bias is not None:
            nn.init.normal_(module.bias, std=0.1, generator=rng)
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # what it sees now is all that it has seen
    with torch.no_grad():  # batch norms that never saw an image would let the numbers vanish from layer to layer
        model.train().feature_map(blobs(12, 64, 64, seed=3))
    model.eval()
    init_netvlad(model, [image.permute(1, 2, 0).numpy() for image in blobs(12, 64, 64)], np.random.default_rng(0))
    if dim is not None:
        projection = torch.linalg.qr(torch.randn(model.dim, dim, generator=rng))[0].T.contiguous()
        model.whitening = Whitening(torch.zeros(model.dim), projection)
    return model


@pytest.fixture(scope="module")
def alexnet() -> PlaceModel:
    return make("alexnet", 16)


RUNS = [
    ("openvino", "vgg16"),
    ("openvino", "efficientnet-lite0"),
    pytest.param("openvino-int8", "alexnet", marks=needs_vnni),
    pytest.param("openvino-int8", "resnet18", marks=needs_vnni),
]


@pytest.mark.usefixtures("openvino")
@pytest.mark.parametrize(("runtime", "backbone"), RUNS)
def test_descriptors_are_near_those_of_torch(runtime: str, backbone: str) -> None:
    model = make(backbone)
    fast = run_on(model, runtime)
    for shape in ((3, 96, 128), (2, 97, 131)):
        images = blobs(*shape, seed=7)
        expected, found = model.encode(images, precision="float32"), fast.encode(images)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.norm(dim=1), torch.ones(shape[0]))
        assert (1 - (found * expected).sum(dim=1)).max() < LIMITS[runtime]
        assert 1 - expected[0] @ expected[1] > 4 * LIMITS[runtime]  # or any two descriptors would do


@pytest.mark.usefixtures("openvino")
@pytest.mark.parametrize("runtime", ["openvino", pytest.param("openvino-int8", marks=needs_vnni)])
def test_the_rest_of_the_model_is_the_same(runtime: str, alexnet: PlaceModel, tmp_path: Path) -> None:
    save_checkpoint(alexnet, tmp_path / "model.safetensors")
    fast = load_model(tmp_path / "model.safetensors", runtime)
    assert isinstance(fast, RuntimeModel)
    assert fast.fingerprint() == alexnet.fingerprint()
    images = blobs(3, 80, 96)
    torch.testing.assert_close(fast.feature_map(images), alexnet.feature_map(images))
    whole, part = fast.encode(images), fast.encode(images, dim=5)
    torch.testing.assert_close(part, F.normalize(whole[:, :5], dim=1))
    arrays = [image.permute(1, 2, 0).numpy() for image in images]
    torch.testing.assert_close(fast.encode(arrays), whole, atol=1e-5, rtol=0)
    with pytest.raises(ArgumentError, match="compiled in one precision"):
        fast.encode(images, precision="float32")
    with pytest.raises(ArgumentError, match="cannot be reduced to 17"):
        fast.encode(images, dim=17)
    with pytest.raises(ArgumentError, match="at least 64 px"):
        fast.encode(blobs(1, 60, 80))


def test_an_unknown_runtime_lists_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match=r"'int8'.*openvino, openvino-int8"):
        run_on(make_model("alexnet", "gem"), "int8")
    assert sorted(RUNTIMES) == sorted(LIMITS)


def test_a_processor_without_fast_integers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sareloc.runtimes.openvino.has_fast_int8", lambda: False)
    with pytest.raises(ArgumentError, match="VNNI"):
        run_on(make_model("alexnet", "gem"), "openvino-int8")


def test_limited_instructions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    with pytest.raises(ArgumentError, match="ONEDNN_MAX_CPU_ISA=AVX2: unset it"):
        run_on(make_model("alexnet", "gem"), "openvino")


def test_without_the_extra_its_pip_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingExtraError, match=r'pip install "sareloc\[openvino\]"'):
        run_on(make_model("alexnet", "avg"), "openvino")


@pytest.mark.usefixtures("openvino")
def test_local_features_are_extracted_where_the_model_runs(
    alexnet: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []

    def recorded(device: str) -> Network:
        used.append(device)
        return load_network(device)

    monkeypatch.setattr("sareloc.geometry.local_features.load_network", recorded)
    Image.fromarray(blobs(1, 80, 96)[0].permute(1, 2, 0).numpy()).save(tmp_path / "0.png")
    (tmp_path / "geotags.csv").write_text("file,lat,lon\n0.png,48.0,2.35")
    fast = run_on(alexnet, "openvino")
    build_map(tmp_path, tmp_path / "city.gpkg", fast, config=MapConfig(progress=False))
    Localizer(fast, PlaceMap(tmp_path / "city.gpkg"))
    assert used == ["openvino", "openvino"]
    assert add_local_features(tmp_path / "city.gpkg", device="openvino", progress=False).already == 1
    with pytest.raises(ArgumentError, match="unknown device"):
        add_local_features(tmp_path / "city.gpkg", device="onnx", progress=False)


@pytest.mark.usefixtures("openvino")
@needs_vnni
def test_a_map_built_in_int8_answers_the_model_in_float32(alexnet: PlaceModel, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number, image in enumerate(blobs(6, 80, 96, seed=5)):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(photos / f"{number}.png")
    rows = [f"{number}.png,48.{number},2.35" for number in range(6)]
    (photos / "geotags.csv").write_text("\n".join(["file,lat,lon", *rows]))
    save_checkpoint(alexnet, tmp_path / "model.safetensors")
    files = [str(photos), "--out", str(tmp_path / "city.gpkg"), "--model", str(tmp_path / "model.safetensors")]
    app(
        ["map", "build", *files, "--device", "openvino-int8", "--workers", "0", "--keypoints", "0"],
        result_action="return_value",
    )
    place_map = PlaceMap(tmp_path / "city.gpkg")
    place_map.check_model(alexnet)
    queries = alexnet.encode(blobs(6, 80, 96, seed=5), precision="float32").numpy()
    matches = place_map.search(queries, 2)
    assert [Path(files[0]).name for files in matches.files] == [f"{number}.png" for number in range(6)]
    assert (matches.distances[:, 0] < 0.5 * matches.distances[:, 1]).all()
