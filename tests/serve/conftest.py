"""A mapped street for the service's tests; what writes to it takes a copy."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.localize.street import build_street, view, write_queries, write_view
from tests.localize.town import wall, write_town
from tests.serve.running import street_client

from sareloc.serve import ServeConfig

TOKEN = "a-token-of-the-tests"
ALLOWED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="session")
def street_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: street.gpkg with photos/, queries/ of its places, elsewhere.jpg of another place."""
    folder = tmp_path_factory.mktemp("street_folder")
    build_street(folder)
    write_queries(folder / "queries")
    write_view(folder / "elsewhere.jpg", view(2, 99, town=5), None)
    return folder


@pytest.fixture
def own_folder(street_folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(street_folder, tmp_path / "street"))


@pytest.fixture(scope="session")
def client(street_folder: Path) -> Iterator[httpx.Client]:
    """Of a service that nothing is written to."""
    with street_client(street_folder / "street.gpkg", config=ServeConfig(name="Street")) as connected:
        yield connected


@pytest.fixture(scope="session")
def town_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: town.gpkg with local features and photos/, and query.jpg of place 7, 20 px aside."""
    folder = tmp_path_factory.mktemp("town_folder")
    write_town(folder, keypoints=200)
    write_view(folder / "query.jpg", wall(7, 20), None)
    return folder


@pytest.fixture(scope="session")
def town_client(town_folder: Path) -> Iterator[httpx.Client]:
    """Of a service that verifies all matches."""
    with street_client(town_folder / "town.gpkg", config=ServeConfig(verify=24, min_confidence=0)) as connected:
        yield connected


@pytest.fixture
def own_client(own_folder: Path) -> Iterator[httpx.Client]:
    """Of a service over `own_folder` that lets photos be added with the token."""
    with street_client(own_folder / "street.gpkg", config=ServeConfig(token=TOKEN)) as connected:
        yield connected
