"""The engines at hand, held against the contract, and the approximate one against the exact one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from benchmarks.drawn_descriptors import WHITE, Walk, draw
from tests.engines.contract_suite import DIM, EngineContract, unit_vectors

from sareloc.engines import approximate, part
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
def one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few vectors get an index, as many do."""
    monkeypatch.setattr(approximate, "EXACT_NUMBERS", 500 * DIM)


@pytest.fixture
def parts(one_part: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few vectors get an index in several parts, as very many do."""
    monkeypatch.setattr(approximate, "PART_VECTORS", 2500)


@pytest.mark.usefixtures("one_part")
class TestApproximateInOnePart(EngineContract):
    count = 3100

    def make(self) -> Engine:
        return ApproximateEngine(DIM)


@pytest.mark.usefixtures("parts")
class TestApproximateInParts(EngineContract):
    count = 4400

    def make(self) -> Engine:
        return ApproximateEngine(DIM)


def recall_at_10(found: Hits, truth: Hits) -> float:
    return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.ids, truth.ids, strict=True)]))


STREETS = Walk(dim=64)
HARDEST = replace(WHITE, dim=64)
DISTRICTS = replace(STREETS, structure_shares=(0.2, 0.2, 0.18), structure_photos=(4.0, 40.0, 1000.0))  # clusters


@pytest.mark.parametrize("index", ["one_part", "parts"])
@pytest.mark.parametrize("walk", [STREETS, HARDEST, DISTRICTS], ids=["streets", "hardest", "districts"])
def test_recall_of_the_approximate_engine_is_98_percent_of_the_exact_one(
    walk: Walk, index: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(index)
    vectors, queries = draw(walk, 8_000, 200, np.random.default_rng(0))
    exact, approximate = ExactEngine(64), ApproximateEngine(64)
    for engine in (exact, approximate):
        engine.upsert(np.arange(len(vectors)), vectors)
    assert approximate.settle()
    assert approximate.info().kind == "approximate"
    assert recall_at_10(approximate.search(queries, 10), exact.search(queries, 10)) >= 0.98


@pytest.mark.usefixtures("parts")
def test_one_query_at_a_time_finds_what_a_batch_finds() -> None:
    vectors, queries = draw(STREETS, 8000, 40, np.random.default_rng(0))
    engine = ApproximateEngine(64)
    engine.upsert(np.arange(len(vectors)), vectors)
    batch = engine.search(queries, 10)
    single = [engine.search(query, 10) for query in queries]
    assert recall_at_10(Hits(np.concatenate([hits.ids for hits in single]), batch.distances), batch) >= 0.995


def indexed(count: int = 4000) -> ApproximateEngine:
    engine = ApproximateEngine(DIM)
    engine.upsert(np.arange(count), unit_vectors(4000)[:count])
    assert engine.settle()
    assert not engine.settle()
    return engine


def sizes(engine: ApproximateEngine) -> list[int]:
    return [len(part) for part in engine._state.parts]


@pytest.mark.usefixtures("parts")
def test_vectors_that_come_fill_parts_and_full_ones_are_left_alone() -> None:
    engine = indexed(4000)
    assert sizes(engine) == [2000, 2000]
    full = engine._state.parts
    engine.upsert(np.arange(4000, 4125), unit_vectors(125, seed=1))
    assert not engine.settle()  # so few are compared exactly
    engine.upsert(np.array([4125]), unit_vectors(1, seed=2))
    assert engine.settle()
    assert sizes(engine) == [2000, 2000, 126]
    engine.upsert(np.arange(5000, 6000), unit_vectors(1000, seed=3))
    assert engine.settle()
    assert sizes(engine) == [2000, 2000, 1126]  # filled up, not added to
    assert engine._state.parts[:2] == full


@pytest.mark.usefixtures("parts")
def test_a_part_is_made_anew_after_a_tenth_has_gone_and_not_before() -> None:
    engine = indexed(4000)
    kept = engine._state.parts[1]
    engine.delete(np.arange(200))
    assert not engine.settle()
    engine.delete(np.array([200]))
    assert engine.settle()
    assert engine._state.parts[0] is kept
    assert sizes(engine) == [2000, 1799]
    engine.delete(np.arange(1900))
    assert engine.settle()
    assert (sizes(engine), len(engine._state.late.ids)) == ([2000], 100)
    assert engine.info().vectors == 2100


@pytest.mark.usefixtures("parts")
def test_saved_parts_find_the_same_and_take_changes(tmp_path: Path) -> None:
    engine, queries, folder = indexed(), unit_vectors(20, seed=2), tmp_path / "town.index"
    before = engine.search(queries, 10).ids
    engine.save(folder, {"map": "town"})
    np.testing.assert_array_equal(engine.search(queries, 10).ids, before)
    again = ApproximateEngine(DIM)
    assert again.load(folder, {"map": "town"}).tolist() == list(range(4000))
    assert again.info() == engine.info()
    np.testing.assert_array_equal(again.search(queries, 10).ids, before)
    again.upsert(np.array([9000]), queries[:1])
    again.delete(np.array([0]))
    assert again.search(queries[:1], 1).ids.tolist() == [[9000]]
    assert again.info().vectors == 4000


@pytest.mark.usefixtures("parts")
def test_a_folder_keeps_the_parts_in_use_and_nothing_else(tmp_path: Path) -> None:
    engine = indexed()
    engine.save(tmp_path, {})
    first = sorted(tmp_path.iterdir())
    (tmp_path / "half-written.new").write_text("left by a process that was killed")
    engine.delete(np.arange(2000))
    engine.settle()
    engine.save(tmp_path, {})
    assert len(first) == 2
    assert len(list(tmp_path.iterdir())) == 1
    assert set(tmp_path.iterdir()) < set(first)  # the part that stayed was not written again


@pytest.mark.usefixtures("parts")
def test_parts_of_two_processes_that_overlap_give_each_vector_once(tmp_path: Path) -> None:
    indexed(4000).save(tmp_path, {})
    others = [file.rename(tmp_path.parent / file.name) for file in tmp_path.iterdir()]
    indexed(3000).save(tmp_path, {})
    for file in others:
        file.rename(tmp_path / file.name)
    engine = ApproximateEngine(DIM)
    assert engine.load(tmp_path, {}).tolist() == list(range(4000))
    assert engine.info().vectors == 4000
    hits = engine.search(unit_vectors(4000)[::100], 5)
    assert hits.ids[:, 0].tolist() == list(range(0, 4000, 100))
    assert all(len(set(row)) == 5 for row in hits.ids.tolist())


@pytest.mark.usefixtures("one_part")
def test_parts_of_something_else_or_damaged_are_passed_over(tmp_path: Path) -> None:
    engine = ApproximateEngine(DIM)
    assert engine.load(tmp_path / "absent", {}).tolist() == []
    indexed().save(tmp_path, {"map": "town"})
    assert engine.load(tmp_path, {"map": "village"}).tolist() == []
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for damaged in (b"", whole[:40], whole[:-1], whole[: len(whole) // 2], b"x" * 100 + whole[100:]):
        path.write_bytes(damaged)
        assert engine.load(tmp_path, {"map": "town"}).tolist() == []
    assert engine.info().vectors == 0


@pytest.mark.usefixtures("one_part")
def test_a_save_that_fails_leaves_no_half_file(tmp_path: Path) -> None:
    engine = indexed()
    with pytest.raises(TypeError):
        engine.save(tmp_path, {"map": object()})
    assert list(tmp_path.iterdir()) == []
    assert engine.search(unit_vectors(4000)[:1], 1).ids.tolist() == [[0]]


@pytest.mark.usefixtures("one_part")
def test_odd_dimensions_work() -> None:
    engine = ApproximateEngine(33)
    vectors = unit_vectors(3000, dim=33)
    engine.upsert(np.arange(3000), vectors)
    assert engine.search(vectors[:100], 1).ids[:, 0].tolist() == list(range(100))
    assert engine.info().kind == "approximate"


@pytest.mark.usefixtures("one_part")
@pytest.mark.parametrize(("candidates", "codes"), [(1000, 24), (20, 48)])
def test_codes_are_as_short_as_the_vectors_allow(monkeypatch: pytest.MonkeyPatch, candidates: int, codes: int) -> None:
    monkeypatch.setattr(part, "CANDIDATES", candidates)
    engine = ApproximateEngine(96)
    engine.upsert(np.arange(4000), unit_vectors(4000, dim=96))
    assert engine.settle()
    two_codes_to_a_byte = engine._state.parts[0].index.base_index.sa_code_size()
    assert codes == 2 * two_codes_to_a_byte


@pytest.mark.usefixtures("one_part")
def test_threads_that_search_at_once_build_the_index_once() -> None:
    vectors = unit_vectors(4000)
    engine = ApproximateEngine(DIM)
    engine.upsert(np.arange(4000), vectors)
    together = threading.Barrier(4)

    def search(rows: npt.NDArray[np.int64]) -> list[int]:
        together.wait(timeout=300)
        found: list[int] = engine.search(vectors[rows], 1).ids[:, 0].tolist()
        return found

    shares = np.array_split(np.arange(4000), 4)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(search, shares))
    assert found == [share.tolist() for share in shares]
    assert (engine.info().vectors, engine.info().kind) == (4000, "approximate")
    assert [ids.tolist() for ids, _ in engine.iterate(5000)] == [list(range(4000))]
