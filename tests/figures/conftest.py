"""A little town and a little model for the figures: real files, a real network, seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.figures.little_town import make_matches, make_town

from sareloc.figures import QueryMatches
from sareloc.models import PlaceModel, make_model


@pytest.fixture(scope="session")
def little_model() -> PlaceModel:
    return make_model("alexnet", "avg", size=96, name="little", rng=torch.Generator().manual_seed(1))


@pytest.fixture
def matches(tmp_path: Path) -> QueryMatches:
    return make_matches(make_town(tmp_path))
