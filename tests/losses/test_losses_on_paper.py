"""Cases that can be solved on paper, identities between the losses, and properties that all of them have."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.losses.tuples import CASES, IDS, random_tuples

from sareloc.losses import LOG_AFFINITY, make_loss


def on_a_line(d_p: float, *d_n: float):
    """A query at 0, a positive and negatives at these distances, in one dimension."""
    return torch.zeros(1, 1), torch.tensor([[d_p]]), torch.tensor(d_n).reshape(1, -1, 1)


@pytest.mark.parametrize("count", [1, 2, 10])
@pytest.mark.parametrize("kernel", LOG_AFFINITY)
def test_equal_distances_are_an_even_bet(kernel, count):
    tuples = on_a_line(0.8, *[0.8] * count)
    assert make_loss("sare-joint", kernel=kernel)(*tuples).item() == pytest.approx(math.log(1 + count))
    assert make_loss("sare-ind", kernel=kernel)(*tuples).item() == pytest.approx(count * math.log(2))


@pytest.mark.parametrize(
    ("name", "options", "tuples", "expected"),
    [
        ("triplet", {"margin": 0.1}, on_a_line(1.0, 1.0, 0.5, 3.0), 0.1 + 0.85 + 0.0),
        ("contrastive", {"margin": 0.7}, on_a_line(1.0, 0.5, 0.7, 2.0), 0.5 + 0.02),
        ("sare-ind", {"kernel": "cauchy"}, on_a_line(1.0, 0.0, math.sqrt(3)), math.log(3) + math.log(1.5)),
        ("sare-joint", {"kernel": "cauchy"}, on_a_line(1.0, 0.0, math.sqrt(3)), math.log(1 + 2 + 0.5)),
        ("sare-joint", {"kernel": "gaussian"}, on_a_line(0.0, 1.0), math.log(1 + math.exp(-1))),
        ("sare-joint", {"kernel": "exponential"}, on_a_line(3.0, 1.0, 2.0), math.log(1 + math.e**2 + math.e)),
        ("n-pair", {}, on_a_line(1.0, 5.0, -5.0), math.log(3)),  # the query is 0: every dot product is 0
        ("ratio", {}, on_a_line(1.0, 1.0, 1.0, 1.0), 3 * 0.5),  # shares of one half: 2 (1/2)^2 each
        ("lifted", {"margin": 1.0}, on_a_line(0.0, 1.0), math.log(2) ** 2 / 2),
        ("lifted", {"margin": 1.0}, on_a_line(0.0, 2.0), 0.0),  # J = log 2 - 1 < 0: pruned
    ],
)
def test_solved_on_paper(name, options, tuples, expected):
    assert make_loss(name, **options)(*tuples).item() == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_angular_at_45_degrees_on_paper():
    q = p = torch.tensor([[1.0, 0.0]])
    n = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])  # f = 0 - 4 and f = 8 - 4
    assert make_loss("angular")(q, p, n).item() == pytest.approx(math.log(1 + math.exp(-4) + math.exp(4)))


def test_gaussian_joint_on_unit_vectors_is_a_softmax_of_dot_products():
    q, p, n = random_tuples(0)
    by_dots = torch.log1p(torch.exp(2 * torch.einsum("bd,bnd->bn", q, n - p[:, None])).sum(-1))
    torch.testing.assert_close(make_loss("sare-joint")(q, p, n), by_dots)


def test_joint_is_the_cross_entropy_of_the_affinities():
    q, p, n = random_tuples(1)
    candidates = torch.cat([p[:, None], n], dim=1)  # (B, 1 + N, D)
    logits = -(q[:, None] - candidates).square().sum(-1)
    right = torch.zeros(len(q), dtype=torch.long)
    torch.testing.assert_close(make_loss("sare-joint")(q, p, n), F.cross_entropy(logits, right, reduction="none"))


def test_n_pair_on_unit_vectors_is_gaussian_joint_with_squared_distances_halved():
    tuples = random_tuples(2)
    shrunk = [x / math.sqrt(2) for x in tuples]
    torch.testing.assert_close(make_loss("n-pair")(*tuples), make_loss("sare-joint")(*shrunk))


@pytest.mark.parametrize("kernel", LOG_AFFINITY)
def test_ind_and_joint_agree_on_one_negative_and_differ_on_more(kernel):
    ind, joint = make_loss("sare-ind", kernel=kernel), make_loss("sare-joint", kernel=kernel)
    one = random_tuples(3, negatives=1)
    torch.testing.assert_close(ind(*one), joint(*one))
    q, p, n = random_tuples(3, negatives=10)
    assert (ind(q, p, n) > joint(q, p, n)).all()
    each = torch.stack([joint(q, p, n[:, i : i + 1]) for i in range(10)])
    torch.testing.assert_close(ind(q, p, n), each.sum(0))


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_the_order_of_negatives_does_not_matter(name, options):
    q, p, n = random_tuples(4)
    loss = make_loss(name, **options)
    torch.testing.assert_close(loss(q, p, n), loss(q, p, n.flip(1)))


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_tuples_of_a_batch_do_not_see_each_other(name, options):
    q, p, n = random_tuples(5, batch=6)
    loss = make_loss(name, **options)
    alone = torch.cat([loss(q[i : i + 1], p[i : i + 1], n[i : i + 1]) for i in range(6)])
    torch.testing.assert_close(loss(q, p, n), alone)
    assert loss(q[:0], p[:0], n[:0]).shape == (0,)


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_losses_of_distances_do_not_feel_a_shift_and_those_of_dot_products_do(name, options):
    tuples = random_tuples(6)
    shifted = [x + torch.linspace(-1, 1, 8, dtype=torch.float64) for x in tuples]
    loss = make_loss(name, **options)
    same = torch.allclose(loss(*tuples), loss(*shifted))
    assert same == (name not in {"n-pair", "angular"})


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_losses_do_not_feel_a_rotation(name, options):
    rotation = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64)).Q
    tuples = random_tuples(7)
    loss = make_loss(name, **options)
    torch.testing.assert_close(loss(*tuples), loss(*(x @ rotation for x in tuples)))


distance = st.floats(0, 2, width=32)


@pytest.mark.parametrize("name", ["sare-ind", "sare-joint", "triplet", "contrastive", "ratio"])
@settings(max_examples=60, deadline=None)
@given(d_p=distance, d_n=st.lists(distance, min_size=1, max_size=4), nearer=distance)
def test_never_negative_and_a_nearer_positive_never_costs_more(name, d_p, d_n, nearer):
    """For the losses that see the query's distances alone."""
    loss = make_loss(name)
    value = loss(*on_a_line(d_p, *d_n))
    assert value >= 0
    assert loss(*on_a_line(min(d_p, nearer), *d_n)) <= value * (1 + 1e-6) + 1e-7
