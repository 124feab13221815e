"""Folded batch norms change neither the descriptors nor the model they were folded for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sareloc.models import make_model
from sareloc.models.fused import fold_norms


@pytest.mark.parametrize("backbone", ["resnet18", "resnet50", "efficientnet-lite0"])
def test_folding_leaves_no_norm_and_the_same_descriptors(backbone: str) -> None:
    rng = torch.Generator().manual_seed(1)
    model = make_model(backbone, "gem", rng=rng)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.1, generator=rng)
            module.running_var.uniform_(0.5, 1.5, generator=rng)
            nn.init.normal_(module.bias, std=0.1, generator=rng)
    before, images = model.fingerprint(), torch.randint(0, 256, (2, 3, 70, 97), dtype=torch.uint8, generator=rng)
    folded = fold_norms(model)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    expected = model.encode(images, precision="float32")
    torch.testing.assert_close(folded.encode(images, precision="float32"), expected, atol=1e-5, rtol=0)
    assert model.fingerprint() == before
    assert folded.aggregation is model.aggregation


def test_a_model_without_norms_is_left_as_it_is() -> None:
    model = make_model("alexnet", "gem")
    assert fold_norms(model) is model
