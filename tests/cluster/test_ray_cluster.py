"""Maps built on a real Ray cluster: one on this machine, one whose worker or machine is lost, one from outside."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.ray_builds import busy_model
from tests.cluster.test_cluster_building import assert_equal, records, write_trouble
from tests.maps.small_town import tiny_model, write_town
from tests.milvus.loopback_milvus import TOKEN, LoopbackMilvus, why_not
from tests.milvus.relay import Relay

from sareloc.cluster.ray import check_address, joined
from sareloc.errors import ArgumentError, MissingExtraError
from sareloc.maps import MapConfig, build_map
from sareloc.models import save_checkpoint

ROOT = Path(__file__).resolve().parents[2]
RAY = Path(sys.executable).with_name("ray")
DEADLINE_S = 120


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Ray with a secret of its own, and without telling anybody."""
    return os.environ | {
        "MILVUS_TOKEN": TOKEN,  # workers ask as themselves
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


@pytest.fixture
def temp() -> Iterator[str]:
    """A short path: Ray's sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        yield folder
    assert ray_processes(folder) == []


def ray_processes(temp: str) -> list[str]:
    """What is left of the cluster in this folder, once it has had time to end."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        listed = subprocess.run(["ps", "-eo", "pid=,args="], check=True, stdout=subprocess.PIPE, text=True).stdout
        if not (left := [line for line in listed.splitlines() if f"{temp}/session" in line]):
            break
        time.sleep(0.1)
    return left


def sareloc(*arguments: object, environment: dict[str, str], status: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sareloc", *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stderr
    return done


def build_and_lose(lose: str, folder: Path, temp: str, environment: dict[str, str]) -> Any:
    command = [sys.executable, "-m", "tests.cluster.ray_builds", folder / "photos", folder / "many.gpkg", temp, lose]
    (Path(temp) / "ray").mkdir()  # Ray notes its cluster there, and takes for granted that somebody has made it
    here = environment | {"RAY_TMPDIR": temp}
    done = subprocess.run(command, cwd=ROOT, env=here, stdout=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 0
    return json.loads(done.stdout.splitlines()[-1])  # that Ray is the child's own, which prints what it likes


@pytest.mark.slow
@pytest.mark.parametrize("lose", ["worker", "machine"])
def test_what_a_lost_worker_had_is_done_by_others(
    lose: str, tmp_path: Path, temp: str, environment: dict[str, str]
) -> None:
    write_trouble(tmp_path / "photos")
    write_town(tmp_path / "photos" / "more", 60)
    one = build_map(
        tmp_path / "photos", tmp_path / "one.gpkg", busy_model(), config=MapConfig(keypoints=0, progress=False)
    )
    many = build_and_lose(lose, tmp_path, temp, environment)
    assert len(many["lost"]) == 1
    host = socket.gethostname()
    assert any(worker != f"{host}:{many['lost'][0]}" for worker in many["workers"])
    assert (many["added"], many["duplicates"], tuple(many["untagged"])) == (one.added, one.duplicates, one.untagged)
    assert sorted(many["unreadable"]) == sorted(map(str, one.unreadable))
    assert_equal(records(tmp_path / "one.gpkg"), records(tmp_path / "many.gpkg"))


@pytest.mark.slow
def test_what_stops_a_worker_is_reported_in_one_line(tmp_path: Path, temp: str, environment: dict[str, str]) -> None:
    write_town(tmp_path / "photos", 2)
    missing, garbled = build_and_lose("errors", tmp_path, temp, environment)
    assert missing.startswith(f"a worker stopped: map {tmp_path}/none.gpkg does not exist")
    assert "JSONDecodeError" in garbled
    assert all(said.endswith("repeat the command to continue") and "\n" not in said for said in (missing, garbled))


@pytest.mark.slow
def test_a_cluster_is_started_here_for_one_command_and_ends_with_it(
    tmp_path: Path, temp: str, environment: dict[str, str]
) -> None:
    write_trouble(tmp_path / "photos")
    save_checkpoint(tiny_model(), tmp_path / "model.safetensors")
    knobs = ("--model", tmp_path / "model.safetensors", "--workers", 1, "--json")
    build = ("map", "build", f"file://{tmp_path}/photos", "--out", tmp_path / "many.gpkg", *knobs)
    told = json.loads(
        sareloc(*build, "--cluster", "ray://local", environment=environment | {"RAY_TMPDIR": temp}).stdout
    )
    assert (told["added"], told["duplicates"]) == (10, 2)
    build_map(tmp_path / "photos", tmp_path / "one.gpkg", tiny_model(), config=MapConfig(progress=False))
    assert_equal(records(tmp_path / "one.gpkg"), records(tmp_path / "many.gpkg"))


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture
def head(temp: str, environment: dict[str, str]) -> Iterator[str]:
    """The address of a cluster of two cores that runs apart from this process."""
    port, client = free_ports(2)
    knobs = {"port": port, "ray-client-server-port": client, "temp-dir": temp, "num-cpus": 2}
    knobs |= {"object-store-memory": 200 * 2**20, "include-dashboard": "false", "node-ip-address": "127.0.0.1"}
    command = [RAY, "start", "--head", "--block", *(f"--{name}={value}" for name, value in knobs.items())]
    cluster = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", client), 1).close()
                break
            except OSError:
                assert cluster.poll() is None, "Ray did not start"
                assert time.monotonic() < end, "Ray did not answer"
                time.sleep(0.1)
        yield f"ray://127.0.0.1:{client}"
    finally:
        cluster.terminate()
        cluster.wait(DEADLINE_S)


@pytest.fixture
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if missing := why_not():
        pytest.skip(missing)
    server = LoopbackMilvus(tmp_path_factory.mktemp("server"))
    server.start()
    try:
        with Relay(server.connect) as relay:
            yield f"milvus://127.0.0.1:{relay.port}/town"
    finally:
        server.stop()


@pytest.mark.slow
def test_a_cluster_elsewhere_reads_an_archive_and_its_workers_write_to_milvus(
    tmp_path: Path, head: str, milvus: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILVUS_TOKEN", TOKEN)
    write_trouble(tmp_path / "photos")
    (tmp_path / "photos" / os.fsdecode(b"caf\xe9.jpg")).unlink()  # a ZIP archive cannot hold a name that is not UTF-8
    with zipfile.ZipFile(tmp_path / "town.zip", "w") as archive:
        for path in (tmp_path / "photos").rglob("*.*"):
            archive.write(path, path.relative_to(tmp_path))
    save_checkpoint(tiny_model(), tmp_path / "model.safetensors")
    url = f"zip://photos::file://{tmp_path}/town.zip"
    knobs = ("--model", tmp_path / "model.safetensors", "--workers", 1, "--cluster", head, "--json")
    one = build_map(
        tmp_path / "photos", tmp_path / "one.gpkg", tiny_model(), config=MapConfig(keypoints=0, progress=False)
    )
    for out in (tmp_path / "many.gpkg", milvus):
        told = json.loads(sareloc("map", "build", url, "--out", out, *knobs, environment=environment).stdout)
        assert told["added"] + told["already"] + told["duplicates"] == one.added + one.duplicates
        assert told["untagged"] == [url.replace("photos", "photos/nowhere.jpg", 1)]
        assert len(told["unreadable"]) == 2
        digests = {photo.sha256 for photo, _ in records(out).values()}
        assert digests == {photo.sha256 for photo, _ in records(tmp_path / "one.gpkg").values()}
    again = json.loads(sareloc("map", "build", url, "--out", milvus, *knobs, environment=environment).stdout)
    assert (again["added"], again["already"], again["duplicates"]) == (0, one.added, one.duplicates)


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_one_line_and_leaves_no_map(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    write_town(tmp_path / "photos", 1)
    save_checkpoint(tiny_model(), tmp_path / "model.safetensors")
    build = (
        "map",
        "build",
        tmp_path / "photos",
        "--out",
        tmp_path / "town.gpkg",
        "--model",
        tmp_path / "model.safetensors",
    )
    (port,) = free_ports(1)
    done = sareloc(*build, "--cluster", f"ray://127.0.0.1:{port}", environment=environment, status=1)
    assert done.stderr.startswith(f"sareloc: no Ray cluster answers at ray://127.0.0.1:{port} (")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "town.gpkg").exists()


@pytest.mark.parametrize(
    "address", ["ray://", "ray://host", "host:10001", "ray", "http://host:1", "ray://:10001", "ray://host:99999"]
)
def test_what_is_no_address_shows_how_one_is_written(address: str) -> None:
    with pytest.raises(ArgumentError, match="not an address of a Ray cluster"):
        check_address(address)


@pytest.mark.parametrize("address", ["ray://local", "ray://auto", "ray://10.0.0.1:10001", "ray://[::1]:10001"])
def test_addresses(address: str) -> None:
    check_address(address)


def test_without_ray_the_pip_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r'pip install "sareloc\[ray\]"'), joined("ray://local", 0):
        pass


def test_ray_is_imported_by_who_uses_it() -> None:
    code = (
        "import sys, sareloc.cli.map, sareloc.maps.build, sareloc.cluster.build;"
        "assert not {'ray', 'fsspec', 'pyarrow'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
