"""What the targets of the Makefile would do, by a dry run."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.milvus.loopback_milvus import NEEDED

ROOT = Path(__file__).resolve().parents[1]


def dry_run(target: str, machine: str) -> str:
    """The commands that make would run for a target in a fresh clone on a machine such as "Linux-x86_64"."""
    if shutil.which("make") is None:
        pytest.skip("make is not here")
    command = ["make", "--dry-run", "--always-make", target, f"MACHINE={machine}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_all_tests_come_with_a_milvus_server_where_it_runs() -> None:
    install = re.compile(r"^.* pip install .*--constraint constraints\.txt --no-deps milvus$", re.MULTILINE)
    commands = dry_run("test-all", "Linux-x86_64")
    assert install.search(commands)
    assert commands.index("--no-deps milvus") < commands.index("-m pytest")
    pinned = re.findall(r"^milvus==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert [NEEDED.split()[-1]] == pinned


@pytest.mark.parametrize(
    ("target", "machine"), [("test-all", "Darwin-arm64"), ("test-all", "Linux-aarch64"), ("test", "Linux-x86_64")]
)
def test_a_milvus_server_is_not_installed_elsewhere(target: str, machine: str) -> None:
    commands = dry_run(target, machine)
    assert "-m pytest" in commands
    assert "--no-deps milvus" not in commands
