"""What every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The real photos and ground-truth files; tests that need them skip where they are absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"the real data is not here: no folder {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    """Torch draws the same numbers in every run of a test."""
    torch.manual_seed(0)
