"""The help of `sareloc data views`."""

from __future__ import annotations

import pytest

from sareloc.cli import main


def test_the_photo_is_shown_like_other_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["data", "views", "--help"])
    shown = capsys.readouterr().out
    assert "PANO --pano" in shown
    assert "--PANO" not in shown
