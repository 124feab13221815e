"""The assembled model: images in, unit descriptors out, and nothing about it changed by being asked."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from sareloc.errors import ArgumentError, PhotoError
from sareloc.models import (
    AGGREGATIONS,
    ModelSpec,
    NetVLAD,
    PlaceModel,
    Precision,
    Preprocess,
    Whitening,
    evaluating,
    fit_whitening,
    make_backbone,
    make_model,
)
from sareloc.models.place_model import model_from_spec
from sareloc.photos import ImageRecord, read_image

FULL: Precision = "float32"


def tiny(aggregation: str = "netvlad", *, backbone: str = "alexnet", seed: int = 0, **options: float) -> PlaceModel:
    if aggregation in ("netvlad", "crn"):
        options = {"clusters": 4, **options}
    return make_model(backbone, aggregation, size=None, rng=torch.Generator().manual_seed(seed), **options)


def whitened() -> PlaceModel:
    model = tiny("gem")
    model.whitening = fit_whitening(F.normalize(torch.rand(60, 256), dim=1), 24)
    return model


def photo(height: int, width: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Blobs rather than noise, which all look alike."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return np.array(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


OF_TOKENS_OR_ONE_SIZE = {"cls", "salad", "megaloc", "mixvpr"}  # see test_heads


@pytest.mark.parametrize("size", [(64, 64), (97, 131)])
@pytest.mark.parametrize(
    ("backbone", "aggregation"),
    [("alexnet", a) for a in sorted(set(AGGREGATIONS) - OF_TOKENS_OR_ONE_SIZE)]
    + [(b, "crn") for b in ("vgg16", "resnet18", "efficientnet-lite0")],
)
def test_any_size_from_64_px_up_gives_unit_vectors(backbone: str, aggregation: str, size: tuple[int, int]) -> None:
    model = tiny(aggregation, backbone=backbone)
    found = model.encode([photo(*size)], precision=FULL)
    assert found.shape == (1, model.dim)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(1))


def test_the_smallest_map_of_the_coarsest_backbone_can_be_reweighted() -> None:
    model = make_model("resnet18", "crn", cut="layer4", size=None, clusters=4)
    assert model.feature_map(torch.zeros(1, 3, 64, 64)).shape[2:] == (2, 2)
    assert model.encode([photo(64, 65), photo(71, 97)]).isfinite().all()


@pytest.mark.parametrize("build", [tiny, whitened])
def test_encode_equals_forward(build: Callable[[], PlaceModel]) -> None:
    model = build()
    images = torch.stack([torch.from_numpy(photo(70, 90, s)).permute(2, 0, 1) for s in range(3)])
    with torch.no_grad():
        expected = model(images)
    torch.testing.assert_close(model.encode(images, precision=FULL), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        model.encode([i.permute(1, 2, 0).numpy() for i in images], precision=FULL), expected, atol=1e-5, rtol=0
    )


def test_mixed_sizes_come_back_in_their_order() -> None:
    model = tiny()
    images = [photo(h, w, s) for s, (h, w) in enumerate([(64, 80), (90, 70), (64, 80), (97, 131), (90, 70), (64, 80)])]
    alone = torch.cat([model.encode([image], precision=FULL) for image in images])
    assert (alone @ alone.T - torch.eye(6)).max() < 0.999  # else the order could not be told
    for batch in (1, 2, 8):
        torch.testing.assert_close(model.encode(images, batch=batch, precision=FULL), alone, atol=1e-5, rtol=0)


def same(images: list[Any], others: list[Any], model: PlaceModel, other: PlaceModel | None = None) -> None:
    """Images of a model have the descriptors that others have, by default of the same model."""
    expected = (other or model).encode(others, precision=FULL)
    torch.testing.assert_close(model.encode(images, precision=FULL), expected, atol=1e-5, rtol=0)


def test_pil_images_and_arrays_are_the_same_to_it() -> None:
    model = make_model("alexnet", "gem", size=(64, 96))
    images = [photo(120, 200), photo(200, 120, 1)]
    same([Image.fromarray(i) for i in images], images, model)


def test_images_are_taken_as_paths_bytes_and_records_too(tmp_path: Path) -> None:
    model, path = make_model("alexnet", "gem", size=(64, 96)), tmp_path / "photo.png"
    Image.fromarray(photo(120, 200)).save(path)
    same([path, str(path), path.read_bytes(), ImageRecord("front/1", path)], [photo(120, 200)] * 4, model)
    pixels = photo(120, 200)
    in_memory = (path.read_bytes(), io.BytesIO(path.read_bytes()), pixels, Image.fromarray(pixels), read_image(path))
    for alone in (path, str(path), *in_memory, ImageRecord("front/1", path)):
        with pytest.raises(ArgumentError, match=r"a single one .*encode\(\[image\]\)"):
            model.encode(alone)


def test_images_are_brought_to_the_models_size() -> None:
    model = make_model("alexnet", "gem", size=(64, 96))
    resized = [np.asarray(Image.fromarray(photo(120, 200)).resize((96, 64), Image.Resampling.BILINEAR))]
    same([photo(120, 200)], resized, model)


def test_models_that_differ_by_interpolation_alone_have_two_fingerprints() -> None:
    model = make_model("alexnet", "gem", size=(64, 96), rng=torch.Generator().manual_seed(0))
    bicubic = PlaceModel(replace(model.preprocess, interpolation="bicubic"), model.backbone, model.aggregation).eval()
    assert bicubic.fingerprint() != model.fingerprint()
    assert "interpolation" not in model.spec().to_json()  # as in files from before there was another
    assert ModelSpec.from_json(bicubic.spec().to_json()) == bicubic.spec()
    resized = np.asarray(Image.fromarray(photo(120, 200)).resize((96, 64), Image.Resampling.BICUBIC))
    for given in (photo(120, 200), Image.fromarray(photo(120, 200))):
        same([given], [resized], bicubic, model)
        assert (bicubic.encode([given], precision=FULL) - model.encode([given], precision=FULL)).abs().max() > 1e-4


def test_no_images_give_no_descriptors() -> None:
    assert tiny("gem").encode([]).shape == (0, 256)
    assert whitened().encode([], dim=7).shape == (0, 7)


def test_smaller_dimensions_are_the_first_coordinates() -> None:
    model = whitened()
    whole, part = model.encode([photo(70, 90)], precision=FULL), model.encode([photo(70, 90)], dim=9, precision=FULL)
    torch.testing.assert_close(part, F.normalize(whole[:, :9], dim=1), atol=1e-5, rtol=0)


def test_bfloat16_is_close_to_float32() -> None:
    model = tiny()
    images = [photo(128, 160, s) for s in range(4)]
    exact, fast = model.encode(images, precision=FULL), model.encode(images, precision="bfloat16")
    assert fast.dtype == torch.float32
    assert not fast.equal(exact)
    assert F.cosine_similarity(exact, fast).min() > 0.995
    torch.testing.assert_close(fast.norm(dim=1), torch.ones(4))


def test_gradients_reach_the_trained_part_and_no_other() -> None:
    model = tiny().train()
    model(torch.rand(2, 3, 64, 64)).sum().backward()
    with_gradient = {name for name, p in model.named_parameters() if p.grad is not None}
    assert with_gradient == {
        "backbone.features.10.weight",
        "backbone.features.10.bias",
        "aggregation.assign",
        "aggregation.centres",
    }
    assert model(torch.rand(1, 3, 64, 64)).requires_grad
    assert model.feature_map(torch.rand(1, 3, 64, 64)).requires_grad
    assert not model.encode([photo(64, 64)]).requires_grad


def test_lower_then_upper_is_the_whole_without_whitening() -> None:
    model = whitened()
    images = torch.rand(2, 3, 70, 90)
    with torch.no_grad():
        parts, whole = model.upper(model.lower(images)), model.aggregation(model.feature_map(images))
    torch.testing.assert_close(parts, whole, atol=1e-5, rtol=0)


def test_training_leaves_the_frozen_part_and_its_statistics_alone() -> None:
    model = make_model("resnet18", "gem", size=None, train_from="layer3").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model(torch.rand(2, 3, 64, 64))
    changed = {name for name, value in model.state_dict().items() if not value.equal(before[name])}
    assert changed
    assert all(name.startswith("backbone.layer3") for name in changed)


@pytest.mark.parametrize("fails", [False, True])
def test_encode_leaves_every_parts_mode_as_it_was(fails: bool) -> None:
    model = make_model("resnet18", "gem", size=None, train_from="layer3").train()
    model.aggregation.eval()  # a mixture that train() and eval() alone would not bring back
    before = [module.training for module in model.modules()]
    statistics = model.state_dict()["backbone.layer3.0.bn1.running_mean"].clone()
    assert len(set(before)) == 2
    if fails:
        with pytest.raises(PhotoError, match="10 x 10 px"):
            model.encode([photo(64, 64), photo(10, 10)])
    else:
        model.encode([photo(64, 64)])
    assert [module.training for module in model.modules()] == before
    assert model.state_dict()["backbone.layer3.0.bn1.running_mean"].equal(statistics)
    assert torch.is_grad_enabled()


def test_inside_evaluating_there_are_no_gradients() -> None:
    model = tiny().train()
    with evaluating(model):
        assert not model.training
        assert not model(torch.rand(1, 3, 64, 64)).requires_grad


@pytest.mark.parametrize("build", [tiny, whitened])
def test_spec_survives_json_and_assembles_the_same_model(build: Callable[[], PlaceModel]) -> None:
    model = build()
    spec = model.spec()
    again = ModelSpec.from_json(spec.to_json())
    assert again == spec
    assert again.to_json() == spec.to_json()
    other = model_from_spec(again).to_empty(device="cpu")
    other.load_state_dict(model.state_dict())
    assert other.spec() == spec
    assert other.fingerprint() == model.fingerprint()
    assert other.name == model.name
    assert other.dim == model.dim


def test_spec_keeps_every_choice() -> None:
    model = make_model(
        "resnet18", "crn", size=500, cut="layer4", train_from="layer4", name="mine", clusters=3, bias=True
    )
    told = json.loads(model.spec().to_json())
    assert told["preprocess"]["resize"] == 500
    told["preprocess"] = None
    assert told == {
        "name": "mine",
        "backbone": "resnet18",
        "cut": "layer4",
        "train_from": "layer4",
        "aggregation": "crn",
        "knobs": {"clusters": 3, "bias": True},
        "whitening": None,
        "preprocess": None,
    }
    assert model_from_spec(model.spec()).spec() == model.spec()


def test_assembling_from_a_spec_draws_nothing_from_the_global_generator() -> None:
    spec = tiny().spec()
    state = torch.get_rng_state()
    model_from_spec(spec)
    assert torch.get_rng_state().equal(state)


def test_fingerprint_sees_each_weight_and_choice_but_not_layout_or_name() -> None:
    base = tiny()
    first = base.fingerprint()
    assert tiny().fingerprint() == first
    assert tiny().to(memory_format=torch.channels_last).fingerprint() == first
    assert tiny().double().fingerprint() == first
    assert tiny().train().fingerprint() == first
    renamed = tiny()
    renamed.name = "another"
    renamed.backbone.freeze_below("nothing")
    assert renamed.fingerprint() == first

    seen = {first, tiny(seed=1).fingerprint()}
    for name in base.state_dict():
        changed = tiny()
        weight = changed.state_dict()[name].flatten()
        weight[-1] = torch.nextafter(weight[-1], torch.tensor(9.0))
        seen.add(changed.fingerprint())
    swapped = tiny()
    swapped.preprocess = Preprocess(resize=(64, 64))
    seen.add(swapped.fingerprint())
    assert len(seen) == 3 + len(base.state_dict())


def test_random_weights_come_from_the_generator() -> None:
    assert tiny(seed=1).fingerprint() == tiny(seed=1).fingerprint() != tiny(seed=2).fingerprint()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_gpu_gives_the_descriptors_of_the_cpu() -> None:
    model = tiny()
    images = [photo(96, 128, s) for s in range(3)]
    expected = model.encode(images, precision=FULL)
    fingerprint = model.fingerprint()
    model.to("cuda")
    assert model.fingerprint() == fingerprint
    for precision in get_args(Precision):
        found = model.encode(images, precision=precision)
        assert found.device.type == "cpu"
        assert F.cosine_similarity(found, expected).min() > 0.995


def test_errors() -> None:
    with pytest.raises(ArgumentError, match="unknown backbone 'vgg'"):
        make_model("vgg")
    with pytest.raises(ArgumentError, match="no option 'clusters'"):
        make_model("alexnet", "gem", clusters=3)
    with pytest.raises(ArgumentError, match="256 output channels"):
        PlaceModel(Preprocess(), make_backbone("alexnet"), NetVLAD(512))
    model = tiny()
    with pytest.raises(ArgumentError, match="no whitening"):
        model.encode([photo(64, 64)], dim=9)
    with pytest.raises(ArgumentError, match="1 to 24"):
        whitened().encode([photo(64, 64)], dim=25)
    with pytest.raises(ArgumentError, match="32 x 64 px"):
        model(torch.zeros(1, 3, 32, 64))
    with pytest.raises(ArgumentError, match=r"shape \(B, 3, H, W\), found"):
        model(torch.zeros(1, 1, 64, 64))
    with pytest.raises(ArgumentError, match=r"\['cut'\].*\['cutt'\]"):
        ModelSpec.from_json(tiny().spec().to_json().replace('"cut"', '"cutt"'))
    wrong = PlaceModel(
        Preprocess(), make_backbone("alexnet"), NetVLAD(256, 2), Whitening(torch.zeros(4), torch.zeros(2, 4))
    )
    with pytest.raises(ArgumentError, match=r"\(B, 4\), found \(1, 512\)"):
        wrong(torch.zeros(1, 3, 64, 64))
