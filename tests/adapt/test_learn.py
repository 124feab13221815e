"""The mathematics of adaptations: cases on paper, slow twins, inverses, and files from anywhere."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from sareloc.adapt.learn import Pairs, Queries, bootstrap_gain, choose_step, first_right, fit_steps, sare_losses
from sareloc.geometry.adaptation import Adaptation, Step

DIM, D = 5, 8


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def some_adaptation(seed: int = 0) -> Adaptation:
    rng = np.random.default_rng(seed)
    steps = []
    for weight in (1.25, 0.8):
        directions = np.linalg.qr(rng.normal(size=(D, 3)))[0].T.astype(np.float32)
        steps.append(Step(weight, directions, rng.uniform(0.2, 1, 3)))
    return Adaptation(DIM, tuple(steps))


def test_an_adaptation_is_its_matrix_and_has_an_inverse() -> None:
    adaptation, rng = some_adaptation(), np.random.default_rng(1)
    matrix = np.eye(D)
    for step in adaptation.steps:
        change = np.eye(D) + step.directions.T @ np.diag(step.factors - 1) @ step.directions
        matrix = change @ np.diag([1.0] * DIM + [step.weight] * (D - DIM)) @ matrix
    vectors = unit(rng.normal(size=(6, D)))
    np.testing.assert_allclose(adaptation(vectors), unit(vectors @ matrix.T), atol=1e-5)
    np.testing.assert_allclose(adaptation(vectors[0]), adaptation(vectors)[0], atol=1e-6)
    np.testing.assert_allclose(adaptation.inverse(adaptation(vectors)), vectors, atol=1e-5)
    assert not adaptation(np.zeros(D, dtype=np.float32)).any()


def test_an_adaptation_is_the_same_after_it_was_stored() -> None:
    adaptation, vectors = some_adaptation(), unit(np.random.default_rng(2).normal(size=(4, D)))
    read = Adaptation.from_json(json.loads(adaptation.to_json()), DIM, D)
    np.testing.assert_array_equal(read(vectors), adaptation(vectors))
    assert read.fingerprint() == adaptation.fingerprint() != some_adaptation(3).fingerprint()


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"dim": DIM + 1},
        {"steps": []},
        {"steps": [{}]},
        {"steps": [{"weight": 1, "factors": [0.0], "directions": ""}]},
        {"weight": math.nan},
        {"weight": 1e9},
        {"factors": [0.5, 0.5]},
        {"factors": [[0.5] * 3]},
        {"factors": [-1.0] * 3},
        {"directions": "AAAA"},
        {"directions": "!"},
    ],
    ids=str,
)
def test_a_malformed_adaptation_is_refused(change: dict) -> None:
    stored = json.loads(some_adaptation().to_json())
    (stored if change.keys() <= stored.keys() else stored["steps"][0]).update(change)
    with pytest.raises((ValueError, KeyError, TypeError)):
        Adaptation.from_json(stored, DIM, D)


def test_directions_that_are_not_orthonormal_are_refused() -> None:
    doubled = Step(1.0, 2 * np.eye(D, dtype=np.float32)[:1], np.array([0.5]))
    with pytest.raises(ValueError, match="orthonormal"):
        Adaptation.from_json(json.loads(Adaptation(DIM, (doubled,)).to_json()), DIM, D)


def pairs_along(direction: np.ndarray, count: int, seed: int = 0) -> Pairs:
    """Pairs that differ along one direction alone, in ten cells."""
    rng = np.random.default_rng(seed)
    a = unit(rng.normal(size=(count, D)))
    b = (a + rng.normal(size=(count, 1)) * direction).astype(np.float32)
    return Pairs(a, b, np.ones(count), np.arange(count) % 10)


def test_the_direction_in_which_pairs_differ_is_shortened_and_no_other() -> None:
    direction = np.eye(D)[2]
    database = unit(np.random.default_rng(5).normal(size=(50, D)))
    for strength, step in fit_steps([pairs_along(direction, 40)], database, DIM, 1.0):
        assert abs(step.directions[0] @ direction) > 0.9
        assert step.factors[0] < 1
        if strength == 3.0:
            assert step.factors[0] < 0.5
        if len(step.factors) > 1:
            assert 1 - step.factors[0] > 2 * (1 - step.factors[1])


def test_pairs_of_a_small_weight_change_little() -> None:
    one, other = np.eye(D)[1], np.eye(D)[6]
    a, b = pairs_along(one, 40), pairs_along(other, 40)
    both = Pairs(
        np.concatenate([a.a, b.a]), np.concatenate([a.b, b.b]), np.repeat([1.0, 0.001], 40), np.zeros(80, dtype=int)
    )
    database = unit(np.random.default_rng(5).normal(size=(50, D)))
    step = dict(fit_steps([both], database, DIM, 1.0))[3.0]
    shortened = Adaptation(DIM, (step,))(np.stack([one + np.eye(D)[0], other + np.eye(D)[0]]).astype(np.float32))
    assert shortened[0, 1] + 0.1 < shortened[1, 6]


def test_sare_losses_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(0)
    queries, database = unit(rng.normal(size=(4, D))), unit(rng.normal(size=(30, D)))
    positives, ignored = rng.random((4, 30)) < 0.2, rng.random((4, 30)) < 0.2
    positives[:, 0], ignored[:, 0] = True, False
    found = sare_losses(queries, database, positives, ignored)
    squared = ((queries[:, None].astype(float) - database[None]) ** 2).sum(axis=2)
    spreads = []
    for row in range(4):
        known = sorted(squared[row, column] for column in range(30) if not ignored[row, column])
        spreads.append(known[19] - known[0])
    temperature = 0.15 * np.median(spreads)
    for row in range(4):
        usable = [column for column in range(30) if not ignored[row, column]]
        best = min(squared[row, column] for column in usable if positives[row, column])
        total = math.exp(-best / temperature)
        total += sum(math.exp(-squared[row, c] / temperature) for c in usable if not positives[row, c])
        assert found[row] == pytest.approx(-math.log(math.exp(-best / temperature) / total), rel=1e-3)


def test_the_first_photo_that_is_not_ignored_decides() -> None:
    database = np.eye(3, dtype=np.float32)
    vectors = np.array([[1, 0.5, 0.2]], dtype=np.float32)
    positives = np.array([[False, True, False]])
    for ignored, right in (([False] * 3, False), ([True, False, False], True)):
        queries = Queries(vectors, positives, np.array([ignored]), np.zeros(1, dtype=int))
        assert first_right(queries, database)[0] == right


def test_a_strength_is_chosen_where_it_helps_cells_that_it_was_not_fitted_on() -> None:
    """Night adds a large random part along one direction to every query."""
    rng, direction = np.random.default_rng(0), np.eye(D)[7]
    database = unit(rng.normal(size=(60, D)))
    cells, folds = np.arange(60) % 12, np.arange(12) % 3
    night = unit(database + 1.5 * rng.normal(size=(60, 1)) * direction + 0.1 * rng.normal(size=(60, D)))
    asked = Queries(night, np.eye(60, dtype=bool), np.zeros((60, 60), dtype=bool), cells)
    pairs = Pairs(night, database, np.ones(60), cells)
    assert choose_step([pairs], [asked], database, DIM, folds) is not None
    day = unit(database + 0.01 * rng.normal(size=(60, D)))
    useless = Pairs(unit(rng.normal(size=(60, D))), unit(rng.normal(size=(60, D))), np.ones(60), cells)
    easy = Queries(day, np.eye(60, dtype=bool), np.zeros((60, 60), dtype=bool), cells)
    option = choose_step([useless], [easy], database, DIM, folds)
    assert option is None or option[0] <= 0.3


def test_the_bootstrap_draws_places_not_photos() -> None:
    gains = np.array([1.0] * 50 + [-1.0] * 50)
    by_photo = bootstrap_gain(gains, np.arange(100), np.random.default_rng(0))
    by_place = bootstrap_gain(gains, np.repeat([0, 1], 50), np.random.default_rng(0))
    assert by_photo.std() < 0.15
    assert by_place.std() > 0.5
    assert (bootstrap_gain(np.ones(5), np.arange(5), np.random.default_rng(0)) == 1).all()
