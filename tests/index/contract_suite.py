"""What every engine must do, whatever it is made of: subclass `EngineContract` and give `make`."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import numpy.typing as npt
import pytest
from benchmarks.drawn_descriptors import Walk, draw

from sareloc.arrays import Ints, Vectors
from sareloc.errors import ArgumentError
from sareloc.index.protocol import Engine

DIM = 32
HALF = 1e-3  # engines may keep vectors at half precision


def unit_vectors(count: int, seed: int = 0, dim: int = DIM) -> Vectors:
    return draw(Walk(dim=dim), count, 1, np.random.default_rng(seed))[0]


def plain_search(
    ids: Ints, vectors: Vectors, queries: Vectors, k: int
) -> tuple[list[list[int]], npt.NDArray[np.float64]]:
    """The definition: sort all by distance, then by id."""
    found, far = [], []
    for query in queries.astype(np.float64):
        distances = np.linalg.norm(vectors - query, axis=1)
        best = sorted(zip(distances.tolist(), ids.tolist(), strict=True))[:k]
        found.append([i for _, i in best])
        far.append([d for d, _ in best])
    return found, np.array(far)


class EngineContract:
    """Each test gets an empty engine from `make`; `fill` puts `count` vectors in, in several calls."""

    count = 400
    """Enough for the engine to be what it is for."""

    @abstractmethod
    def make(self) -> Engine: ...

    def fill(self, engine: Engine) -> tuple[Ints, Vectors]:
        vectors = unit_vectors(self.count)
        ids = np.random.default_rng(1).permutation(10 * len(vectors))[: len(vectors)].astype(np.int64)
        for rows in np.array_split(np.arange(len(ids)), 3):
            engine.upsert(ids[rows], vectors[rows])
        return ids, vectors

    def test_is_an_engine(self) -> None:
        engine: Engine = self.make()  # mypy holds it against the protocol
        assert engine.info().vectors == 0
        assert engine.info().dim == DIM

    def test_search_agrees_with_the_definition(self) -> None:
        engine = self.make()
        ids, vectors = self.fill(engine)
        queries = unit_vectors(30, seed=2)
        hits = engine.search(queries, 5)
        truth, far = plain_search(ids, vectors, queries, 5)
        assert hits.ids.dtype == np.int64
        assert hits.distances.dtype == np.float32
        shared = [len(set(a) & set(b)) / 5 for a, b in zip(hits.ids.tolist(), truth, strict=True)]
        assert np.mean(shared) >= 0.98
        np.testing.assert_allclose(hits.distances[:, 0], far[:, 0], atol=HALF)
        assert (np.diff(hits.distances, axis=1) >= 0).all()

    def test_distances_are_those_of_the_vectors_found(self) -> None:
        engine = self.make()
        self.fill(engine)
        queries = unit_vectors(10, seed=3)
        hits = engine.search(queries, 4)
        vectors = engine.fetch(hits.ids.reshape(-1)).reshape(10, 4, DIM)
        np.testing.assert_allclose(hits.distances, np.linalg.norm(vectors - queries[:, None], axis=2), atol=1e-5)

    def test_a_vector_finds_itself_at_distance_zero(self) -> None:
        engine = self.make()
        ids, vectors = self.fill(engine)
        hits = engine.search(vectors[:50], 1)
        assert hits.ids[:, 0].tolist() == ids[:50].tolist()
        np.testing.assert_allclose(hits.distances, 0, atol=HALF)

    def test_one_query_may_come_flat(self) -> None:
        engine = self.make()
        ids, vectors = self.fill(engine)
        assert engine.search(vectors[7], 1).ids.tolist() == [[ids[7]]]

    def test_equal_vectors_come_in_order_of_id(self) -> None:
        engine = self.make()
        ids, vectors = self.fill(engine)
        twins = np.array([90_003, 90_001, 90_002])
        engine.upsert(twins, np.repeat(vectors[:1], 3, axis=0))
        assert engine.search(vectors[:1], 4).ids[0].tolist() == sorted([int(ids[0]), *twins.tolist()])

    @pytest.mark.parametrize("beyond", [-1, 0, 1, 5000])
    def test_k_beyond_the_vectors_gives_all_of_them(self, beyond: int) -> None:
        engine = self.make()
        ids, _ = self.fill(engine)
        k = len(ids) + beyond
        hits = engine.search(unit_vectors(2, seed=4), k)
        assert hits.ids.shape == hits.distances.shape == (2, min(k, len(ids)))
        assert all(len(set(row) - set(ids.tolist())) == 0 and len(set(row)) == len(row) for row in hits.ids.tolist())

    def test_an_empty_engine_finds_nothing(self) -> None:
        hits = self.make().search(unit_vectors(3), 5)
        assert hits.ids.shape == hits.distances.shape == (3, 0)

    def test_no_queries_no_hits(self) -> None:
        engine = self.make()
        self.fill(engine)
        assert engine.search(np.zeros((0, DIM), dtype=np.float32), 5).ids.shape[0] == 0

    def test_deleted_vectors_are_not_found_and_the_others_are(self) -> None:
        engine = self.make()
        ids, vectors = self.fill(engine)
        engine.search(vectors[:1], 1)  # an engine that puts work off has done it by now
        engine.delete(np.concatenate([ids[:100], [987_654]]))
        assert engine.info().vectors == len(ids) - 100
        for k in (10, len(ids) - 100):
            hits = engine.search(vectors[:100], k)
            assert hits.ids.shape == (100, k)
            assert not np.isin(hits.ids, ids[:100]).any()
        assert engine.search(vectors[100:], 1).ids[:, 0].tolist() == ids[100:].tolist()

    def test_a_query_whose_neighbours_were_all_deleted_finds_the_next(self) -> None:
        engine = self.make()
        ids, vectors = self.fill(engine)
        engine.search(vectors[:1], 1)
        around = np.argsort(np.linalg.norm(vectors - vectors[0], axis=1))
        engine.delete(ids[around[:200]])
        hits = engine.search(vectors[:1], 3)
        expected = np.linalg.norm(vectors[around[200:203]] - vectors[0], axis=1)
        np.testing.assert_allclose(hits.distances[0], expected, atol=HALF)

    def test_everything_may_be_deleted_and_put_back(self) -> None:
        engine = self.make()
        ids, vectors = self.fill(engine)
        engine.search(vectors[:1], 1)
        engine.delete(ids)
        assert engine.info().vectors == 0
        assert engine.search(vectors[:2], 3).ids.shape == (2, 0)
        engine.upsert(ids, vectors)
        assert engine.search(vectors, 1).ids[:, 0].tolist() == ids.tolist()

    def test_upsert_replaces(self) -> None:
        engine = self.make()
        ids, vectors = self.fill(engine)
        engine.search(vectors[:1], 1)
        fresh = unit_vectors(20, seed=5)
        engine.upsert(ids[:20], fresh)
        assert engine.info().vectors == len(ids)
        np.testing.assert_allclose(engine.fetch(ids[:20]), fresh, atol=HALF)
        assert engine.search(fresh, 1).ids[:, 0].tolist() == ids[:20].tolist()
        assert (engine.search(vectors[:20], 1).distances > HALF).all()

    @pytest.mark.parametrize("share", [0.01, 0.1, 0.9])
    def test_among_is_kept_to_exactly(self, share: float) -> None:
        engine = self.make()
        ids, vectors = self.fill(engine)
        engine.search(vectors[:1], 1)
        engine.delete(ids[:3])
        allowed = np.union1d(np.random.default_rng(6).choice(ids, int(share * len(ids)), replace=False), ids[:3])
        queries = np.concatenate([unit_vectors(5, seed=7), vectors[:3]])
        hits = engine.search(queries, 6, among=np.concatenate([allowed, [10**9]]))
        here = np.isin(ids, allowed) & ~np.isin(ids, ids[:3])
        truth, far = plain_search(ids[here], vectors[here], queries, 6)
        assert hits.ids.shape == (8, min(6, here.sum()))
        np.testing.assert_allclose(hits.distances, far, atol=HALF)
        assert [set(row) for row in hits.ids.tolist()] == [set(row) for row in truth]

    def test_among_nothing_finds_nothing(self) -> None:
        engine = self.make()
        self.fill(engine)
        assert engine.search(unit_vectors(2), 3, among=np.zeros(0, dtype=np.int64)).ids.shape == (2, 0)

    def test_fetch_keeps_the_order_asked_for(self) -> None:
        engine = self.make()
        ids, vectors = self.fill(engine)
        rows = np.array([5, self.count - 1, 0, 5])
        np.testing.assert_allclose(engine.fetch(ids[rows]), vectors[rows], atol=HALF)
        assert engine.fetch(ids[:0]).shape == (0, DIM)

    def test_fetch_of_an_unknown_id_names_it(self) -> None:
        engine = self.make()
        ids, _ = self.fill(engine)
        with pytest.raises(ArgumentError, match="no vector under id 123456789"):
            engine.fetch(np.array([ids[0], 123456789]))
        engine.delete(ids[:1])
        with pytest.raises(ArgumentError, match=f"no vector under id {ids[0]}"):
            engine.fetch(ids[:1])

    def test_iterate_gives_everything_once_in_order(self) -> None:
        engine = self.make()
        ids, vectors = self.fill(engine)
        parts = list(engine.iterate(batch=150))
        assert [len(part) for part, _ in parts] == [150] * (self.count // 150) + [self.count % 150]
        order = np.argsort(ids)
        assert np.concatenate([part for part, _ in parts]).tolist() == ids[order].tolist()
        np.testing.assert_allclose(np.concatenate([rows for _, rows in parts]), vectors[order], atol=HALF)

    def test_wrong_arguments_are_named(self) -> None:
        engine = self.make()
        ids, vectors = self.fill(engine)
        with pytest.raises(ArgumentError, match=r"rows of 32 numbers: found an array of \(3, 31\)"):
            engine.search(vectors[:3, :31], 1)
        with pytest.raises(ArgumentError, match="k must be 1 or more, found 0"):
            engine.search(vectors[:1], 0)
        with pytest.raises(ArgumentError, match="NaN or infinity"):
            engine.upsert(ids[:1], np.full((1, DIM), np.nan, dtype=np.float32))
        with pytest.raises(ArgumentError, match="2 vectors need as many ids, found 1"):
            engine.upsert(ids[:1], vectors[:2])
        with pytest.raises(ArgumentError, match="each given once"):
            engine.upsert(ids[[0, 0]], vectors[:2])
        assert engine.info().vectors == len(ids)
