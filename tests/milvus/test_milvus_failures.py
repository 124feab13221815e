"""Failures of Milvus: a server that is absent or lost in the middle, a collection of another program, two writers."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.maps.small_town import tiny_model, write_photo, write_town
from tests.milvus.relay import Relay

from sareloc.arrays import Vectors
from sareloc.cli import main
from sareloc.errors import ArgumentError, MapError, MissingExtraError
from sareloc.maps import BuildReport, MapConfig, MapPhoto, PlaceMap, build_map, open_store
from sareloc.milvus import MilvusStore
from sareloc.milvus import connection as milvus_connection
from sareloc.milvus.connection import Connection, read_milvus_address
from sareloc.models import PlaceModel, save_checkpoint

DEADLINE_S = 300.0

# the whole command is run here, as a shell would
pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked without tokens:UserWarning")


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    return tiny_model()


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("milvus_lite")
    return tmp_path_factory.mktemp("milvus") / "lite.db"


@pytest.fixture
def relay(lite: Path) -> Iterator[Relay]:
    """Milvus-lite as a server at the other end of a network that can be cut."""
    from milvus_lite.server_manager import server_manager_instance

    port = int(server_manager_instance.start_and_get_uri(str(lite)).rpartition(":")[2])
    with Relay(lambda: socket.create_connection(("127.0.0.1", port))) as relay:
        yield relay


def run(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["sareloc", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


@pytest.mark.parametrize("command", ["build", "add", "info", "verify", "copy", "localize"])
def test_a_server_that_is_not_there(
    command: str, model: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = write_town(tmp_path / "photos", 1)
    save_checkpoint(model, tmp_path / "model")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"milvus://127.0.0.1:{taken.getsockname()[1]}/city"  # closed again: nobody answers there
    knobs = ("--model", tmp_path / "model", "--device", "cpu", "--workers", "0")
    words = {
        "build": ("map", "build", photos[0], "--out", address, *knobs),
        "add": ("map", "add", address, photos[0], *knobs),
        "info": ("map", "info", address),
        "verify": ("map", "verify", address),
        "copy": ("map", "copy", address, tmp_path / "copy.gpkg"),
        "localize": ("localize", address, photos[0], *knobs),
    }
    assert run(monkeypatch, *words[command]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"sareloc: no Milvus server answers at {address.removesuffix('/city')} (")
    assert said.endswith("correct the host and the port\n")
    assert len(said.splitlines()) == 1


def cut_before(number: int, cut: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The network fails before so many batches have been added."""
    add, calls = MilvusStore.add, [0]

    def counted(self: MilvusStore, photos: list[MapPhoto], vectors: Vectors, features: list[None]) -> int:
        calls[0] += 1
        if calls[0] == number:
            cut()
        return add(self, photos, vectors, features)

    monkeypatch.setattr(MilvusStore, "add", counted)


def names(address: str) -> set[str]:
    with open_store(address) as store:
        return {Path(name).name for _, _, files in store.pages() for name in files}


def test_a_server_lost_in_the_middle_stops_the_build_which_goes_on_later(
    model: PlaceModel,
    relay: Relay,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_town(tmp_path / "photos", 10)
    save_checkpoint(model, tmp_path / "model")
    address = f"milvus://127.0.0.1:{relay.port}/lost"
    command = ("map", "build", tmp_path / "photos", "--out", address, "--model", tmp_path / "model")
    knobs = ("--device", "cpu", "--workers", "0", "--batch", "2")
    with monkeypatch.context() as patched:
        patched.setattr(milvus_connection, "PATIENCE_S", 1.0)
        cut_before(3, relay.cut, patched)
        assert run(patched, *command, *knobs) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"Milvus at milvus://127.0.0.1:{relay.port} has been unavailable for 1 s" in said
    assert "repeat the command" in said
    relay.mend()
    assert names(address) == {f"000{n}.jpg" for n in range(4)}  # what was acknowledged
    assert run(monkeypatch, *command, *knobs) == 0
    assert "added 6 photos" in capsys.readouterr().out
    assert names(address) == {f"000{n}.jpg" for n in range(10)}


def test_a_short_absence_is_waited_for(
    model: PlaceModel, relay: Relay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_town(tmp_path, 6)
    address = f"milvus://127.0.0.1:{relay.port}/short"
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 4:
            relay.mend()

    monkeypatch.setattr(milvus_connection, "sleep", wait)
    cut_before(2, relay.cut, monkeypatch)
    report = build_map(tmp_path, address, model, config=MapConfig(batch=2, keypoints=0, progress=False))
    assert (report.added, len(names(address))) == (6, 6)
    assert len(waits) >= 4
    assert waits[:4] == [0.1, 0.2, 0.4, 0.8]  # ever less often


def test_a_search_waits_too(model: PlaceModel, relay: Relay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo = write_photo(tmp_path / "a.jpg", 1)
    address = f"milvus://127.0.0.1:{relay.port}/searched"
    build_map(photo, address, model, config=MapConfig(keypoints=0, progress=False))
    city = PlaceMap(address)
    query = city.descriptors(city.sample(1, None)[0])  # type: ignore[arg-type]
    relay.cut()
    monkeypatch.setattr(milvus_connection, "sleep", lambda seconds: relay.mend())
    assert city.search(query, 1).files == ((str(photo),),)


def test_another_models_collection_is_refused(model: PlaceModel, lite: Path, tmp_path: Path) -> None:
    write_town(tmp_path, 2)
    address = f"milvus-lite:{lite}/models"
    build_map(tmp_path, address, model, config=MapConfig(keypoints=0, progress=False))
    other = tiny_model(seed=2)
    said = f"built by model {model.fingerprint()} .* this is model {other.fingerprint()}"
    with pytest.raises(MapError, match=said):
        build_map(tmp_path, address, other, config=MapConfig(keypoints=0, progress=False))
    with pytest.raises(MapError, match=said):
        PlaceMap(address).check_model(other)
    with pytest.raises(MapError, match="float16, not 64"):
        build_map(tmp_path, address, model, config=MapConfig(dim=64, keypoints=0, progress=False))
    with pytest.raises(ArgumentError, match="rows of 256 numbers"):
        PlaceMap(address).search([[1.0] * 64], 1)
    assert len(PlaceMap(address)) == 2


def test_a_collection_of_another_program_is_not_changed(model: PlaceModel, lite: Path, tmp_path: Path) -> None:
    write_town(tmp_path, 1)
    address = f"milvus-lite:{lite}/theirs"
    connection = Connection(read_milvus_address(address))
    connection.ask("create_collection", collection_name="theirs", dimension=8)
    with pytest.raises(MapError, match="not a map"):
        build_map(tmp_path, address, model, config=MapConfig(keypoints=0, progress=False))
    with pytest.raises(MapError, match="not a map"):
        PlaceMap(address)
    assert connection.ask("query", collection_name="theirs", filter="", output_fields=["count(*)"])[0]["count(*)"] == 0


def test_what_is_not_there_is_reported(lite: Path, model: PlaceModel, tmp_path: Path) -> None:
    with pytest.raises(MapError, match=r"lite.db/absent does not exist"):
        PlaceMap(f"milvus-lite:{lite}/absent")
    write_town(tmp_path, 1)
    with pytest.raises(ArgumentError, match="unknown Milvus index 'FAST': known are FLAT, HNSW"):
        build_map(
            tmp_path, f"milvus-lite:{lite}/absent?index=fast", model, config=MapConfig(keypoints=0, progress=False)
        )


def test_an_index_is_chosen_once(lite: Path, model: PlaceModel, tmp_path: Path) -> None:
    write_town(tmp_path, 1)
    address = f"milvus-lite:{lite}/indexed"
    build_map(tmp_path, f"{address}?index=HNSW", model, config=MapConfig(keypoints=0, progress=False))
    assert PlaceMap(address).index_info().kind == "Milvus HNSW"
    assert (
        build_map(tmp_path, f"{address}?index=hnsw", model, config=MapConfig(keypoints=0, progress=False)).already == 1
    )
    with pytest.raises(MapError, match=r"index HNSW.* FLAT"):
        build_map(tmp_path, f"{address}?index=FLAT", model, config=MapConfig(keypoints=0, progress=False))


class Killed(BaseException):
    """The end of a process."""


@pytest.fixture
def create_index(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], None]]]:
    """What is called, once each, when a client has created a collection and is about to create its index."""
    client = pytest.importorskip("pymilvus").MilvusClient
    original, before = client.create_index, list[Callable[[], None]]()

    def create_index(self: object, *arguments: object, **options: object) -> None:
        if before:
            before.pop()()
        original(self, *arguments, **options)

    monkeypatch.setattr(client, "create_index", create_index)
    return before


@pytest.mark.parametrize("then", ["read", "build"])
def test_a_writer_killed_while_creating_the_map(
    then: str, model: PlaceModel, lite: Path, tmp_path: Path, create_index: list[Callable[[], None]]
) -> None:
    """Whoever opens the collection next completes it, with the index that its creator wanted."""

    def kill() -> None:
        raise Killed

    write_town(tmp_path, 2)
    address = f"milvus-lite:{lite}/killed_{then}"
    create_index.append(kill)
    with pytest.raises(Killed):
        build_map(tmp_path, f"{address}?index=HNSW", model, config=MapConfig(keypoints=0, progress=False))
    if then == "read":
        assert len(PlaceMap(address)) == 0
    assert build_map(tmp_path, address, model, config=MapConfig(keypoints=0, progress=False)).added == 2
    city = PlaceMap(address)
    assert city.index_info().kind == "Milvus HNSW"
    assert city.search(city.descriptors(city.sample(2, None)[0]), 1).ids.shape == (2, 1)  # type: ignore[arg-type]


def test_an_index_that_is_refused_is_an_error(
    model: PlaceModel, lite: Path, tmp_path: Path, create_index: list[Callable[[], None]]
) -> None:
    from pymilvus import MilvusException

    def refuse() -> None:
        create_index.append(refuse)  # and the next time too
        raise MilvusException(1, "no indexes today")

    write_town(tmp_path, 1)
    create_index.append(refuse)
    with pytest.raises(MapError, match=r"refused .*: no indexes today"):
        build_map(tmp_path, f"milvus-lite:{lite}/refused", model, config=MapConfig(keypoints=0, progress=False))


def test_two_writers_at_once(
    model: PlaceModel, relay: Relay, tmp_path: Path, create_index: list[Callable[[], None]]
) -> None:
    """The second finds the collection that the first has just created, without an index: each photo is in it once."""
    write_town(tmp_path / "both", 12)
    for one in ("a", "b"):
        write_photo(tmp_path / one / f"{one}.jpg", ord(one))
    address = f"milvus://127.0.0.1:{relay.port}/two"
    created, second_done = threading.Event(), threading.Event()

    def build(own: str) -> BuildReport:
        return build_map(
            [tmp_path / own, tmp_path / "both"], address, model, config=MapConfig(batch=2, keypoints=0, progress=False)
        )

    def wait_for_second() -> None:
        created.set()
        assert second_done.wait(DEADLINE_S)

    create_index.append(wait_for_second)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(build, "a")
        try:
            assert created.wait(DEADLINE_S)
            second = build("b")
        finally:
            second_done.set()
    reports = first.result(), second
    assert [(report.added, report.already) for report in reports] == [(1, 12), (13, 0)]
    with open_store(address) as store:
        assert store.count() == 14
        assert len({one.sha256 for photos, _ in store.records() for one in photos}) == 14
    assert names(address) == {f"{n:04d}.jpg" for n in range(12)} | {"a.jpg", "b.jpg"}


@pytest.mark.slow
def test_two_processes_at_once(model: PlaceModel, tmp_path: Path) -> None:
    """Four times: which one is first at which step is theirs."""
    server_module = pytest.importorskip("milvus_lite.adapter.grpc.server")
    # one request at a time: two that open a collection at once give milvus-lite two copies of it, a server none
    server, database, port = server_module.start_server_in_thread(str(tmp_path / "lite.db"), max_workers=1)
    write_town(tmp_path / "photos", 6)
    save_checkpoint(model, tmp_path / "model")
    code = (
        "import sys; from sareloc.models import load_model; from sareloc.maps import MapConfig, build_map\n"
        f"model = load_model({str(tmp_path / 'model')!r})\n"
        "for line in sys.stdin:\n"
        f"    photos = {str(tmp_path / 'photos')!r}\n"
        "    config = MapConfig(batch=2, keypoints=0, progress=False)\n"
        "    report = build_map(photos, line.strip(), model, config=config)\n"
        "    print(report.added + report.already, flush=True)\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", code], **pipes) for _ in range(2)]  # type: ignore[call-overload]
    addresses = [f"milvus://127.0.0.1:{port}/processes_{n}" for n in range(4)]
    try:
        for address in addresses:
            for process in processes:
                process.stdin.write(f"{address}\n")
                process.stdin.flush()
            assert [process.stdout.readline() for process in processes] == ["6\n", "6\n"]
            assert names(address) == {f"{n:04d}.jpg" for n in range(6)}
        assert [process.communicate(timeout=DEADLINE_S)[1] for process in processes] == ["", ""]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        server.stop(grace=None)
        database.close()


@pytest.mark.slow
def test_milvus_lite_serves_one_process(lite: Path, relay: Relay) -> None:
    code = f"from sareloc.maps import PlaceMap; PlaceMap({f'milvus-lite:{lite}/x'!r})"
    tried = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "is another process using it? milvus-lite supports one process at a time" in tried.stderr


def test_without_pymilvus_the_pip_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(MissingExtraError, match=r'pymilvus is not installed .*: pip install "sareloc\[milvus\]"'):
        PlaceMap("milvus://127.0.0.1:1/city")


def test_without_milvus_lite_the_pip_line_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("pymilvus")
    monkeypatch.setitem(sys.modules, "milvus_lite", None)
    with pytest.raises(MissingExtraError, match=r"milvus_lite.*: pip install milvus-lite"):
        PlaceMap(f"milvus-lite:{tmp_path}/new.db/city")
