"""The clock of a video and the times of photos, from Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sareloc.errors import ArgumentError
from sareloc.localize import VideoOptions, sort_by_time
from sareloc.photos.videos import Video

CLI = Path(__file__).resolve().parents[2] / "src" / "sareloc" / "cli"


def test_a_clock_is_shifted_by_its_offset_from_its_start_or_that_of_the_file() -> None:
    video = Video(Path("v.mp4"), width=64, height=48, duration_s=9.0, fps=25.0, start=1000.0, rotation_deg=0)
    assert VideoOptions().start_of(video) == 1000.0
    assert VideoOptions(clock_offset="-3.5s").start_of(video) == 996.5
    assert VideoOptions(clock_offset=2, video_start="1970-01-01T00:01:00Z").start_of(video) == 62.0
    assert VideoOptions(clock_offset="1h").start_of(replace(video, start=None)) is None


@pytest.mark.parametrize("options", [{"clock_offset": "soon"}, {"video_start": "at noon"}])
def test_a_clock_refuses_what_is_not_a_time(options: dict[str, str]) -> None:
    with pytest.raises(ArgumentError):
        VideoOptions(**options)  # type: ignore[arg-type]


def test_photos_are_sorted_by_time_if_all_have_one() -> None:
    a, b, c = Path("a"), Path("b"), Path("c")
    assert sort_by_time([a, b, c], {a: 3.0, b: 1.0, c: 1.0}) == ([b, c, a], ())
    assert sort_by_time([a, b], {a: None, b: None}) == ([a, b], ())
    files, notes = sort_by_time([a, b, c], {a: 3.0, b: None, c: 1.0})
    assert files == [a, b, c]
    assert "1 of 3 photos have no time" in notes[0]


def test_the_commands_localize_and_geotag_do_not_import_each_other() -> None:
    assert "cli.geotag" not in (CLI / "localize.py").read_text()
    assert "cli.localize" not in (CLI / "geotag.py").read_text()
