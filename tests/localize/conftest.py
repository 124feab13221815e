"""A street that is mapped once for all tests; nothing may write to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.localize.street import build_street

from sareloc.maps import PlaceMap


@pytest.fixture(scope="session")
def street(tmp_path_factory: pytest.TempPathFactory) -> PlaceMap:
    return build_street(tmp_path_factory.mktemp("street"))


@pytest.fixture(scope="session")
def street_folder(street: PlaceMap) -> Path:
    return street.path.parent
