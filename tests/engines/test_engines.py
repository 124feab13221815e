"""The engines at hand, held against the contract, and the approximate one against the exact one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.drawn_descriptors import WHITE, Walk, draw
from tests.engines.contract_suite import DIM, EngineContract, unit_vectors

from sareloc.engines import approximate
from sareloc.engines.approximate import ApproximateEngine
from sareloc.engines.contract import Engine, Hits
from sareloc.engines.exact import ExactEngine


class TestExact(EngineContract):
    def make(self) -> Engine:
        return ExactEngine(DIM)


class TestApproximateBeforeItsIndex(EngineContract):
    def make(self) -> Engine:
        return ApproximateEngine(DIM)


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few vectors get an index, as many do."""
    monkeypatch.setattr(approximate, "EXACT_NUMBERS", 500 * DIM)


@pytest.fixture
def clusters(codes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few vectors get clusters, as very many do."""
    monkeypatch.setattr(approximate, "CLUSTERED_NUMBERS", 500 * DIM)


@pytest.mark.usefixtures("codes")
class TestApproximateWithCodes(EngineContract):
    count = 3100

    def make(self) -> Engine:
        return ApproximateEngine(DIM)


@pytest.mark.usefixtures("clusters")
class TestApproximateWithClusters(EngineContract):
    count = 3100

    def make(self) -> Engine:
        return ApproximateEngine(DIM)


def recall_at_10(found: Hits, truth: Hits) -> float:
    return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.ids, truth.ids, strict=True)]))


STREETS = Walk(dim=64)
HARDEST = replace(WHITE, dim=64)
DISTRICTS = replace(STREETS, structure_shares=(0.2, 0.2, 0.18), structure_photos=(4.0, 40.0, 1000.0))  # clusters


@pytest.mark.parametrize("index", ["codes", "clusters"])
@pytest.mark.parametrize("walk", [STREETS, HARDEST, DISTRICTS], ids=["streets", "hardest", "districts"])
def test_recall_of_the_approximate_engine_is_98_percent_of_the_exact_one(
    walk: Walk, index: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(index)
    vectors, queries = draw(walk, 12_000, 200, np.random.default_rng(0))
    exact, approximate = ExactEngine(64), ApproximateEngine(64)
    for engine in (exact, approximate):
        engine.upsert(np.arange(len(vectors)), vectors)
    assert approximate.settle()
    assert approximate.info().kind == "approximate"
    assert recall_at_10(approximate.search(queries, 10), exact.search(queries, 10)) >= 0.98


@pytest.mark.usefixtures("codes")
def test_one_query_at_a_time_finds_what_a_batch_finds() -> None:
    vectors, queries = draw(STREETS, 8000, 40, np.random.default_rng(0))
    engine = ApproximateEngine(64)
    engine.upsert(np.arange(len(vectors)), vectors)
    batch = engine.search(queries, 10)
    single = [engine.search(query, 10) for query in queries]
    assert recall_at_10(Hits(np.concatenate([hits.ids for hits in single]), batch.distances), batch) >= 0.995


def indexed(count: int = 4000) -> ApproximateEngine:
    engine = ApproximateEngine(DIM)
    engine.upsert(np.arange(count), unit_vectors(count))
    assert engine.settle()
    return engine


@pytest.mark.usefixtures("codes")
def test_the_index_is_made_anew_after_a_tenth_has_changed_and_not_before() -> None:
    engine = indexed()
    engine.upsert(np.arange(4000, 4200), unit_vectors(200, seed=1))
    engine.delete(np.arange(200))
    assert not engine.settle()
    engine.delete(np.array([200]))
    assert engine.settle()
    assert engine.info().vectors == 3999
    assert not engine.settle()


@pytest.mark.usefixtures("codes")
def test_a_saved_index_finds_the_same_and_takes_changes(tmp_path: Path) -> None:
    engine, queries, path = indexed(), unit_vectors(20, seed=2), tmp_path / "town.index"
    engine.save(path, {"map": "town"})
    again = ApproximateEngine(DIM)
    assert again.load(path, {"map": "town"}).tolist() == list(range(4000))
    assert again.info() == engine.info()
    np.testing.assert_array_equal(again.search(queries, 10).ids, engine.search(queries, 10).ids)
    again.upsert(np.array([9000]), queries[:1])
    again.delete(np.array([0]))
    assert again.search(queries[:1], 1).ids.tolist() == [[9000]]
    assert again.info().vectors == 4000
    assert [p.name for p in tmp_path.iterdir()] == ["town.index"]


@pytest.mark.usefixtures("codes")
def test_an_index_of_something_else_or_damaged_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "town.index"
    engine = ApproximateEngine(DIM)
    assert engine.load(path, {}).tolist() == []
    indexed().save(path, {"map": "town"})
    assert engine.load(path, {"map": "village"}).tolist() == []
    whole = path.read_bytes()
    for damaged in (b"", whole[:40], whole[:-1], whole[: len(whole) // 2], b"x" * 100 + whole[100:]):
        path.write_bytes(damaged)
        assert engine.load(path, {"map": "town"}).tolist() == []
    assert engine.info().vectors == 0


@pytest.mark.usefixtures("codes")
def test_a_save_that_fails_leaves_the_old_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "town.index"
    engine = indexed()
    engine.save(path, {"map": "town"})
    before = path.read_bytes()
    with pytest.raises(TypeError):
        engine.save(path, {"map": object()})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["town.index"]


@pytest.mark.usefixtures("codes")
def test_odd_dimensions_work() -> None:
    engine = ApproximateEngine(33)
    vectors = unit_vectors(3000, dim=33)
    engine.upsert(np.arange(3000), vectors)
    assert engine.search(vectors[:100], 1).ids[:, 0].tolist() == list(range(100))
    assert engine.info().kind == "approximate"
