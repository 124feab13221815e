"""CONTRIBUTING.md names files, tables and commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXT = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())


def test_every_path_exists() -> None:
    paths = set(re.findall(r"`((?:\.ci|\.github|src|tests|docs|examples|benchmarks)/[^` ]*)`", TEXT))
    assert len(paths) > 20
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


def test_every_name_is_in_the_file_that_it_is_said_to_be_in() -> None:
    named = re.findall(r"`(\w+)` in `([^` ]+)`", TEXT)
    assert len(named) > 10
    assert [(name, path) for name, path in named if not re.search(rf"\b{name}\b", (ROOT / path).read_text())] == []


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([\w-]+)`", TEXT)) <= targets
