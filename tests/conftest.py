"""What every test may use."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest
import torch

# The default run tries the same examples everywhere, so that it passes or fails for the change at hand alone;
# "make test-all" draws new ones.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("new", deadline=None, print_blob=True)
hypothesis.settings.load_profile("same")

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
