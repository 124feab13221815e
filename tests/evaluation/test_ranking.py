"""Rankings are kept: a report and the figures come from one search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sareloc.datasets import PhotoSet, Places
from sareloc.errors import ArgumentError, DatasetError
from sareloc.evaluation import apply_protocol, evaluate, rank
from sareloc.geo import Positions
from sareloc.models import PlaceModel, make_model


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    return make_model("alexnet", "avg", size=96, name="little", rng=torch.Generator().manual_seed(1))


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Six places of their own texture along a street, four of them asked for; one query cannot be read."""

    def photos(role: str, of: list[int], noise: float) -> PhotoSet:
        (tmp_path / role).mkdir()
        files = tuple(f"{role}/{place}.png" for place in of)
        for file, place in zip(files, of, strict=True):
            blocks = np.kron(np.random.default_rng(place).integers(0, 256, (6, 8, 3)), np.ones((16, 16, 1)))
            blocks = blocks + np.random.default_rng([place, 1]).normal(0, noise, blocks.shape)
            Image.fromarray(blocks.clip(0, 255).astype(np.uint8)).save(tmp_path / file)
        return PhotoSet(tmp_path, files, Positions.from_local([(100.0 * place, 0.0) for place in of]))

    town = Places("town", "test", photos("database", list(range(6)), 0), photos("queries", [4, 0, 2, 5], 8))
    town.queries.path(2).write_bytes(b"no photo")
    return town


def test_its_report_is_what_evaluate_says(model: PlaceModel, places: Places) -> None:
    ranked = rank(model, places, progress=False)
    assert ranked.report() == evaluate(model, places, progress=False)
    assert ranked.report(ns=(1, 2)).recall == {1: 75.0, 2: 75.0}


def test_rankings_are_nearest_first_and_empty_where_a_query_cannot_be_read(model: PlaceModel, places: Places) -> None:
    ranked = rank(model, places, n=3, progress=False)
    assert ranked.rankings.shape == ranked.distances.shape == (4, 3)
    np.testing.assert_array_equal(ranked.rankings[[0, 1, 3], 0], [4, 0, 5])
    assert (np.diff(ranked.distances[[0, 1, 3]], axis=1) >= 0).all()
    assert (ranked.rankings[2] == -1).all()
    assert [photo for photo, _ in ranked.failures["queries"]] == [str(places.queries.path(2))]
    assert ranked.fingerprint == model.fingerprint()


def test_it_searches_deep_enough_for_the_protocol(model: PlaceModel, places: Places) -> None:
    grouped = replace(places, panoramas=np.array([0, 0, 0, 1, 1, 1]))
    ranked = rank(model, grouped, protocol="panorama", n=2, progress=False)
    assert ranked.rankings.shape == (4, 6)  # two panoramas of three photos each
    rankings, distances = apply_protocol(ranked.places, ranked.rankings, ranked.distances)
    assert {tuple(sorted(row[:2] // 3)) for row in rankings[[0, 1, 3]]} == {(0, 1)}
    assert (rankings[[0, 1, 3], 2:] == -1).all()
    assert np.isinf(distances[[0, 1, 3], 2:]).all()


def test_without_a_rule_nothing_is_dropped(model: PlaceModel, places: Places) -> None:
    ranked = rank(model, places, n=3, progress=False)
    rankings, distances = apply_protocol(places, ranked.rankings, ranked.distances)
    np.testing.assert_array_equal(rankings, ranked.rankings)
    np.testing.assert_array_equal(distances, ranked.distances)


def test_nothing_to_ask_is_an_error(model: PlaceModel, places: Places) -> None:
    with pytest.raises(DatasetError, match="no queries"):
        rank(model, replace(places, queries=places.queries.take([])), progress=False)
    with pytest.raises(ArgumentError, match="unknown protocol 'luck'"):
        rank(model, places, protocol="luck", progress=False)
