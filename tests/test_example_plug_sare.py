"""The example that plugs SARE into a plain training loop runs, and its loss falls."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "plug_sare_into_any_loop.py"


def test_the_loss_falls(capsys):
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = [float(x) for x in re.findall(r"loss (\d\.\d+)", capsys.readouterr().out)]
    assert len(printed) == 5
    assert printed[0] > printed[1] > printed[2]
    assert printed[-1] < 0.6 * printed[0]
