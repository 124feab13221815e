"""examples/draw_views.py draws the views that `sareloc data views` wrote."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.photos.panorama_files import gpano_xmp, save_panorama

from sareloc.photos import Geotag, ViewOptions, write_views

ROOT = Path(__file__).resolve().parents[1]


def test_a_figure_of_the_views(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib").use("agg")
    xmp = gpano_xmp(heading=300)
    pano = save_panorama(tmp_path / "pano.jpg", np.zeros((64, 128, 3), np.uint8), Geotag((48.0, 2.0)), xmp)
    write_views(pano, tmp_path / "views", ViewOptions((0, 90), width=32, height=24))
    given = [str(pano), str(tmp_path / "views"), str(tmp_path / "views.jpg")]
    monkeypatch.setattr("sys.argv", ["draw_views.py", *given])
    runpy.run_path(str(ROOT / "examples" / "draw_views.py"), run_name="__main__")
    assert [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()] == [
        "yaw 0°, heading 300°",
        "yaw 90°, heading 30°",
    ]
    with Image.open(tmp_path / "views.jpg") as drawn:
        assert drawn.format == "JPEG"
