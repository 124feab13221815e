"""A file and milvus-lite keep maps alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.maps.store_suite import StoreContract
from tests.maps.test_map_file import TINY

from sareloc.maps import MapStore, open_or_create_store
from sareloc.milvus import MilvusStore


class TestMapFile(StoreContract):
    @pytest.fixture(autouse=True)
    def _open(self, tmp_path: Path) -> Iterator[None]:
        with open_or_create_store(tmp_path / "town.gpkg", TINY) as self.store:
            yield

    def make(self) -> MapStore:
        return self.store


@pytest.fixture(scope="module")
def lite_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("milvus_lite")
    return tmp_path_factory.mktemp("milvus")


class TestMilvusLite(StoreContract):
    @pytest.fixture(autouse=True)
    def _open(self, lite_folder: Path) -> Iterator[None]:
        """One collection for all tests, emptied: making one takes longer than most of them."""
        with open_or_create_store(f"milvus-lite:{lite_folder}/lite.db/town", TINY) as self.store:
            assert isinstance(self.store, MilvusStore)
            for ids, _, _ in list(self.store.pages()):
                self.store.collection.delete(ids)
            yield

    def make(self) -> MapStore:
        return self.store
