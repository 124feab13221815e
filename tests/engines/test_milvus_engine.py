"""The Milvus engine on milvus-lite, held against the contract of all engines."""

from __future__ import annotations

import pytest
from tests.engines.contract_suite import DIM, EngineContract
from tests.engines.milvus_places import lite_address, make_engine

from sareloc.engines.contract import Engine
from sareloc.engines.milvus import MilvusEngine

pytest.importorskip("milvus_lite")


@pytest.fixture(scope="module")
def lite_engine(tmp_path_factory: pytest.TempPathFactory) -> MilvusEngine:
    return make_engine(lite_address(tmp_path_factory.mktemp("milvus"), "contract"), DIM)


class TestMilvusLite(EngineContract):
    @pytest.fixture(autouse=True)
    def _emptied(self, lite_engine: MilvusEngine) -> None:
        """One collection for all tests: making one takes longer than most of them."""
        self.engine = lite_engine
        for ids, _ in list(lite_engine.iterate()):
            lite_engine.delete(ids)

    def make(self) -> Engine:
        return self.engine
