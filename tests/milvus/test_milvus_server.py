"""A real Milvus server: the contracts, agreement with the embedded map, two processes, a server that is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.drawn_descriptors import Walk, draw
from benchmarks.milvus_map import finish_index
from tests.index.contract_suite import DIM, IndexContract, unit_vectors
from tests.maps.small_town import tiny_model, write_photo, write_town
from tests.maps.store_suite import StoreContract
from tests.maps.test_map_file import TINY, photo
from tests.milvus.loopback_milvus import TOKEN, LoopbackMilvus, why_not
from tests.milvus.milvus_places import check_that_fixes_agree, make_collection
from tests.milvus.relay import Relay

from sareloc.errors import MapError
from sareloc.index import Index
from sareloc.maps import (
    Circle,
    MapConfig,
    MapFile,
    MapStore,
    PlaceMap,
    build_map,
    copy_map,
    map_info,
    open_or_create_store,
    open_store,
    verify_map,
)
from sareloc.milvus import MilvusStore
from sareloc.milvus.collection import MilvusCollection
from sareloc.milvus.connection import read_milvus_address
from sareloc.models import save_checkpoint

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackMilvus]:
    if missing := why_not():
        pytest.skip(missing)
    server = LoopbackMilvus(tmp_path_factory.mktemp("server"))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def address(server: LoopbackMilvus) -> Iterator[str]:
    with Relay(server.connect) as relay, pytest.MonkeyPatch.context() as patched:
        patched.setenv("MILVUS_TOKEN", TOKEN)
        yield f"milvus://127.0.0.1:{relay.port}"


@pytest.fixture(scope="module")
def server_collection(address: str) -> MilvusCollection:
    return make_collection(read_milvus_address(f"{address}/contract"), DIM)


def test_nothing_outside_can_reach_it(server: LoopbackMilvus) -> None:
    assert os.readlink(f"/proc/{server.pid}/ns/net") != os.readlink("/proc/self/ns/net")


@pytest.mark.parametrize("token", ["", "root:wrong"])
def test_an_unknown_user_is_reported(address: str, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILVUS_TOKEN", token)
    with pytest.raises(MapError, match=r"authentication.*MILVUS_TOKEN"):
        PlaceMap(f"{address}/city")


class TestCollectionOnServer(IndexContract):
    @pytest.fixture(autouse=True)
    def _emptied(self, server_collection: MilvusCollection) -> None:
        self.collection = server_collection
        for page in list(server_collection.select()):
            server_collection.delete(np.array([row["id"] for row in page]))

    def make(self) -> Index:
        return self.collection


class TestStoreOnServer(StoreContract):
    @pytest.fixture(autouse=True)
    def _open(self, address: str) -> Iterator[None]:
        with open_or_create_store(f"{address}/town", TINY) as self.store:
            assert isinstance(self.store, MilvusStore)
            for ids, _, _ in list(self.store.pages()):
                self.store.collection.delete(ids)
            yield

    def make(self) -> MapStore:
        return self.store


@pytest.mark.parametrize("index", ["FLAT", "HNSW"])
def test_file_and_server_find_the_same(address: str, tmp_path: Path, index: str) -> None:
    """The same first match for 99 % of the queries at least, and distances alike, when the index is built."""
    dim, count = 128, 6000
    vectors, queries = draw(Walk(dim=dim), count, 500, np.random.default_rng(0))
    path = tmp_path / "city.gpkg"
    with open_or_create_store(path, replace(TINY, dim=dim)) as file:
        file.add([photo(number) for number in range(count)], vectors)
    there = f"{address}/city_{index}"
    report = copy_map(path, f"{there}?index={index}", progress=False)
    assert report.photos == count
    with open_store(there) as store:
        assert isinstance(store, MilvusStore)
        assert store.collection.index == index
        finish_index(store.collection)
    file_map, server_map = PlaceMap(path, exact=True), PlaceMap(there)
    truth, found = file_map.search(queries, 10), server_map.search(queries, 10)
    first = [Path(line[0]).name for line in truth.files]
    same = np.mean([Path(line[0]).name == name for line, name in zip(found.files, first, strict=True)])
    shared = [
        len({Path(n).name for n in a} & {Path(n).name for n in b})
        for a, b in zip(truth.files, found.files, strict=True)
    ]
    print(f"\nsame first match {same:.4f}, recall@10 {np.mean(shared) / 10:.4f}")
    assert same >= 0.99
    np.testing.assert_allclose(found.distances[:, 0], truth.distances[:, 0], atol=1e-3)
    near = Circle(photo(3000).geotag.latlon, 300)
    a, b = (one.search(queries[:50], 5, near) for one in (file_map, server_map))
    assert [[Path(n).name for n in line] for line in b.files] == [list(line) for line in a.files]
    info = map_info(there)
    assert (info.photos, info.extent) == (count, map_info(path).extent)
    assert verify_map(there) == []
    assert copy_map(there, tmp_path / "back.gpkg", progress=False).checksum == report.checksum


def test_file_and_server_give_the_same_fixes(address: str, tmp_path: Path) -> None:
    check_that_fixes_agree(tmp_path, f"{address}/street")


def test_local_features_of_the_largest_size_come_back(address: str) -> None:
    with open_or_create_store(f"{address}/largest", TINY) as store:
        assert store.most_keypoints is not None
        blobs = [np.random.default_rng(row).bytes(8 + 35 * store.most_keypoints) for row in range(3)]
        assert store.add([photo(row) for row in range(3)], unit_vectors(3), blobs) == 3
        ids = np.concatenate([ids for ids, _, _ in store.pages()])
        assert sorted(store.features(ids).values()) == sorted(blobs)


def command(out: str, *photos: Path, model: Path) -> list[str]:
    knobs = ["--device", "cpu", "--workers", "0", "--batch", "2", "--json"]
    return [
        sys.executable,
        "-m",
        "sareloc",
        "map",
        "build",
        *map(str, photos),
        "--out",
        out,
        "--model",
        str(model),
        *knobs,
    ]


def test_two_processes_write_at_once(address: str, tmp_path: Path) -> None:
    write_town(tmp_path / "both", 30)
    for one in ("a", "b"):
        write_photo(tmp_path / one / f"{one}.jpg", ord(one))
    save_checkpoint(tiny_model(), tmp_path / "model")
    both = [
        subprocess.Popen(
            command(f"{address}/two", tmp_path / own, tmp_path / "both", model=tmp_path / "model"),
            stdout=subprocess.PIPE,
        )
        for own in ("a", "b")
    ]
    reports = [json.loads(process.communicate()[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert [report["added"] + report["already"] for report in reports] == [31, 31]
    with open_store(f"{address}/two") as store:
        assert store.count() == 32
        assert len({one.sha256 for photos, _ in store.records() for one in photos}) == 32


def test_a_build_survives_the_servers_restart(
    server: LoopbackMilvus, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is killed in the middle and started again: nothing acknowledged is lost, the build waits and ends."""
    write_town(tmp_path / "photos", 20)
    add, acknowledged = MilvusStore.add, [0]

    def killed_after_ten(self: MilvusStore, photos: list, vectors: np.ndarray, features: list) -> int:  # type: ignore[type-arg]
        if acknowledged[0] == 10:
            server.kill()
            threading.Thread(target=server.start).start()
        count = add(self, photos, vectors, features)
        acknowledged[0] += count
        return count

    monkeypatch.setattr(MilvusStore, "add", killed_after_ten)
    monkeypatch.setattr("sareloc.milvus.connection.PATIENCE_S", 180.0)
    report = build_map(
        tmp_path / "photos",
        f"{address}/restarted",
        tiny_model(),
        config=MapConfig(batch=2, keypoints=0, progress=False),
    )
    assert (report.added, acknowledged[0]) == (20, 20)
    build_map(
        tmp_path / "photos", tmp_path / "straight.gpkg", tiny_model(), config=MapConfig(keypoints=0, progress=False)
    )
    with open_store(f"{address}/restarted") as store, open_store(tmp_path / "straight.gpkg") as straight:
        assert isinstance(straight, MapFile)
        held, expected = ({p.sha256 for photos, _ in one.records() for p in photos} for one in (store, straight))
        assert held == expected
