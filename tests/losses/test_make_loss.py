"""Losses by name and as modules: what is offered, and what a wrong name, option or shape is told."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from tests.losses.tuples import random_tuples

from sareloc.errors import ArgumentError
from sareloc.losses import LOSSES, SARE, Angular, Contrastive, Lifted, NPair, Ratio, Triplet, make_loss

SHAPES = {
    "positive of another dim": ((4, 8), (4, 7), (4, 10, 8)),
    "negatives of another dim": ((4, 8), (4, 8), (4, 10, 7)),
    "another batch": ((4, 8), (4, 8), (3, 10, 8)),
    "one tuple for many": ((1, 8), (4, 8), (4, 10, 8)),
    "query without a batch": ((8,), (8,), (10, 8)),
    "no negatives": ((4, 8), (4, 8), (4, 0, 8)),
    "no dimensions": ((4, 0), (4, 0), (4, 10, 0)),
}


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ArgumentError, match=r"unknown loss 'sare'.* sare-ind, sare-joint"):
        make_loss("sare")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("triplet", {"margn": 0.1}, "triplet 'margn' margin 0.1"),
        (
            "sare-ind",
            {"margin": 0.1},
            "sare-ind 'margin' kernel gaussian width",
        ),
        ("n-pair", {"margin": 0.1}, "n-pair 'margin' none"),
        ("angular", {"query": 1}, "angular 'query' angle_deg"),
        ("sare-joint", {"kernel": "laplace"}, "'laplace' cauchy"),
        ("sare-ind", {"width": 0}, "width 0"),
        ("sare-joint", {"width": float("nan")}, "width nan"),
        ("triplet", {"margin": -0.1}, "margin -0.1"),
        ("contrastive", {"margin": float("nan")}, "margin nan"),
        ("lifted", {"margin": float("inf")}, "margin inf"),
        ("lifted", {"margin": "1"}, "margin '1'"),
        ("triplet", {"margin": True}, "margin True"),
        ("angular", {"angle_deg": 90}, "angle_deg 90"),
        ("angular", {"angle_deg": 0.0}, "angle_deg 0.0"),
    ],
)
def test_a_wrong_option_is_reported_when_the_loss_is_made(name, options, words):
    with pytest.raises(ArgumentError) as refused:
        make_loss(name, **options)
    assert all(word in str(refused.value) for word in words.split())


@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.parametrize("name", LOSSES)
def test_a_wrong_shape_is_reported_and_never_broadcast(name, case):
    query, positive, negatives = SHAPES[case]
    found = f"found query {query}, positive {positive}, negatives {negatives}"
    with pytest.raises(ArgumentError, match=re.escape(found)):
        make_loss(name)(torch.rand(query), torch.rand(positive), torch.rand(negatives))


def test_the_error_about_flat_negatives_says_how_to_reshape_them():
    with pytest.raises(ArgumentError, match=r"\(40, 8\).*reshape"):
        make_loss("sare-ind")(torch.rand(4, 8), torch.rand(4, 8), torch.rand(40, 8))


@pytest.mark.parametrize(("found", "kind"), [(torch.zeros(4, 8, dtype=torch.uint8), "torch.uint8"), ([[0.0]], "list")])
def test_descriptors_must_be_floating_point_tensors(found, kind):
    with pytest.raises(ArgumentError, match=f"positive.*{kind}"):
        make_loss("sare-ind")(torch.rand(4, 8), found, torch.rand(4, 10, 8))


@pytest.mark.parametrize(
    ("module", "name", "options"),
    [
        (SARE(), "sare-ind", {"kernel": "gaussian"}),
        (SARE(joint=True), "sare-joint", {"kernel": "gaussian"}),
        (SARE(kernel="cauchy", joint=True), "sare-joint", {"kernel": "cauchy"}),
        (SARE("exponential"), "sare-ind", {"kernel": "exponential"}),
        (SARE(width=0.3), "sare-ind", {"width": 0.3}),
        (Triplet(margin=0.3), "triplet", {"margin": 0.3}),
        (Contrastive(margin=0.9), "contrastive", {"margin": 0.9}),
        (NPair(), "n-pair", {}),
        (Angular(angle_deg=30.0), "angular", {"angle_deg": 30.0}),
        (Lifted(margin=0.5), "lifted", {"margin": 0.5}),
        (Ratio(), "ratio", {}),
    ],
    ids=repr,
)
def test_a_module_is_its_function(module, name, options):
    tuples = random_tuples(0)
    assert torch.equal(module(*tuples), make_loss(name, **options)(*tuples))
    assert torch.equal(copy.deepcopy(module)(*tuples), module(*tuples))
    assert list(module.state_dict()) == []


@pytest.mark.parametrize(
    ("module", "name"),
    [(Triplet, "triplet"), (Contrastive, "contrastive"), (Angular, "angular"), (Lifted, "lifted"), (SARE, "sare-ind")],
)
def test_modules_and_functions_share_their_defaults(module, name):
    tuples = random_tuples(0)
    assert torch.equal(module()(*tuples), make_loss(name)(*tuples))


def test_a_module_says_what_it_is_and_refuses_wrong_options():
    assert repr(SARE(kernel="cauchy", joint=True)) == "SARE('sare-joint', kernel='cauchy', width=1.0)"
    with pytest.raises(ArgumentError, match="unknown kernel 'rbf'"):
        SARE(kernel="rbf")
    with pytest.raises(ArgumentError, match="margin must be"):
        Triplet(margin=-1)


def test_a_loss_of_photos_is_not_called_unknown() -> None:
    with pytest.raises(ArgumentError, match="not of tuples"):
        make_loss("geo-classification")
