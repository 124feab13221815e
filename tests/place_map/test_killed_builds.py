"""kill -9 at any moment: the file opens, nothing acknowledged is lost, and the same command finishes the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.place_map.small_town import tiny_model, write_town
from tests.place_map.test_building import contents

from sareloc.place_map.building import build_map

KILLER = Path(__file__).with_name("kill_builds.py")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_map_built_by_processes_killed_20_times_equals_one_built_straight(tmp_path: Path) -> None:
    write_town(tmp_path / "photos", 200)
    out = tmp_path / "killed" / "town.gpkg"
    command = [sys.executable, str(KILLER), str(tmp_path / "photos"), str(out), "20", "0"]
    environment = {**os.environ, "PYTHONPATH": str(KILLER.parents[2])}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    log = json.loads(run.stdout)
    assert len(log) == 20
    assert all(row["held"] >= row["acknowledged"] for row in log), log
    assert 0 < log[-1]["held"] < 200  # some were killed at work, and some work is left
    rest = build_map(tiny_model(), tmp_path / "photos", out, batch=4)
    assert rest.added == 200 - log[-1]["held"]  # and no more: nothing is done twice
    build_map(tiny_model(), tmp_path / "photos", tmp_path / "straight" / "town.gpkg", batch=4)
    assert contents(out) == contents(tmp_path / "straight" / "town.gpkg")
    left = [file.name for file in out.parent.iterdir() if not file.name.startswith(".")]
    assert left == ["town.gpkg"]
