"""A town of walls that is mapped once for all tests; nothing may write to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.adapt.walls import build_walls


@pytest.fixture(scope="session")
def walls_map(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The map of the town, whose geotags are right."""
    return build_walls(tmp_path_factory.mktemp("walls"), {})
