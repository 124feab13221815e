"""The parts of the benchmark of verification that compute what it reports agree with the product's."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.verify_cost import first_candidates, judge, match_batch, padded, pairs_of, read_random, write_random

from sareloc.geometry import Evidence, LocalFeatures, match_features


def drawn(rng: np.random.Generator, count: int, like: np.ndarray | None = None) -> LocalFeatures:
    steps = rng.integers(-60, 60, (count, 64)) if like is None else like[:count] + rng.integers(-9, 9, (count, 64))
    return LocalFeatures(np.zeros((count, 2), np.float32), steps.astype(np.int8), (480, 360))


def test_batches_match_as_single_photos() -> None:
    rng = np.random.default_rng(0)
    query = drawn(rng, 50)
    others = [drawn(rng, 40, query.descriptors[::-1]), drawn(rng, 30), drawn(rng, 20, query.descriptors)]
    found, nearest = match_batch(padded([query]), torch.stack([padded(others)]))
    wanted = match_features(query, others)
    assert [len(pairs) for pairs in wanted] == [40, 0, 20]
    for row, pairs in enumerate(wanted):
        np.testing.assert_array_equal(pairs_of(found[0, row], nearest[0, row]), pairs)


def test_evidence_ranks_within_the_depth_alone() -> None:
    distances = np.array([[0.5, 0.6, 0.7], [0.4, 0.6, 0.8]])
    evidence = [Evidence(np.array([8.0, 8, 90]), np.array([0.0, 0, 60])), Evidence(np.zeros(3), np.zeros(3))]
    assert first_candidates(distances, evidence).tolist() == [2, 0]
    assert first_candidates(distances[:, :2], evidence).tolist() == [0, 0]
    verified = [(np.stack([np.stack([one.inliers, one.planar])]), np.array([[1.0, 2.0]])) for one in evidence]
    right = np.array([[False, False, True], [True, False, False]])
    points = judge(distances, right, verified, [128], [2, 3])
    assert [(point.candidates, point.recall, point.ms) for point in points] == [(2, 50.0, 1.0), (3, 100.0, 2.0)]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_random_maps_are_read(tmp_path: Path) -> None:
    write_random(tmp_path / "city.gpkg", 30, 4)
    assert read_random(tmp_path / "city.gpkg")["read_20_ms"]["p50"] > 0
