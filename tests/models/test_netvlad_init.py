"""NetVLAD's start: k-means that repeats and is as good as faiss's, and the sharpness that the paper asks for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sareloc.errors import ArgumentError
from sareloc.models import NetVLAD, init_netvlad, make_model
from sareloc.models.netvlad_init import init_netvlad_layer, k_means, sample_locations, sharpness


def clumps(n: int = 2000, d: int = 16, k: int = 12) -> Tensor:
    homes = F.normalize(torch.randn(k, d), dim=1)
    return F.normalize(homes[torch.randint(k, (n,))] + 0.1 * torch.randn(n, d), dim=1)


def objective(points: Tensor, centres: Tensor) -> float:
    return float(torch.cdist(points.double(), centres.double()).min(dim=1).values.square().sum())


def seeded(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_k_means_repeats_with_an_equal_generator() -> None:
    points = clumps()
    assert k_means(points, 12, seeded(3)).equal(k_means(points, 12, seeded(3)))
    assert not k_means(points, 12, seeded(3)).equal(k_means(points, 12, seeded(4)))


def test_k_means_ends_where_every_centre_is_the_mean_of_its_points() -> None:
    points = clumps().double()
    centres = k_means(points, 12, seeded())
    assert centres.dtype == points.dtype
    nearest = torch.cdist(points, centres).argmin(dim=1)
    means = torch.stack([points[nearest == k].mean(dim=0) for k in range(12)])
    torch.testing.assert_close(centres, means, atol=1e-5, rtol=0)


def test_no_centre_stays_without_points() -> None:
    points = torch.cat([torch.zeros(50, 3), torch.eye(3)])  # 4 distinct points
    centres = k_means(points, 4, seeded())
    assert objective(points, centres) < 1e-9
    doubles = torch.zeros(10, 3)  # nothing to tell apart: no division by zero
    assert k_means(doubles, 4, seeded()).equal(torch.zeros(4, 3))


def test_sharpness_gives_the_second_centre_one_percent_of_the_first() -> None:
    points, centres = clumps(), torch.randn(5, 16)
    gaps = []
    for x in points:
        dots = sorted((float(x @ c / c.norm()) for c in centres), reverse=True)
        gaps.append(dots[0] - dots[1])
    alpha = sharpness(points, centres)
    assert alpha == pytest.approx(-math.log(0.01) / np.mean(gaps), rel=1e-5)
    # at the mean gap the softmax weights are in the ratio 0.01
    assert math.exp(-alpha * float(np.mean(gaps))) == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize("bias", [False, True])
def test_centres_are_raw_and_the_assignment_is_their_direction_times_alpha(bias: bool) -> None:
    points = clumps()
    layer = NetVLAD(16, 12, bias=bias)
    init_netvlad_layer(layer, points, seeded(5))
    centres = k_means(points, 12, seeded(5))
    assert layer.centres.equal(centres)
    assert (centres.norm(dim=1) < 0.999).all()
    torch.testing.assert_close(layer.assign.detach(), sharpness(points, centres) * F.normalize(centres, dim=1))
    assert layer.assign.requires_grad
    assert layer.bias is None or not layer.bias.any()


def photos(count: int) -> list[np.ndarray]:
    return [seeded(i).integers(0, 256, (70 + 3 * i, 90, 3), dtype=np.uint8) for i in range(count)]


def test_locations_come_from_every_image_in_unit_length_and_differ() -> None:
    model = make_model("alexnet", size=None)
    found = sample_locations(model, iter(photos(3)), seeded(), locations=5, batch=2)
    assert found.shape == (15, 256)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(15))
    assert len(found.unique(dim=0)) == 15
    few = sample_locations(model, photos(1), seeded(), locations=10_000)
    with torch.no_grad():
        h, w = model.feature_map(torch.zeros(1, 3, 70, 90, dtype=torch.uint8)).shape[2:]
    assert len(few) == h * w


def test_fit_start_sets_the_model_and_repeats() -> None:
    started = []
    for _ in range(2):
        model = make_model("alexnet", clusters=4, size=None, rng=torch.Generator().manual_seed(0))
        before = model.aggregation.centres.clone()
        init_netvlad(model, photos(3), seeded(1), locations=8)
        assert not model.aggregation.centres.equal(before)
        started.append(model.fingerprint())
    assert started[0] == started[1]


def test_an_aggregation_without_centres_needs_no_start() -> None:
    def never() -> object:
        raise AssertionError("the images were looked at")
        yield

    init_netvlad(make_model("alexnet", "gem"), never(), seeded())


def test_errors() -> None:
    with pytest.raises(ArgumentError, match="12 local descriptors, found 5"):
        k_means(torch.randn(5, 3), 12, seeded())
    with pytest.raises(ArgumentError, match="found none"):
        init_netvlad(make_model("alexnet"), [], seeded())
    with pytest.raises(ArgumentError, match="are all images alike"):
        init_netvlad_layer(NetVLAD(3, 2), torch.ones(10, 3), seeded())
