"""No NaN and no infinity, in value or gradient: at zero, tiny and large distances, in every precision training uses."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from tests.losses.tuples import CASES, IDS, gradients, random_tuples

from sareloc.losses import geo_classification, make_loss, mean_over_pairs


def extremes(dim=64):
    """Name -> (query, positive, negatives) in float32, each a way in which descriptors go wrong."""
    q, p, n = random_tuples(0, dim=dim, dtype=torch.float32)
    away = [x + 100 for x in (q, p, n)]
    return {
        "usual": (q, p, n),
        "all equal": (q, q, q[:, None].expand_as(n)),
        "positive equal": (q, q, n),
        "one negative equal": (q, p, torch.cat([q[:, None], n[:, 1:]], dim=1)),
        "opposite": (q, -q, q[:, None].expand_as(n)),
        "all zero": (q * 0, p * 0, n * 0),
        "nearly equal": (q, q + 1e-7, q[:, None] - 1e-7 * n),
        "underflowing": (q * 1e-24, p * 1e-24, n * 1e-24),
        "norm 1e3": (q * 1e3, p * 1e3, n * 1e3),
        "norm 1e4": (q * 1e4, p * 1e4, n * 1e4),
        "norm 1e4, opposite": (q * 1e4, -q * 1e4, q[:, None].expand_as(n) * 1e4),
        "far from the origin": tuple(away),
    }


PRECISIONS = [None, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("where", extremes())
@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_finite_in_value_and_gradient(name, options, where):
    loss = make_loss(name, **options)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        q, p, n = (x.to(dtype).requires_grad_() for x in extremes()[where])
        losses = loss(q, p, n)
        assert losses.dtype == (dtype if dtype == torch.float64 else torch.float32)
        assert losses.isfinite().all(), (dtype, losses)
        # As training reduces it: the plain sum of 10 pulls of 2e4 has no float16, whatever computed it.
        reduced = mean_over_pairs(losses, negatives_per_tuple=10)
        for leaf, gradient in zip("qpn", gradients(reduced, q, p, n), strict=True):
            assert gradient.isfinite().all(), (dtype, leaf)


@pytest.mark.parametrize("low", PRECISIONS, ids=str)
@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_a_model_under_autocast_learns_from_it(name, options, low):
    """The loss is called inside autocast, on what a linear layer gives there."""
    model = torch.nn.Linear(32, 16)
    q, p, n = random_tuples(0, dim=32, dtype=torch.float32)
    with torch.autocast("cpu", dtype=low or torch.bfloat16, enabled=low is not None):
        described = [model(x) for x in (q, p, n)]
        assert described[0].dtype == (low or torch.float32)
        losses = make_loss(name, **options)(*described)
    outside = make_loss(name, **options)(*(x.float() for x in described))
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, outside, rtol=0, atol=0)  # autocast narrowed nothing inside the loss
    losses.mean().backward()
    assert model.weight.grad is not None
    assert model.weight.grad.isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("low", PRECISIONS, ids=str)
@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_the_same_on_cuda(name, options, low):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    loss = make_loss(name, **options)
    for where, tuples in extremes().items():
        q, p, n = (x.to("cuda", low or torch.float32).requires_grad_() for x in tuples)
        with torch.autocast("cuda", dtype=low or torch.bfloat16, enabled=low is not None):
            losses = loss(q, p, n)
        on_cpu = loss(*(x.detach().cpu().double() for x in (q, p, n)))
        scale = max(x.detach().float().square().sum(-1).max().item() for x in (q, p, n))
        torch.testing.assert_close(losses.cpu().double(), on_cpu, rtol=1e-4, atol=1e-4 * max(1.0, scale), msg=where)
        assert all(g.isfinite().all() for g in gradients(mean_over_pairs(losses, 10), q, p, n)), where


@pytest.mark.parametrize("name", ["sare-ind", "sare-joint"])
def test_equal_descriptors_feel_no_force_under_the_exponential_kernel(name):
    q, p, n = random_tuples(0, batch=1, negatives=2)
    n[0, 0] = q[0]
    q, p, n = (x.requires_grad_() for x in (q, p, n))
    _, to_positive, to_negatives = gradients(make_loss(name, kernel="exponential")(q, p, n), q, p, n)
    assert (to_negatives[0, 0] == 0).all()
    assert to_negatives[0, 1].norm() > 0.1
    assert to_positive.norm() > 0.1


def test_distances_do_not_cancel_far_from_the_origin():
    """By dot products, |a|^2 + |b|^2 - 2 a.b at norm 1e4 has steps of 8 in float32."""
    q = torch.full((1, 4), 5e3)
    p, n = q + 0.5, (q + 0.25)[:, None]
    assert make_loss("triplet", margin=0.0)(q, p, n).item() == 1.0 - 0.25


@pytest.mark.parametrize(("a", "b", "c"), list(itertools.permutations([torch.float16, torch.float32, torch.float64])))
def test_mixed_precisions_meet_in_the_widest(a, b, c):
    q, p, n = random_tuples(0)
    assert make_loss("sare-joint")(q.to(a), p.to(b), n.to(c)).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_classification_is_finite_for_large_scores(dtype):
    scores = torch.tensor([[6e4, -6e4], [-6e4, 6e4], [0.0, 0.0]], dtype=dtype, requires_grad=True)
    losses = geo_classification(scores, torch.tensor([0, 0, 1]))
    assert losses.dtype == torch.float32
    assert losses[0] == 0
    assert losses[1] > 1e5
    torch.testing.assert_close(losses[2], F.softplus(torch.tensor(0.0)))
    assert gradients(losses, scores)[0].isfinite().all()


def test_a_wide_gap_keeps_its_last_digits_in_float64():
    """log(1 + exp(21)) is 21 + 7.6e-10; a softplus that switches to the identity above 20 loses that."""
    q, p, n = torch.zeros(1, 1), torch.tensor([[math.sqrt(21)]], dtype=torch.float64), torch.zeros(1, 1, 1)
    for name in ("sare-ind", "sare-joint"):
        assert make_loss(name)(q, p, n).item() - 21 == pytest.approx(math.exp(-21), rel=1e-4)
