"""ReLUs inside their convolutions change neither the descriptors nor the model they were put there for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sareloc.models import evaluating, make_model
from sareloc.models.fused import ConvRelu, fold_norms, fuse_relus, run_fused
from sareloc.training.data import frozen_features


def random_images(rng: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 256, (2, 3, 64, 73), dtype=torch.uint8, generator=rng)


@pytest.mark.parametrize(("backbone", "fused_away"), [("vgg16", 12), ("alexnet", 4)])
def test_fused_relus_give_the_same_descriptors(backbone: str, fused_away: int) -> None:
    rng = torch.Generator().manual_seed(1)
    model = make_model(backbone, "gem", rng=rng)
    model.precision = "float32"
    for module in model.backbone.modules():
        if isinstance(module, nn.Conv2d) and module.bias is not None:
            nn.init.normal_(module.bias, std=0.1, generator=rng)
    images, before = random_images(rng), model.fingerprint()
    fused = fuse_relus(model)
    relus = [sum(isinstance(m, nn.ReLU) for m in given.modules()) for given in (model, fused)]
    assert relus[0] - relus[1] == sum(isinstance(m, ConvRelu) for m in fused.modules()) == fused_away
    first = next(m for m in fused.modules() if isinstance(m, ConvRelu))
    assert first.weight.shape[1] == 8
    torch.testing.assert_close(fused.encode(images), model.encode(images), atol=1e-5, rtol=0)
    assert model.fingerprint() == before
    assert fused.aggregation is model.aggregation


def test_fused_convolutions_compute_in_the_format_of_the_model() -> None:
    rng = torch.Generator().manual_seed(1)
    model = make_model("vgg16", "gem", rng=rng)
    model.precision = "bfloat16"
    fused = fuse_relus(model)
    assert {m.weight.dtype for m in fused.modules() if isinstance(m, ConvRelu)} == {torch.bfloat16}
    images = random_images(rng)
    same = (fused.encode(images) * model.encode(images, precision="float32")).sum(dim=1)
    assert same.min() > 0.999


@pytest.mark.parametrize("backbone", ["efficientnet-lite0", "resnet18"])
def test_other_backbones_are_left_as_they_are(backbone: str) -> None:
    model = fold_norms(make_model(backbone, "gem"))
    assert fuse_relus(model) is model


def test_fused_convolutions_compile_into_one_graph() -> None:
    rng = torch.Generator().manual_seed(1)
    unfused = make_model("vgg16", "gem", rng=rng)
    unfused.precision = "float32"
    model = fuse_relus(unfused)
    run = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
    images = random_images(rng)
    with evaluating(model):
        found, expected = run(images), model(images)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("backbone", "train_from"), [("vgg16", "conv4_1"), ("alexnet", "conv3"), ("resnet18", "layer3")]
)
def test_layers_run_fused_give_what_they_give_one_by_one(backbone: str, train_from: str) -> None:
    rng = torch.Generator().manual_seed(1)
    model = make_model(backbone, "gem", train_from=train_from, rng=rng)
    for module in model.backbone.modules():
        if isinstance(module, nn.Conv2d) and module.bias is not None:
            nn.init.normal_(module.bias, std=0.1, generator=rng)
    images = random_images(rng)
    expected = model.lower(images)
    found = run_fused(model.backbone.lower_layers(), model.pixels(images), torch.float32)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    compiled = torch.compile(run_fused, backend="aot_eager", fullgraph=True, dynamic=False)
    again = compiled(model.backbone.lower_layers(), model.pixels(images), torch.float32)
    torch.testing.assert_close(again, found, atol=1e-4, rtol=1e-4)
    assert not found.requires_grad
    assert not any(isinstance(m, ConvRelu) for m in model.modules())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_training_s_frozen_features_on_cuda_are_those_of_float32() -> None:
    rng = torch.Generator().manual_seed(1)
    model = make_model("vgg16", "gem", train_from="conv4_1", rng=rng)
    images = random_images(rng)
    expected = model.lower(images).flatten(1)
    found = frozen_features(model.to("cuda"), images.to("cuda"), torch.bfloat16).flatten(1).float().cpu()
    assert torch.nn.functional.cosine_similarity(found, expected).min() > 0.9999


def test_the_operator_keeps_its_promises() -> None:
    rng = torch.Generator().manual_seed(1)
    x, weight, bias = (torch.randn(shape, generator=rng) for shape in ((2, 3, 9, 9), (4, 3, 3, 3), (4,)))
    arguments = ([1, 1], [1, 1], [1, 1], 1)
    torch.library.opcheck(torch.ops.sareloc.conv_relu.default, (x, weight, bias, *arguments))
