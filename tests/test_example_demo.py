"""The demo runs from a bare folder to a page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[1] / "examples" / "demo.py"


@pytest.mark.slow
@pytest.mark.city
def test_the_demo_finds_places_and_writes_a_page(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, DEMO, tmp_path], capture_output=True, text=True, check=True)
    assert "of the fixes are within 25 m" in done.stdout
    assert (tmp_path / "town.gpkg").is_file()
    page = (tmp_path / "report.html").read_text()
    assert "<h2>Matched local features</h2>" in page
    assert len(re.findall(r'alt="query \d+ and match 1 ✓ \d+ m off: \d+ (?:planar )?inliers"', page)) == 3
    features = json.loads((tmp_path / "fixes.geojson").read_text())["features"]
    assert len(features) == 50
    assert sum(feature["geometry"] is not None for feature in features) >= 10
