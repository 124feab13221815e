"""examples/photos_on_a_track.py writes what docs/tutorials/track.md shows."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from sareloc.cli import main

ROOT = Path(__file__).resolve().parents[1]


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


def test_the_page_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["photos_on_a_track.py", "ride"])
    runpy.run_path(str(ROOT / "examples" / "photos_on_a_track.py"), run_name="__main__")
    given = (
        "data",
        "track",
        "ride/photos",
        "--track",
        "ride/ride.gpx",
        "--out",
        "ride/photos/geotags.csv",
        "--replace",
    )
    assert run(*given, "--timezone", "Europe/Zurich", "--clock-offset", "-3.2s") == 0
    assert run(*given, "--estimate-offset") == 0
    printed = capsys.readouterr().out.splitlines()
    page = (ROOT / "docs" / "tutorials" / "track.md").read_text().partition("## Build the map")[0]
    blocks = [block.partition("```")[0] for block in page.split("```console\n")[1:]]
    shown = [line for block in blocks for line in block.splitlines() if not line.startswith("$ ")]
    assert len(shown) == 7
    assert [line for line in shown if line not in printed] == []
