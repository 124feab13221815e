"""kill -9 at any moment: the file opens, nothing acknowledged is lost, and the same command finishes the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.maps.kill_builds import enough_photos
from tests.maps.small_town import build_map, tiny_model, write_town
from tests.maps.test_building import contents

KILLER = Path(__file__).with_name("kill_builds.py")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("kills", [4, pytest.param(12, marks=pytest.mark.slow)])
def test_a_map_built_by_processes_killed_many_times_equals_one_built_straight(tmp_path: Path, kills: int) -> None:
    count = enough_photos(kills)
    write_town(tmp_path / "photos", count)
    out = tmp_path / "killed" / "town.gpkg"
    command = [sys.executable, str(KILLER), str(tmp_path / "photos"), str(out), str(kills), "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(KILLER.parents[2]), *sys.path])}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    log = json.loads(run.stdout)
    assert len(log) == kills
    assert all(row["held"] >= row["acknowledged"] for row in log), log
    assert 0 < log[-1]["held"] < count  # some were killed at work, and some work is left
    rest = build_map(tmp_path / "photos", out, tiny_model(), batch=4)
    assert rest.added == count - log[-1]["held"]  # and no more: nothing is done twice
    build_map(tmp_path / "photos", tmp_path / "straight" / "town.gpkg", tiny_model(), batch=4)
    assert contents(out) == contents(tmp_path / "straight" / "town.gpkg")
    left = [file.name for file in out.parent.iterdir() if not file.name.startswith(".")]
    assert left == ["town.gpkg"]
