"""The newer aggregations against slow twins, their gradients, published sizes, and what must not matter to them."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from tests.models import heads
from torch import Tensor

from sareloc.errors import ArgumentError
from sareloc.losses import LOSSES, make_loss
from sareloc.models import AGGREGATIONS, Aggregation, make_aggregation
from sareloc.models.heads import assign

CHANNELS = 5
SIZES = [(3, 4), (2, 7)]
OPTIONS: dict[str, dict[str, Any]] = {
    "salad": {"clusters": 3, "cluster_dim": 4, "token_dim": 2, "hidden": 6},
    "megaloc": {"clusters": 3, "cluster_dim": 4, "token_dim": 2, "hidden": 6, "out_dim": 8},
    "cls": {},
    "cosplace": {"out_dim": 7},
    "vlad": {"clusters": 4},
    "mixvpr": {"out_channels": 6, "depth": 2, "mlp_ratio": 2, "rows": 3},
    "boq": {"width": 6, "queries": 3, "depth": 2, "rows": 4, "heads": 2},
}
TWINS = {
    "salad": heads.salad, "megaloc": heads.megaloc, "cls": heads.class_token, "cosplace": heads.cosplace,
    "vlad": heads.vlad, "mixvpr": heads.mixvpr,
}  # fmt: skip


def make(name: str, size: tuple[int, int] = (3, 4), dtype: torch.dtype = torch.float64) -> Aggregation:
    sides = {"height": size[0], "width": size[1]} if name == "mixvpr" else {}
    layer = make_aggregation(name, CHANNELS, {**OPTIONS[name], **sides}).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # nothing may hide behind a special start
    return layer.to(dtype)


def slow(layer: Aggregation, image: Tensor, token: Tensor) -> Tensor:
    twin = partial(heads.boq, width=image.shape[2], heads=2) if layer.name == "boq" else TWINS[layer.name]
    return torch.tensor(twin(layer.state_dict(), image.flatten(1).T.tolist(), token.tolist()), dtype=torch.float64)


def test_all_aggregations_are_tested_here_or_in_test_aggregation() -> None:
    assert {*OPTIONS, "avg", "crn", "gem", "max", "netvlad"} == set(AGGREGATIONS)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", OPTIONS)
def test_equals_the_slow_twin(name: str, size: tuple[int, int]) -> None:
    layer = make(name, size)
    images, tokens = torch.randn(2, CHANNELS, *size).double(), torch.randn(2, CHANNELS).double()
    expected = torch.stack([slow(layer, image, token) for image, token in zip(images, tokens, strict=True)])
    assert expected.shape == (2, layer.dim)
    torch.testing.assert_close(layer(images, tokens), expected, atol=1e-12, rtol=0)
    single = layer.float()(images.float(), tokens.float())
    torch.testing.assert_close(single.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_to_the_map_the_token_and_every_parameter(name: str) -> None:
    layer = make(name)
    names, parameters = zip(*layer.named_parameters(), strict=True) if list(layer.parameters()) else ((), ())
    images = torch.randn(1, CHANNELS, 3, 4, dtype=torch.float64, requires_grad=True)
    token = torch.randn(1, CHANNELS, dtype=torch.float64, requires_grad=True)

    def call(images: Tensor, token: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (images, token))  # type: ignore[no-any-return]

    assert torch.autograd.gradcheck(call, (images, token, *parameters), fast_mode=True)


@pytest.mark.parametrize("name", OPTIONS)
def test_an_image_alone_or_among_others_in_any_layout_and_precision(name: str) -> None:
    layer = make(name, dtype=torch.float32)
    images, tokens = torch.randn(4, CHANNELS, 3, 4).bfloat16(), torch.randn(4, CHANNELS).bfloat16()
    whole = layer(images.float(), tokens.float())
    torch.testing.assert_close(whole.norm(dim=1), torch.ones(4))
    alone = torch.cat([layer(i[None].float(), t[None].float()) for i, t in zip(images, tokens, strict=True)])
    torch.testing.assert_close(alone, whole, atol=1e-5, rtol=0)
    other = images.float().contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(layer(other, tokens.float()), whole, atol=1e-5, rtol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(images, tokens).equal(whole)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_map_of_zeros_gives_numbers_and_gradients(name: str) -> None:
    layer = make(name, dtype=torch.float32)
    images, tokens = torch.zeros(1, CHANNELS, 3, 4, requires_grad=True), torch.zeros(1, CHANNELS, requires_grad=True)
    found = layer(images, tokens)
    found.square().sum().backward()
    assert found.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in (images, tokens, *layer.parameters()))


@pytest.mark.parametrize("name", ["salad", "megaloc", "cosplace", "vlad"])
def test_the_order_of_locations_does_not_matter(name: str) -> None:
    layer = make(name)
    images, tokens = torch.randn(2, CHANNELS, 3, 4).double(), torch.randn(2, CHANNELS).double()
    shuffled = images.flatten(2)[:, :, torch.randperm(12)].view_as(images)
    torch.testing.assert_close(layer(shuffled, tokens), layer(images, tokens))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_trains_every_head(name: str, loss: str) -> None:
    layer = make(name, dtype=torch.float32).train()
    images, tokens = torch.randn(5, CHANNELS, 3, 4), torch.randn(5, CHANNELS, requires_grad=True)
    found = layer(images.requires_grad_(), tokens)
    make_loss(loss)(found[:1], found[1:2], found[None, 2:]).sum().backward()
    trained = [*layer.parameters(), tokens if layer.needs_token else images]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in trained)
    # a triplet or a contrastive pair beyond its margin has no gradient
    assert loss in ("triplet", "contrastive") or sum(float(p.grad.abs().sum()) for p in trained) > 0


def test_transport_gives_every_location_its_mass_and_the_clusters_nearly_theirs() -> None:
    mass = assign(torch.randn(2, 4, 30).double(), torch.tensor(1.0).double()).exp()
    assert mass.shape == (2, 4, 30)
    assert (mass.sum(dim=1) < 1).all()  # the rest is in the dustbin
    torch.testing.assert_close(mass.sum(dim=2), torch.ones(2, 4).double(), atol=0.1, rtol=0)
    # on paper: equal scores spread the mass of each cluster, 1, over all locations
    even = assign(torch.zeros(1, 2, 8), torch.zeros(()))
    torch.testing.assert_close(even, torch.full((1, 2, 8), math.log(1 / 8)))
    # huge scores overflow nowhere
    assert assign(1e4 * torch.randn(1, 3, 9), torch.tensor(1.0)).exp().isfinite().all()


@pytest.mark.parametrize(
    ("name", "channels", "options", "dim"),
    [
        ("salad", 768, {}, 8448),
        ("megaloc", 768, {}, 8448),
        ("boq", 768, {}, 12288),
        ("boq", 1024, {"width": 512}, 16384),
        ("mixvpr", 1024, {}, 4096),
        ("cosplace", 2048, {"out_dim": 2048}, 2048),
        ("vlad", 1536, {}, 49152),
    ],
)
def test_published_dimensions(name: str, channels: int, options: dict[str, Any], dim: int) -> None:
    with torch.device("meta"):
        layer = make_aggregation(name, channels, options)
        assert layer.dim == dim
        again = make_aggregation(name, channels, layer.options())
    assert again.options() == layer.options()
    shapes = {key: tensor.shape for key, tensor in layer.state_dict().items()}
    assert {key: tensor.shape for key, tensor in again.state_dict().items()} == shapes


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "cls"])
def test_random_weights_come_from_the_generator(name: str) -> None:
    made = [
        make_aggregation(name, CHANNELS, OPTIONS[name], rng=torch.Generator().manual_seed(seed)).state_dict()
        for seed in (1, 1, 2)
    ]
    drawn = [key for key, tensor in made[0].items() if not tensor.equal(made[2][key])]
    assert all(tensor.equal(made[1][key]) for key, tensor in made[0].items())
    constant = ("bias", "dust_bin", "gem.p")
    assert set(drawn) >= {k for k in made[0] if "norm" not in k and ".mix.0." not in k and not k.endswith(constant)}


def test_dropout_is_for_training() -> None:
    layer = make("salad", dtype=torch.float32)
    images, tokens = torch.randn(2, CHANNELS, 3, 4), torch.randn(2, CHANNELS)
    assert layer(images, tokens).equal(layer(images, tokens))
    assert not layer.train()(images, tokens).equal(layer(images, tokens))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("salad", {"clusters": 0}, r"clusters of salad .*, found 0"),
        ("salad", {"dropout": 1.0}, r"dropout of salad .*, found 1\.0"),
        ("megaloc", {"out_dim": 2.5}, r"out_dim of megaloc .*, found 2\.5"),
        ("boq", {"width": 10, "heads": 3}, r"multiple of its 3 heads, found 10"),
        ("mixvpr", {"rows": True}, r"rows of mixvpr .*, found True"),
        ("mixvpr", {"row_bias": 1}, r"row_bias of mixvpr .*, found 1"),
        ("cosplace", {"dim": 3}, r"'dim': known are out_dim"),
    ],
)
def test_errors_of_options(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make_aggregation(name, CHANNELS, options)


def test_errors_of_sizes() -> None:
    with pytest.raises(ArgumentError, match=r"mixvpr is for feature maps of 3 x 4 locations, found 4 x 4"):
        make("mixvpr", dtype=torch.float32)(torch.randn(1, CHANNELS, 4, 4))
    with pytest.raises(ArgumentError, match=r"salad with 3 clusters .* 1 x 3 = 3"):
        make("salad", dtype=torch.float32)(torch.randn(1, CHANNELS, 1, 3), torch.randn(1, CHANNELS))
    with pytest.raises(ArgumentError, match=r"expected class tokens \(1, 5\), found \(1, 4\)"):
        make("salad", dtype=torch.float32)(torch.randn(1, CHANNELS, 3, 4), torch.randn(1, 4))
