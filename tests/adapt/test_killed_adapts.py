"""kill -9 at any moment of an adaptation: the map and the model stay whole, and the same call completes the work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.adapt.walls import build_walls
from tests.localize.street import street_model

from sareloc.models.checkpoint import save_checkpoint

KILLER = Path(__file__).with_name("kill_adapts.py")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize(("kills", "seed"), [(1, 0), pytest.param(12, 1, marks=pytest.mark.slow)])
def test_a_kill_at_any_moment_leaves_map_and_model_whole_and_the_next_call_completes(
    tmp_path: Path, kills: int, seed: int
) -> None:
    build_walls(tmp_path, {}, photos=2)
    save_checkpoint(street_model(), tmp_path / "model.safetensors")
    command = [sys.executable, str(KILLER), str(tmp_path), str(kills), str(seed)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(KILLER.parents[2]), *sys.path])}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    log = json.loads(run.stdout)
    assert len(log) == kills + 1
    assert all(all(found[what] for what in ("killed", "same", "whole", "completed")) for found in log), log
