"""Every loss against a slow twin: plain Python loops over plain numbers, written from the formulas alone."""

from __future__ import annotations

import math

import pytest
import torch
from tests.losses.tuples import CASES, IDS, random_tuples

from sareloc.losses import make_loss


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def dist(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


KERNELS = {
    "gaussian": lambda d: math.exp(-d * d),
    "cauchy": lambda d: 1 / (1 + d * d),
    "exponential": lambda d: math.exp(-d),
}


def kernel_of(kernel, width):
    return lambda d: KERNELS[kernel](d / width)


def sare_ind(q, p, negatives, kernel="gaussian", width=1.0):
    k = kernel_of(kernel, width)
    return sum(-math.log(k(dist(q, p)) / (k(dist(q, p)) + k(dist(q, n)))) for n in negatives)


def sare_joint(q, p, negatives, kernel="gaussian", width=1.0):
    k = kernel_of(kernel, width)
    return -math.log(k(dist(q, p)) / (k(dist(q, p)) + sum(k(dist(q, n)) for n in negatives)))


def triplet(q, p, negatives, margin=0.1):
    return sum(max(0.0, margin + dist(q, p) ** 2 - dist(q, n) ** 2) for n in negatives)


def contrastive(q, p, negatives, margin=0.7):
    return dist(q, p) ** 2 / 2 + sum(max(0.0, margin - dist(q, n)) ** 2 / 2 for n in negatives)


def n_pair(q, p, negatives):
    return math.log(1 + sum(math.exp(dot(q, n) - dot(q, p)) for n in negatives))


def angular(q, p, negatives, angle_deg=45.0):
    t = math.tan(angle_deg * math.pi / 180) ** 2
    f = [4 * t * (dot(q, n) + dot(p, n)) - 2 * (1 + t) * dot(q, p) for n in negatives]
    return math.log(1 + sum(math.exp(x) for x in f))


def lifted(q, p, negatives, margin=1.0):
    pushes = sum(math.exp(margin - dist(q, n)) + math.exp(margin - dist(p, n)) for n in negatives)
    return max(0.0, math.log(pushes) + dist(q, p)) ** 2 / 2


def ratio(q, p, negatives):
    total = 0.0
    for n in negatives:
        near, far = math.exp(dist(q, p)), math.exp(dist(q, n))
        share = near / (near + far)
        total += share**2 + (1 - far / (near + far)) ** 2
    return total


TWINS = {
    "sare-ind": sare_ind,
    "sare-joint": sare_joint,
    "triplet": triplet,
    "contrastive": contrastive,
    "n-pair": n_pair,
    "angular": angular,
    "lifted": lifted,
    "ratio": ratio,
}


@pytest.mark.parametrize("unit", [True, False], ids=["unit", "any-norm"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-13)], ids=["f32", "f64"])
@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_equals_its_loop(name, options, dtype, tolerance, unit):
    for seed, (batch, count, dim) in enumerate([(4, 10, 8), (1, 1, 1), (3, 1, 5), (2, 7, 64)]):
        tuples = random_tuples(seed, batch=batch, negatives=count, dim=dim, unit=unit, dtype=dtype)
        losses = make_loss(name, **options)(*tuples)
        assert losses.shape == (batch,)
        assert losses.dtype == dtype
        expected = [TWINS[name](q, p, ns, **options) for q, p, ns in zip(*(x.tolist() for x in tuples), strict=True)]
        torch.testing.assert_close(
            losses.double(), torch.tensor(expected, dtype=torch.float64), rtol=tolerance, atol=tolerance
        )
