"""Batches to descriptors: in order, whatever is in flight, and never more pixels at once than a CPU should hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sareloc.encode import encode_batches
from sareloc.encode.describing import CPU_PIXELS, Pixels, stack
from sareloc.models import PlaceModel, RuntimeModel, make_model


def drawn(count: int, height: int, width: int, seed: int = 0) -> list[Pixels]:
    return list(np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    return make_model("resnet18", "gem", size=None, rng=torch.Generator().manual_seed(0))


BATCHES = [("a", drawn(3, 64, 80)), ("none", []), ("b", drawn(2, 80, 64)), ("c", drawn(3, 64, 80, 1)), ("last", [])]


def check(model: PlaceModel, found: list[tuple[str, np.ndarray]], atol: float) -> None:
    assert [tag for tag, _ in found] == [tag for tag, _ in BATCHES]
    for (_, images), (_, vectors) in zip(BATCHES, found, strict=True):
        assert vectors.shape == (len(images), model.dim)
        np.testing.assert_allclose(vectors, model.encode(images).numpy(), atol=atol)


def test_every_batch_comes_back_in_order(model: PlaceModel) -> None:
    check(model, list(encode_batches(model, BATCHES, batch=3)), atol=2e-3)


def test_a_runtime_describes_also_where_batch_norms_could_be_folded(model: PlaceModel) -> None:
    ones = F.normalize(torch.ones(1, model.dim))
    marked = RuntimeModel(model, "ones", lambda images: ones.expand(len(images), -1))
    check(marked, list(encode_batches(marked, BATCHES, batch=3)), atol=0)


def test_few_pixels_are_in_work_at_once_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = make_model("alexnet", "avg"), []
    monkeypatch.setattr(model, "forward", lambda images, dim: seen.append(tuple(images.shape)) or torch.zeros(1, 256))
    for height, width, count in ((480, 640, 3), (240, 320, 9), (600, 800, 2)):
        list(encode_batches(model, [(None, drawn(count, height, width))], batch=32))
    assert [shape[0] for shape in seen] == [1, 1, 1, 4, 4, 1, 1, 1]
    assert all(n == 1 or n * height * width <= CPU_PIXELS for n, _, height, width in seen)


def test_images_are_stacked_once_and_filled_up() -> None:
    images = drawn(2, 5, 7)
    assert stack(images).numpy().tolist() == np.stack(images).tolist()
    filled = stack(images, rows=4)
    assert filled.shape == (4, 5, 7, 3)
    assert filled[:2].equal(stack(images))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpu_gives_the_same_in_the_same_order(compiled: bool) -> None:
    model = make_model("resnet18", "gem", size=None, rng=torch.Generator().manual_seed(0)).to("cuda")
    check(model, list(encode_batches(model, BATCHES, batch=3, compiled=compiled)), atol=1e-2)
