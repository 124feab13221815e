"""examples/photos_on_a_track.py writes what docs/how-to/tracks.md shows."""

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
    monkeypatch.setattr("sys.argv", ["photos_on_a_track.py", str(tmp_path)])
    runpy.run_path(str(ROOT / "examples" / "photos_on_a_track.py"), run_name="__main__")
    monkeypatch.chdir(tmp_path)
    given = ("data", "track", "photos", "--track", "ride.gpx", "--out", "photos/geotags.csv", "--replace")
    assert run(*given, "--timezone", "Europe/Zurich", "--clock-offset", "-3.2s") == 0
    assert run(*given, "--estimate-offset") == 0
    printed = capsys.readouterr().out.splitlines()
    page = (ROOT / "docs" / "how-to" / "tracks.md").read_text()
    shown = [line for block in page.split("```text\n")[1:] for line in block.partition("```")[0].splitlines()]
    assert len(shown) == 5
    assert [line for line in shown if line not in printed] == []
