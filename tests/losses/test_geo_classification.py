"""Geo-classification: cells from positions, the head that scores them, the cross-entropy."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from sareloc.errors import ArgumentError, PositionError
from sareloc.losses import geo_classification, make_cells, make_classifier


def test_cells_on_paper():
    metres = [[0, 0], [24.9, 24.9], [25, 0], [-0.1, 0], [1000, 1000], [26, 3]]
    cells = make_cells(metres)
    assert cells.squares.tolist() == [[-1, 0], [0, 0], [1, 0], [40, 40]]
    assert cells.labels(metres).tolist() == [1, 1, 2, 0, 3, 2]
    assert (cells.squares * cells.side_m).tolist() == [[-25, 0], [0, 0], [25, 0], [1000, 1000]]


def test_empty_cells_are_dropped_and_every_class_has_a_photo():
    metres = np.random.default_rng(0).uniform(0, 2000, size=(300, 2))
    cells = make_cells(metres)
    labels = cells.labels(metres)
    assert set(labels) == set(range(len(cells)))
    assert len(cells) <= 300 < 80 * 80
    assert (np.abs(metres - (cells.squares[labels] + 0.5) * cells.side_m) <= 12.5).all()


def test_a_plain_loop_finds_the_same_cells():
    metres = np.random.default_rng(1).normal(0, 60, size=(200, 2))
    labels = make_cells(metres, side_m=40.0).labels(metres)
    for i, j in np.ndindex(200, 200):
        together = all(math.floor(metres[i, k] / 40) == math.floor(metres[j, k] / 40) for k in range(2))
        assert together == (labels[i] == labels[j])


def test_a_position_in_no_cell_is_minus_one():
    cells = make_cells([[10, 10], [60, 60]])
    assert cells.labels([[30, 30], [60, 74.9], [60, 75]]).tolist() == [-1, 1, -1]
    assert cells.labels(np.empty((0, 2))).shape == (0,)


def test_cells_do_not_depend_on_the_other_photos():
    metres = np.random.default_rng(2).uniform(0, 500, size=(50, 2))
    few, all_of_them = make_cells(metres[:20]), make_cells(metres)
    np.testing.assert_array_equal(
        few.squares[few.labels(metres[:20])], all_of_them.squares[all_of_them.labels(metres[:20])]
    )


@pytest.mark.data
def test_the_papers_training_photos_fall_into_about_as_many_cells_as_the_paper_counts(shared_data):
    """Pitts250k-train, 1637 classes in the paper: where its grid starts is not stated and moves the count by 50."""
    from scipy.io import loadmat

    structure = loadmat(shared_data / "netvlad_dbstruct" / "pitts250k_train.mat")["dbStruct"][0, 0]
    metres = structure["utmDb"].T
    assert metres.shape == (91464, 2)
    assert len(make_cells(metres)) == pytest.approx(1637, rel=0.05)


def test_the_head_starts_small_and_from_its_own_generator():
    before = torch.random.get_rng_state()
    layer = make_classifier(256, 100, rng=torch.Generator().manual_seed(1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert layer.weight.shape == (100, 256)
    assert layer.weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert layer.weight.mean().item() == pytest.approx(0, abs=5e-4)
    assert (layer.bias == 0).all()
    again = make_classifier(256, 100, rng=torch.Generator().manual_seed(1))
    assert torch.equal(layer.weight, again.weight)


def test_the_loss_is_the_log_of_the_right_cells_share():
    scores, labels = torch.randn(5, 7, dtype=torch.float64), torch.tensor([0, 6, 3, 3, 1])
    by_hand = [
        -math.log(math.exp(row[label]) / sum(map(math.exp, row)))
        for row, label in zip(scores.tolist(), labels.tolist(), strict=True)
    ]
    torch.testing.assert_close(geo_classification(scores, labels), torch.tensor(by_hand, dtype=torch.float64))
    assert geo_classification(torch.zeros(2, 1637), torch.tensor([5, 9])).tolist() == pytest.approx(
        [math.log(1637)] * 2
    )
    assert torch.autograd.gradcheck(lambda s: geo_classification(s, labels), scores.requires_grad_())


def test_the_head_learns_to_tell_cells_apart():
    rng = torch.Generator().manual_seed(0)
    metres = np.random.default_rng(0).uniform(0, 100, size=(64, 2))
    cells = make_cells(metres)
    labels = torch.from_numpy(cells.labels(metres))
    descriptors = torch.nn.functional.normalize(torch.randn(len(cells), 32, generator=rng), dim=1)[labels]
    head = make_classifier(32, len(cells), rng=rng)
    sgd = torch.optim.SGD(head.parameters(), lr=10.0)
    for _ in range(100):
        sgd.zero_grad()
        geo_classification(head(descriptors), labels).mean().backward()
        sgd.step()
    assert (head(descriptors).argmax(1) == labels).all()


@pytest.mark.parametrize("side", [0, -25.0, float("nan"), float("inf")])
def test_a_side_must_be_positive(side):
    with pytest.raises(ArgumentError, match="side_m"):
        make_cells([[0, 0]], side_m=side)


@pytest.mark.parametrize("metres", [np.zeros((5, 3)), np.zeros(2), np.zeros((2, 2, 2))])
def test_positions_must_be_planar(metres):
    with pytest.raises(PositionError, match="planar"):
        make_cells(metres)


def test_positions_must_be_finite():
    with pytest.raises(PositionError, match="finite"):
        make_cells([[0.0, float("nan")]])


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        (torch.zeros(4, 3), torch.zeros(5, dtype=torch.long), "labels (5,)"),
        (torch.zeros(4), torch.zeros(4, dtype=torch.long), "scores (4,)"),
        (torch.zeros(4, 3), torch.zeros(4), "float32"),
        (
            torch.zeros(2, 3),
            torch.tensor([0, -1]),
            "-1..0",
        ),
        (torch.zeros(2, 3), torch.tensor([3, 1]), "1..3"),
    ],
)
def test_wrong_scores_and_labels_are_reported(scores, labels, message):
    with pytest.raises(ArgumentError, match=re.escape(message)):
        geo_classification(scores, labels)


def test_a_head_needs_a_dimension_and_a_cell():
    with pytest.raises(ArgumentError, match="cells=0"):
        make_classifier(4, 0, rng=torch.Generator())
