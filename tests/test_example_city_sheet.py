"""The contact sheet of docs/city.png can be drawn again."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "city_contact_sheet.py"


@pytest.mark.slow
def test_the_sheet_has_four_places_at_six_visits(monkeypatch):
    spec = importlib.util.spec_from_file_location("city_contact_sheet", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    monkeypatch.setattr(example, "HEIGHT", 24)
    monkeypatch.setattr(example, "WIDTH", 32)
    sheet = example.contact_sheet()
    assert sheet.size == (6 * 36 + 4, 4 * 28 + 4)
    tiles = {
        sheet.crop((4 + 36 * i, 4 + 28 * j, 36 + 36 * i, 28 + 28 * j)).tobytes() for i in range(6) for j in range(4)
    }
    assert len(tiles) == 24
