"""The contact sheet of docs/city.png can be drawn again."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "city_contact_sheet.py"


@pytest.mark.slow
def test_the_sheet_has_twelve_views(monkeypatch):
    spec = importlib.util.spec_from_file_location("city_contact_sheet", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    monkeypatch.setattr(example, "HEIGHT", 24)
    monkeypatch.setattr(example, "WIDTH", 32)
    sheet = example.contact_sheet()
    assert sheet.size == (4 * 38 + 6, 3 * 30 + 6)
    tiles = {
        sheet.crop((6 + 38 * i, 6 + 30 * j, 38 + 38 * i, 30 + 30 * j)).tobytes() for i in range(4) for j in range(3)
    }
    assert len(tiles) == 12
