"""Gradients: every loss against finite differences; triplet, contrastive and SARE against the paper's own."""

from __future__ import annotations

import pytest
import torch
from tests.losses.tuples import CASES, IDS, gradients, random_tuples

from sareloc.losses import LOG_AFFINITY, make_loss

# Plain kernels, as the paper writes them; the losses work with their logarithms.
KERNELS = {
    "gaussian": lambda d: torch.exp(-(d**2)),
    "cauchy": lambda d: 1 / (1 + d**2),
    "exponential": lambda d: torch.exp(-d),
}


def leaves(seed, **shape):
    return tuple(x.requires_grad_() for x in random_tuples(seed, **shape))


def stay_off_kinks(name, options, tuples):
    """Where a hinge is at 0 the gradient jumps, and finite differences straddle the jump."""
    query, positive, negatives = tuples
    d_p, d_n = (query - positive).norm(dim=-1, keepdim=True), (query[:, None] - negatives).norm(dim=-1)
    if name == "triplet":
        return (options.get("margin", 0.1) + d_p**2 - d_n**2).abs().min() > 1e-4
    if name == "contrastive":
        return (options.get("margin", 0.7) - d_n).abs().min() > 1e-4
    if name == "lifted":
        return make_loss(name, **options)(*tuples).min() > 1e-4
    return True


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
@pytest.mark.parametrize("unit", [True, False], ids=["unit", "any-norm"])
def test_gradcheck(name, options, unit):
    tuples = leaves(3, batch=2, negatives=3, dim=4, unit=unit)
    assert stay_off_kinks(name, options, tuples), "choose another seed"
    assert torch.autograd.gradcheck(make_loss(name, **options), tuples)


def test_triplet_gradients_are_table_1s():
    q, p, n = leaves(0)
    violates = (0.1 + (q - p).square().sum(-1)[:, None] - (q[:, None] - n).square().sum(-1)) > 0  # (B, N)
    assert 0 < violates.sum() < violates.numel(), "the tuples must hold both kinds of negatives"
    dq, dp, dn = gradients(make_loss("triplet")(q, p, n), q, p, n)
    torch.testing.assert_close(dp, (2 * (p - q)) * violates.sum(1, keepdim=True))
    torch.testing.assert_close(dn, 2 * (q[:, None] - n) * violates[..., None])
    torch.testing.assert_close(dq, -dp - dn.sum(1))


def test_contrastive_gradients_are_table_1s():
    tau = 1.3
    q, p, n = leaves(0)
    d = (q[:, None] - n).norm(dim=-1, keepdim=True)  # (B, N, 1)
    assert 0 < (d < tau).sum() < d.numel(), "the tuples must hold both kinds of negatives"
    dq, dp, dn = gradients(make_loss("contrastive", margin=tau)(q, p, n), q, p, n)
    torch.testing.assert_close(dp, p - q)
    torch.testing.assert_close(dn, -(1 - tau / d) * (q[:, None] - n) * (d < tau))
    torch.testing.assert_close(dq, -dp - dn.sum(1))


@pytest.mark.parametrize("unit", [True, False], ids=["unit", "any-norm"])
@pytest.mark.parametrize("kernel", LOG_AFFINITY)
def test_sare_ind_gradients_are_table_1s(kernel, unit):
    q, p, n = leaves(1, unit=unit)
    d_p, d_n = (q - p).norm(dim=-1)[:, None, None], (q[:, None] - n).norm(dim=-1, keepdim=True)  # (B, 1, 1), (B, N, 1)
    c = KERNELS[kernel](d_p) / (KERNELS[kernel](d_p) + KERNELS[kernel](d_n))  # (B, N, 1): one triplet per negative
    pull, push = (p - q)[:, None], q[:, None] - n
    table_1 = {
        "gaussian": (2 * (1 - c) * pull, 2 * (1 - c) * push),
        "cauchy": (2 * (1 - c) * pull / (1 + d_p**2), 2 * (1 - c) * push / (1 + d_n**2)),
        "exponential": ((1 - c) * pull / d_p, (1 - c) * push / d_n),
    }
    dq, dp, dn = gradients(make_loss("sare-ind", kernel=kernel)(q, p, n), q, p, n)
    torch.testing.assert_close(dp, table_1[kernel][0].sum(1))
    torch.testing.assert_close(dn, table_1[kernel][1])
    torch.testing.assert_close(dq, -dp - dn.sum(1))


@pytest.mark.parametrize("unit", [True, False], ids=["unit", "any-norm"])
@pytest.mark.parametrize("kernel", LOG_AFFINITY)
def test_sare_joint_gradients_are_the_appendix_s(kernel, unit):
    q, p, n = leaves(2, unit=unit)
    d_p, d_n = (q - p).norm(dim=-1)[:, None, None], (q[:, None] - n).norm(dim=-1, keepdim=True)
    to_p, to_n = (q - p)[:, None], q[:, None] - n
    if kernel == "cauchy":
        eta = 1 + ((1 + d_p**2) / (1 + d_n**2)).sum(1, keepdim=True)  # (B, 1, 1)
        by_p = -2 / (eta * (1 + d_n**2)) * to_p
        by_n = 2 * (1 + d_p**2) / (eta * (1 + d_n**2) ** 2) * to_n
    elif kernel == "gaussian":
        terms = torch.exp(d_p**2 - d_n**2)
        eta = 1 + terms.sum(1, keepdim=True)
        by_p, by_n = -2 / eta * terms * to_p, 2 / eta * terms * to_n
    else:
        terms = torch.exp(d_p - d_n)
        eta = 1 + terms.sum(1, keepdim=True)
        by_p, by_n = -terms / (eta * d_p) * to_p, terms / (eta * d_n) * to_n
    dq, dp, dn = gradients(make_loss("sare-joint", kernel=kernel)(q, p, n), q, p, n)
    torch.testing.assert_close(dp, by_p.sum(1))
    torch.testing.assert_close(dn, by_n)
    torch.testing.assert_close(dq, -dp - dn.sum(1))


@pytest.mark.parametrize("name", ["lifted", "ratio"])
def test_other_losses_of_distances_balance_their_forces_too(name):
    q, p, n = leaves(5)
    dq, dp, dn = gradients(make_loss(name)(q, p, n), q, p, n)
    assert dq.abs().max() > 1e-3
    torch.testing.assert_close(dq, -dp - dn.sum(1))


def test_a_triplet_beyond_or_exactly_at_its_margin_gives_no_gradient():
    q, p = torch.zeros(2, 2, requires_grad=True), torch.tensor([[0.5, 0.0]] * 2, requires_grad=True)
    n = torch.tensor([[[0.0, 1.0]], [[0.0, 2.0]]], requires_grad=True)  # squared distance 1 = 0.75 + 0.25, and 4
    losses = make_loss("triplet", margin=0.75)(q, p, n)
    assert losses.tolist() == [0, 0]
    assert all((g == 0).all() for g in gradients(losses, q, p, n))


def test_sare_pulls_where_triplet_and_contrastive_have_closed():
    q, p = torch.zeros(1, 2), torch.tensor([[0.5, 0.0]])
    n = torch.tensor([[[0.0, 1.5]]], requires_grad=True)
    forces = {}
    for name in ("triplet", "contrastive", "sare-ind", "sare-joint"):
        (force,) = gradients(make_loss(name)(q, p, n), n)
        forces[name] = force.norm().item()
    assert forces["triplet"] == forces["contrastive"] == 0
    assert forces["sare-ind"] == forces["sare-joint"] > 0.1


def test_a_tiny_joint_loss_keeps_its_gradient_in_float32():
    q, p = torch.zeros(1, 1), torch.zeros(1, 1)
    n = torch.tensor([[[5.0], [6.0]]], requires_grad=True)  # exp(-25) is below float32's step at 1
    losses = make_loss("sare-joint")(q, p, n)
    assert losses.item() == pytest.approx(torch.tensor(-25.0, dtype=torch.float64).exp().item(), rel=1e-4)
    (force,) = gradients(losses, n)
    assert force[0, 0].item() == pytest.approx(-10 * losses.item(), rel=1e-4)
