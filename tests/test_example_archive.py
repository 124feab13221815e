"""examples/family_archive.py writes what docs/tutorials/sidecars.md shows."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from sareloc.cli import main

ROOT = Path(__file__).resolve().parents[1]


def test_the_page_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["family_archive.py", "trip"])
    runpy.run_path(str(ROOT / "examples" / "family_archive.py"), run_name="__main__")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["data", "check", "trip", "--sources"])
    printed = capsys.readouterr().out
    assert "positions   1 table, 3 EXIF, 2 XMP sidecar, 4 Takeout JSON, 1 none" in printed
    page = (ROOT / "docs" / "tutorials" / "sidecars.md").read_text()
    shown = page.split("$ sareloc data check trip --sources --figure sources.svg\n")[1].partition("```")[0]
    assert shown == printed
