"""Exact search: the order of a plain sort, whatever the parts, the device and the ties."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sareloc.evaluation import ranking as exact_search
from sareloc.evaluation import search


def sorted_in_loops(database: np.ndarray, queries: np.ndarray, k: int, absent: set[int]) -> list[list[int]]:
    products = queries.astype(np.float64) @ database.T.astype(np.float64)
    return [
        sorted((row for row in range(len(database)) if row not in absent), key=lambda row: (-line[row], row))[:k]
        for line in products
    ]


def unit(rng: np.random.Generator, rows: int, dim: int) -> np.ndarray:
    vectors = rng.standard_normal((rows, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def whole_numbers(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Vectors whose products are exact, and equal for many rows."""
    return rng.integers(-1, 2, (rows, 3)).astype(np.float32)


@pytest.mark.parametrize("k", [1, 4, 30, 50])
@pytest.mark.parametrize("parts", [(7, 3), (1000, 1000)], ids=["in parts", "at once"])
def test_equal_products_are_ordered_by_row(k: int, parts: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_search, "ROWS_AT_ONCE", parts[0])
    monkeypatch.setattr(exact_search, "QUERIES_AT_ONCE", parts[1])
    rng = np.random.default_rng(k)
    database, queries = whole_numbers(rng, 40), whole_numbers(rng, 8)
    rankings, distances = search(database, queries, k, absent={0, 7, 39})
    expected = sorted_in_loops(database, queries, k, {0, 7, 39})
    for ranking, distance, right in zip(rankings.tolist(), distances, expected, strict=True):
        assert ranking == right + [-1] * (k - len(right))
        assert np.isinf(distance[len(right) :]).all()


def test_minus_zero_is_zero() -> None:
    database = np.array([[-0.0], [0.0], [1.0]], dtype=np.float32)
    assert search(database, np.ones((1, 1), dtype=np.float32), 3)[0].tolist() == [[2, 0, 1]]


def test_distances_are_those_of_unit_vectors() -> None:
    rng = np.random.default_rng(0)
    database, queries = unit(rng, 50, 16), unit(rng, 5, 16)
    rankings, distances = search(database, queries, 6)
    gaps = np.linalg.norm(database[rankings] - queries[:, None], axis=2)
    np.testing.assert_allclose(distances, gaps, atol=1e-3)  # near 0 a distance is the root of a float32 difference
    assert (np.diff(distances, axis=1) >= 0).all()


def test_agrees_with_faiss() -> None:
    faiss = pytest.importorskip("faiss")
    rng = np.random.default_rng(1)
    database, queries = unit(rng, 3000, 64), unit(rng, 40, 64)
    index = faiss.IndexFlatIP(64)
    index.add(database)
    _, expected = index.search(queries, 10)
    np.testing.assert_array_equal(search(database, queries, 10)[0], expected)


def test_an_empty_index_and_no_queries() -> None:
    some, none = np.ones((2, 4), dtype=np.float32), np.ones((0, 4), dtype=np.float32)
    assert search(none, some, 3)[0].tolist() == [[-1] * 3] * 2
    assert search(some, none, 3)[0].shape == (0, 3)


@pytest.mark.gpu
def test_the_gpu_finds_the_same() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    rng = np.random.default_rng(2)
    database, queries = whole_numbers(rng, 40_000), whole_numbers(rng, 600)
    here, there = search(database, queries, 25), search(database, queries, 25, device="cuda")
    np.testing.assert_array_equal(here[0], there[0])
    np.testing.assert_array_equal(here[1], there[1])
