"""A collection of milvus-lite, tested by the contract of all indexes."""

from __future__ import annotations

import logging.config
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.index.contract_suite import DIM, IndexContract
from tests.milvus.milvus_places import lite_address, make_collection

from sareloc.index import Index
from sareloc.milvus import connection as milvus_connection
from sareloc.milvus.collection import MilvusCollection

pytest.importorskip("milvus_lite")


@pytest.fixture(scope="module")
def lite_collection(tmp_path_factory: pytest.TempPathFactory) -> MilvusCollection:
    return make_collection(lite_address(tmp_path_factory.mktemp("milvus"), "contract"), DIM)


class TestMilvusLite(IndexContract):
    @pytest.fixture(autouse=True)
    def _emptied(self, lite_collection: MilvusCollection) -> None:
        """One collection for all tests: making one takes longer than most of them."""
        self.collection = lite_collection
        for page in list(lite_collection.select()):
            lite_collection.delete(np.array([row["id"] for row in page]))

    def make(self) -> Index:
        return self.collection


APPLICATION = """
import logging, sys
from pathlib import Path
logging.basicConfig(filename=sys.argv[1], filemode="w", level=logging.INFO)
logging.info("before")
from sareloc.milvus.connection import Connection
from tests.milvus.milvus_places import lite_address
Connection(lite_address(Path(sys.argv[1]).parent, "logs")).close()
logging.info("after")
"""


def test_an_application_goes_on_logging_to_its_file(tmp_path: Path) -> None:
    """pymilvus configures all logging when it is imported: in a process of its own, for here it may be already."""
    log = tmp_path / "application.log"
    subprocess.run([sys.executable, "-c", APPLICATION, str(log)], check=True, cwd=Path(__file__).parents[2])
    assert [line for line in log.read_text().splitlines() if line.startswith("INFO:root")] == [
        "INFO:root:before",
        "INFO:root:after",
    ]


def test_connecting_from_several_threads_leaves_logging_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    configure = logging.config.dictConfig
    monkeypatch.setattr(milvus_connection, "need", lambda module, extra: time.sleep(0.01))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: milvus_connection._need_pymilvus(), range(8)))
    assert logging.config.dictConfig is configure
