"""The number format of inference: one place decides, an argument, the model or the environment says what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.localize.street import view

from sareloc.encode import Encoder
from sareloc.errors import ArgumentError
from sareloc.models import (
    PlaceModel,
    Precision,
    evaluating,
    fit_whitening,
    load_model,
    make_model,
    number_format,
    run_on,
    save_checkpoint,
)
from sareloc.models.fused import fold_norms, fuse_relus
from sareloc.models.place_model import with_whitening
from sareloc.models.preprocess import FAST_BFLOAT16, autocast, choose_precision
from sareloc.photos import read_image

FORMATS: dict[Precision, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
IMAGES = [view(place, 0) for place in range(3)]


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SARELOC_PRECISION", raising=False)


@pytest.fixture
def model() -> PlaceModel:
    return make_model("alexnet", "max", size=(64, 96), rng=torch.Generator().manual_seed(1))


@pytest.mark.usefixtures("unset")
def test_auto_follows_the_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability in (*FAST_BFLOAT16, "avx2"):
        here = {capability: True}
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda here=here: here, raising=False)
        assert number_format("cpu") == FORMATS["bfloat16" if capability in FAST_BFLOAT16 else "float32"]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert number_format("cuda:1") == torch.float32
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert number_format("cuda:1") == torch.bfloat16
    assert number_format("mps") == number_format("meta") == torch.float32


@pytest.mark.parametrize("named", list(FORMATS))
def test_a_named_format_is_used_on_every_device(named: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    assert number_format("cpu", named) == number_format("mps", named) == FORMATS[named]


def test_the_environment_decides_for_auto_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for named, dtype in FORMATS.items():
        monkeypatch.setenv("SARELOC_PRECISION", named)
        assert number_format("cpu") == number_format("meta", "auto") == dtype
        assert [number_format("cpu", other) for other in FORMATS] == list(FORMATS.values())
    for named in ("auto", ""):
        monkeypatch.setenv("SARELOC_PRECISION", named)
        assert choose_precision() == "auto"


def test_an_unknown_name_lists_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match=r"unknown precision 'half'.*auto, float32, bfloat16"):
        load_model("no such model", precision="half")  # type: ignore[arg-type]
    monkeypatch.setenv("SARELOC_PRECISION", "fp16")
    for precision in ("auto", *FORMATS):
        with pytest.raises(ArgumentError, match=r"unknown SARELOC_PRECISION 'fp16'.*auto, float32, bfloat16"):
            number_format("cpu", precision)


def test_autocast_is_on_for_bfloat16_alone() -> None:
    with autocast("cpu", torch.float32):
        assert not torch.is_autocast_enabled("cpu")
    with autocast("cpu", torch.bfloat16):
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("named", list(FORMATS))
def test_the_model_carries_its_format(named: Precision, model: PlaceModel, tmp_path: Path) -> None:
    save_checkpoint(model, tmp_path / "model.safetensors")
    loaded = load_model(tmp_path / "model.safetensors", precision=named)
    whitening = fit_whitening(torch.nn.functional.normalize(torch.rand(20, model.dim), dim=1), 8)
    for one in (loaded, fold_norms(loaded), fuse_relus(loaded), with_whitening(loaded, whitening)):
        assert one.precision == named
        with evaluating(one):
            assert torch.is_autocast_enabled("cpu") == (named == "bfloat16")
    torch.testing.assert_close(loaded.encode(IMAGES), model.encode(IMAGES, precision=named), atol=1e-3, rtol=0)
    encoder = Encoder(loaded, keypoints=0)
    described = [one.descriptor for one in encoder.encode([read_image(image, encoder.sizes) for image in IMAGES])]
    np.testing.assert_allclose(described, model.encode(IMAGES, precision=named).numpy(), atol=1e-3)


def test_formats_give_other_descriptors_that_are_near(model: PlaceModel) -> None:
    full, half = (model.encode(IMAGES, precision=named) for named in FORMATS)
    assert not full.equal(half)
    assert (full * half).sum(dim=1).min() > 0.995


@pytest.mark.usefixtures("openvino")
def test_openvino_compiles_the_models_format(model: PlaceModel) -> None:
    model.precision = "float32"
    full = run_on(model, "openvino")
    assert full.precision == "float32"
    torch.testing.assert_close(full.encode(IMAGES), model.encode(IMAGES), atol=1e-4, rtol=0)
