"""The parts of the benchmark of verification that compute what it reports agree with the product's."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks.verify_cost import first_candidates, judge, read_random, write_random

from sareloc.geometry import Evidence


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
