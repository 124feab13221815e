"""The scale trap: the authors divide by (tuple, negative) pairs, others by tuples, and the step differs 10 times."""

from __future__ import annotations

import pytest
import torch
from tests.losses.tuples import gradients, random_tuples

from sareloc.errors import ArgumentError
from sareloc.losses import DIVISORS, make_loss, mean_over_pairs, mean_over_tuples


def test_the_authors_divide_the_papers_batch_by_forty():
    assert mean_over_pairs(torch.tensor([10.0, 20.0, 30.0, 20.0]), negatives_per_tuple=10).item() == 80 / 40


def test_the_alternative_divides_by_four():
    assert mean_over_tuples(torch.tensor([10.0, 20.0, 30.0, 20.0])).item() == 80 / 4


@pytest.mark.parametrize("name", ["sare-ind", "sare-joint", "triplet"])
def test_ten_negatives_make_the_steps_differ_ten_times(name):
    q, p, n = (x.requires_grad_() for x in random_tuples(0, batch=4, negatives=10))
    losses = make_loss(name)(q, p, n)
    assert mean_over_tuples(losses).item() == pytest.approx(10 * mean_over_pairs(losses, 10).item())
    ours = torch.autograd.grad(mean_over_pairs(losses, 10), q, retain_graph=True)[0]
    theirs = torch.autograd.grad(mean_over_tuples(losses), q)[0]
    assert ours.norm() > 0
    torch.testing.assert_close(theirs, 10 * ours)


def test_for_ind_the_mean_over_pairs_is_the_mean_over_triplets():
    """Flattened into B N triplets of one negative each, a plain mean must say the same."""
    q, p, n = random_tuples(1, batch=4, negatives=10)
    loss = make_loss("sare-ind")
    triplets = loss(q.repeat_interleave(10, 0), p.repeat_interleave(10, 0), n.reshape(40, 1, -1))
    torch.testing.assert_close(mean_over_pairs(loss(q, p, n), 10), triplets.mean())


def test_the_authors_joint_step_is_the_appendix_gradient_over_forty():
    q, p, n = (x.requires_grad_() for x in random_tuples(2, batch=4, negatives=10))
    loss = make_loss("sare-joint")
    of_sum = gradients(loss(q, p, n), q, p, n)
    reduced = torch.autograd.grad(mean_over_pairs(loss(q, p, n), 10), (q, p, n))
    for step, whole in zip(reduced, of_sum, strict=True):
        torch.testing.assert_close(step, whole / 40)


@pytest.mark.parametrize("count", [0, -1, 2.5, True])
def test_the_number_of_negatives_must_be_one(count):
    with pytest.raises(ArgumentError, match="negatives_per_tuple"):
        mean_over_pairs(torch.ones(4), count)


@pytest.mark.parametrize("shape", [(), (0,), (4, 10)])
def test_losses_must_be_one_value_per_tuple(shape):
    for reduce in (mean_over_tuples, lambda losses: mean_over_pairs(losses, 10)):
        with pytest.raises(ArgumentError, match="one value per tuple"):
            reduce(torch.ones(shape))


def test_the_divisors_of_a_step_are_those_of_the_named_reductions() -> None:
    losses = torch.tensor([10.0, 20.0, 30.0, 20.0])
    assert losses.sum() / DIVISORS["pairs"]([10] * 4) == mean_over_pairs(losses, 10)
    assert losses.sum() / DIVISORS["tuples"]([10] * 4) == mean_over_tuples(losses)
    assert DIVISORS["pairs"]([10, 3, 0, 1]) == 14  # pruned negatives are no pairs
