"""What a model matches, and which matches count as the best and the worst."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sareloc.datasets import PhotoSet, Places
from sareloc.errors import ArgumentError
from sareloc.evaluation import evaluate, rank
from sareloc.figures import QueryMatches, query_matches
from sareloc.geo import Positions
from sareloc.models import PlaceModel


@pytest.fixture
def textured(tmp_path: Path) -> Places:
    """Eight places of their own texture, revisited with noise; one query cannot be read."""

    def write(role: str, places: list[int], noise: float) -> PhotoSet:
        files = tuple(f"{role}/{place}.png" for place in places)
        for file, place in zip(files, places, strict=True):
            blocks = np.kron(np.random.default_rng(place).integers(0, 256, (6, 8, 3)), np.ones((16, 16, 1)))
            blocks = blocks + np.random.default_rng([place, 1]).normal(0, noise, blocks.shape)
            (tmp_path / role).mkdir(exist_ok=True)
            Image.fromarray(blocks.clip(0, 255).astype(np.uint8)).save(tmp_path / file)
        return PhotoSet(tmp_path, files, Positions.from_local([(100.0 * place, 0.0) for place in places]))

    places = Places("textures", "test", write("database", list(range(8)), 0), write("queries", [2, 5, 7], 10))
    places.queries.path(2).write_bytes(b"no photo")
    return places


def test_answers_are_those_that_evaluate_judges(little_model: PlaceModel, textured: Places, tmp_path: Path) -> None:
    store = tmp_path / "store"
    matches = query_matches(rank(little_model, textured, n=4, store=store, progress=False), 4)
    report = evaluate(little_model, textured, store=store, progress=False)
    assert matches.rankings.shape == matches.right.shape == (3, 4)
    assert 100 * matches.first_right.mean() == report.recall[1] == pytest.approx(200 / 3)
    np.testing.assert_array_equal(matches.rankings[:2, 0], [2, 5])
    assert (matches.rankings[2] == -1).all()  # the query that cannot be read
    assert np.isinf(matches.distances[2]).all()


def test_the_protocols_own_rule_is_applied(little_model: PlaceModel, textured: Places) -> None:
    grouped = replace(textured, protocol="panorama", panoramas=np.array([0, 0, 0, 0, 1, 1, 1, 1]))
    matches = query_matches(rank(little_model, grouped, n=2, progress=False), 2)
    assert {tuple(sorted(row // 4)) for row in matches.rankings[:2]} == {(0, 1)}


def test_the_worst_are_wrong_and_sure_of_it(matches: QueryMatches) -> None:
    assert matches.first_right.tolist() == [True, False, False, False]
    assert matches.worst(10) == [1, 2]  # the fourth has no right photo to find
    assert matches.worst(1) == [1]
    assert matches.best(10) == [0]


def test_queries_are_chosen_by_row_or_name(matches: QueryMatches) -> None:
    assert matches.chosen(["2", "1_of_1.png"]) == [2, 1]
    with pytest.raises(ArgumentError, match="no query of town"):
        matches.chosen(["9"])


def test_positions_for_the_map(matches: QueryMatches) -> None:
    predicted = matches.predicted_positions()
    errors = np.linalg.norm(predicted.true.metres - predicted.found.metres, axis=1)
    np.testing.assert_allclose(errors, [0, 200, 300, 1300], rtol=2e-3, atol=1e-6)
    assert predicted.names[3] == "3_of_15.png"
    assert predicted.right.tolist() == [True, False, False, False]


def test_without_positions_there_is_no_map(matches: QueryMatches) -> None:
    nowhere = replace(matches.places, database=replace(matches.places.database, positions=None))
    with pytest.raises(ArgumentError, match="town has no positions"):
        replace(matches, places=nowhere).predicted_positions()
