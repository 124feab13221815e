"""DINOv2 against a second implementation from the authors' tensors, its files, sizes, freezing and precision."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.models.transformers import (
    TINY,
    State,
    dinov2_shapes,
    dinov2_twin,
    random_tensors,
    tiny_transformers,  # noqa: F401
    to_hugging_face,
)
from torch import Tensor

from sareloc.errors import ArgumentError, WeightsError
from sareloc.models import Backbone, load_backbone_weights, make_backbone, make_model, open_checkpoint, save_checkpoint
from sareloc.models.backbones import VITS
from sareloc.models.fused import fuse_relus, trace_layers

pytestmark = pytest.mark.usefixtures("tiny_transformers")


def loaded(name: str, state: State, folder: Path, cut: str = "norm") -> Backbone:
    torch.save(state, folder / "dinov2.pth")
    backbone = make_backbone(name, cut=cut)
    load_backbone_weights(backbone, folder / "dinov2.pth")
    return backbone


def assert_equals_twin(backbone: Backbone, state: State, images: Tensor) -> None:
    with torch.no_grad():
        features, token = backbone.double().split(backbone(images.double()))
    assert token is not None
    for found, found_token, image in zip(features, token, images, strict=True):
        expected, expected_token = dinov2_twin(state, TINY[backbone.name], image, backbone.cut)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(found_token, expected_token, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [(70, 98), (107, 87)])
@pytest.mark.parametrize("name", TINY)
def test_tokens_equal_the_twin(name: str, size: tuple[int, int], tmp_path: Path) -> None:
    state = random_tensors(dinov2_shapes(TINY[name]))
    assert_equals_twin(loaded(name, state, tmp_path), state, torch.randn(2, 3, *size))


@pytest.mark.parametrize("cut", ["block0", "block1", "block0-value", "block1-value"])
def test_inner_layers_equal_the_twin(cut: str, tmp_path: Path) -> None:
    state = random_tensors(dinov2_shapes(TINY["dinov2-tiny"]))
    assert_equals_twin(loaded("dinov2-tiny", state, tmp_path, cut), state, torch.randn(1, 3, 70, 84))


def test_at_the_trained_size_positions_are_used_as_they_are() -> None:
    embed = make_backbone("dinov2-tiny").embed
    assert embed.positions(37, 37).equal(embed.pos_embed[:, 1:])
    assert embed.positions(23, 31).shape == (1, 23 * 31, 48)


@pytest.mark.parametrize("name", TINY)
def test_files_of_hugging_face_hold_the_same_network(name: str, tmp_path: Path) -> None:
    state = random_tensors(dinov2_shapes(TINY[name]))
    expected = loaded(name, state, tmp_path)
    save_file(to_hugging_face(state), tmp_path / "model.safetensors")
    found = make_backbone(name)
    load_backbone_weights(found, tmp_path / "model.safetensors")
    for key, tensor in expected.state_dict().items():
        assert found.state_dict()[key].equal(tensor), key


@pytest.mark.parametrize("name", VITS)
def test_published_sizes(name: str) -> None:
    """Names and shapes of the released files; about 21, 86, 300 and 1,100 million parameters."""
    with torch.device("meta"):
        backbone = make_backbone(name)
        published = {key: torch.empty(shape) for key, shape in dinov2_shapes(VITS[name]).items()}
    found = {key: tuple(tensor.shape) for key, tensor in backbone.published_tensors(published).items()}
    assert found == {key: tuple(tensor.shape) for key, tensor in backbone.state_dict().items()}
    millions = sum(p.numel() for p in backbone.parameters()) / 1e6
    assert millions == pytest.approx({"s": 22, "b": 86, "l": 304, "g": 1136}[name.split("-")[1]], rel=0.02)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    state = random_tensors(dinov2_shapes(TINY["dinov2-tiny"]))
    del state["blocks.1.attn.qkv.bias"]
    with pytest.raises(WeightsError, match=r"missing: blocks\.1\.attn\.qkv\.bias"):
        loaded("dinov2-tiny", state, tmp_path)


def test_frozen_and_trained_blocks_together_are_the_whole() -> None:
    backbone = make_backbone("dinov2-tiny-reg", train_from="block1")
    images = torch.randn(2, 3, 75, 130)
    with torch.no_grad():
        whole = backbone(images)
        for part in backbone.part_names():
            backbone.freeze_below(part)
            features = backbone.lower(images)
            assert (features is images) == (part == "embed")
            assert (backbone.upper(features) is features) == (part == "nothing")
            torch.testing.assert_close(backbone.upper(features), whole)
    assert whole.shape == (2, 40, 1 + 5, 9)
    held = [p for modules in backbone.parts().values() for m in modules for p in m.parameters()]
    assert {id(p) for p in held} == {id(p) for p in backbone.parameters()}
    assert len(held) == len({id(p) for p in held})


def test_gradients_reach_the_trained_blocks_alone() -> None:
    model = make_model("dinov2-tiny", "salad", size=None, train_from="block1", clusters=4, cluster_dim=3).train()
    model(torch.rand(2, 3, 70, 84)).square().mul(torch.arange(model.dim)).sum().backward()
    for name, parameter in model.named_parameters():
        frozen = name.startswith(("backbone.embed", "backbone.blocks.0"))
        assert (parameter.grad is None) == frozen, name


def test_the_feature_map_is_without_the_token_row() -> None:
    model = make_model("dinov2-tiny", "cls", size=None)
    images = torch.randint(0, 256, (1, 3, 70, 98), dtype=torch.uint8)
    with torch.no_grad():
        assert model.feature_map(images).shape == (1, 48, 5, 7)
        whole = model.backbone(model.pixels(images))
        torch.testing.assert_close(model(images)[0], torch.nn.functional.normalize(whole[0, :, 0, 0], dim=0))
        torch.testing.assert_close(model.upper(model.lower(images)), model(images), atol=1e-5, rtol=0)


def test_any_aggregation_works_on_it_and_its_checkpoint_opens(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (2, 3, 72, 100), dtype=torch.uint8)
    for aggregation, options in {
        "netvlad": {"clusters": 3}, "crn": {"clusters": 3}, "gem": {}, "vlad": {"clusters": 3}, "cls": {},
        "salad": {"clusters": 5, "token_dim": 7}, "megaloc": {"clusters": 5, "cluster_dim": 4, "out_dim": 9},
        "boq": {"width": 12, "queries": 3, "heads": 2}, "mixvpr": {"height": 5, "width": 7}, "cosplace": {"out_dim": 5},
    }.items():  # fmt: skip
        model = make_model("dinov2-tiny", aggregation, size=(72, 100), **options)
        save_checkpoint(model, tmp_path / "model.safetensors")
        opened = open_checkpoint(tmp_path / "model.safetensors")
        assert opened.spec() == model.spec()
        exact, found = (m.encode(images, precision="float32") for m in (model, opened))
        torch.testing.assert_close(found, exact, atol=1e-5, rtol=0, msg=aggregation)


def test_bfloat16_is_close_and_the_batch_does_not_matter() -> None:
    model = make_model("dinov2-tiny", "salad", size=None, clusters=4)
    images = torch.randint(0, 256, (3, 3, 84, 84), dtype=torch.uint8)
    exact = model.encode(images, precision="float32")
    assert (model.encode(images, precision="bfloat16") * exact).sum(dim=1).min() > 0.99
    torch.testing.assert_close(model.encode(images, batch=1, precision="float32"), exact, atol=1e-5, rtol=0)


def test_the_same_generator_draws_the_same_weights() -> None:
    first, again, other = (
        make_backbone("dinov2-tiny-reg", rng=torch.Generator().manual_seed(seed)).state_dict() for seed in (1, 1, 2)
    )
    for name in ("embed.pos_embed", "embed.register_tokens", "embed.proj.weight", "blocks.1.attn.qkv.weight"):
        assert first[name].equal(again[name])
        assert not first[name].equal(other[name])


def test_what_a_transformer_cannot_do_is_reported() -> None:
    with pytest.raises(ArgumentError, match="salad needs a transformer's class token, which resnet18 does not have"):
        make_model("resnet18", "salad")
    with pytest.raises(ArgumentError, match=r"salad with 64 clusters .* 5 x 5 = 25: use larger images"):
        make_model("dinov2-tiny", "salad", size=None)(torch.rand(1, 3, 70, 70))
    with pytest.raises(ArgumentError, match=r"cls: expected class tokens \(2, 48\), found none"):
        make_model("dinov2-tiny", "cls").aggregation(torch.rand(2, 48, 3, 3))
    model = make_model("dinov2-tiny", "cls")
    with pytest.raises(ArgumentError, match="transformer"):
        trace_layers(model.backbone)
    assert fuse_relus(model) is model
    with pytest.raises(ArgumentError, match="'block2': known are block0, block0-value, block1, block1-value, norm"):
        make_backbone("dinov2-tiny", cut="block2")
    assert make_backbone("dinov2-b", cut="block3").train_from == "block3"


def test_copies_do_not_share_weights() -> None:
    backbone = make_backbone("dinov2-tiny")
    other = copy.deepcopy(backbone)
    assert other.state_dict()["embed.cls_token"].data_ptr() != backbone.state_dict()["embed.cls_token"].data_ptr()
