"""How torch's threads wait is settled before torch is loaded, and left to the user who has settled it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ASKING = """
import atexit, os, sys
from sareloc.cli import main
atexit.register(lambda: print("torch" in sys.modules, os.environ.get("GOMP_SPINCOUNT")))
sys.argv = ["sareloc", "--version"]
main()
"""


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "1000"), ({"OMP_WAIT_POLICY": "active"}, "None"), ({"GOMP_SPINCOUNT": "7"}, "7")],
)
def test_threads_hardly_spin_by_default(given: dict[str, str], spins: str, tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    done = subprocess.run(
        [sys.executable, "-c", ASKING], env=kept | given, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[-2:] == ["False", spins]
