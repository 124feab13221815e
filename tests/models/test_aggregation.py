"""Aggregations against slow plain-loop twins, their gradients, and what must not matter to them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sareloc.errors import ArgumentError
from sareloc.models import AGGREGATIONS, CRN, Aggregation, GeM, NetVLAD, make_aggregation

NAMES = ["avg", "crn", "gem", "max", "netvlad"]  # the others are in test_heads
CLAMPED = {"norm": "clamped"}
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-12}


def make(name: str, channels: int = 6, dtype: torch.dtype = torch.float32, **options: float | str) -> Aggregation:
    options = {"clusters": 4, **options} if name in ("netvlad", "crn") else options
    layer = make_aggregation(name, channels, options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # nothing may hide behind a special start
        if isinstance(layer, NetVLAD):
            layer.assign.mul_(0.03)  # soft enough that every cluster takes part
    return layer.to(dtype)


def length(vector: list[float]) -> float:
    return math.sqrt(sum(v * v for v in vector))


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def whole_unit(vector: list[float]) -> list[float]:
    return [v / length(vector) for v in vector]


def scaled(vector: list[float], norm: str) -> list[float]:
    """NetVLAD's normalisations: both are finite for 0."""
    below = max(length(vector), 1e-12) if norm == "clamped" else math.sqrt(length(vector) ** 2 + 1e-12)
    return [v / below for v in vector]


def slow_mask(layer: CRN, image: Tensor) -> list[list[float]]:
    """Contextual reweighting of one (D, h, w) map, location by location."""
    d, h, w = image.shape
    px = image.tolist()
    ph, pw = math.ceil(max(0, h - 3) / 2) + 1, math.ceil(max(0, w - 3) / 2) + 1
    pooled = [[[0.0] * pw for _ in range(ph)] for _ in range(d)]
    for c in range(d):
        for y in range(ph):
            for x in range(pw):
                seen = [
                    px[c][yy][xx] for yy in range(2 * y, min(2 * y + 3, h)) for xx in range(2 * x, min(2 * x + 3, w))
                ]
                pooled[c][y][x] = sum(seen) / len(seen)
    mask = [[0.0] * pw for _ in range(ph)]
    for y in range(ph):
        for x in range(pw):
            total = layer.context_bias.item()
            for conv in layer.context:
                weight, bias = conv.weight.tolist(), conv.bias.tolist()
                r = len(weight[0][0]) // 2
                for f in range(len(weight)):
                    answer = bias[f]
                    for c in range(d):
                        for dy in range(-r, r + 1):
                            for dx in range(-r, r + 1):
                                if 0 <= y + dy < ph and 0 <= x + dx < pw:
                                    answer += weight[f][c][dy + r][dx + r] * pooled[c][y + dy][x + dx]
                    total += max(0.0, answer)
            mask[y][x] = max(0.0, total)
    return [[bilinear(mask, (y + 0.5) * ph / h - 0.5, (x + 0.5) * pw / w - 0.5) for x in range(w)] for y in range(h)]


def bilinear(grid: list[list[float]], y: float, x: float) -> float:
    y, x = max(0.0, y), max(0.0, x)
    y0, x0 = int(y), int(x)
    y1, x1 = min(y0 + 1, len(grid) - 1), min(x0 + 1, len(grid[0]) - 1)
    fy, fx = y - y0, x - x0
    top = grid[y0][x0] * (1 - fx) + grid[y0][x1] * fx
    return top * (1 - fy) + (grid[y1][x0] * (1 - fx) + grid[y1][x1] * fx) * fy


def slow(layer: Aggregation, image: Tensor) -> list[float]:
    """The descriptor of one (D, h, w) map in plain Python."""
    d, h, w = image.shape
    locations = image.flatten(1).T.tolist()
    if layer.name == "avg":
        return whole_unit([sum(x[c] for x in locations) / len(locations) for c in range(d)])
    if layer.name == "max":
        return whole_unit([max(x[c] for x in locations) for c in range(d)])
    if isinstance(layer, GeM):
        p = layer.p.item()
        powers = [sum(max(x[c], 1e-6) ** p for x in locations) / len(locations) for c in range(d)]
        return whole_unit([m ** (1 / p) for m in powers])
    assert isinstance(layer, NetVLAD)
    assign, centres = layer.assign.tolist(), layer.centres.tolist()
    bias = [0.0] * layer.clusters if layer.bias is None else layer.bias.tolist()
    mask = [v for row in slow_mask(layer, image) for v in row] if isinstance(layer, CRN) else [1.0] * (h * w)
    vlad = [[0.0] * d for _ in range(layer.clusters)]
    for raw, weight in zip(locations, mask, strict=True):
        x = scaled(raw, layer.norm)
        scores = [math.exp(dot(a, x) + b) for a, b in zip(assign, bias, strict=True)]
        for k in range(layer.clusters):
            for c in range(d):
                vlad[k][c] += weight * scores[k] / sum(scores) * (x[c] - centres[k][c])
    return whole_unit([v for cluster in vlad for v in scaled(cluster, layer.norm)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [(4, 6), (3, 5), (2, 2)])
def test_equals_the_slow_twin(name: str, size: tuple[int, int], dtype: torch.dtype) -> None:
    layer = make(name, dtype=dtype)
    images = torch.randn(2, 6, *size, dtype=dtype)
    expected = torch.tensor([slow(layer, image) for image in images], dtype=dtype)
    torch.testing.assert_close(layer(images), expected, atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("name", ["netvlad", "crn"])
@pytest.mark.parametrize("norm", ["smoothed", "clamped"])
def test_tiny_vectors_are_scaled_by_the_norm_of_the_layer(name: str, norm: str) -> None:
    """Tiny locations and tiny clusters from 1e-3 down to less than 1e-12, where the two norms differ."""
    layer = make(name, dtype=torch.float64, norm=norm)
    other = make_aggregation(name, 6, {"clusters": 4, "norm": {"smoothed": "clamped", "clamped": "smoothed"}[norm]})
    other.load_state_dict(layer.state_dict())
    with torch.no_grad():
        layer.assign.copy_(torch.tensor([0.0, -8.0, -16.0, -32.0])[:, None] * torch.ones(6))
    images = torch.rand(2, 6, 3, 4, dtype=torch.float64) + 0.1
    images[:, :, 0] *= torch.tensor([1e-4, 1e-6, 1e-8, 1e-14])
    expected = torch.tensor([slow(layer, image) for image in images], dtype=torch.float64)
    torch.testing.assert_close(layer(images), expected, atol=1e-12, rtol=0)
    assert (other.double()(images) - expected).abs().max() > 0.01


def test_the_norm_is_part_of_the_options_unless_it_is_the_old_one() -> None:
    """Fingerprints from before there was a choice stay as they are."""
    assert make_aggregation("netvlad", 6, {"clusters": 3}).options() == {"clusters": 3, "bias": False}
    assert make_aggregation("netvlad", 6, {"clusters": 3, "norm": "smoothed"}).options() == {
        "clusters": 3,
        "bias": False,
    }
    options = {"clusters": 3, "bias": False, "norm": "clamped"}
    assert make_aggregation("crn", 6, options).options() == options


def test_a_bias_shifts_the_assignment_as_in_the_slow_twin() -> None:
    layer = make("netvlad", dtype=torch.float64, bias=True)
    assert layer.bias is not None
    assert layer.bias.abs().max() > 0
    images = torch.randn(1, 6, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(images)[0].tolist(), slow(layer, images[0]))


@pytest.mark.parametrize(("name", "options"), [*((n, {}) for n in NAMES), ("netvlad", CLAMPED)])
def test_gradients_to_the_map_and_to_every_parameter(name: str, options: dict[str, str]) -> None:
    layer = make(name, channels=3, dtype=torch.float64, **options)
    names, parameters = zip(*layer.named_parameters(), strict=True) if list(layer.parameters()) else ((), ())
    images = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)

    def call(images: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), images)  # type: ignore[no-any-return]

    # one random direction instead of every coordinate: CRN has thousands of parameters
    assert torch.autograd.gradcheck(call, (images, *parameters), fast_mode=True)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "crn"])
def test_the_order_of_locations_does_not_matter(name: str) -> None:
    layer = make(name, dtype=torch.float64)
    images = torch.randn(2, 6, 4, 6, dtype=torch.float64)
    shuffled = images.flatten(2)[:, :, torch.randperm(24)].view_as(images)
    torch.testing.assert_close(layer(shuffled), layer(images))


def test_context_makes_the_order_of_locations_matter() -> None:
    layer = make("crn", dtype=torch.float64)
    images = torch.randn(2, 6, 8, 8, dtype=torch.float64)
    shuffled = images.flatten(2)[:, :, torch.randperm(64)].view_as(images)
    assert (layer(shuffled) - layer(images)).abs().max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (4, 4), (7, 9), (30, 40)])
def test_unit_rows_of_the_promised_length_for_any_map_size(name: str, size: tuple[int, int]) -> None:
    layer = make(name)
    found = layer(torch.randn(3, 6, *size))
    assert found.shape == (3, layer.dim)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3))


@pytest.mark.parametrize("name", NAMES)
def test_an_image_alone_or_among_eight(name: str) -> None:
    layer = make(name)
    images = torch.randn(8, 6, 5, 7)
    torch.testing.assert_close(torch.cat([layer(i[None]) for i in images]), layer(images), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_the_memory_layout_of_the_map_does_not_matter(name: str) -> None:
    layer = make(name)
    images = torch.randn(2, 6, 5, 7)
    other = images.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(layer(other), layer(images), atol=1e-5, rtol=0)


def test_a_location_counts_by_its_direction_alone() -> None:
    layer = make("netvlad")
    images = torch.randn(2, 6, 5, 7)
    torch.testing.assert_close(layer(images * torch.rand(2, 1, 5, 7).add(0.1) * 100), layer(images), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "options"), [("netvlad", {}), ("netvlad", CLAMPED), ("crn", {})])
def test_clusters_that_see_nothing_give_numbers_and_gradients(
    name: str, options: dict[str, str], dtype: torch.dtype
) -> None:
    layer = make(name, **options)
    with torch.no_grad():
        layer.assign.copy_(torch.randn(4, 6) * 1e4)  # all locations alike: the softmax is exactly 0 elsewhere
    images = torch.ones(2, 6, 4, 4, dtype=dtype).requires_grad_()
    found = layer(images)
    assert (found.view(2, 4, 6).norm(dim=2) == 0).any()
    found.sum().backward()
    assert found.isfinite().all()
    assert images.grad is not None
    assert images.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize(("name", "options"), [*((n, {}) for n in NAMES), ("netvlad", CLAMPED)])
def test_an_empty_map_of_zeros_gives_numbers_and_gradients(name: str, options: dict[str, str]) -> None:
    layer = make(name, **options)
    images = torch.zeros(1, 6, 4, 4, requires_grad=True)
    found = layer(images)
    found.square().sum().backward()
    assert found.isfinite().all()
    assert images.grad is not None
    assert images.grad.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_autocast_does_not_reach_into_the_aggregation(name: str) -> None:
    layer = make(name)
    images = torch.randn(2, 6, 5, 7).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(images)
    assert found.dtype == torch.float32
    assert found.equal(layer(images.float()))


def test_reweighting_by_a_constant_is_netvlad() -> None:
    reweighted = make("crn")
    plain = NetVLAD(6, 4)
    plain.load_state_dict({k: v for k, v in reweighted.state_dict().items() if not k.startswith("context")})
    with torch.no_grad():
        for conv in reweighted.context.parameters():
            conv.zero_()
        reweighted.context_bias.fill_(2.5)
    images = torch.randn(2, 6, 7, 9)
    torch.testing.assert_close(reweighted(images), plain(images), atol=1e-5, rtol=0)


def test_reweighting_has_the_published_filters_and_a_fixed_sum() -> None:
    layer = CRN(512)
    assert [tuple(c.weight.shape) for c in layer.context] == [(32, 512, 3, 3), (32, 512, 5, 5), (20, 512, 7, 7)]
    trained = {n for n, p in layer.named_parameters() if p.requires_grad and n.startswith("context")}
    assert trained == {f"context.{i}.{w}" for i in range(3) for w in ("weight", "bias")} | {"context_bias"}


def test_gem_between_average_and_maximum() -> None:
    images = torch.rand(2, 6, 5, 7) + 0.1
    torch.testing.assert_close(GeM(6, p=1)(images), make("avg")(images))
    # (1/S)^(1/p) is common to all channels, so that it falls out with the length
    torch.testing.assert_close(GeM(6, p=500).double()(images.double()).float(), make("max")(images), atol=5e-3, rtol=0)


def test_random_weights_come_from_the_generator() -> None:
    made = [make_aggregation("crn", 6, rng=torch.Generator().manual_seed(s)).state_dict() for s in (1, 1, 2)]
    for name in ("assign", "centres", "context.0.weight"):
        assert made[0][name].equal(made[1][name])
        assert not made[0][name].equal(made[2][name])


def test_errors() -> None:
    with pytest.raises(ArgumentError, match=f"known are {', '.join(sorted(AGGREGATIONS))}"):
        make_aggregation("sum", 6)
    with pytest.raises(ArgumentError, match="'cluster': known are clusters"):
        make_aggregation("netvlad", 6, {"cluster": 3})
    with pytest.raises(ArgumentError, match="'clusters': known are none"):
        make_aggregation("avg", 6, {"clusters": 3})
    with pytest.raises(ArgumentError, match=r"clusters of netvlad .* from 1 .*, found 0"):
        make_aggregation("netvlad", 6, {"clusters": 0})
    with pytest.raises(ArgumentError, match=r"'l3'.* known are smoothed, clamped"):
        make_aggregation("netvlad", 6, {"norm": "l3"})
    with pytest.raises(ArgumentError, match=r"p of gem .* above 0 .*, found -1"):
        make_aggregation("gem", 6, {"p": -1})
    with pytest.raises(ArgumentError, match=r"\(B, 6, h, w\), found \(2, 5, 4, 4\)"):
        make("netvlad")(torch.randn(2, 5, 4, 4))
