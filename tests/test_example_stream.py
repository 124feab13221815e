"""examples/stream_of_frames.py localizes the frames of a video, each near the last position."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from tests.localize.street import build_street, position, street_model, view
from tests.photos.video_files import write_video

from sareloc.geo import distance_m
from sareloc.models import save_checkpoint

pytest.importorskip("av")

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "stream_of_frames.py"


def test_positions_follow_the_drive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build_street(tmp_path)
    save_checkpoint(street_model(), tmp_path / "model.safetensors")
    images = [view(place, 40) for place in range(4)]
    seconds = [60_000 * place for place in range(4)]  # so far apart that none is left out
    write_video(tmp_path / "drive.mp4", seconds, images=images, codec_options={"crf": "10"})
    words = ["stream_of_frames.py", tmp_path / "street.gpkg", tmp_path / "drive.mp4"]
    monkeypatch.setattr(
        "sys.argv", [*map(str, words), "--model", str(tmp_path / "model.safetensors"), "--every-s", "60"]
    )
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    found = re.findall(r"s: (\d+\.\d+), (\d+\.\d+), confidence", printed)
    assert len(found) == 4
    for place, latlon in enumerate(found):
        assert distance_m([float(degrees) for degrees in latlon], position(place)) < 25
    assert "0 of 4 frames were left out" in printed
