"""`sareloc data views`: what it writes and what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cyclopts import App
from PIL import Image
from tests.photos.panorama_files import gpano_xmp, save_panorama

from sareloc.cli.data import views
from sareloc.errors import ArgumentError, PhotoError
from sareloc.photos import decode


def run(*words: object) -> None:
    """The command as it is typed, by way of the parser."""
    app = App(result_action="return_value")
    app.command(views)
    app(["views", *map(str, words)], exit_on_error=False, print_error=False)


def test_views_as_in_the_documentation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pano = save_panorama(tmp_path / "pano.jpg", np.zeros((64, 128, 3), np.uint8))
    words = ["--yaw", "0", "90", "180", "-90", "--pitch", "0", "--fov", "90", "--size", "51"]
    run(pano, tmp_path / "out", *words)
    assert capsys.readouterr().out == f"4 views written to {tmp_path / 'out'}\n"
    names = [f"pano_yaw{yaw:03d}_pitch+00.jpg" for yaw in (0, 90, 180, 270)]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == names
    assert decode(tmp_path / "out" / names[0]).shape == (51, 51, 3)
    run(pano, tmp_path / "more", "--size", "64x32")
    assert len(list((tmp_path / "more").iterdir())) == 12


def test_what_a_partial_panorama_does_not_show_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tags = {"full_width": 128, "full_height": 64, "crop_width": 64, "crop_height": 64, "left": 32, "top": 0}
    pano = save_panorama(tmp_path / "pano.jpg", np.zeros((64, 64, 3), np.uint8), xmp=gpano_xmp(**tags))
    run(pano, tmp_path / "out", "--yaw", 0, 180, "--size", 32)
    assert "1 not inside the partial panorama (yaw/pitch): 180/0\n" in capsys.readouterr().out


def test_a_photo_without_tags_is_a_panorama_only_if_asked(tmp_path: Path) -> None:
    photo = tmp_path / "photo.jpg"
    Image.new("RGB", (128, 64)).save(photo)
    with pytest.raises(PhotoError, match=r"no GPano tags.*--panorama"):
        run(photo, tmp_path / "out")
    run(photo, tmp_path / "out", "--panorama", "--yaw", 0, "--size", 32)
    Image.new("RGB", (128, 96)).save(photo)
    with pytest.raises(PhotoError, match="not a 360° photo: 128 x 96 px"):
        run(photo, tmp_path / "out", "--panorama")


@pytest.mark.parametrize("size", ["big", "640x", "0", "x480"])
def test_an_invalid_size(tmp_path: Path, size: str) -> None:
    pano = save_panorama(tmp_path / "pano.jpg", np.zeros((64, 128, 3), np.uint8))
    with pytest.raises(ArgumentError, match=r"--size|sides"):
        run(pano, tmp_path / "out", "--size", size)
