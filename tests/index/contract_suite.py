"""What every index must do, whatever it is made of: subclass `IndexContract` and give `make`."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import numpy.typing as npt
import pytest
from benchmarks.drawn_descriptors import Walk, draw

from sareloc.arrays import Ints, Vectors
from sareloc.errors import ArgumentError
from sareloc.index import Index

DIM = 32
HALF = 1e-3  # indexes may keep vectors at half precision


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


class IndexContract:
    """Each test gets an empty index from `make`; `fill` puts `count` vectors in, in several calls."""

    count = 400
    """Enough for the index to be what it is for."""

    @abstractmethod
    def make(self) -> Index: ...

    def fill(self, index: Index) -> tuple[Ints, Vectors]:
        vectors = unit_vectors(self.count)
        ids = np.random.default_rng(1).permutation(10 * len(vectors))[: len(vectors)].astype(np.int64)
        for rows in np.array_split(np.arange(len(ids)), 3):
            index.upsert(ids[rows], vectors[rows])
        return ids, vectors

    def test_is_an_index(self) -> None:
        index: Index = self.make()  # mypy holds it against the protocol
        assert index.info().vectors == 0
        assert index.info().dim == DIM

    def test_search_agrees_with_the_definition(self) -> None:
        index = self.make()
        ids, vectors = self.fill(index)
        queries = unit_vectors(30, seed=2)
        hits = index.search(queries, 5)
        truth, far = plain_search(ids, vectors, queries, 5)
        assert hits.ids.dtype == np.int64
        assert hits.distances.dtype == np.float32
        shared = [len(set(a) & set(b)) / 5 for a, b in zip(hits.ids.tolist(), truth, strict=True)]
        assert np.mean(shared) >= 0.98
        np.testing.assert_allclose(hits.distances[:, 0], far[:, 0], atol=HALF)
        assert (np.diff(hits.distances, axis=1) >= 0).all()

    def test_distances_are_those_of_the_vectors_found(self) -> None:
        index = self.make()
        self.fill(index)
        queries = unit_vectors(10, seed=3)
        hits = index.search(queries, 4)
        vectors = index.fetch(hits.ids.reshape(-1)).reshape(10, 4, DIM)
        np.testing.assert_allclose(hits.distances, np.linalg.norm(vectors - queries[:, None], axis=2), atol=1e-5)

    def test_a_vector_finds_itself_at_distance_zero(self) -> None:
        index = self.make()
        ids, vectors = self.fill(index)
        hits = index.search(vectors[:50], 1)
        assert hits.ids[:, 0].tolist() == ids[:50].tolist()
        np.testing.assert_allclose(hits.distances, 0, atol=HALF)

    def test_one_query_may_come_flat(self) -> None:
        index = self.make()
        ids, vectors = self.fill(index)
        assert index.search(vectors[7], 1).ids.tolist() == [[ids[7]]]

    def test_equal_vectors_come_in_order_of_id(self) -> None:
        index = self.make()
        ids, vectors = self.fill(index)
        twins = np.array([90_003, 90_001, 90_002])
        index.upsert(twins, np.repeat(vectors[:1], 3, axis=0))
        assert index.search(vectors[:1], 4).ids[0].tolist() == sorted([int(ids[0]), *twins.tolist()])

    @pytest.mark.parametrize("beyond", [-1, 0, 1, 5000])
    def test_k_beyond_the_vectors_gives_all_of_them(self, beyond: int) -> None:
        index = self.make()
        ids, _ = self.fill(index)
        k = len(ids) + beyond
        hits = index.search(unit_vectors(2, seed=4), k)
        assert hits.ids.shape == hits.distances.shape == (2, min(k, len(ids)))
        assert all(len(set(row) - set(ids.tolist())) == 0 and len(set(row)) == len(row) for row in hits.ids.tolist())

    def test_an_empty_index_finds_nothing(self) -> None:
        hits = self.make().search(unit_vectors(3), 5)
        assert hits.ids.shape == hits.distances.shape == (3, 0)

    def test_no_queries_no_hits(self) -> None:
        index = self.make()
        self.fill(index)
        assert index.search(np.zeros((0, DIM), dtype=np.float32), 5).ids.shape[0] == 0

    def test_deleted_vectors_are_not_found_and_the_others_are(self) -> None:
        index = self.make()
        ids, vectors = self.fill(index)
        index.search(vectors[:1], 1)  # an index that puts work off has done it by now
        index.delete(np.concatenate([ids[:100], [987_654]]))
        assert index.info().vectors == len(ids) - 100
        for k in (10, len(ids) - 100):
            hits = index.search(vectors[:100], k)
            assert hits.ids.shape == (100, k)
            assert not np.isin(hits.ids, ids[:100]).any()
        assert index.search(vectors[100:], 1).ids[:, 0].tolist() == ids[100:].tolist()

    def test_a_query_whose_neighbours_were_all_deleted_finds_the_next(self) -> None:
        index = self.make()
        ids, vectors = self.fill(index)
        index.search(vectors[:1], 1)
        around = np.argsort(np.linalg.norm(vectors - vectors[0], axis=1))
        index.delete(ids[around[:200]])
        hits = index.search(vectors[:1], 3)
        expected = np.linalg.norm(vectors[around[200:203]] - vectors[0], axis=1)
        np.testing.assert_allclose(hits.distances[0], expected, atol=HALF)

    def test_everything_may_be_deleted_and_put_back(self) -> None:
        index = self.make()
        ids, vectors = self.fill(index)
        index.search(vectors[:1], 1)
        index.delete(ids)
        assert index.info().vectors == 0
        assert index.search(vectors[:2], 3).ids.shape == (2, 0)
        index.upsert(ids, vectors)
        assert index.search(vectors, 1).ids[:, 0].tolist() == ids.tolist()

    def test_upsert_replaces(self) -> None:
        index = self.make()
        ids, vectors = self.fill(index)
        index.search(vectors[:1], 1)
        fresh = unit_vectors(20, seed=5)
        index.upsert(ids[:20], fresh)
        assert index.info().vectors == len(ids)
        np.testing.assert_allclose(index.fetch(ids[:20]), fresh, atol=HALF)
        assert index.search(fresh, 1).ids[:, 0].tolist() == ids[:20].tolist()
        assert (index.search(vectors[:20], 1).distances > HALF).all()

    @pytest.mark.parametrize("share", [0.01, 0.1, 0.9])
    def test_among_is_kept_to_exactly(self, share: float) -> None:
        index = self.make()
        ids, vectors = self.fill(index)
        index.search(vectors[:1], 1)
        index.delete(ids[:3])
        allowed = np.union1d(np.random.default_rng(6).choice(ids, int(share * len(ids)), replace=False), ids[:3])
        queries = np.concatenate([unit_vectors(5, seed=7), vectors[:3]])
        hits = index.search(queries, 6, among=np.concatenate([allowed, [10**9]]))
        here = np.isin(ids, allowed) & ~np.isin(ids, ids[:3])
        truth, far = plain_search(ids[here], vectors[here], queries, 6)
        assert hits.ids.shape == (8, min(6, here.sum()))
        np.testing.assert_allclose(hits.distances, far, atol=HALF)
        assert [set(row) for row in hits.ids.tolist()] == [set(row) for row in truth]

    def test_among_nothing_finds_nothing(self) -> None:
        index = self.make()
        self.fill(index)
        assert index.search(unit_vectors(2), 3, among=np.zeros(0, dtype=np.int64)).ids.shape == (2, 0)

    def test_fetch_keeps_the_order_asked_for(self) -> None:
        index = self.make()
        ids, vectors = self.fill(index)
        rows = np.array([5, self.count - 1, 0, 5])
        np.testing.assert_allclose(index.fetch(ids[rows]), vectors[rows], atol=HALF)
        assert index.fetch(ids[:0]).shape == (0, DIM)

    def test_fetch_of_an_unknown_id_names_it(self) -> None:
        index = self.make()
        ids, _ = self.fill(index)
        with pytest.raises(ArgumentError, match="no vector under id 123456789"):
            index.fetch(np.array([ids[0], 123456789]))
        index.delete(ids[:1])
        with pytest.raises(ArgumentError, match=f"no vector under id {ids[0]}"):
            index.fetch(ids[:1])

    def test_wrong_arguments_are_named(self) -> None:
        index = self.make()
        ids, vectors = self.fill(index)
        with pytest.raises(ArgumentError, match=r"rows of 32 numbers: found an array of \(3, 31\)"):
            index.search(vectors[:3, :31], 1)
        with pytest.raises(ArgumentError, match="k must be 1 or more, found 0"):
            index.search(vectors[:1], 0)
        with pytest.raises(ArgumentError, match="NaN or infinity"):
            index.upsert(ids[:1], np.full((1, DIM), np.nan, dtype=np.float32))
        with pytest.raises(ArgumentError, match="2 vectors need as many ids, found 1"):
            index.upsert(ids[:1], vectors[:2])
        with pytest.raises(ArgumentError, match="each given once"):
            index.upsert(ids[[0, 0]], vectors[:2])
        assert index.info().vectors == len(ids)
